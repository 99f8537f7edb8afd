"""Checkpoints of a running pass: the sums of finished nodes, each in one file with a checksum."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.gappy_sketch import GappySketch
from rgcss_dask.core.gaps import Gaps
from rgcss_dask.core.kinds import KINDS as MOMENTS
from rgcss_dask.core.moments import Moments, shape_of
from rgcss_dask.core.noise import Differences
from rgcss_dask.core.partial_sums import PartialSums, PartSums, Read
from rgcss_dask.core.rectangle import Rectangle
from rgcss_dask.io.files import Folder
from rgcss_dask.runtime.disk_matrices import zero_matrix

FORMAT = 2
KINDS: dict[str, type[PartSums]] = {**MOMENTS, GappySketch.KIND: GappySketch, "gaps": Gaps, "differences": Differences}
SYMMETRIC = {"moments": ("product",), "gaps": ("product", "present")}  # only the upper triangle is written


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one pass, in their own folder."""

    folder: Folder

    def has(self, name: str) -> bool:
        """Tell whether a checkpoint exists."""
        return self.folder.exists(f"{name}.part")

    def names(self) -> set[str]:
        """List the checkpoints."""
        return {name.removesuffix(".part") for name in self.folder.names() if name.endswith(".part")}

    def save(self, name: str, parts: PartialSums) -> None:
        """Write a checkpoint atomically."""
        pieces: list[memoryview] = []
        entries = [_entry(key, value, pieces) for key, value in parts.sums.items()]
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        reads = [read[:-1] for read in parts.reads]  # as earlier versions wrote and read them
        products = [read.products for read in parts.reads]
        head = {"format": FORMAT, "crc": crc, "reads": reads, "products": products, "sums": entries}
        line = json.dumps(head).encode()
        self.folder.write(f"{name}.part", f"{zlib.crc32(line):08x} ".encode() + line + b"\n", *pieces)

    def load(self, name: str) -> PartialSums | None:
        """Read a checkpoint, or return None if it does not exist."""
        file = self.folder.opened(f"{name}.part")
        if file is None:
            return None
        with file:
            return _decoded(file, f"{self.folder.address}/{name}.part")

    def drop(self, names: list[str]) -> None:
        """Remove checkpoints that a later one replaces."""
        for name in names:
            self.folder.remove(f"{name}.part")


def _entry(key: tuple[str, int], value: PartSums, pieces: list[memoryview]) -> dict[str, Any]:
    """Describe a sum, and append its arrays to the pieces."""
    kind = value.KIND if isinstance(value, Moments) else "gaps" if isinstance(value, Gaps) else "differences"
    entry: dict[str, Any] = {"key": key, "kind": kind, "n": value.n}
    if isinstance(value, Rectangle):
        entry["height"] = len(value.product)
    for field in fields(value):
        content = getattr(value, field.name)
        if not isinstance(content, np.ndarray):
            if isinstance(content, bool | int | float) or field.name == "candidates":
                entry[field.name] = content
        elif field.name in SYMMETRIC.get(kind, ()):
            pieces.extend(row[i:].data.cast("B") for i, row in enumerate(content))
        else:
            pieces.append(np.ascontiguousarray(content).data.cast("B"))
    return entry


class _Numbers:
    """The numbers of a checkpoint, read one array after another, so that no second copy is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc = 0

    def read(self, count: int) -> NDArray[np.float64]:
        """Return the next numbers; fewer if the file ends, which its checksum tells."""
        values = np.zeros(count)
        self._file.readinto(values.data.cast("B"))  # type: ignore[attr-defined]
        self.crc = zlib.crc32(values.data.cast("B"), self.crc)
        return values

    def square(self, n: int) -> NDArray[np.float64]:
        """Return the next symmetric matrix."""
        G = zero_matrix((n, n))
        for i in range(n):
            G[i, i:] = G[i:, i] = self.read(n - i)
        return G


def _decoded(file: BinaryIO, where: str) -> PartialSums:
    """Read a checkpoint; the numbers count only once their checksum was found right."""
    line = file.readline().removesuffix(b"\n")
    if line[:8] != f"{zlib.crc32(line[9:]):08x}".encode():
        raise ValueError(f"the checkpoint {where} is damaged. Remove this file and run the pass again.")
    head = json.loads(line[9:])
    if head["format"] != FORMAT:
        raise ValueError(
            f"the checkpoint {where} has format {head['format']}; this version reads {FORMAT}. Use the version "
            "that wrote it, or remove the checkpoints and run the pass again."
        )
    numbers = _Numbers(file)
    sums = {(entry["key"][0], entry["key"][1]): _sum(entry, numbers) for entry in head["sums"]}
    if numbers.crc != head["crc"] or file.read(1):
        raise ValueError(f"the checkpoint {where} is damaged. Remove this file and run the pass again.")
    products = head.get("products", [()] * len(head["reads"]))
    pairs = zip(head["reads"], products, strict=True)
    reads = tuple(Read(start, stop, crc, weights_crc, tuple(by)) for (start, stop, crc, weights_crc), by in pairs)
    return PartialSums(sums, reads)


def _sum(entry: dict[str, Any], numbers: _Numbers) -> PartSums:
    """Rebuild one sum from the next numbers."""
    kind, n = KINDS[entry["kind"]], int(entry["n"])
    height, symmetric = int(entry.get("height", n)), SYMMETRIC.get(entry["kind"], ())
    arrays = ("cross",) if kind is Gaps else getattr(kind, "ARRAYS", ())
    found: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in entry:
            found[field.name] = _plain(entry[field.name])
        elif field.name in symmetric:
            found[field.name] = numbers.square(n)
        elif field.name in arrays or field.name in ("shift", "total", "count", "squares"):
            shape = (n, n) if field.name == "cross" else shape_of(field.name, height, n)
            found[field.name] = numbers.read(math.prod(shape)).reshape(shape)
    return kind(**found)


def _plain(value: Any) -> Any:
    """Convert lists of JSON back to tuples."""
    return tuple(value) if isinstance(value, list) else value

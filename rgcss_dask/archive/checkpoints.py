"""Checkpoints of a running pass: the sums of finished nodes, each in one file with a checksum."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, fields
from typing import Any

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
        data = self.folder.read(f"{name}.part")
        return None if data is None else _decode(data, f"{self.folder.address}/{name}.part")

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


def _decode(data: bytes, where: str) -> PartialSums:
    line, _, body = data.partition(b"\n")
    if line[:8] != f"{zlib.crc32(line[9:]):08x}".encode():
        raise ValueError(f"the checkpoint {where} is damaged. Remove this file and run the pass again.")
    head = json.loads(line[9:])
    if head["format"] != FORMAT:
        raise ValueError(
            f"the checkpoint {where} has format {head['format']}; this version reads {FORMAT}. Use the version "
            "that wrote it, or remove the checkpoints and run the pass again."
        )
    if zlib.crc32(body) != head["crc"]:
        raise ValueError(f"the checkpoint {where} is damaged. Remove this file and run the pass again.")
    values = np.frombuffer(body)
    sums: dict[tuple[str, int], PartSums] = {}
    for entry in head["sums"]:
        sums[entry["key"][0], entry["key"][1]], values = _sum(entry, values)
    products = head.get("products", [()] * len(head["reads"]))
    pairs = zip(head["reads"], products, strict=True)
    reads = tuple(Read(start, stop, crc, weights_crc, tuple(by)) for (start, stop, crc, weights_crc), by in pairs)
    return PartialSums(sums, reads)


def _sum(entry: dict[str, Any], values: NDArray[np.float64]) -> tuple[PartSums, NDArray[np.float64]]:
    """Rebuild one sum from the first values, and return the remaining values."""
    kind, n = KINDS[entry["kind"]], int(entry["n"])
    height, symmetric = int(entry.get("height", n)), SYMMETRIC.get(entry["kind"], ())
    arrays = ("cross",) if kind is Gaps else getattr(kind, "ARRAYS", ())
    found: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in entry:
            found[field.name] = _plain(entry[field.name])
        elif field.name in symmetric:
            found[field.name], values = _square(values, n), values[n * (n + 1) // 2 :]
        elif field.name in arrays or field.name in ("shift", "total", "count", "squares"):
            shape = (n, n) if field.name == "cross" else shape_of(field.name, height, n)
            count = math.prod(shape)
            found[field.name], values = values[:count].reshape(shape).copy(), values[count:]
    return kind(**found), values


def _plain(value: Any) -> Any:
    """Convert lists of JSON back to tuples."""
    return tuple(value) if isinstance(value, list) else value


def _square(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    G = np.empty((n, n))
    start = 0
    for i in range(n):
        row = values[start : start + n - i]
        G[i, i:], G[i:, i] = row, row
        start += n - i
    return G

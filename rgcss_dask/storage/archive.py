"""Moments on disk: a Zarr group with checksums, a format number and a record of where they came from."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from threadpoolctl import threadpool_info
from zarr.abc.store import Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.errors import ContainsArrayError
from zarr.storage import LocalStore

from rgcss_dask.core.moments import ARRAYS, Moments
from rgcss_dask.core.precision import doubt_of_values
from rgcss_dask.sources.zarr import MissingChunkError, strict_group
from rgcss_dask.storage.claim import claimed, refuse_lost
from rgcss_dask.storage.files import Folder, is_url
from rgcss_dask.storage.marks import ATTRIBUTE, drop_checkpoints, drop_versions, refuse_foreign
from rgcss_dask.storage.remote import FreshStore, url_store
from rgcss_dask.storage.retrying import StoreError

FORMAT = 1
CHUNK_BYTES = 2**25
PACKAGES = ("rgcss-dask", "numpy", "scipy", "dask", "zarr")


@dataclass(frozen=True)
class Record:
    """Where moments came from, as far as it is known: all of it is JSON."""

    source: dict[str, Any]  # address, shape, dtype and the rows taken; empty for moments saved by hand
    options: dict[str, Any]
    fingerprint: dict[str, Any]
    spans: list[list[Any]]  # [start, stop, crc, stamp] of each span read
    history: list[str]  # what was done, when
    # Not in archives of earlier versions:
    weights: list[int] = field(default_factory=list)  # CRC-32 of the weights of each span, if there are weights
    groups: list[int] = field(default_factory=list)  # number of each group, if some were left without rows

    @classmethod
    def empty(cls, note: str) -> Record:
        """Return the record of moments whose rows are not known."""
        return cls({}, {}, {}, [], [dated(note)])


def save(moments: Moments, path: str | Path, *, storage_options: dict[str, Any] | None = None) -> None:
    """Write moments to a Zarr group at a path or fsspec URL.

    A reader finds the archive that was there before or the new one, never a mixture; the moments are
    as they were, bit for bit, when they are loaded again. A path with anything but an archive is refused.
    """
    folder = folder_of(path, storage_options)
    refuse_foreign(folder)
    with claimed(folder):
        write(folder, moments, Record.empty("saved"))


def load(path: str | Path, *, storage_options: dict[str, Any] | None = None) -> Moments:
    """Read moments from an archive; a damaged one is an error."""
    return read(folder_of(path, storage_options))[0]


def merge(
    paths: Sequence[str | Path], into: str | Path | None = None, *, storage_options: dict[str, Any] | None = None
) -> Moments:
    """Add up archives of the same columns, as if their rows had been one matrix.

    Parameters
    ----------
    paths : archives with the same columns and the same numbers of folds and groups. They are not changed.
    into : where to write the result, if anywhere.
    """
    if len(paths) == 0:
        raise ValueError("merging needs at least one archive; got an empty list.")
    folder = None if into is None else folder_of(into, storage_options)
    if folder is not None:
        refuse_foreign(folder)
    found = [read(folder_of(path, storage_options)) for path in paths]
    for path, (_, record) in zip(paths, found, strict=True):
        refuse_imputed(record, str(path), "merge")
    moments = reduce(Moments.merge, [moments for moments, _ in found])
    if folder is not None:
        with claimed(folder):
            write(folder, moments, Record.empty("merged from " + ", ".join(str(path) for path in paths)))
    return moments


def refuse_imputed(record: Record, address: str, verb: str) -> None:
    """Gaps that were filled with one mean cannot be filled with another later."""
    if record.options.get("nan") == "mean":
        raise ValueError(
            f"cannot {verb} {address}: its gaps were filled with the mean of its own rows (nan='mean'), and the "
            "mean of more rows is another. Scan all sources in one pass: scan([first, second], nan='mean')."
        )


def folder_of(path: str | Path, storage_options: dict[str, Any] | None = None) -> Folder:
    """Return the folder of an archive."""
    address = str(path)
    return Folder(address if is_url(address) else str(Path(address).expanduser().absolute()), storage_options or {})


def discard(folder: Folder) -> None:
    """Remove what an archive or an unfinished pass holds, and nothing else that lies beside."""
    refuse_foreign(folder)
    with claimed(folder):
        if "zarr.json" in folder.names():  # first, that nobody takes what is left for an archive; still the path of one
            zarr.open_group(_store(folder, read_only=False), mode="r+").attrs[ATTRIBUTE] = {}
        drop_versions(folder, None)
        drop_checkpoints(folder)


def write(folder: Folder, moments: Moments, record: Record) -> None:
    """Write a new version beside the old one, then point the group at it in one step."""
    refuse_lost(folder)
    store = _store(folder, read_only=False)
    root = zarr.open_group(store, mode="a", zarr_format=3)
    name = f"v{uuid.uuid4().hex[:12]}"
    fresh = FreshStore(_store(folder.within(name), read_only=False))
    head = _write_moments(zarr.create_group(fresh, zarr_format=3), moments)
    content: dict[str, Any] = {
        "current": name,
        "moments": head,
        "record": asdict(record),
        "versions": _versions(),
        "date": dated(""),
    }
    refuse_lost(folder)
    root.attrs[ATTRIBUTE] = {"format": FORMAT, "crc32": _crc(content), **content}
    drop_versions(folder, name)


def read(folder: Folder) -> tuple[Moments, Record]:
    """Read an archive and its record."""
    content = _required(folder)
    while True:
        try:
            group = zarr.open_group(_store(folder, read_only=True), path=content["current"], mode="r")
            return _read_moments(strict_group(group), content["moments"]), Record(**content["record"])
        except (StoreError, PermissionError):
            raise
        except Exception as error:  # whatever a codec may raise
            seen, content = content["current"], _required(folder)
            if content["current"] == seen:  # otherwise a writer has put a new version in the place of this one
                raise _broken(folder, error) from error


def _broken(folder: Folder, error: Exception) -> ValueError:
    if isinstance(error, MissingChunkError | FileNotFoundError | KeyError):
        return ValueError(f"the archive {folder.address} is incomplete: a part of it was removed.")
    return ValueError(f"the archive {folder.address} is damaged: {error}.")


def require(folder: Folder) -> Record:
    """Read the record of an archive that must be there."""
    return Record(**_required(folder)["record"])


def read_record(folder: Folder) -> Record | None:
    """Read the record of an archive, or None if there is none or it is not finished."""
    content = _look(folder)
    return None if content is None else Record(**content["record"])


def _required(folder: Folder) -> dict[str, Any]:
    content = _look(folder)
    if content is None:
        raise FileNotFoundError(
            f"there is no finished archive of moments at {folder.address}. Make one with scan(..., archive=path)."
        )
    return content


def _look(folder: Folder) -> dict[str, Any] | None:
    """Read what an archive says of itself, in one look: record and moments of the same version."""
    try:
        root = zarr.open_group(_store(folder, read_only=True), mode="r")
    except (FileNotFoundError, ContainsArrayError):
        return None
    return None if _current(root) is None else _content(root, folder)


def dated(note: str) -> str:
    """Put the date before a note."""
    return f"{datetime.now(UTC).isoformat(timespec='seconds')} {note}".rstrip()


def _store(folder: Folder, *, read_only: bool) -> Store:
    if folder.is_local:
        return LocalStore(folder.root, read_only=read_only)
    return url_store(folder.address, folder.storage_options, read_only=read_only, retry=folder.retry)


def _current(root: zarr.Group) -> str | None:
    content = root.attrs.get(ATTRIBUTE)
    return content.get("current") if isinstance(content, dict) else None


def _content(root: zarr.Group, folder: Folder) -> dict[str, Any]:
    content: dict[str, Any] = dict(root.attrs[ATTRIBUTE])  # type: ignore[arg-type]
    found, crc = content.pop("format"), content.pop("crc32")
    if found != FORMAT:
        raise ValueError(
            f"the archive {folder.address} has format {found}; this version of the package reads format {FORMAT}. "
            "Use the version that wrote it (see 'versions' in its attributes), or scan again."
        )
    if crc != _crc(content):
        raise ValueError(f"the archive {folder.address} is damaged: its attributes do not fit their checksum.")
    return content


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _write_moments(group: zarr.Group, moments: Moments) -> dict[str, Any]:
    """Write the arrays, parts in groups of their own, and return the numbers beside them."""
    for name in ARRAYS:
        values = getattr(moments, name)
        rows = max(1, CHUNK_BYTES // (8 * moments.n))
        group.create_array(
            name,
            data=values,
            chunks=(min(rows, moments.n), moments.n) if values.ndim == 2 else values.shape,
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            config={"write_empty_chunks": True},  # a chunk of zeros that is not there could not be told from a lost one
        )
    head: dict[str, Any] = {k: getattr(moments, k) for k in ("rows", "weight", "exact", "dropped")}
    head["arrays"] = list(ARRAYS)
    head["names"] = None if moments.names is None else list(moments.names)
    for kind in ("folds", "groups"):
        parts = [replace(part, names=None) for part in getattr(moments, kind)]  # once is enough
        head[kind] = [_write_moments(group.create_group(f"{kind}/{i}"), part) for i, part in enumerate(parts)]
    return head


def _read_moments(group: zarr.Group, head: dict[str, Any]) -> Moments:
    arrays = {}
    for name in head.get("arrays", ("shift", "total", "product")):
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise KeyError(name)
        arrays[name] = np.asarray(array[...])
    parts = {
        kind: tuple(_read_moments(_subgroup(group, f"{kind}/{i}"), part) for i, part in enumerate(head[kind]))
        for kind in ("folds", "groups")
    }
    if "rounding" not in arrays:  # written before there was one
        arrays["rounding"] = np.zeros_like(arrays["shift"])
        if not head["exact"]:
            arrays["rounding"] += doubt_of_values(head["weight"], arrays["shift"])
    return Moments(
        head["rows"],
        head["weight"],
        arrays["shift"],
        arrays["total"],
        arrays["product"],
        arrays["rounding"],
        head["exact"],
        head["dropped"],
        None if head["names"] is None else tuple(head["names"]),
        parts["folds"],
        parts["groups"],
    )


def _subgroup(group: zarr.Group, name: str) -> zarr.Group:
    found = group[name]
    if not isinstance(found, zarr.Group):
        raise KeyError(name)
    return found


def _versions() -> dict[str, Any]:
    blas = [
        {k: info.get(k) for k in ("internal_api", "version", "architecture")}
        for info in threadpool_info()
        if info.get("user_api") == "blas"
    ]
    return {**{name: version(name) for name in PACKAGES}, "blas": blas}

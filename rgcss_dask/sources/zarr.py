"""Rows of a Zarr array; errors name missing and damaged chunks."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.errors import GroupNotFoundError
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ZipStore

from rgcss_dask.core.pass_options import Cuts, Geometry
from rgcss_dask.core.spans import READ_BYTES
from rgcss_dask.core.words import listed
from rgcss_dask.io.files import in_order, is_url
from rgcss_dask.io.own_files import refuse_wrong
from rgcss_dask.io.retry import StoreError
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.io.zarr_store import COLUMN_NAMES, url_store
from rgcss_dask.runtime.page_pool import empty_rows
from rgcss_dask.sources.base import Reading, Source, crc32, even_cuts
from rgcss_dask.sources.chunk_checksums import unguarded
from rgcss_dask.sources.decoding_limits import bounded_array
from rgcss_dask.sources.guarded_stores import (
    MissingChunkError,
    filled_array,
    innermost,
    is_process_local,
    listing,
    rooted_array,
    strict_array,
    whole_array,
)
from rgcss_dask.sources.metadata import ANOTHER_NODE, metadata_named
from rgcss_dask.sources.row_chunks import RowChunks

LARGE_SHARD = 2**27  # bytes; the chunks of a larger shard are read separately
MOST_CUTS = 2**22  # 8 bytes each; beyond, chunks that are read together share a cut


class DamagedChunkError(ValueError):
    """A chunk of an array cannot be decoded."""


class ZarrSource(Source):
    """A Zarr array of format 2 or 3, in any store, chunked or sharded along rows and columns."""

    def __init__(self, array: zarr.Array[Any], address: str, missing: str = "raise") -> None:
        self._missing = missing
        self._store = innermost(array.store)
        self.address, self.shape, self.dtype = without_secrets(address), array.shape, np.dtype(array.dtype)  # type: ignore[assignment]
        self.names, self.unguarded = _column_names(array), unguarded(array)
        self._array = bounded_array(whole_array(filled_array(array) if missing == "fill" else strict_array(array)))
        self._chunks = RowChunks(self._array, _folder(array.store))
        self._unit = array.shards or array.chunks  # shape of a stored object
        large = math.prod(self._unit) * self.dtype.itemsize > LARGE_SHARD
        self._step = (array.chunks if large else self._unit)[:1]  # rows per read
        if 0 in self._unit and 0 not in self.shape:
            raise ValueError(f"chunks must have rows and columns; those of {self.address} have shape {self._unit}.")
        self.waits = isinstance(self._store, FsspecStore) and not is_process_local(self._store)

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take Zarr arrays; for addresses see `at`."""
        return isinstance(thing, zarr.Array)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> ZarrSource:
        """Wrap an array, or open the array at an address."""
        if isinstance(thing, zarr.Array):
            return cls(rooted_array(thing), str(thing.store_path), reading.missing)
        return cls(open_array(str(thing), reading.storage_options), str(thing), reading.missing)

    @classmethod
    def at(cls, address: str, reading: Reading) -> ZarrSource | None:
        """Open the array at an address, or return None if there is none."""
        array = find_array(address, reading.storage_options)
        return None if array is None else cls(array, address, reading.missing)

    @property
    def processes(self) -> bool:
        """Whether the store is outside this process."""
        return not is_process_local(self._store)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the array on this machine."""
        return local_paths(self._store, self._array.path)

    @property
    def array(self) -> zarr.Array[Any]:
        """The Zarr array."""
        return self._array

    @property
    def cuts(self) -> Cuts:
        """The rows where stored chunks or shards begin; with very many small chunks, only those where reads begin.

        Shards that are too large for one read are cut at their chunks.
        """
        height = max(1, self._step[0])
        together = max(1, READ_BYTES // max(1, height * self.shape[1] * self.dtype.itemsize))
        few = self.shape[0] // height <= MOST_CUTS
        return even_cuts(self.shape[0], height if few else height * together)

    @property
    def geometry(self) -> Geometry:
        """What the plan needs to know: of a folder, that one chunk after another is decoded."""
        return replace(super().geometry, beside=self._chunks.beside)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows; an error names the chunk."""
        with self._chunks_named(start, stop):
            rows = empty_rows((stop - start, self._array.shape[1]), self._array.dtype)
            self._chunks.read_into(rows, start)
            return rows

    def slab(self, start: int, stop: int) -> NDArray[Any]:
        """Read a range along the first dimension, of an array of any number of them; an error names the chunk."""
        with self._chunks_named(start, stop):
            return np.asarray(self._array[start:stop])

    @contextmanager
    def _chunks_named(self, start: int, stop: int) -> Iterator[None]:
        """Name the chunk that an error is about."""
        try:
            yield
        except MissingChunkError as error:
            raise self._missing_chunk(str(error)) from None
        except (StoreError, PermissionError) as error:
            raise type(error)(f"rows {start:,} to {stop - 1:,} of {self.address}: {error}") from error
        except Exception as error:  # any error of a codec or store
            raise self._damage(start, stop, error) from error

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Digest the sizes and times of the stored chunks, without reading them."""
        state_of = self._state_of
        if state_of is None:
            return None
        stamps = []
        for start, stop in pairwise(edges):
            digest = hashlib.blake2b(digest_size=8)
            for key in self._keys(int(start), int(stop)):
                state = state_of(key)
                if state is None and self._missing == "raise":
                    raise self._missing_chunk(key)
                digest.update(f"{state or self._array.fill_value}\n".encode())
            stamps.append(digest.hexdigest())
        return stamps

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of the chunks, or the zip file that holds all of them."""
        if isinstance(self._store, ZipStore):
            return [os.path.abspath(self._store.path)]
        root = local_paths(self._store, "")
        return [f"{root[0]}/{key}" for key in self._keys(start, stop)] if root else []

    def _keys(self, start: int, stop: int) -> Iterator[str]:
        """Yield the keys of the chunks that hold a range of rows."""
        return (self._key(*index) for index in self._indices(start, stop, self._unit[0]))

    def _indices(self, start: int, stop: int, height: int) -> Iterator[tuple[int, ...]]:
        """Yield the grid indices of the chunks of a given height that hold a range of rows."""
        across = [range(-(-size // unit)) for size, unit in zip(self.shape[1:], self._unit[1:], strict=True)]
        return product(range(start // height, -(-stop // height)), *across)

    def _key(self, *index: int) -> str:
        name = self._array.metadata.encode_chunk_key(index)
        return f"{self._array.path}/{name}" if self._array.path else name

    @property
    def _state_of(self) -> Callable[[str], str | None] | None:
        """Return a function for the state (size and time) of a stored object, or None if the store has none."""
        if isinstance(self._store, LocalStore):
            root = os.fspath(self._store.root)
            return lambda key: file_state(f"{root}/{key}")
        if isinstance(self._store, ZipStore):
            whole = file_state(self._store.path)
            return lambda key: whole
        if isinstance(self._store, MemoryStore):
            held = self._store._store_dict
            return lambda key: f"{crc32(held[key].as_numpy_array()):08x}" if key in held else None
        if isinstance(self._store, FsspecStore):
            listed = listing(self._store, self._array.path)
            return None if listed is None else listed.get
        return None

    def _missing_chunk(self, key: str) -> MissingChunkError:
        index = [int(number) for number in re.findall(r"\d+", key.removeprefix(self._array.path))]
        start = index[0] * self._unit[0] if index else 0
        stop = min(start + self._unit[0], self.shape[0])
        rows = f" (rows {start:,} to {stop - 1:,})" if index and self._key(*index) == key else ""
        return MissingChunkError(
            f"every chunk must exist; {self.address} has no chunk {key}{rows}. "
            "If empty chunks were not written, pass missing='fill'."
        )

    def _damage(self, start: int, stop: int, error: Exception) -> DamagedChunkError:
        """Return an error that names the first chunk of the range that cannot be read."""
        (height,) = self._step
        for i, *rest in self._indices(start, stop, height):
            rows = slice(i * height, min((i + 1) * height, self.shape[0]))
            across = [slice(j * unit, (j + 1) * unit) for j, unit in zip(rest, self._unit[1:], strict=True)]
            try:
                self._array[(rows, *across)]
            except Exception as cause:  # as above
                key = self._key(rows.start // self._unit[0], *rest)
                return DamagedChunkError(
                    f"{self.address}: chunk {key} (rows {rows.start:,} to {rows.stop - 1:,}) "
                    f"cannot be read: {type(cause).__name__}: {cause}. Restore the chunk from the original data."
                )
        return DamagedChunkError(
            f"{self.address}: rows {start:,} to {stop - 1:,} could not be read at first, but could be read again: "
            f"{type(error).__name__}: {error}. The store or the connection is unstable; run the pass again."
        )


def open_array(address: str, storage_options: dict[str, Any] | None = None) -> zarr.Array[Any]:
    """Open a Zarr array at a path or URL for reading, also within a group or a zip file."""
    array = find_array(address, storage_options or {})
    if array is None:
        raise no_array(address, storage_options or {})
    return array


def find_array(address: str, storage_options: dict[str, Any]) -> zarr.Array[Any] | None:
    """Open a Zarr array for reading, or return None if there is a group or nothing at the address."""
    store, path = open_store(address, storage_options)
    with suppress(FileNotFoundError, *ANOTHER_NODE), metadata_named(address, told=ANOTHER_NODE):
        return zarr.open_array(store, path=path, mode="r")
    return None


def no_array(address: str, storage_options: dict[str, Any]) -> ValueError | FileNotFoundError:
    """Return an error that says what exists at the address instead of a Zarr array."""
    refuse_wrong(address, "rows")
    store, path = open_store(address, storage_options)
    try:
        with metadata_named(address, told=(GroupNotFoundError,)):
            return ValueError(_list_arrays(address, store, path))
    except (FileNotFoundError, GroupNotFoundError):
        return FileNotFoundError(f"there is no Zarr array at {without_secrets(address)}{_instead(address)}.")


def _instead(address: str) -> str:
    """Describe what exists at a path: a file, or a folder with the archives in it."""
    path = Path(address).expanduser()
    if is_url(address) or not path.exists():
        return ""
    if path.is_file():
        return ": it is a file of another format"
    inside = listed(in_order(one.name for one in path.glob("*.zarr")))
    return f": it is a folder that contains {inside}" if inside else ": it is a folder without Zarr arrays"


def open_store(address: str, storage_options: dict[str, Any]) -> tuple[Store, str]:
    """Return the store at a path or URL, and the path within it, for reading."""
    if is_url(address):
        return url_store(address, storage_options, read_only=True), ""
    parts = Path(address).expanduser().parts
    for i, part in enumerate(parts):
        archive = Path(*parts[: i + 1])
        if part.endswith(".zip") and archive.is_file():
            return ZipStore(archive.absolute(), mode="r"), "/".join(parts[i + 1 :])
    path = Path(*parts) if parts else Path()
    if not path.exists():
        raise FileNotFoundError(f"there is no Zarr array at {address}: no such path.")
    return LocalStore(path.absolute(), read_only=True), ""  # workers may run in another folder


def _list_arrays(address: str, store: Store, path: str) -> str:
    group = zarr.open_group(store, path=path, mode="r")
    arrays = [(name, node.shape) for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]
    address = without_secrets(address)
    listed = ", ".join(f"{address}/{name} {shape}" for name, shape in arrays) or "none"
    return f"{address} is a Zarr group; an array is needed. Arrays in the group: {listed}."


def local_paths(store: Store, inside: str) -> tuple[str, ...]:
    """Return the path of a store on this machine, which other machines may not have; empty if it has none."""
    store = innermost(store)
    if isinstance(store, ZipStore):
        return (os.path.abspath(store.path),)
    if isinstance(store, LocalStore):
        return (os.path.abspath(store.root / inside),)
    if isinstance(store, FsspecStore) and "file" in str(store.fs.protocol):
        return (os.path.abspath(f"{store.path}/{inside}"),)
    return ()


def _folder(store: Store) -> str | None:
    """Return the folder of a plain local store; None for a wrapped store, which may change what is read."""
    return os.fspath(store.root) if type(store) is LocalStore else None


def file_state(path: str | Path) -> str | None:
    """Return size and time of a file, or None if it does not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return f"{status.st_size}@{status.st_mtime_ns}"


def _column_names(array: zarr.Array[Any]) -> tuple[str, ...] | None:
    names = array.attrs.get(COLUMN_NAMES)
    if not isinstance(names, list) or len(array.shape) != 2 or len(names) != array.shape[1]:
        return None
    return tuple(str(name) for name in names)

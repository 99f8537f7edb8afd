"""Rows of a Zarr array, with every chunk that is missing or damaged found and named."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.errors import GroupNotFoundError
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore, ZipStore

from rgcss_dask.core.plan import READ_BYTES, Cuts
from rgcss_dask.io.files import filesystem, is_url
from rgcss_dask.io.retry import Retry, StoreError
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.io.zarr_store import COLUMN_NAMES, METADATA, fsspec_store, named, url_store
from rgcss_dask.runtime.page_pool import empty_rows
from rgcss_dask.sources.base import Reading, Source, crc32, even_cuts
from rgcss_dask.sources.chunk_checksums import unguarded
from rgcss_dask.sources.decoding_limits import bounded_array, check_blosc, check_stored, largest_chunk
from rgcss_dask.sources.metadata import ANOTHER_NODE, metadata_named
from rgcss_dask.sources.row_chunks import RowChunks, ends_in_blosc

MOST_CUTS = 2**22  # 8 bytes each; beyond, neighbours that would be read together anyway count as one


class MissingChunkError(ValueError):
    """A chunk of an array is not in its store."""


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
        self._unit = array.shards or array.chunks  # rows, columns, ... of what is stored as one object
        if 0 in self._unit and 0 not in self.shape:
            raise ValueError(f"chunks must have rows and columns; those of {self.address} have shape {self._unit}.")
        self.waits = isinstance(self._store, FsspecStore) and not is_process_local(self._store)

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Zarr arrays; for addresses see `at`."""
        return isinstance(thing, zarr.Array)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> ZarrSource:
        """Wrap an array, or open one that must be at an address."""
        if isinstance(thing, zarr.Array):
            return cls(_rooted_array(thing), str(thing.store_path), reading.missing)
        return cls(open_array(str(thing), reading.storage_options), str(thing), reading.missing)

    @classmethod
    def at(cls, address: str, reading: Reading) -> ZarrSource | None:
        """Open an array, if there is one."""
        array = find_array(address, reading.storage_options)
        return None if array is None else cls(array, address, reading.missing)

    @property
    def processes(self) -> bool:
        """Whether the store is outside this process."""
        return not is_process_local(self._store)

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the array is on this machine."""
        return local_paths(self._store, self._array.path)

    @property
    def array(self) -> zarr.Array[Any]:
        """The array, with its attributes."""
        return self._array

    @property
    def cuts(self) -> Cuts:
        """Where stored chunks, or shards, begin; of very many small ones only some, where reads may begin anyway."""
        height = max(1, self._unit[0])
        together = max(1, READ_BYTES // max(1, height * self.shape[1] * self.dtype.itemsize))
        few = self.shape[0] // height <= MOST_CUTS
        return even_cuts(self.shape[0], height if few else height * together)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows; an error names the chunk."""
        try:
            rows = empty_rows((stop - start, self._array.shape[1]), self._array.dtype)
            self._chunks.read_into(rows, start)
            return rows
        except MissingChunkError as error:
            raise self._missing_chunk(str(error)) from None
        except (StoreError, PermissionError) as error:
            raise type(error)(f"rows {start:,} to {stop - 1:,} of {self.address}: {error}") from error
        except Exception as error:  # whatever a codec or a store may raise
            raise self._damage(start, stop, error) from error

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Digest the sizes and times of the stored chunks; nothing is read."""
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
        """Name the files of the chunks, or the one that holds them all."""
        if isinstance(self._store, ZipStore):
            return [os.path.abspath(self._store.path)]
        root = local_paths(self._store, "")
        return [f"{root[0]}/{key}" for key in self._keys(start, stop)] if root else []

    def _keys(self, start: int, stop: int) -> Iterator[str]:
        """Name the chunks that hold a range of rows."""
        across = [range(-(-size // unit)) for size, unit in zip(self.shape[1:], self._unit[1:], strict=True)]
        for index in product(range(start // self._unit[0], -(-stop // self._unit[0])), *across):
            yield self._key(*index)

    def _key(self, *index: int) -> str:
        name = self._array.metadata.encode_chunk_key(index)
        return f"{self._array.path}/{name}" if self._array.path else name

    @property
    def _state_of(self) -> Callable[[str], str | None] | None:
        """Return what tells the state of a stored object, mostly size and time, or None where the store cannot."""
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
            listing = _listing(self._store, self._array.path)
            return None if listing is None else listing.get
        return None

    def _missing_chunk(self, key: str) -> MissingChunkError:
        index = [int(number) for number in re.findall(r"\d+", key.removeprefix(self._array.path))]
        start = index[0] * self._unit[0] if index else 0
        stop = min(start + self._unit[0], self.shape[0])
        rows = f" (rows {start:,} to {stop - 1:,})" if index and self._key(*index) == key else ""
        return MissingChunkError(
            f"every chunk must be there; {self.address} has no chunk {key}{rows}. "
            "If it was left out because it is empty, pass missing='fill'."
        )

    def _damage(self, start: int, stop: int, error: Exception) -> DamagedChunkError:
        """Find the first chunk in the range that cannot be read alone."""
        height, width = self._unit
        for i in range(start // height, -(-stop // height)):
            for j in range(-(-self.shape[1] // width)):
                rows = slice(i * height, min((i + 1) * height, self.shape[0]))
                try:
                    self._array[rows, j * width : (j + 1) * width]
                except Exception as cause:  # the same kind as above
                    return DamagedChunkError(
                        f"{self.address}: chunk {self._key(i, j)} (rows {rows.start:,} to {rows.stop - 1:,}) "
                        f"cannot be read: {type(cause).__name__}: {cause}. Write it again from its origin."
                    )
        return DamagedChunkError(
            f"{self.address}: rows {start:,} to {stop - 1:,} could not be read once, and could be read again: "
            f"{type(error).__name__}: {error}. The store or the way to it is not steady; run the pass again."
        )


class _StrictStore(WrapperStore[Store]):
    """A store in which a chunk that is not there is an error, not the fill value."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and key.rsplit("/", 1)[-1] not in METADATA:
            raise MissingChunkError(key)
        return value


class _WholeStore(WrapperStore[Store]):
    """A store in which a chunk has the length it should have.

    A file that is far too long is an error before it is read. So is a chunk of Blosc that was cut off: its decoder goes
    on in whatever memory comes after it.
    """

    def __init__(self, store: Store, decoded: int, blosc: bool) -> None:
        super().__init__(store)
        self._decoded, self._blosc = decoded, blosc

    def _with_store(self, store: Store) -> _WholeStore:
        return _WholeStore(store, self._decoded, self._blosc)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if byte_range is not None or key.rsplit("/", 1)[-1] in METADATA:
            return await super().get(key, prototype, byte_range)
        inner = innermost(self._store)
        if isinstance(inner, LocalStore) and (inner.root / key).is_file():
            check_stored((inner.root / key).stat().st_size, self._decoded)
        value = await super().get(key, prototype)
        if value is not None and self._blosc:
            check_blosc(value.as_numpy_array())
        return value


class _FilledStore(WrapperStore[Store]):
    """A store in which a chunk may be absent, but not be listed and then not be found: that is a store that fails."""

    def __init__(self, store: Store, path: str) -> None:
        super().__init__(store)
        self._path, self._once = path, threading.Lock()
        self._listed: dict[str, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _FilledStore, (self._store, self._path)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and key.rsplit("/", 1)[-1] not in METADATA and key in await asyncio.to_thread(self._keys):
            raise StoreError(
                f"the store lists {key} of {self._path or self._store} and then says that it is not there. "
                "Make the same call again when the store is well."
            )
        return value

    def _keys(self) -> dict[str, str]:
        """List the chunks when one is first not found; an archive that has them all is not listed."""
        with self._once:
            store = fsspec_store(self._store)
            if self._listed is None:
                self._listed = (None if store is None else _listing(store, self._path)) or {}
            return self._listed


def open_array(address: str, storage_options: dict[str, Any] | None = None) -> zarr.Array[Any]:
    """Open a Zarr array for reading at a path or URL, also within a group or a zip file."""
    array = find_array(address, storage_options or {})
    if array is None:
        raise no_array(address, storage_options or {})
    return array


def find_array(address: str, storage_options: dict[str, Any]) -> zarr.Array[Any] | None:
    """Open a Zarr array for reading, or return None if there is a group, or nothing, in its place."""
    store, path = open_store(address, storage_options)
    try:
        with metadata_named(address, told=ANOTHER_NODE):
            return zarr.open_array(store, path=path, mode="r")
    except ANOTHER_NODE:
        return None
    except FileNotFoundError:
        return None


def no_array(address: str, storage_options: dict[str, Any]) -> ValueError | FileNotFoundError:
    """Return the error that says what there is in the place of a Zarr array."""
    store, path = open_store(address, storage_options)
    try:
        with metadata_named(address, told=(GroupNotFoundError,)):
            return ValueError(_list_arrays(address, store, path))
    except (FileNotFoundError, GroupNotFoundError):
        return FileNotFoundError(f"there is no Zarr array at {without_secrets(address)}.")


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
    return LocalStore(path.absolute(), read_only=True), ""  # workers may have started in another folder


def _list_arrays(address: str, store: Store, path: str) -> str:
    group = zarr.open_group(store, path=path, mode="r")
    arrays = [(name, node.shape) for name, node in group.members(max_depth=None) if isinstance(node, zarr.Array)]
    address = without_secrets(address)
    listed = ", ".join(f"{address}/{name} {shape}" for name, shape in arrays) or "none"
    return f"{address} is a Zarr group, and an array is needed. Arrays in it: {listed}."


def strict_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return the array such that reading a missing chunk is a `MissingChunkError`."""
    store, zarr_format = _StrictStore(named(array.store)), array.metadata.zarr_format
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=zarr_format)


def filled_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return the array such that a missing chunk is the fill value only if the store does not list it."""
    store = fsspec_store(array.store)
    if store is None or is_process_local(store):
        return array
    inner = _FilledStore(named(array.store), array.path)
    return zarr.open_array(inner, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def whole_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return the array such that a chunk too long or cut off is an error also where its codec does not see it."""
    blosc = ends_in_blosc(array)
    if not blosc and not isinstance(innermost(array.store), LocalStore):
        return array
    store = _WholeStore(array.store, largest_chunk(array), blosc)
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def strict_group(group: zarr.Group) -> zarr.Group:
    """Return the group such that reading a missing chunk in it is a `MissingChunkError`."""
    store, zarr_format = _StrictStore(named(group.store)), group.metadata.zarr_format
    return zarr.open_group(store, path=group.path, mode="r", zarr_format=zarr_format)


def local_paths(store: Store, inside: str) -> tuple[str, ...]:
    """Return where a store is in the file system of this machine, which other machines may not have."""
    store = innermost(store)
    if isinstance(store, ZipStore):
        return (os.path.abspath(store.path),)
    if isinstance(store, LocalStore):
        return (os.path.abspath(store.root / inside),)
    if isinstance(store, FsspecStore) and "file" in str(store.fs.protocol):
        return (os.path.abspath(f"{store.path}/{inside}"),)
    return ()


def _folder(store: Store) -> str | None:
    """Return the folder of a store that is nothing more; what is wrapped around it may change what is read."""
    return os.fspath(store.root) if type(store) is LocalStore else None


def innermost(store: Store) -> Store:
    """Return the store within what is wrapped around it."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def rooted(store: Store) -> Store:
    """Return the store with its whole path: workers may have started in another folder."""
    if not isinstance(store, LocalStore) or store.root.is_absolute():
        return store
    return LocalStore(store.root.absolute(), read_only=True)


def _rooted_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    store = rooted(array.store)
    if store is array.store:
        return array
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def is_process_local(store: Store) -> bool:
    """Tell whether what is in a store is in the memory of this process alone."""
    return isinstance(store, MemoryStore) or (isinstance(store, FsspecStore) and "memory" in str(store.fs.protocol))


def file_state(path: str | Path) -> str | None:
    """Return size and time of a file, or None if it is not there."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return f"{status.st_size}@{status.st_mtime_ns}"


def _listing(store: FsspecStore, path: str) -> dict[str, str] | None:
    """Return size and time of every object of the array, from one listing."""
    if "http" in str(store.fs.protocol):
        return None  # a web server has no listing to rely on
    options = {k: v for k, v in store.fs.storage_options.items() if k != "asynchronous"}
    fs, root = filesystem(store.fs.unstrip_protocol(store.path), options)
    fs.invalidate_cache()
    where = f"{root}/{path}" if path else root
    found = Retry.configured()("listed", fs.unstrip_protocol(where), lambda: fs.find(where, detail=True))
    times = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created", "last_modified")
    return {
        name.removeprefix(f"{root.rstrip('/')}/"): f"{info.get('size')}@{[info.get(t) for t in times]}"
        for name, info in found.items()
    }


def _column_names(array: zarr.Array[Any]) -> tuple[str, ...] | None:
    names = array.attrs.get(COLUMN_NAMES)
    if not isinstance(names, list) or len(array.shape) != 2 or len(names) != array.shape[1]:
        return None
    return tuple(str(name) for name in names)

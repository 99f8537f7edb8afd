"""Stores that check what is read: chunks must exist, and must have a plausible length."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

from rgcss_dask.io.files import filesystem
from rgcss_dask.io.retry import Retry, StoreError
from rgcss_dask.io.zarr_store import METADATA, fsspec_store, named
from rgcss_dask.sources.decoding_limits import check_blosc, check_stored, largest_chunk
from rgcss_dask.sources.row_chunks import ends_in_blosc


class MissingChunkError(ValueError):
    """A chunk of an array is not in its store."""


class _StrictStore(WrapperStore[Store]):
    """A store in which a missing chunk is an error, not the fill value."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and key.rsplit("/", 1)[-1] not in METADATA:
            raise MissingChunkError(key)
        return value


class _WholeStore(WrapperStore[Store]):
    """A store that checks the length of chunks.

    A file that is far too long is an error before it is read. So is a truncated chunk of Blosc, whose decoder would
    read past its end.
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
    """A store in which chunks may be absent, but a chunk that is listed and cannot be read is an error."""

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
                f"every chunk that the store lists must be readable; it lists {key} of {self._path or self._store} and "
                "then answers that the chunk does not exist. Make the same call again when the store is well."
            )
        return value

    def _keys(self) -> dict[str, str]:
        """List the chunks, once, when the first chunk is not found."""
        with self._once:
            store = fsspec_store(self._store)
            if self._listed is None:
                self._listed = (None if store is None else listing(store, self._path)) or {}
            return self._listed


def strict_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array for which reading a missing chunk raises a `MissingChunkError`."""
    store, zarr_format = _StrictStore(named(array.store)), array.metadata.zarr_format
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=zarr_format)


def filled_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array that reads a missing chunk as the fill value only if the store does not list it."""
    store = fsspec_store(array.store)
    if store is None or is_process_local(store):
        return array
    inner = _FilledStore(named(array.store), array.path)
    return zarr.open_array(inner, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def whole_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array for which a chunk that is too long or truncated is an error even if its codec misses it."""
    blosc = ends_in_blosc(array)
    if not blosc and not isinstance(innermost(array.store), LocalStore):
        return array
    store = _WholeStore(array.store, largest_chunk(array), blosc)
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def strict_group(group: zarr.Group) -> zarr.Group:
    """Return a group for which reading a missing chunk raises a `MissingChunkError`."""
    store, zarr_format = _StrictStore(named(group.store)), group.metadata.zarr_format
    return zarr.open_group(store, path=group.path, mode="r", zarr_format=zarr_format)


def innermost(store: Store) -> Store:
    """Return the store inside all wrappers."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def rooted(store: Store) -> Store:
    """Return the store with an absolute path: workers may run in another folder."""
    if not isinstance(store, LocalStore) or store.root.is_absolute():
        return store
    return LocalStore(store.root.absolute(), read_only=True)


def rooted_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return the array with an absolute path of its store."""
    store = rooted(array.store)
    if store is array.store:
        return array
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def is_process_local(store: Store) -> bool:
    """Tell whether a store lives in the memory of this process only."""
    return isinstance(store, MemoryStore) or (isinstance(store, FsspecStore) and "memory" in str(store.fs.protocol))


def listing(store: FsspecStore, path: str) -> dict[str, str] | None:
    """Return size and time of every object of the array, from one listing."""
    if "http" in str(store.fs.protocol):
        return None  # a web server has no reliable listing
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

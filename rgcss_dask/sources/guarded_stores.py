"""Stores that guard what is read from them: chunks that must be there, and have the length they should have."""

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
    """A store in which a chunk may be absent. A chunk that is listed but cannot be read is an error of the store."""

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
                self._listed = (None if store is None else listing(store, self._path)) or {}
            return self._listed


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


def rooted_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array whose store is at the same place in every folder that a process may be in."""
    store = rooted(array.store)
    if store is array.store:
        return array
    return zarr.open_array(store, path=array.path, mode="r", zarr_format=array.metadata.zarr_format)


def is_process_local(store: Store) -> bool:
    """Tell whether what is in a store is in the memory of this process alone."""
    return isinstance(store, MemoryStore) or (isinstance(store, FsspecStore) and "memory" in str(store.fs.protocol))


def listing(store: FsspecStore, path: str) -> dict[str, str] | None:
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

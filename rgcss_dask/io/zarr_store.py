"""A Zarr store at an fsspec URL, with retries by `Retry`, and errors that name the object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from typing import Any

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import FsspecStore, WrapperStore

from rgcss_dask.io.files import filesystem, options_of, tried_once
from rgcss_dask.io.retry import Retry

COLUMN_NAMES = "column_names"  # attribute of a Zarr array: one name per column
CODECS = (ZstdCodec(level=1), Crc32cCodec())  # of all arrays that are written: flipped bits in a chunk are detected
METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def url_store(
    address: str, storage_options: dict[str, Any] | None, *, read_only: bool, retry: Retry | None = None
) -> RetryingStore:
    """Return the store at a URL."""
    filesystem(address, storage_options)  # raises an error that names a missing package
    options = options_of(address, storage_options)
    store = FsspecStore.from_url(address, storage_options=options, read_only=read_only)
    return RetryingStore(store, retry or Retry.configured())


def named(store: Store) -> Store:
    """Return a store whose errors name the object; a store made by the caller is not retried."""
    return RetryingStore(store, Retry(tries=1)) if isinstance(store, FsspecStore) else store


def fsspec_store(store: Store) -> FsspecStore | None:
    """Return the fsspec store inside all wrappers, or None."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store if isinstance(store, FsspecStore) else None


class FreshStore(WrapperStore[Store]):
    """A store at a new place that no other process uses: metadata that was not written through it does not exist.

    Zarr looks for the metadata of a node and of all its parents before it writes. In an object store each look is a
    request.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._written: dict[str, Buffer] = {}

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return metadata that was written; read other objects from the store."""
        return self._written.get(key) if _is_metadata(key) else await super().get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Look for metadata among what was written."""
        return key in self._written if _is_metadata(key) else await super().exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object, and remember metadata."""
        await super().set(key, value)
        if _is_metadata(key):
            self._written[key] = value

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write an object that does not exist yet."""
        if not await self.exists(key):
            await self.set(key, value)


def _is_metadata(key: str) -> bool:
    return key.rsplit("/", 1)[-1] in METADATA


class RetryingStore(WrapperStore[FsspecStore]):
    """A store with retries."""

    def __init__(self, store: FsspecStore, retry: Retry) -> None:
        super().__init__(store)
        self._retry = retry
        tried_once(store.fs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tried_once(self._store.fs)  # each process creates its own file system, without the settings made on it

    def __str__(self) -> str:
        return str(self._store)

    def _with_store(self, store: FsspecStore) -> RetryingStore:
        return RetryingStore(store, self._retry)

    def place(self, key: str) -> str:
        """Return the URL of a key."""
        return f"{str(self._store.fs.unstrip_protocol(self._store.path)).rstrip('/')}/{key}".rstrip("/")

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Read an object, or a part of it."""
        return await self._retry.awaited("read", self.place(key), lambda: self._store.get(key, prototype, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read parts of objects."""
        return list(await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges)))

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for request in requests:
            yield request[0], await self.get(*request)

    async def exists(self, key: str) -> bool:
        """Look for an object."""
        return await self._retry.awaited("looked for", self.place(key), lambda: self._store.exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object atomically."""
        await self._retry.awaited("written", self.place(key), lambda: self._store.set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write an object that does not exist yet."""
        if not await self.exists(key):
            await self.set(key, value)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        await asyncio.gather(*(self.set(key, value) for key, value in values))

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self._retry.awaited("removed", self.place(key), lambda: self._store.delete(key))

    async def delete_dir(self, prefix: str) -> None:
        """Remove all objects under a prefix."""
        await self._retry.awaited("removed", self.place(prefix), lambda: self._store.delete_dir(prefix))

    def list(self) -> AsyncIterator[str]:
        """List all objects."""
        return self._listed("", self._store.list)

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """List the objects under a prefix."""
        return self._listed(prefix, lambda: self._store.list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List the direct children of a prefix."""
        return self._listed(prefix, lambda: self._store.list_dir(prefix))

    async def _listed(self, prefix: str, ask: Callable[[], AsyncIterator[str]]) -> AsyncIterator[str]:
        async def whole() -> tuple[str, ...]:
            return tuple([name async for name in ask()])

        for name in await self._retry.awaited("listed", self.place(prefix), whole):
            yield name

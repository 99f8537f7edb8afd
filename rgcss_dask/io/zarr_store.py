"""A Zarr store at an fsspec URL, each request tried as often as `Retry` says, each error with its place."""

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
CODECS = (ZstdCodec(level=1), Crc32cCodec())  # of all that is written here: what flips in a chunk is found
METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def url_store(
    address: str, storage_options: dict[str, Any] | None, *, read_only: bool, retry: Retry | None = None
) -> RetryingStore:
    """Return the store at a URL."""
    filesystem(address, storage_options)  # says which package is missing
    options = options_of(address, storage_options)
    store = FsspecStore.from_url(address, storage_options=options, read_only=read_only)
    return RetryingStore(store, retry or Retry.configured())


def named(store: Store) -> Store:
    """Return a store whose errors have a place; one that the caller made is asked once: it has its own ways."""
    return RetryingStore(store, Retry(tries=1)) if isinstance(store, FsspecStore) else store


def fsspec_store(store: Store) -> FsspecStore | None:
    """Return the store that asks fsspec, from within what is wrapped around it."""
    while isinstance(store, WrapperStore):
        store = store._store
    return store if isinstance(store, FsspecStore) else None


class FreshStore(WrapperStore[Store]):
    """A store at a place that nobody else knows of: metadata that was not written through it is not there.

    Zarr looks for metadata of a node and of all nodes above it before it writes one. In an object store each look is a
    request.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._written: dict[str, Buffer] = {}

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return metadata that was written; the rest is asked for."""
        return self._written.get(key) if _is_metadata(key) else await super().get(key, prototype, byte_range)

    async def exists(self, key: str) -> bool:
        """Look for metadata among what was written."""
        return key in self._written if _is_metadata(key) else await super().exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        """Write, and keep metadata in mind."""
        await super().set(key, value)
        if _is_metadata(key):
            self._written[key] = value

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write what was not written yet."""
        if not await self.exists(key):
            await self.set(key, value)


def _is_metadata(key: str) -> bool:
    return key.rsplit("/", 1)[-1] in METADATA


class RetryingStore(WrapperStore[FsspecStore]):
    """A store whose requests are made again while that may help."""

    def __init__(self, store: FsspecStore, retry: Retry) -> None:
        super().__init__(store)
        self._retry = retry
        tried_once(store.fs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tried_once(self._store.fs)  # a file system is made anew in each process, without what was set on it

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
        """Write an object: all of it appears, or nothing."""
        await self._retry.awaited("written", self.place(key), lambda: self._store.set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write an object that is not there yet."""
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
        """List what is directly under a prefix."""
        return self._listed(prefix, lambda: self._store.list_dir(prefix))

    async def _listed(self, prefix: str, ask: Callable[[], AsyncIterator[str]]) -> AsyncIterator[str]:
        async def whole() -> tuple[str, ...]:
            return tuple([name async for name in ask()])

        for name in await self._retry.awaited("listed", self.place(prefix), whole):
            yield name

"""Decoding of chunks of whole rows straight into the rows of the result.

Zarr decodes a chunk into new memory and copies it from there. Page faults of that memory cost as much as decoding, and
freeing blocks of many sizes fragments the heap. Chunks of any other layout are left to Zarr.
Why no other decoder: docs/decisions/chunk-decoder.md.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc, Zstd
from numcodecs.abc import Codec
from numcodecs.checksum32 import CRC32C
from numpy.typing import NDArray
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import NDBuffer
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ZstdCodec

from rgcss_dask.compat import concurrent_map, sync
from rgcss_dask.runtime.page_pool import empty_rows
from rgcss_dask.sources.decoding_limits import check_blosc, check_declared, check_stored, declared_size, stored_limit

# Zarr's codecs return new memory; the numcodecs codecs behind them can decode into a buffer, and need no settings.
_DECODERS: dict[type, Codec] = {ZstdCodec: Zstd(), BloscCodec: Blosc(), Crc32cCodec: CRC32C(location="end")}


class _AsItIs(Codec):  # type: ignore[misc]
    """Copies bytes that are not compressed."""

    codec_id = "none"

    def encode(self, buf: Any) -> Any:
        return buf

    def decode(self, buf: NDArray[np.uint8], out: NDArray[Any]) -> None:
        out.reshape(-1).view(np.uint8)[:] = buf


_AS_IT_IS = _AsItIs()


class RowChunks:
    """The rows of a Zarr array; chunks in a local folder are read from their files, without an event loop."""

    def __init__(self, array: zarr.Array[Any], folder: str | None) -> None:
        self._array, self._folder = array, folder
        # Outermost first; empty: Zarr decodes everything.
        self._decoders = _decoders(array) if array.ndim == 2 and array.chunks[1] == array.shape[1] else ()
        if not folder and self._decoders == (_AS_IT_IS,):  # nothing to decode: Zarr gets it with one request
            self._decoders = ()

    @property
    def beside(self) -> int | None:
        """Bytes held during a read beside the rows: a stored chunk, and the output of each decoder but the last.

        None if all chunks are requested at once, or decoded by Zarr.
        """
        chunk = math.prod(self._array.chunks) * self._array.dtype.itemsize
        return len(self._decoders) * _room(chunk) if self._decoders and self._folder else None

    def read_into(self, rows: NDArray[Any], start: int) -> None:
        """Fill ``rows`` with the rows from ``start`` on."""
        height, stop = max(1, self._array.chunks[0]), start + len(rows)
        first, last = -(-start // height), stop // height
        if not self._decoders or first >= last:
            self._by_zarr(rows, start)
            return
        self._by_zarr(rows[: first * height - start], start)
        chunks = self._stored(range(first, last), height * rows[0].nbytes)
        for index in range(first, last):
            place = rows[index * height - start :][:height]
            if not decode_into(place, next(chunks), self._decoders):
                self._by_zarr(place, index * height)
        self._by_zarr(rows[last * height - start :], last * height)

    def _stored(self, indices: Sequence[int], size: int) -> Iterator[NDArray[np.uint8] | None]:
        """Yield stored chunks; None for a chunk that is left to Zarr."""
        path = f"{self._array.path}/" if self._array.path else ""
        keys = [path + self._array.metadata.encode_chunk_key((index, 0)) for index in indices]
        if self._folder:
            return (_read_file(f"{self._folder}/{key}", size) for key in keys)
        asked, prototype = zarr.config.get("async.concurrency"), default_buffer_prototype()
        fetched = sync(concurrent_map([(key, prototype) for key in keys], self._array.store.get, asked))
        return (None if found is None else found.as_numpy_array() for found in fetched)

    def _by_zarr(self, rows: NDArray[Any], start: int) -> None:
        if len(rows):
            self._array.get_basic_selection(slice(start, start + len(rows)), out=NDBuffer.from_numpy_array(rows))


def _read_file(path: str, decoded: int) -> NDArray[np.uint8] | None:
    """Return the bytes of a file in pooled memory, with a buffer size that fits the decoded size."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            check_stored(size, decoded)
            content = empty_rows((max(size, _room(decoded)),), np.uint8)[:size]
            return content if file.readinto(content.data) == size else None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _room(decoded: int) -> int:
    """Return an upper bound on the stored bytes of a chunk; chunks that cannot be compressed are slightly larger."""
    return decoded + decoded // 64


def _decoders(array: zarr.Array[Any]) -> tuple[Codec, ...]:
    """Return the decoders of a chunk, outermost first, if they yield the bytes of its rows; else an empty tuple."""
    metadata = array.metadata
    if not np.dtype(array.dtype).isnative:
        return ()
    if metadata.zarr_format == 2:
        plain = metadata.order == "C" and not metadata.filters
        codec = _AS_IT_IS if metadata.compressor is None else metadata.compressor
        return (codec,) if plain and isinstance(codec, Zstd | Blosc | _AsItIs) else ()
    first, *others = metadata.codecs
    if not isinstance(first, BytesCodec) or _byte_order(first) not in (None, sys.byteorder):
        return ()
    kinds = [type(codec) for codec in reversed(others)]
    if not kinds:
        return (_AS_IT_IS,)
    if kinds[-1] is Crc32cCodec or not set(kinds) <= set(_DECODERS):
        return ()
    return tuple(_DECODERS[kind] for kind in kinds)


def _byte_order(codec: BytesCodec) -> Any:
    """Return "little", "big", or None for single bytes, as in zarr.json: the attribute is not always a str."""
    configuration: Any = codec.to_dict().get("configuration", {})
    return configuration.get("endian")


def decode_into(place: NDArray[Any], stored: NDArray[np.uint8] | None, decoders: Sequence[Codec]) -> bool:
    """Decode a chunk into ``place``, or return False if its declared size is not exactly that of ``place``."""
    if stored is None:
        return False
    *outer, last = decoders
    for decoder in outer:
        check_declared(stored, decoder.codec_id, stored_limit(place.nbytes))
        stored = decoder.decode(_whole(stored, decoder))
    # A decoder would leave the end of a larger buffer unchanged, without an error.
    size = len(stored) if last is _AS_IT_IS else declared_size(_whole(stored, last), last.codec_id)
    if size != place.nbytes:
        return False
    last.decode(stored, out=place)
    return True


def _whole(stored: NDArray[np.uint8], decoder: Codec) -> NDArray[np.uint8]:
    if isinstance(decoder, Blosc):
        check_blosc(stored)
    return stored


def ends_in_blosc(array: zarr.Array[Any]) -> bool:
    """Tell whether Blosc is the last codec of chunks, without a checksum after it."""
    if array.metadata.zarr_format == 2:
        return isinstance(array.metadata.compressor, Blosc)
    return array.metadata.codecs[-1].to_dict()["name"] in ("blosc", "numcodecs.blosc")

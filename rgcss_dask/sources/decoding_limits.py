"""Limits on the decoded size of chunks: a malicious or damaged chunk of kilobytes may decode to gigabytes."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import io
import lzma
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd
from numcodecs.compat import ensure_contiguous_ndarray
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer, NDBuffer
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import ShardingCodec

from rgcss_dask.compat import ArraySpec, BatchedCodecPipeline, V2Codec

SLACK = 2**16  # bytes that codecs may add
FILTERED = 16  # most times that the filters of format 2 may enlarge a chunk
INDEX = 16  # bytes per chunk in the index of a shard
COMPRESSORS = {"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"}

_BLOSC_HEAD = 16  # bytes, including the decoded and the stored size
_ZSTD_MAGIC = (0xFD2FB528).to_bytes(4, "little")
# A chunk whose codec does not declare its size is decoded as a stream, up to the limit.
_FILES: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "lzma": lzma.open}


def bounded_array(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """Return an array for which decoding a chunk to more than its rows raises an error."""
    plain = array.async_array
    if type(plain.codec_pipeline) is not BatchedCodecPipeline:  # the user chose another pipeline
        return array
    limited = type(plain)(metadata=plain.metadata, store_path=plain.store_path, config=plain.config)
    codecs = [_bounded(codec) for codec in plain.codec_pipeline]
    object.__setattr__(limited, "codec_pipeline", BatchedCodecPipeline.from_codecs(codecs))
    return zarr.Array(limited)


def stored_limit(decoded: int) -> int:
    """Return the limit on the stored size of a chunk; incompressible data grow slightly."""
    return 2 * decoded + SLACK


def largest_chunk(array: zarr.Array[Any]) -> int:
    """Return the largest uncompressed size of a stored chunk or shard of an array."""
    size = math.prod(array.shards or array.chunks) * np.dtype(array.dtype).itemsize
    if array.metadata.zarr_format == 2:
        return size * (FILTERED if array.metadata.filters else 1)
    inside = 0 if array.shards is None else math.prod(array.shards) // max(1, math.prod(array.chunks))
    return size + inside * INDEX


def check_stored(size: int, decoded: int) -> None:
    """Refuse a chunk whose stored size is above the limit."""
    if size > stored_limit(decoded):
        raise ValueError(f"a chunk of {decoded:,} bytes must not take {size:,} in its store")


def check_blosc(stored: NDArray[np.uint8]) -> None:
    """Refuse a truncated chunk: the Blosc decoder would read past its end."""
    if len(stored) < _BLOSC_HEAD or _number(stored, 12) > len(stored):
        raise ValueError(f"a chunk must be complete; this one is truncated after {len(stored):,} bytes")


def declared_size(stored: NDArray[np.uint8], name: str) -> int | None:
    """Return the decoded size of a chunk, if its header declares it."""
    head = bytes(stored[:18])
    if name == "blosc":
        return _number(stored, 4) if len(head) >= 8 else None
    if name == "lz4":
        return _number(stored, 0) if len(head) >= 4 else None
    if name != "zstd" or len(head) < 5 or head[:4] != _ZSTD_MAGIC:
        return None
    # RFC 8878, 3.1.1.1: a byte of flags, the window unless it is a single segment, the dictionary id, and the size.
    flags = head[4]
    one_segment = flags >> 5 & 1
    at = 6 - one_segment + (0, 1, 2, 4)[flags & 3]
    width = (one_segment, 2, 4, 8)[flags >> 6]
    if not width or len(head) < at + width:
        return None
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


def check_declared(stored: NDArray[np.uint8], name: str, limit: int) -> None:
    """Refuse a chunk whose declared size is above the limit."""
    size = declared_size(stored, name)
    if size is not None and size > limit:
        raise _too_large(f"{size:,} bytes", limit)


def read_within(stored: NDArray[np.uint8], codec: Any, name: str, limit: int, exact: int) -> bytes | None:
    """Decode a chunk without a declared size, up to the limit; return None if its codec can decode it directly."""
    if name == "zstd" and declared_size(stored, name) is None:  # its codec needs the exact size
        return bytes(Zstd().decode(stored, np.empty(exact, np.uint8)))
    if name == "zlib":
        decoder = zlib.decompressobj()
        data = decoder.decompress(stored.data, limit + 1)
        whole = decoder.eof
    elif name in _FILES:
        options = {"format": codec.format, "filters": codec.filters} if name == "lzma" else {}
        with _FILES[name](io.BytesIO(stored.data), **options) as file:
            data, whole = file.read(limit + 1), True
    else:
        return None
    if len(data) > limit:
        raise _too_large("more", limit)
    if not whole:
        raise ValueError(f"a chunk must be complete; this one is truncated after {len(stored):,} bytes")
    return bytes(data)


def _too_large(found: str, limit: int) -> ValueError:
    return ValueError(f"a chunk must decode to at most {limit:,} bytes; this one would decode to {found}")


def _number(stored: NDArray[np.uint8], at: int) -> int:
    return int.from_bytes(bytes(stored[at : at + 4]), "little")


def _name(codec: Any) -> str:
    """Return the name of a codec of Zarr or of numcodecs."""
    if hasattr(codec, "codec_id"):
        return str(codec.codec_id)
    return str(codec.to_dict().get("name", "")).removeprefix("numcodecs.")


def _bounded(codec: Codec) -> Codec:
    """Return the codec with a size limit; codecs that keep sizes are returned unchanged."""
    if isinstance(codec, ShardingCodec):
        return _Shards(
            chunk_shape=codec.chunk_shape,
            codecs=codec.codecs,
            index_codecs=codec.index_codecs,
            index_location=codec.index_location,
        )
    if isinstance(codec, V2Codec):
        return _Format2(codec.filters, codec.compressor)
    return _Bounded(codec) if isinstance(codec, BytesBytesCodec) else codec


def _size(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=object)) * spec.dtype.to_native_dtype().itemsize


@dataclass(frozen=True)
class _Bounded(BytesBytesCodec):
    """A codec of format 3 with a limit on the decoded size."""

    codec: BytesBytesCodec
    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        stored, name, size = chunk_bytes.as_numpy_array().view(np.uint8), _name(self.codec), _size(chunk_spec)
        limit = size + size // 16 + SLACK
        check_declared(stored, name, limit)
        data = await asyncio.to_thread(read_within, stored, self.codec, name, limit, size)
        if data is None:
            return await self.codec._decode_single(chunk_bytes, chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(data)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return self.codec.compute_encoded_size(input_byte_length, chunk_spec)


class _Shards(ShardingCodec):
    """Shards with a limit on the decoded size of their chunks."""

    @property
    def codec_pipeline(self) -> BatchedCodecPipeline:
        return BatchedCodecPipeline.from_codecs([_bounded(codec) for codec in self.codecs])


class _Format2(V2Codec):
    """The codecs of format 2 with a limit on the decoded size."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        size = _size(chunk_spec)
        limit = size * (FILTERED if self.filters else 1) + SLACK
        filters = tuple(_Limited(codec, limit, 0) for codec in self.filters or ())
        exact = 0 if self.filters else size
        compressor = None if self.compressor is None else _Limited(self.compressor, limit, exact)
        plain = V2Codec(filters or None, compressor)  # type: ignore[arg-type]
        return await plain._decode_single(chunk_bytes, chunk_spec)


class _Limited:
    """A numcodecs codec with a limit on the decoded size."""

    def __init__(self, codec: Any, limit: int, exact: int) -> None:
        self._codec, self._limit, self._exact = codec, limit, exact

    def decode(self, buf: Any) -> Any:
        """Decode a chunk, or raise an error if it is above the limit."""
        name = _name(self._codec)
        if name not in COMPRESSORS:
            return self._codec.decode(buf)
        stored = ensure_contiguous_ndarray(buf).view(np.uint8)
        check_declared(stored, name, self._limit)
        data = read_within(stored, self._codec, name, self._limit, self._exact)
        return self._codec.decode(buf) if data is None else data

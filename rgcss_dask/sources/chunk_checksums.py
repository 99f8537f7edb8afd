"""Checksums among the codecs of a Zarr array: whether decoding a chunk detects a flipped bit."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from typing import Any

import zarr

# Names of codecs in metadata. Zstandard has an optional checksum, which is usually off.
CHECKSUMMED = {"gzip", "zlib", "bz2", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}


def unguarded(array: zarr.Array[Any]) -> str | None:
    """Return the codecs of an array if they have no checksum, else None."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        codecs = [codec.get_config() for codec in (*(metadata.filters or ()), metadata.compressor) if codec is not None]
    else:
        codecs = [codec.to_dict() for codec in metadata.codecs]
    found = list(_flat(codecs))
    if any(_is_checksum(*codec) for codec in found):
        return None
    names = [name for name, _ in found if name not in ("bytes", "transpose", "sharding_indexed")]
    return " and ".join(names) or "no compression"


def _is_checksum(name: str, settings: dict[str, Any]) -> bool:
    if name == "lzma":  # of its three formats only xz has one, which can be turned off
        return settings.get("format") == lzma.FORMAT_XZ and settings.get("check") != lzma.CHECK_NONE
    return name in CHECKSUMMED or bool(settings.get("checksum"))


def _flat(codecs: Iterable[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield names and settings of codecs, also of those within shards, but not of the index of shards."""
    for codec in codecs:
        name = str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.")
        settings = codec.get("configuration") or codec
        yield name, settings
        yield from _flat(settings.get("codecs", ()))


def advice(address: str, codec: str) -> str:
    """Explain the risk of chunks without checksums, and the remedies."""
    return (
        f"{address} ({codec}) has no checksums in its chunks: a bit that flips in the store may not be noticed. "
        "`rgcss verify` reads the data again and compares; `rgcss convert` writes chunks with checksums."
    )

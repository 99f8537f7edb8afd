"""What the codecs of a Zarr array promise: whether a flipped bit in a chunk is found when it is decoded."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from typing import Any

import zarr

# By the names that codecs have in metadata. Zstandard has a checksum where it was asked for one, which is not usual.
CHECKSUMMED = {"gzip", "zlib", "bz2", "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"}


def unguarded(array: zarr.Array[Any]) -> str | None:
    """Name the codecs of an array whose chunks have no checksum, or return None if they have one."""
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
    if name == "lzma":  # of its three formats xz has one, unless it is told to do without
        return settings.get("format") == lzma.FORMAT_XZ and settings.get("check") != lzma.CHECK_NONE
    return name in CHECKSUMMED or bool(settings.get("checksum"))


def _flat(codecs: Iterable[dict[str, Any]]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield names and settings; those within shards too, but not of their index, which is no data."""
    for codec in codecs:
        name = str(codec.get("id", codec.get("name"))).removeprefix("numcodecs.")
        settings = codec.get("configuration") or codec
        yield name, settings
        yield from _flat(settings.get("codecs", ()))


def advice(address: str, codec: str) -> str:
    """Say what chunks without checksums mean, and what can be done."""
    return (
        f"{address} ({codec}) has no checksums in its chunks: a bit that flips in the store may not be noticed. "
        "`rgcss verify` reads again and compares; `rgcss convert` writes chunks with checksums."
    )

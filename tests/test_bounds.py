"""What strangers' files say of their size costs no memory: chunks that swell, and chunks without number."""

import bz2
import gzip
import json
import lzma
import re
import subprocess
import sys
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import rgcss_dask as rg
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.zarr import DamagedChunkError, ZarrSource

SWOLLEN = 2**30  # bytes that a chunk of 80 kB claims to be
ZSTD, CRC = numcodecs.Zstd(), numcodecs.checksum32.CRC32C(location="end")


def streamed(content):
    """Compress as a stream does, which does not know the size when it begins: a head without it and raw blocks."""
    blocks, at = b"", 0
    while at < len(content):
        part = content[at : at + 2**17]
        at += len(part)
        blocks += (int(at >= len(content)) | len(part) << 3).to_bytes(3, "little") + part
    return bytes.fromhex("28b52ffd0058") + blocks


def swollen(kind):
    """Return a chunk of a gigabyte of zeros, as far as it must be made to look like one."""
    if kind == "blosc":
        head = bytearray(numcodecs.Blosc().encode(np.zeros(80_000, np.uint8)))
        head[4:8] = SWOLLEN.to_bytes(4, "little")
        return bytes(head)
    if kind == "lz4":
        return SWOLLEN.to_bytes(4, "little") + bytes(100)
    if kind in ("zstd", "crc"):
        content = bytearray(ZSTD.encode(np.zeros(2**24, np.uint8)))
        at = 5 if content[4] >> 5 & 1 else 6
        content[at : at + 4] = SWOLLEN.to_bytes(4, "little")
        return bytes(CRC.encode(bytes(content))) if kind == "crc" else bytes(content)
    compress = {"gzip": gzip.compress, "zlib": zlib.compress, "bz2": bz2.compress, "lzma": lzma.compress}[kind]
    return compress(bytes(2**27))


KINDS = {
    "zstd": ({}, "zstd"),
    "zstd and crc32c": ({"compressors": [ZstdCodec(), Crc32cCodec()]}, "crc"),
    "gzip": ({"compressors": GzipCodec()}, "gzip"),
    "blosc": ({"compressors": BloscCodec()}, "blosc"),
    "narrow": ({"chunks": (1000, 5)}, "zstd"),
    "zstd 2": ({"zarr_format": 2, "compressors": numcodecs.Zstd()}, "zstd"),
    "blosc 2": ({"zarr_format": 2, "compressors": numcodecs.Blosc()}, "blosc"),
    "zlib 2": ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, "zlib"),
    "bz2 2": ({"zarr_format": 2, "compressors": numcodecs.BZ2()}, "bz2"),
    "lzma 2": ({"zarr_format": 2, "compressors": numcodecs.LZMA()}, "lzma"),
    "lz4 2": ({"zarr_format": 2, "compressors": numcodecs.LZ4()}, "lz4"),
    "filter 2": ({"zarr_format": 2, "filters": numcodecs.Shuffle(8), "compressors": numcodecs.Zlib()}, "zlib"),
}


def chunks_of(path):
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name[0] in "0123456789")


@pytest.mark.parametrize("name", KINDS)
def test_a_chunk_that_swells_is_refused_before_there_is_memory_for_it(tmp_path, name):
    options, kind = KINDS[name]
    path = tmp_path / "a.zarr"
    rows = np.random.default_rng(0).normal(size=(4000, 10))
    zarr.create_array(path, data=rows, **{"chunks": (1000, 10), **options})
    source = ZarrSource(zarr.open_array(path, mode="r"), str(path))
    np.testing.assert_array_equal(source.read(0, 4000), rows)
    chunks_of(path)[0].write_bytes(swollen(kind))
    with pytest.raises(DamagedChunkError, match=r"must decode to at most [\d,]+ bytes"):
        source.read(0, 1000)
    with pytest.raises(DamagedChunkError, match=r"must decode to at most [\d,]+ bytes"):
        source.read(5, 999)


def test_a_chunk_of_a_shard(tmp_path):
    path = tmp_path / "a.zarr"
    rows = np.random.default_rng(0).normal(size=(4000, 10))
    zarr.create_array(path, data=rows, chunks=(1000, 10), shards=(4000, 10))
    (shard,) = chunks_of(path)
    content = bytearray(shard.read_bytes())
    at = content.index(bytes.fromhex("28b52ffd"))
    assert content[at + 4] == 0xA0  # one segment, and four bytes for the size
    content[at + 5 : at + 9] = SWOLLEN.to_bytes(4, "little")
    source = ZarrSource(zarr.open_array(path, mode="r"), str(path))
    np.testing.assert_array_equal(source.read(0, 4000), rows)
    shard.write_bytes(content)
    with pytest.raises(DamagedChunkError, match=r"must decode to at most [\d,]+ bytes"):
        source.read(0, 4000)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_that_does_not_say_its_size(tmp_path, zarr_format):
    """Other programs write them; they are decoded into the place they should fill, and nowhere else."""
    path = tmp_path / "a.zarr"
    rows = np.random.default_rng(0).normal(size=(4000, 10))
    compressor = numcodecs.Zstd() if zarr_format == 2 else ZstdCodec()
    zarr.create_array(path, data=rows, chunks=(1000, 10), zarr_format=zarr_format, compressors=compressor)
    source = ZarrSource(zarr.open_array(path, mode="r"), str(path))
    first = chunks_of(path)[0]
    first.write_bytes(streamed(rows[:1000].tobytes()))
    np.testing.assert_array_equal(source.read(0, 4000), rows)
    for size in (79_992, 80_008, 2**24):
        first.write_bytes(streamed(bytes(size)))
        with pytest.raises(DamagedChunkError, match="cannot be read"):
            source.read(0, 1000)


def test_a_file_that_is_larger_than_its_chunk_can_be(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=np.ones((4000, 10)), chunks=(1000, 10))
    with chunks_of(path)[0].open("r+b") as file:
        file.truncate(2**40)  # a hole, which takes no place on a disk
    with pytest.raises(DamagedChunkError, match=r"a chunk of 80,000 bytes must not take 1,099,511,627,776"):
        rg.scan(path)


def test_chunks_without_number_take_no_memory(tmp_path):
    """Of a billion rows in chunks of one; the first chunk that is looked for is not there."""
    path = tmp_path / "a.zarr"
    zarr.create_array(path, shape=(10**9, 4), chunks=(1, 4), dtype="f8")
    code = f"""if True:
        import resource, rgcss_dask as rg
        from rgcss_dask.sources.zarr import MissingChunkError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            rg.scan({str(path)!r})
        except MissingChunkError as error:
            print(error)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message, megabytes = done.stdout.splitlines()
    assert re.search(r"has no chunk c/\d+/0 \(rows", message)
    assert int(megabytes) < 500


def test_rows_of_a_missing_chunk(tmp_path):
    for zarr_format in (2, 3):
        path = tmp_path / f"a{zarr_format}.zarr"
        zarr.create_array(path, data=np.ones((4000, 10)), chunks=(300, 10), zarr_format=zarr_format)
        chunks_of(path)[-1].unlink()
        with pytest.raises(MissingChunkError, match=r"\(rows 2,700 to 2,999\)"):
            rg.scan(path)


@pytest.mark.filterwarnings("ignore:.*The stored chunk shape:UserWarning")  # of Zarr, from 3.4 on
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_of_no_rows_are_refused(tmp_path, zarr_format):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=np.ones((40, 10)), chunks=(10, 10), zarr_format=zarr_format)
    file = path / ("zarr.json" if zarr_format == 3 else ".zarray")
    content = json.loads(file.read_text())
    if zarr_format == 3:
        content["chunk_grid"]["configuration"]["chunk_shape"] = [0, 10]
    else:
        content["chunks"] = [0, 10]
    file.write_text(json.dumps(content))
    words = r"chunks must have rows and columns; those of .*a\.zarr have shape \(0, 10\)"
    repaired = r"a\.zarr: chunk \S*0.0 \(rows 0 to 0\) cannot be read"  # Zarr 3.4 takes 0 for 1
    with pytest.raises(ValueError, match=f"{words}|{repaired}"):
        rg.scan(path)

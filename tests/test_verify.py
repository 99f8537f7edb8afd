"""Rows that have changed since the pass are found by reading them again."""

import json

import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr
from corruption import outcomes
from distributed import Client, LocalCluster
from test_cli import rgcss
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

import rgcss_dask as rg
from rgcss_dask.sources.chunk_checksums import unguarded

ROWS = 200_000


@pytest.fixture
def data(tmp_path):
    rows = np.random.default_rng(0).normal(size=(ROWS, 4))
    zarr.create_array(tmp_path / "data.zarr", data=rows, chunks=(10_000, 4), compressors=None)
    return tmp_path / "data.zarr"


def flip(data, chunk):
    """Flip a bit of a number, which nothing can notice when it is read."""
    path = data / "c" / str(chunk) / "0"
    content = bytearray(path.read_bytes())
    content[1003] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_found_and_its_rows_are_named(tmp_path, data):
    rg.scan(data, archive=tmp_path / "m.zarr")
    found = rg.verify(data, tmp_path / "m.zarr")
    assert found
    assert found.rows == ROWS
    assert str(found) == f"200,000 rows in {found.spans} spans are what was summed."
    flip(data, 7)
    found = rg.verify(data, tmp_path / "m.zarr")
    assert not found
    (difference,) = found.differences
    assert difference.start <= 70_000 + 1003 // 32 < difference.stop
    assert f"rows {difference.start:,} to {difference.stop - 1:,}: changed since the pass" in str(found)


def test_every_span_is_looked_at_and_damage_does_not_end_it(tmp_path, data):
    rg.scan(data, archive=tmp_path / "m.zarr")
    flip(data, 0)
    (data / "c" / "5" / "0").unlink()
    (data / "c" / "9" / "0").write_bytes(b"short")
    flip(data, 19)
    found = rg.verify(data, tmp_path / "m.zarr", progress=False)
    assert [one.start // 10_000 for one in found.differences] == [0, 5, 9, 19]
    assert "has no chunk c/5/0" in found.differences[1].reason
    assert "chunk c/9/0" in found.differences[2].reason


def test_after_an_append(tmp_path, data):
    rg.scan(data, archive=tmp_path / "m.zarr")
    array = zarr.open_array(data)
    array.append(np.ones((30_000, 4)))
    assert rg.verify(data, tmp_path / "m.zarr").rows == ROWS  # the new rows were not summed yet
    rg.append(tmp_path / "m.zarr", data)
    assert rg.verify(data, tmp_path / "m.zarr").rows == ROWS + 30_000
    flip(data, 21)
    (difference,) = rg.verify(data, tmp_path / "m.zarr").differences
    assert difference.start >= ROWS


@pytest.mark.parametrize("kind", ["numpy", "dask", "slice", "list"])
def test_other_sources(tmp_path, data, kind):
    rows = zarr.open_array(data)[:]
    options = {"rows": slice(5_000, 90_000)} if kind == "slice" else {"folds": 3}
    source = {
        "numpy": rows,
        "slice": data,
        "dask": da.from_array(rows, chunks=(15_000, 4)),
        "list": [str(data), str(data)],
    }[kind]
    rg.scan(source, archive=tmp_path / "m.zarr", **options)
    assert rg.verify(source, tmp_path / "m.zarr")
    rows[6_000, 1] += 1
    if kind in ("slice", "list"):
        flip(data, 1)
    else:
        source = rows if kind == "numpy" else da.from_array(rows, chunks=(15_000, 4))
    assert not rg.verify(source, tmp_path / "m.zarr")


def test_on_a_cluster(tmp_path, data):
    rg.scan(data, archive=tmp_path / "m.zarr")
    flip(data, 3)
    told = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        found = rg.verify(data, tmp_path / "m.zarr", progress=told.append)
    assert [one.start // 10_000 for one in found.differences] == [3]
    assert told[-1].rows == ROWS


def test_an_archive_without_checksums_says_so(tmp_path, data):
    rg.save(rg.scan(data), tmp_path / "m.zarr")
    with pytest.raises(ValueError, match=r"m\.zarr has no checksums of its rows"):
        rg.verify(data, tmp_path / "m.zarr")


def test_another_matrix_is_refused(tmp_path, data):
    rg.scan(data, archive=tmp_path / "m.zarr")
    with pytest.raises(ValueError, match=r"200,000 rows of 4 columns of float64; memory has 10 rows of 5 columns"):
        rg.verify(np.ones((10, 5)), tmp_path / "m.zarr")


def test_on_the_command_line(tmp_path, data):
    moments = str(tmp_path / "m.zarr")
    done = rgcss("scan", str(data), "-o", moments)
    assert done.stderr.count("has no checksums in its chunks") == 1
    assert "(no compression)" in done.stderr
    assert "rgcss convert" in done.stderr
    done = rgcss("verify", str(data), moments)
    assert done.stdout.startswith("200,000 rows")
    flip(data, 7)
    done = rgcss("verify", str(data), moments, "--workers", "1", "--json", code=1)
    (different,) = json.loads(done.stdout)["different"]
    assert different["start"] // 10_000 == 7


GUARDS = [
    ({}, "zstd"),
    ({"compressors": None}, "no compression"),
    ({"compressors": BloscCodec()}, "blosc"),
    ({"shards": (8, 3)}, "zstd"),
    ({"shards": (8, 3), "compressors": [ZstdCodec(), Crc32cCodec()]}, None),
    ({"compressors": [ZstdCodec(), Crc32cCodec()]}, None),
    ({"compressors": ZstdCodec(checksum=True)}, None),
    ({"compressors": GzipCodec()}, None),
    ({"zarr_format": 2, "compressors": numcodecs.Blosc()}, "blosc"),
    ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, None),
    ({"zarr_format": 2, "compressors": numcodecs.LZMA()}, None),
    ({"zarr_format": 2, "compressors": numcodecs.LZ4()}, "lz4"),
]


@pytest.mark.parametrize(("options", "codec"), GUARDS)
def test_which_codecs_have_checksums(options, codec):
    assert unguarded(zarr.create_array(MemoryStore(), shape=(8, 3), chunks=(4, 3), dtype="f8", **options)) == codec


@pytest.mark.parametrize(("options", "codec"), [guard for guard in GUARDS if guard[1] is None])
def test_a_flipped_bit_where_there_is_a_checksum_is_an_error(tmp_path, options, codec):
    """Anywhere in a chunk: the promise of the README."""
    rows = np.random.default_rng(0).normal(size=(8, 3))
    zarr.create_array(tmp_path / "a.zarr", data=rows, chunks=(4, 3), **options)
    whole = rg.scan(tmp_path / "a.zarr").product
    (chunk, *_) = [path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file() and path.name[0] in "01"]
    counts = outcomes(
        [chunk],
        20,
        lambda: rg.scan(tmp_path / "a.zarr").product,
        lambda product: np.array_equal(product, whole),
        "a.zarr",
    )
    assert counts["told"] > 10

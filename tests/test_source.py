import http.server
import json
import sys
import threading
import uuid
import warnings
from functools import partial

import anndata
import dask.array as da
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse
import zarr
from click.testing import CliRunner
from distributed import Client, LocalCluster
from processes import IN_PROCESS
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import FsspecStore, ZipStore

from rgcss_dask import RGCSS, convert, scan
from rgcss_dask.cli import cli
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.io.files import in_order
from rgcss_dask.scanning.uncounted import scan_uncounted
from rgcss_dask.sources import zarr as zarr_source
from rgcss_dask.sources.base import dense
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.zarr import DamagedChunkError

ROWS, COLUMNS = 1_003, 12


@pytest.fixture(scope="module")
def A():  # noqa: N802
    return np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)


@pytest.fixture
def stored(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(100, COLUMNS))
    return str(tmp_path / "a.zarr")


def gram(A):
    return A.astype(float).T @ A.astype(float)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("chunks", [(100, 12), (7, 5), (2_000, 12), (1_003, 1)])
def test_zarr_of_both_formats_in_any_chunks(A, tmp_path, zarr_format, chunks):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=chunks, zarr_format=zarr_format)
    assert np.array_equal(scan(tmp_path / "a.zarr").gram(), gram(A))


@pytest.mark.parametrize("shards", [(300, 12), (60, 24)])
def test_sharded_zarr(A, tmp_path, shards):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(30, 4), shards=shards)
    source = open_source(tmp_path / "a.zarr")
    assert np.diff(source.cuts)[0] == shards[0]
    assert np.array_equal(scan(source).gram(), gram(A))


def test_the_chunks_of_large_shards_are_read_apart(A, tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_source, "LARGE_SHARD", 2**10)
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=A, chunks=(30, 12), shards=(300, 12), compressors=[ZstdCodec(), Crc32cCodec()])
    source = open_source(path)
    assert np.diff(source.cuts)[0] == 30
    assert np.array_equal(scan(source).gram(), gram(A))
    shard = path / "c" / "1" / "0"
    content = bytearray(shard.read_bytes())
    content[5] ^= 255
    shard.write_bytes(content)
    with pytest.raises(DamagedChunkError, match=r"chunk c/1/0 \(rows 3\d\d to "):
        scan(path)
    shard.unlink()
    with pytest.raises(MissingChunkError, match="no chunk c/1/0"):
        scan(path)


def test_an_array_in_a_group_and_a_group_by_mistake(A, tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("deep/images", data=A)
    group.create_array("labels", data=A[:, 0])
    assert scan(tmp_path / "g.zarr" / "deep" / "images").rows == ROWS
    with pytest.raises(ValueError, match=r"is a Zarr group.*deep/images \(1003, 12\)"):
        scan(tmp_path / "g.zarr")
    with pytest.raises(ValueError, match=r"two dimensions; .* has shape"):
        scan(tmp_path / "g.zarr" / "labels")


def test_zip_store(A, tmp_path):
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, name="inner/x", data=A, chunks=(100, 12))
    assert np.array_equal(scan(tmp_path / "a.zip" / "inner" / "x").gram(), gram(A))


def test_memory_url_and_zarr_object(A):
    url = f"memory://{uuid.uuid4().hex}/a.zarr"
    array = zarr.create_array(FsspecStore.from_url(url), data=A, chunks=(100, 12))
    assert np.array_equal(scan(url).gram(), gram(A))
    assert np.array_equal(scan(array).gram(), gram(A))
    fsspec.filesystem("memory").rm(url, recursive=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path):
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_http_url_reads_ahead_and_finds_a_missing_chunk(A, stored, web, tmp_path):
    source = open_source(f"{web}/a.zarr")
    assert source.waits
    assert np.array_equal(scan(source).gram(), gram(A))
    (tmp_path / "a.zarr" / "c" / "3" / "0").unlink()
    with pytest.raises(MissingChunkError, match=r"no chunk c/3/0 \(rows 300 to 399\)"):
        scan(f"{web}/a.zarr")


def test_stacks_and_patterns(A, tmp_path):
    for i, part in enumerate(np.split(A, [100, 421])):
        zarr.create_array(tmp_path / f"day-{i}.zarr", data=part, chunks=(50, 12))
    assert np.array_equal(scan(str(tmp_path / "day-*.zarr")).gram(), gram(A))
    stack = open_source([tmp_path / "day-0.zarr", A])
    assert np.array_equal(stack.read(90, 110), np.concatenate([A[90:100], A[:10]]))
    assert len(stack.stamps(stack.cuts)) == len(stack.cuts) - 1
    with pytest.raises(FileNotFoundError, match="no archive matches"):
        scan(str(tmp_path / "night-*.zarr"))
    with pytest.raises(ValueError, match=r"same columns; .* has 12 and .* has 3"):
        scan([A, A[:, :3]])
    with pytest.raises(ValueError, match="same dtype"):
        scan([A, A.astype(float)])
    with pytest.raises(ValueError, match="at least one"):
        scan([])


def dask_parts(A):
    X = da.from_array(A, chunks=(100, 12))
    return {
        "dense": [X[:400], X[400:]],
        "sparse": [X[:400].map_blocks(sp.csr_matrix, dtype=A.dtype), X[400:].map_blocks(sp.csr_matrix, dtype=A.dtype)],
        "both": [X[:400], X[400:].map_blocks(sparse.COO.from_numpy, dtype=A.dtype)],
        "frames": [dd.from_pandas(pd.DataFrame(part), npartitions=3) for part in np.split(A, [400])],
        "mixture": [X[:400], A[400:]],
    }


@pytest.mark.parametrize("kind", ["dense", "sparse", "both", "frames", "mixture"])
def test_lists_of_dask_collections(A, kind):
    A = A.astype(float)
    parts = dask_parts(A)[kind]
    here = scan(parts).gram()
    np.testing.assert_allclose(here, gram(A), rtol=1e-12)
    with LocalCluster(**IN_PROCESS, n_workers=1) as cluster, Client(cluster):
        there = scan(parts)
        assert isinstance(there, RemoteMoments) == (kind != "mixture")
        assert np.array_equal(there.gram(), here)
        picked = RGCSS(3).fit(parts)
        assert np.array_equal(dense(picked.transform(parts).compute()), A[:, picked.support_])


def test_numpy_and_memory_map(A, tmp_path):
    np.save(tmp_path / "a.npy", A)
    assert np.array_equal(scan(A).gram(), gram(A))
    assert np.array_equal(scan(np.asfortranarray(A)).gram(), gram(A))
    assert np.array_equal(scan(np.load(tmp_path / "a.npy", mmap_mode="r")).gram(), gram(A))


def test_dask_arrays_of_any_chunks(A):
    X = da.from_array(A, chunks=((500, 3, 500), (5, 7)))
    assert np.array_equal(scan(X).gram(), gram(A))
    assert np.array_equal(scan(X, rows=slice(13, 777)).gram(), gram(A[13:777]))
    unknown = X[X[:, 0] > 100]
    assert np.isnan(unknown.shape[0])
    assert np.array_equal(scan(unknown).gram(), gram(A[A[:, 0] > 100]))


def test_a_dask_array_computes_what_it_depends_on_once(A):
    counted = []

    def expensive(block):
        counted.append(1)
        return block

    base = da.from_array(A.astype(float), chunks=(100, 12)).map_blocks(expensive, dtype=float, meta=np.empty((0, 0)))
    got = scan(base - base.mean(axis=0))
    np.testing.assert_allclose(got.gram(), gram(A - A.mean(axis=0)), rtol=1e-10)
    assert len(counted) == 11


def test_dask_blocks_that_break_their_promise_are_refused(A):
    X = da.from_array(A, chunks=(500, 12)).map_blocks(lambda b: b.astype(float), dtype=np.uint8)
    with pytest.raises(ValueError, match="has 12 columns of uint8, a block has 12 of float64"):
        scan(X)


def test_sparse_matrices_and_sparse_dask_blocks(A):
    A = np.where(A > 200, A, 0).astype(np.float32)
    wanted = gram(A)
    X = da.from_array(A, chunks=(300, 12))
    for source in (
        sp.csr_array(A),
        sp.csc_matrix(A),
        X.map_blocks(sp.csr_matrix, dtype=np.float32),
        X.map_blocks(sparse.COO.from_numpy, dtype=np.float32),
    ):
        np.testing.assert_allclose(scan(source).gram(), wanted, rtol=1e-13)


def test_data_frames_keep_their_names(A):
    frame = pd.DataFrame(A, columns=[f"pixel {i}" for i in range(COLUMNS)])
    for source in (frame, dd.from_pandas(frame, npartitions=3)):
        got = scan(source)
        assert got.names == tuple(frame.columns)
        assert got.exact
        assert np.array_equal(got.gram(), gram(A))
    mixed = pd.DataFrame({"a": [1, 2], "b": [1.5, 2.5]})
    assert np.array_equal(scan(mixed).gram(), gram(mixed.to_numpy()))
    with pytest.raises(TypeError, match="column 'when' has dtype datetime64"):
        scan(pd.DataFrame({"a": [1.0], "when": pd.to_datetime(["2020-01-01"])}))


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "boolean", "int64[pyarrow]", "Float32"])
def test_gaps_in_masked_columns_are_nan(dtype):
    column = pd.array([1, 0, None, 1], dtype=dtype)
    frame = pd.DataFrame({"a": column, "b": pd.array([1, 0, 1, 1], dtype=dtype)})
    for source in (frame, dd.from_pandas(frame, npartitions=2)):
        np.testing.assert_allclose(scan(source, nan="mean").mean, [2 / 3, 3 / 4])
        assert scan(source, nan="drop").rows == 3
        with pytest.raises(ValueError, match=r"row 2, column 0 of .* holds nan"):
            scan(source)
    whole = open_source(frame[["b"]])
    assert whole.dtype == frame["b"].dtype.numpy_dtype  # nothing is lost where there are no gaps
    assert scan_uncounted(dd.from_pandas(frame, npartitions=2), nan="drop").rows == 3


def test_columns_of_one_name_have_a_dtype_each():
    frame = pd.DataFrame([[1.5, 1], [2.5, 2]])
    frame[1] = frame[1].astype(int)
    frame.columns = ["a", "a"]
    assert np.array_equal(scan(frame).gram(), gram(np.array([[1.5, 1], [2.5, 2]])))


def test_missing_chunks_are_named_or_filled(A, stored, tmp_path):
    (tmp_path / "a.zarr" / "c" / "7" / "0").unlink()
    with pytest.raises(MissingChunkError, match=r"no chunk c/7/0 \(rows 700 to 799\).*missing='fill'"):
        scan(stored)
    filled = A.copy()
    filled[700:800] = 0
    assert np.array_equal(scan(stored, missing="fill").gram(), gram(filled))
    with pytest.raises(MissingChunkError, match="no chunk c/7/0"):  # found before anything is read
        open_source(stored).stamps(np.array([0, ROWS]))


def test_a_missing_shard_is_named(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(30, 12), shards=(300, 12))
    (tmp_path / "a.zarr" / "c" / "1" / "0").unlink()
    with pytest.raises(MissingChunkError, match=r"no chunk c/1/0 \(rows 300 to 599\)"):
        scan(tmp_path / "a.zarr")


@pytest.mark.parametrize("content", ["", '{"zarr', "null", "[]", '{"zarr_format": 3, "node_type": "array"}', "\xff"])
@pytest.mark.parametrize("place", ["a.zarr", "cells.zarr/X", "cells.zarr/X/data"])
def test_damaged_metadata_are_an_error_that_names_the_archive(stored, tmp_path, place, content):
    with warnings.catch_warnings(), anndata.settings.override(zarr_write_format=3):
        warnings.simplefilter("ignore")
        anndata.AnnData(sp.csr_matrix(np.eye(4, 3))).write_zarr(tmp_path / "cells.zarr")
    head = json.loads((tmp_path / "cells.zarr" / "zarr.json").read_text())
    head.pop("consolidated_metadata", None)  # a copy of what is changed here
    (tmp_path / "cells.zarr" / "zarr.json").write_text(json.dumps(head))
    (tmp_path / place / "zarr.json").write_bytes(content.encode("latin-1"))
    archive = tmp_path / place.partition("/")[0]
    with pytest.raises(
        ValueError, match=rf"the metadata of {archive} cannot be read|there is no matrix X in {archive}"
    ):
        scan(archive)


def test_damaged_chunks_are_named(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(100, 12), compressors=[ZstdCodec(), Crc32cCodec()])
    path = tmp_path / "a.zarr" / "c" / "4" / "0"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedChunkError, match=r"chunk c/4/0 \(rows 400 to 499\) cannot be read"):
            scan(tmp_path / "a.zarr")


def test_every_flipped_bit_is_found(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A[:100], chunks=(100, 12), compressors=[ZstdCodec(), Crc32cCodec()])
    path = tmp_path / "a.zarr" / "c" / "0" / "0"
    whole = path.read_bytes()
    source = open_source(tmp_path / "a.zarr")
    for i in np.random.default_rng(1).integers(0, 8 * len(whole), 100):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << (i % 8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedChunkError):
            source.read(0, 100)


def test_a_truncated_uncompressed_chunk_is_named(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(100, 12), compressors=None)
    path = tmp_path / "a.zarr" / "c" / "2" / "0"
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(DamagedChunkError, match="chunk c/2/0"):
        scan(tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("source", "error", "match"),
    [
        ("/no/such/path.zarr", FileNotFoundError, "no Zarr array at /no/such/path.zarr"),
        ("memory://nothing/here.zarr", FileNotFoundError, "no Zarr array at memory://nothing/here.zarr"),
        (np.zeros((2, 3, 4)), ValueError, r"two dimensions; memory has shape \(2, 3, 4\)"),
        (np.zeros((0, 3)), ValueError, r"rows and columns; memory has shape \(0, 3\)"),
        (np.zeros((3, 0)), ValueError, r"rows and columns; memory has shape \(3, 0\)"),
        (np.zeros((3, 2), complex), TypeError, "real numbers .*complex128"),
        (np.array([["a"]], object), TypeError, "real numbers .*object"),
        (np.array([["a"]]), TypeError, "real numbers"),
        (np.array([["2020-01-01"]], "M8[D]"), TypeError, "real numbers"),
        (3.5, TypeError, "a source must be a path or URL.*got builtins.float"),
        ("nosuch://bucket/a.zarr", ValueError, "nosuch://bucket/a.zarr cannot be opened"),
    ],
)
def test_bad_sources_are_refused(source, error, match):
    with pytest.raises(error, match=match):
        scan(source)


def test_a_folder_that_is_no_zarr_array(tmp_path):
    with pytest.raises(FileNotFoundError, match="no Zarr array"):
        scan(tmp_path)


def test_a_url_whose_package_is_not_installed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match=r"pip install 'rgcss-dask\[gcs\]'"):
        scan("gs://bucket/a.zarr")


@pytest.mark.parametrize(
    "kind", [sp.coo_matrix, sp.lil_matrix, sp.bsr_matrix, sp.dok_matrix, sp.coo_array, sp.csc_array]
)
def test_dask_blocks_of_every_sparse_format(A, kind):
    """Of most formats no rows can be cut out, and Dask does not know what the blocks are."""
    A = np.where(A > 200, A, 0).astype(np.float32)
    X = da.from_array(A, chunks=(300, 12)).map_blocks(kind, dtype=np.float32)
    np.testing.assert_allclose(scan(X).gram(), gram(A), rtol=1e-13)
    picked = RGCSS(3).fit(X)
    taken = sp.csr_matrix(picked.transform(X).compute()).toarray()
    assert np.array_equal(taken, A[:, np.sort(picked.selected_)])
    np.testing.assert_allclose(picked.score(X), picked.score(A), rtol=1e-12)


def test_dask_blocks_in_the_other_byte_order(A):
    for dtype in (">f8", ">i4", ">f4"):
        X = da.from_array(A.astype(dtype), chunks=(300, 12))
        for source in (X, [X, X]):
            np.testing.assert_allclose(scan(source).gram(), gram(A) * (1 if source is X else 2), rtol=1e-13)
        picked = RGCSS(3).fit(X)
        assert np.array_equal(picked.transform(X).compute(), A[:, np.sort(picked.selected_)])
        np.testing.assert_allclose(picked.score(X), picked.score(A.astype(float)), rtol=1e-12)


def test_patterns_count_as_people_do(tmp_path):
    days = (1, 2, 3, 10, 11)
    for day in days:
        zarr.create_array(tmp_path / f"day-{day}.zarr", data=np.full((2, 3), float(day)))
        np.save(tmp_path / f"day-{day}.npy", np.full((2, 3), float(day)))
    pattern = f"{tmp_path}/day-*.zarr"
    wanted = np.repeat(days, 2)
    assert np.array_equal(open_source(pattern).read(0, 10)[:, 0], wanted)
    assert in_order(["b-2", "a-10", "a-9", "a-09", "a"]) == ["a", "a-09", "a-9", "a-10", "b-2"]
    convert(f"{tmp_path}/day-*.npy", tmp_path / "all.zarr")
    assert np.array_equal(zarr.open_array(tmp_path / "all.zarr", mode="r")[:, 0], wanted)
    order = f"day-1.zarr, {tmp_path}/day-2.zarr, {tmp_path}/day-3.zarr, ..., {tmp_path}/day-11.zarr (5 in this order)"
    for command in (["inspect", pattern], ["scan", pattern, "-o", f"{tmp_path}/moments"]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        assert order in done.output


def test_a_star_in_the_name_of_what_a_pattern_finds(tmp_path):
    zarr.create_array(tmp_path / "*star*", data=np.eye(4))
    assert scan(str(tmp_path / "*star*")).rows == 4


def test_an_address_is_opened_as_an_array_first(tmp_path, monkeypatch):
    """Most are arrays, and each look at a store in a cloud is a request."""
    zarr.create_array(tmp_path / "a.zarr", data=np.eye(3), chunks=(2, 3))
    monkeypatch.setattr(zarr, "open_group", lambda *a, **k: pytest.fail("no group was asked for"))
    assert open_source(tmp_path / "a.zarr").shape == (3, 3)

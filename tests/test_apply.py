"""A selection applied out of core: what is written, in which chunks, within which memory, and after an interruption."""

import subprocess
import sys

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

import rgcss_dask as rg
from rgcss_dask.conversion.apply_selection import ATTRIBUTE
from rgcss_dask.core.rebuild import fitted
from rgcss_dask.io.zarr_store import COLUMN_NAMES


@pytest.fixture(name="X", scope="module")
def tall():
    rng = np.random.default_rng(0)
    return rng.standard_normal((500, 5)) @ rng.standard_normal((5, 12)) + 0.2 * rng.standard_normal((500, 12)) + 3


@pytest.fixture(scope="module")
def picked(X):
    return rg.select(rg.Moments.of(X), 4, center=True, scale="std")


def sources(X, folder):
    zarr.create_array(folder / "x.zarr", data=X, chunks=(64, 5))
    yield X
    yield folder / "x.zarr"
    yield da.from_array(X, chunks=(70, 6))
    yield scipy.sparse.csr_array(X)
    yield pd.DataFrame(X, columns=[f"c{i}" for i in range(12)])
    yield [X[:200], X[200:]]


def test_reduced_matrix_of_any_source(X, picked, tmp_path):
    columns = sorted(picked.columns)
    for i, source in enumerate(sources(X, tmp_path)):
        target = tmp_path / f"out{i}.zarr"
        assert rg.write_reduced(picked, source, target) == 500
        out = zarr.open_array(target, mode="r")
        np.testing.assert_array_equal(out[:], X[:, columns])
        assert out.attrs[ATTRIBUTE] == columns
        if isinstance(source, pd.DataFrame):
            assert out.attrs[COLUMN_NAMES] == [f"c{j}" for j in columns]
            assert rg.scan(target).names == tuple(f"c{j}" for j in columns)


def test_columns_may_be_given_by_name(X, tmp_path):
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(12)])
    rg.write_reduced(["c7", "c2"], frame, tmp_path / "out.zarr")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X[:, [2, 7]])


def test_reconstruction_from_all_and_from_picked_columns(X, picked, tmp_path):
    e = rg.RGCSS(4, center=True, scale="std").fit(X)
    expected = e.inverse_transform(e.transform(X))
    rg.write_reduced(e.selection_, X, tmp_path / "reduced.zarr")
    for i, source in enumerate((X, tmp_path / "reduced.zarr")):
        target = tmp_path / f"back{i}.zarr"
        assert rg.write_reconstruction(e.selection_, e.coef_, source, target, dtype="float64") == 500
        np.testing.assert_allclose(zarr.open_array(tmp_path / f"back{i}.zarr", mode="r")[:], expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("source", "asked", "written"),
    [
        ("f8", None, "f4"),
        ("f4", None, "f4"),
        ("f2", None, "f2"),
        ("u1", None, "u1"),
        ("i2", None, "i2"),
        ("u1", "float64", "f8"),
        ("f8", "uint8", "u1"),
        (">f8", None, "f4"),
    ],
)
@pytest.mark.parametrize("objective", ["unselected", "all"])
def test_the_dtype_of_a_reconstruction(X, objective, source, asked, written, tmp_path):
    values = np.clip(30 * X, -50, 300) if source == "i2" else np.clip(30 * X, 0, 255)
    rows = np.rint(values).astype(source) if source[0] in "iu" else values.astype(source)
    moments = rg.Moments.of(rows.astype(np.float64))
    picked = rg.select(moments, 4, center=True, objective=objective)
    weights = picked.weights(moments)
    rg.write_reconstruction(picked, weights, rows, tmp_path / "back.zarr", dtype=asked)
    found = zarr.open_array(tmp_path / "back.zarr", mode="r")[:]
    S, mean = picked.columns, rows.astype(np.float64).mean(axis=0)
    want = (rows[:, S].astype(np.float64) - mean[S]) @ weights + mean
    if objective == "unselected":
        want[:, S] = rows[:, S]
    assert found.dtype == written
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, want, atol=3 * np.finfo(found.dtype).eps * 300)
    else:
        ends = np.iinfo(found.dtype)
        assert np.abs(found - np.clip(want, ends.min, ends.max)).max() <= 0.5 + 1e-9
        assert want.min() < ends.min or found.dtype == "i2"  # some values are cut off


def test_what_a_dtype_cannot_hold():
    big = np.array([[-1e30, 1e30, 2.5, 3.5]])
    for dtype in (np.int64, np.uint64, np.int8):
        low, high, *rest = fitted(big, np.dtype(dtype))[0].tolist()
        assert (low, high, rest) == (np.iinfo(dtype).min, np.iinfo(dtype).max, [2, 4])
    with pytest.raises(ValueError, match=r"must fit into float16; .*Ask for float64"):
        fitted(big, np.dtype(np.float16))
    with pytest.raises(ValueError, match=r"must be finite for uint8; some are NaN"):
        fitted(np.array([np.nan]), np.dtype(np.uint8))
    with pytest.raises(ValueError, match=r"dtype must be a real number type.*got 'words'"):
        rg.write_reconstruction(rg.select(np.eye(3) + 1, 1), np.ones((1, 3)), np.ones((4, 3)), "x", dtype="words")


def test_dataarrays(tmp_path):
    xr = pytest.importorskip("xarray")
    values = np.random.default_rng(0).standard_normal((40, 3, 4))
    values[:, 0, 0] = np.nan
    array = xr.DataArray(values, dims=("lat", "time", "lon")).rename({"lat": "time", "time": "lat"})
    picked = rg.select(rg.scan(array, rows="time"), 3)
    rg.write_reduced(picked, array.chunk({"time": 10}), tmp_path / "out.zarr", rows="time")
    flat = values.reshape(40, -1)[:, 1:]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], flat[:, sorted(picked.columns)])


def test_chunks_are_large_and_a_dask_block_is_made_once(tmp_path):
    made = []

    def block(part, block_info=None):
        if block_info:
            made.append(block_info[0]["chunk-location"][0])
        return part

    data = da.ones((3_000_000, 2), chunks=(100_000, 2), dtype=np.float32).map_blocks(
        block, dtype=np.float32, meta=np.empty((0, 0), np.float32)
    )
    rg.write_reduced([1], data, tmp_path / "out.zarr")
    out = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert out.chunks[0] * 4 >= 2**23
    assert sorted(made) == list(range(30))


class StoppedError(Exception):
    pass


def test_an_interrupted_call_goes_on(X, picked, tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.io.matrix_writer.CHUNK_BYTES", 50 * 4 * 8)
    monkeypatch.setattr("rgcss_dask.conversion.apply_selection.READ_BYTES", 64 * 12 * 8)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, 12))

    def stop_at_200(rows, seen=[0]):  # noqa: B006 (counts over calls)
        seen[0] += rows
        if seen[0] >= 200:
            raise StoppedError

    with pytest.raises(StoppedError):
        rg.write_reduced(picked, tmp_path / "x.zarr", tmp_path / "out.zarr", told=stop_at_200)
    assert not (tmp_path / "out.zarr").exists()
    told = []
    rg.write_reduced(picked, tmp_path / "x.zarr", tmp_path / "out.zarr", told=told.append)
    assert (told[0], sum(told)) == (200, 500)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X[:, sorted(picked.columns)])


def test_a_folder_that_is_no_draft_is_left_alone(X, picked, tmp_path):
    (tmp_path / "out.zarr.draft").mkdir()
    (tmp_path / "out.zarr.draft" / "thesis.txt").write_text("all of it")
    with pytest.raises(FileExistsError, match="must be free for the draft; it is something else"):
        rg.write_reduced(picked, X, tmp_path / "out.zarr")
    assert (tmp_path / "out.zarr.draft" / "thesis.txt").read_text() == "all of it"


def test_a_draft_of_other_rows_is_not_gone_on_with(X, picked, tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.io.matrix_writer.CHUNK_BYTES", 50 * 4 * 8)

    def stop(rows):
        if rows:
            raise StoppedError

    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, 12))
    with pytest.raises(StoppedError):
        rg.write_reduced(picked, tmp_path / "x.zarr", tmp_path / "out.zarr", told=stop)
    zarr.create_array(tmp_path / "x.zarr", data=2 * X, chunks=(64, 12), overwrite=True)
    rg.write_reduced(picked, tmp_path / "x.zarr", tmp_path / "out.zarr")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], 2 * X[:, sorted(picked.columns)])


MEMORY = """
import sys, dask.array as da, numpy as np, rgcss_dask as rg
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
def data(m):
    return da.random.default_rng(0).standard_normal((m, 100), chunks=(20_000, 100))
rg.write_reduced([1, 5], data(40_000), sys.argv[1] + "/small.zarr")
before = peak()
rg.write_reduced([1, 5], data(600_000), sys.argv[1] + "/large.zarr")
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """480 MB of rows pass through in blocks of 16 MB, into chunks of 16 MB."""
    done = subprocess.run([sys.executable, "-c", MEMORY, tmp_path], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100


def test_bad_input(X, picked, tmp_path):
    with pytest.raises(ValueError, match="must have the 12 columns that were selected from; memory has 11"):
        rg.write_reduced(picked, X[:, 1:], tmp_path / "out.zarr")
    with pytest.raises(ValueError, match="must have the 4 picked columns or all 12; memory has 11"):
        rg.write_reconstruction(picked, np.zeros((4, 12)), X[:, 1:], tmp_path / "out.zarr")
    with pytest.raises(ValueError, match="none was picked"):
        rg.write_reduced([], X, tmp_path / "out.zarr")
    with pytest.raises(ValueError, match="column 'depth' does not exist"):
        rg.write_reduced(["depth"], X, tmp_path / "out.zarr")
    rg.write_reduced(picked, X, tmp_path / "out.zarr")
    with pytest.raises(FileExistsError, match="exists already"):
        rg.write_reduced(picked, X, tmp_path / "out.zarr")
    with pytest.raises(FileNotFoundError, match="Create it first"):
        rg.write_reduced(picked, X, tmp_path / "nowhere" / "out.zarr")

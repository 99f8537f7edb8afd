"""A finished archive is given back for the rows it was made of, and for no others."""

import shutil
import tracemalloc
import warnings
import zlib
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from zarr.storage import MemoryStore, ZipStore

import rgcss_dask as rg
from rgcss_dask.archive.pass_identity import OtherPassError
from rgcss_dask.cluster.visibility import seal
from rgcss_dask.sources.anndata import AnnDataSource
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.row_vectors import RowVector
from rgcss_dask.sources.xarray import XarraySource
from rgcss_dask.sources.zarr import ZarrSource

ROWS, COLUMNS = 60, 4


@pytest.fixture
def A():  # noqa: N802
    return np.random.default_rng(0).standard_normal((ROWS, COLUMNS))


def stamps_of(source, **how):
    opened = open_source(source, **how)
    return opened.stamps(opened.cuts)


def check_told_apart(archive, first, second, **how):
    """Scan what ``first`` returns into an archive; what ``second`` returns has the same shape and is refused."""
    wanted = rg.scan(first(), archive=archive, **how).gram()
    np.testing.assert_array_equal(rg.scan(first(), archive=archive, **how).gram(), wanted)
    with pytest.raises(OtherPassError, match="other data or with other options"):
        rg.scan(second(), archive=archive, **how)


# --- Xarray


@pytest.fixture(scope="module")
def xr():
    return pytest.importorskip("xarray")


def labelled(xr, values):
    return xr.DataArray(values, dims=("time", "cell"), name="t")


def test_dataarrays_in_memory_are_told_apart(xr, A, tmp_path):
    check_told_apart(tmp_path / "m.zarr", lambda: labelled(xr, A), lambda: labelled(xr, A + 1))


def test_dataarrays_of_dask_blocks_are_told_apart(xr, A, tmp_path):
    first, second = (labelled(xr, values).chunk({"time": 20}) for values in (A, A + 1))
    check_told_apart(tmp_path / "m.zarr", lambda: first, lambda: second)


def written(xr, path, kind, values):
    """Return a DataArray that is read when it is asked for."""
    data = labelled(xr, values).to_dataset()
    if kind == "zarr":
        data.to_zarr(path, mode="w", consolidated=False, encoding={"t": {"chunks": (20, COLUMNS)}})
        return xr.open_zarr(path, chunks=None, consolidated=False)["t"]
    pytest.importorskip("netCDF4")
    path.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netCDF4 was built for another NumPy
        data.to_netcdf(path, engine="netcdf4")
        return xr.open_dataset(path, engine="netcdf4", cache=False)["t"]


@pytest.mark.parametrize("kind", ["zarr", "nc"])
def test_a_file_that_xarray_reads_later_is_told_from_what_replaces_it(xr, A, tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    first = written(xr, path, kind, A)
    check_told_apart(tmp_path / "m.zarr", lambda: first, lambda: written(xr, path, kind, A + 1))


@pytest.mark.parametrize("kind", ["zarr", "nc"])
def test_rows_and_columns_taken_of_a_file_are_told_apart(xr, A, tmp_path, kind, monkeypatch):
    t = written(xr, tmp_path / f"data.{kind}", kind, A)
    taken = [t, t[:40], t[20:], t[np.r_[0:5, 6:41]], t[np.r_[0:6, 7:41]], t[:, ::-1], t[:, 1:]]
    reads, read = [], XarraySource.read
    monkeypatch.setattr(XarraySource, "read", lambda self, a, b: (reads.append(b - a), read(self, a, b))[1])
    assert len({stamps_of(one)[0] for one in taken}) == len(taken)
    assert sum(reads) == 3 * len(taken)  # the file is not read whole: it has a size and a time
    assert stamps_of(t) == stamps_of(t)


def test_variables_of_one_file_are_told_apart(xr, A, tmp_path):
    data = xr.Dataset({"a": (("time", "cell"), A), "b": (("time", "cell"), A + 1)})
    data.to_zarr(tmp_path / "d.zarr", consolidated=False)
    opened = xr.open_zarr(tmp_path / "d.zarr", chunks=None, consolidated=False)
    check_told_apart(tmp_path / "m.zarr", lambda: opened["a"].rename("t"), lambda: opened["b"].rename("t"))


def test_values_changed_in_memory_are_not_taken_for_those_of_the_file(xr, A, tmp_path):
    changed = written(xr, tmp_path / "data.nc", "nc", A).load()
    assert changed.encoding["source"]
    changed[3, 2] = 7.0
    assert stamps_of(changed) == stamps_of(labelled(xr, changed.to_numpy()))


def test_a_file_whose_state_cannot_be_told_is_read(xr, A, tmp_path, monkeypatch):
    t = written(xr, tmp_path / "data.zarr", "zarr", A)
    monkeypatch.setattr(ZarrSource, "stamps", lambda *a: None)
    assert stamps_of(t) == [f"{zlib.crc32(A[i : i + 20].tobytes()):08x}" for i in (0, 20, 40)]


# --- AnnData


@pytest.fixture(scope="module")
def anndata():
    return pytest.importorskip("anndata")


def write_cells(anndata, path, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata announces the formats of its next version
        anndata.AnnData(X=X).write_zarr(path)
    return path


def sparse_group(store, X):
    group = zarr.open_group(store, mode="w")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(X.shape)})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(X, name), chunks=(100,))
    return group


def some_cells(seed=0):
    return sp.random(400, 30, density=0.1, format="csr", random_state=seed, dtype=np.float32)


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csr_matrix.toarray])
def test_an_anndata_store_that_was_rewritten_is_seen(anndata, tmp_path, form):
    def store(X):
        return write_cells(anndata, tmp_path / "c.zarr", form(X))

    path = store(some_cells())
    check_told_apart(tmp_path / "m.zarr", lambda: path, lambda: store(2 * some_cells()))


@pytest.mark.parametrize("name", ["data", "indices"])
def test_one_chunk_of_a_sparse_matrix_changes_the_stamps_of_its_cells(tmp_path, name):
    X = some_cells()
    group = sparse_group(tmp_path / "c.zarr", X)
    source, edges = open_source(tmp_path / "c.zarr"), np.arange(0, 401, 20)
    assert isinstance(source, AnnDataSource)
    before = source.stamps(edges)
    assert source.stamps(edges) == before
    group[name][300] += 1
    first, last = np.searchsorted(X.indptr, [300, 399], "right") - 1  # the cells of the fourth chunk
    changed = [i for i, (a, b) in enumerate(zip(before, source.stamps(edges), strict=True)) if a != b]
    assert changed == list(range(first // 20, last // 20 + 1))


def test_an_anndata_group_in_memory_and_at_a_relative_path(anndata, tmp_path, monkeypatch):
    X = some_cells()
    path = write_cells(anndata, tmp_path / "c.zarr", X)
    monkeypatch.chdir(tmp_path)
    source = open_source(zarr.open_group("c.zarr", mode="r"))
    monkeypatch.chdir("/")
    assert source.paths == (str(path / "X"),)
    np.testing.assert_array_equal(source.read(0, 5), X[:5].toarray())
    group = sparse_group(MemoryStore(), X)
    source = open_source(group, missing="fill")
    assert not source.processes
    before = source.stamps(source.cuts)
    group["data"][0] = 7
    assert source.stamps(source.cuts) != before


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_anndata_of_dask_blocks_is_not_loaded(anndata, form):
    X = some_cells().toarray()
    made = []

    def note(block):
        made.append(block.shape)
        return form(block)

    blocks = da.from_array(X, chunks=(100, 30)).map_blocks(note, dtype=X.dtype, meta=form(X[:0]))
    adata = anndata.AnnData(X=blocks)
    source = open_source(adata)
    assert made == []
    assert source.names == tuple(adata.var_names)
    np.testing.assert_allclose(
        rg.scan(adata).gram(), X.T.astype(float) @ X, rtol=1e-12, atol=1e-13
    )  # atol: sums that are zero
    assert made == [(100, 30)] * 4


# --- Zarr


def test_attributes_of_packed_numbers_are_part_of_the_stamp(xr, tmp_path):
    array = zarr.create_array(tmp_path / "a.zarr", data=np.arange(240, dtype=np.int16).reshape(60, 4), chunks=(20, 4))
    array.attrs["scale_factor"] = 0.5

    def packed_otherwise():
        array.attrs["scale_factor"] = 0.25
        return tmp_path / "a.zarr"

    check_told_apart(tmp_path / "m.zarr", lambda: tmp_path / "a.zarr", packed_otherwise)


def test_the_fill_value_of_chunks_that_are_not_there_is_part_of_the_stamp(A, tmp_path):
    found = []
    for fill in (1.0, 2.0):
        zarr.create_array(
            tmp_path / "a.zarr", shape=(60, 4), dtype=float, chunks=(20, 4), fill_value=fill, overwrite=True
        )
        found.append(stamps_of(tmp_path / "a.zarr", missing="fill"))
    assert found[0] != found[1]


def test_a_zip_file_that_was_rewritten_is_seen(A, tmp_path):
    def store(values):
        with ZipStore(tmp_path / "a.zip", mode="w") as inside:
            zarr.create_array(inside, name="x", data=values, chunks=(20, 4))
        return tmp_path / "a.zip" / "x"

    path = store(A)
    check_told_apart(tmp_path / "m.zarr", lambda: path, lambda: store(A + 1))


def test_a_zarr_array_in_memory_that_was_changed_is_seen(A, tmp_path):
    array = zarr.create_array(MemoryStore(), data=A, chunks=(20, 4))
    before = stamps_of(array)

    def changed():
        array[30, 1] = 7
        return array

    check_told_apart(tmp_path / "m.zarr", lambda: array, changed)
    assert [a == b for a, b in zip(stamps_of(array), before, strict=True)] == [True, False, True]


# --- stacks


def test_lists_are_told_apart_by_all_their_addresses(A, tmp_path, monkeypatch):
    for i in range(3):
        zarr.create_array(tmp_path / f"{i}.zarr", data=A + i, chunks=(20, 4))
    monkeypatch.setattr(ZarrSource, "stamps", lambda *a: None)  # as over HTTP

    def stack(*numbers):
        return [str(tmp_path / f"{i}.zarr") for i in numbers]

    check_told_apart(tmp_path / "m.zarr", lambda: stack(0, 1), lambda: stack(0, 2))
    assert open_source(stack(0, 1, 2)).address.startswith(f"{tmp_path}/0.zarr and 2 more (")
    assert len({open_source(stack(*order)).address for order in ((0, 1, 2), (0, 2, 1), (0, 1, 1))}) == 3


def test_each_source_of_a_stack_is_asked_once_for_its_stamps(A, tmp_path, monkeypatch):
    for i in range(2):
        zarr.create_array(tmp_path / f"{i}.zarr", data=A, chunks=(20, 4))
    asked, stamps = [], ZarrSource.stamps
    monkeypatch.setattr(ZarrSource, "stamps", lambda self, e: (asked.append(e.tolist()), stamps(self, e))[1])
    stack = open_source([tmp_path / "0.zarr", A, tmp_path / "1.zarr"])
    found = stack.stamps(np.array([10, 20, 50, 70, 130, 180]))
    assert asked == [[10, 20, 50, 60], [0, 10, 60]]
    assert [stamp.count("+") for stamp in found] == [0, 0, 1, 1, 0]
    asked.clear()
    assert len(stack.stamps(np.array([70, 90]))) == 1
    assert asked == []


# --- sparse matrices


def test_the_stamps_of_a_sparse_matrix_are_taken_of_what_it_stores():
    X = sp.random(20_000, 2_000, density=0.001, format="csr", random_state=0)
    source = open_source(X)
    tracemalloc.start()
    source.stamps(np.array([0, 20_000]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)  # dense: 320 MB
    edges = np.arange(0, 20_001, 5_000)
    before = source.stamps(edges)
    for stored in (X.data, X.indices):
        stored[X.indptr[6_000]] += 1
        assert [a == b for a, b in zip(source.stamps(edges), before, strict=True)] == [True, False, True, True]
        stored[X.indptr[6_000]] -= 1


def test_a_value_moved_to_another_row_and_rows_without_values():
    X, Y = (sp.csr_array(([1.0], ([row], [2])), shape=(9, 3)) for row in (1, 2))
    assert open_source(X).stamps(np.array([0, 3, 9])) != open_source(Y).stamps(np.array([0, 3, 9]))
    assert open_source(X).stamps(np.array([3, 9])) == open_source(Y).stamps(np.array([3, 9]))


# --- weights and masks


@pytest.mark.parametrize(("option", "values"), [("weights", np.arange(60.0)), ("rows", np.arange(60) % 2 == 0)])
def test_weights_and_masks_that_were_rewritten_are_seen(A, tmp_path, option, values):
    path = tmp_path / "v.zarr"

    def store(entries):
        zarr.create_array(path, data=entries, chunks=(20,), overwrite=True, config={"write_empty_chunks": True})

    store(values)
    moments = rg.scan(A, archive=tmp_path / "m.zarr", **{option: str(path)})
    np.testing.assert_allclose(moments.gram(), (A.T * values) @ A, rtol=1e-12, atol=1e-12)
    same = rg.scan(A, archive=tmp_path / "m.zarr", **{option: str(path)})
    np.testing.assert_array_equal(same.gram(), moments.gram())
    store(values[::-1])
    with pytest.raises(OtherPassError, match=f"{option} vector: .*v.zarr"):
        rg.scan(A, archive=tmp_path / "m.zarr", **{option: str(path)})


def test_weights_in_a_relative_store_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zarr.create_array("w.zarr", data=np.ones(60), chunks=(20,))
    for given in (Path("w.zarr"), zarr.open_array("w.zarr", mode="r")):
        monkeypatch.chdir(tmp_path)
        weights = RowVector.of(given, "weights", 60, Reading())
        monkeypatch.chdir("/")
        assert weights.paths == (str(tmp_path / "w.zarr"),)
        np.testing.assert_array_equal(weights.values[:], np.ones(60))


def test_a_missing_chunk_of_weights_is_named_before_anything_is_read(A, tmp_path):
    zarr.create_array(tmp_path / "w.zarr", data=np.ones(60), chunks=(20,))
    (tmp_path / "w.zarr" / "c" / "1").unlink()
    with pytest.raises(MissingChunkError, match=r"w.zarr has no chunk c/1 \(rows 20 to 39\).*missing='fill'"):
        rg.scan(A, weights=tmp_path / "w.zarr")


# --- files, of which other machines may have copies


def test_every_stored_source_names_the_files_of_its_rows(xr, anndata, A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(20, 3))
    packed = zarr.create_array(tmp_path / "p.zarr", data=A.astype(np.int16), chunks=(20, 4))
    packed.attrs["scale_factor"] = 0.5
    cells = sparse_group(tmp_path / "c.zarr", some_cells())
    sources = {
        tmp_path / "a.zarr": ["c/1/0", "c/1/1"],
        f"file://{tmp_path}/a.zarr": ["c/1/0", "c/1/1"],
        tmp_path / "p.zarr": ["c/1/0"],
    }
    for thing, names in sources.items():
        folder = str(thing).removeprefix("file://")
        assert open_source(thing).files(20, 40) == [f"{folder}/{name}" for name in names]
    stack = open_source([tmp_path / "a.zarr", tmp_path / "p.zarr"])
    assert stack.files(50, 70) == [f"{tmp_path}/{name}" for name in ("a.zarr/c/2/0", "a.zarr/c/2/1", "p.zarr/c/0/0")]
    found = open_source(tmp_path / "c.zarr").files(100, 120)
    first, last = np.asarray(cells["indptr"])[[100, 120]]
    across = range(first // 100, -(-last // 100))
    wanted = ["indptr/c/1", *(f"{name}/c/{i}" for name in ("data", "indices") for i in across)]
    assert found == [f"{tmp_path}/c.zarr/{name}" for name in wanted]
    assert open_source(A).files(0, 60) == []


def test_a_seal_knows_a_copy_and_what_is_not_one(A, tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(10, 4), compressors=None)
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "b.zarr", copy_function=shutil.copyfile)  # with other dates

    def seals():
        return [seal([open_source(tmp_path / name)], 0, 60) for name in ("a.zarr", "b.zarr")]

    assert len(set(seals())) == 1
    zarr.open_array(tmp_path / "b.zarr", mode="r+")[59, 3] = 7  # in the last file
    assert len(set(seals())) == 2
    shutil.copyfile(tmp_path / "a.zarr/c/5/0", tmp_path / "b.zarr/c/5/0")
    assert len(set(seals())) == 1
    (tmp_path / "b.zarr/c/4/0").unlink()
    assert len(set(seals())) == 2
    assert seal([open_source(A)], 0, 60) is None

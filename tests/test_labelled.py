"""Data with labels: DataArrays of Xarray with land and packed integers, AnnData in Zarr stores."""

import pickle
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from distributed import Client

import rgcss_dask as rg
from rgcss_dask import RGCSS, Field
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.anndata import AnnDataSource
from rgcss_dask.sources.beside import Targets, with_targets
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.views import ColumnsSource

xr = pytest.importorskip("xarray")


@pytest.fixture(scope="module")
def ocean():
    """120 months on a 5 x 8 grid; the first and last longitudes of some latitudes are land."""
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((120, 6)) @ rng.standard_normal((6, 40)) + 10).reshape(120, 5, 8)
    values += 0.1 * rng.standard_normal(values.shape)
    values[:, 1:3, :2] = np.nan
    values[:, 4, 7] = np.nan
    coords = {
        "time": pd.date_range("2001-01-01", periods=120, freq="MS"),
        "lat": np.linspace(-40, 40, 5),
        "lon": np.linspace(100, 170, 8),
    }
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name="sst", attrs={"units": "degC"})


def as_matrix(array):
    flat = array.transpose("time", "lat", "lon").to_numpy().reshape(array.sizes["time"], -1)
    return flat[:, ~np.isnan(flat).all(axis=0)]


def kinds(ocean, tmp_path):
    ocean.to_dataset().to_zarr(tmp_path / "sst.zarr", encoding={"sst": {"chunks": (30, 3, 4)}}, consolidated=False)
    yield "memory", ocean
    yield "turned", ocean.transpose("lat", "time", "lon")
    yield "chunks", ocean.chunk({"time": 50, "lon": 3})
    yield "open_zarr", xr.open_zarr(tmp_path / "sst.zarr", consolidated=False)["sst"]
    yield "lazy file", xr.open_zarr(tmp_path / "sst.zarr", consolidated=False, chunks=None)["sst"]


def test_scan_stacks_and_leaves_land_out(ocean, tmp_path):
    A = as_matrix(ocean)
    for name, array in kinds(ocean, tmp_path):
        moments = rg.scan(array, rows="time")
        assert (moments.rows, moments.n) == (120, 35), name
        np.testing.assert_allclose(moments.gram(), A.T @ A, rtol=1e-12)
    assert moments.names[0] == "lat=-40.0, lon=100.0"
    assert moments.names[8] == "lat=-20.0, lon=120.0"


def test_the_estimator_gives_dataarrays_back(ocean, tmp_path):
    base = RGCSS(6, center=True).fit(as_matrix(ocean))
    for name, array in kinds(ocean, tmp_path):
        data = array if name != "turned" else Field.of(array, "time").matrix(array)
        e = RGCSS(6, center=True).fit(data)
        assert list(e.selected_) == list(base.selected_), name
        np.testing.assert_allclose(e.loss_path_, base.loss_path_, rtol=1e-10)
        if name == "turned":
            continue
        reduced = e.transform(array)
        assert reduced.dims == ("time", "place")
        assert reduced.attrs == {"units": "degC"}
        at = dict(lat=reduced.lat, lon=reduced.lon)
        np.testing.assert_array_equal(reduced, array.sel(at).transpose("time", "place"))
        assert sorted(reduced["rank"].values) == [1, 2, 3, 4, 5, 6]
        back = e.inverse_transform(reduced)
        assert back.dims == ("time", "lat", "lon")
        xr.testing.assert_equal(back.isnull().compute(), ocean.isnull())
        assert float(((back - ocean) ** 2).sum()) == pytest.approx(e.loss_path_[-1], rel=1e-9)
        for coordinate in ("time", "lat", "lon"):
            xr.testing.assert_equal(back[coordinate], ocean[coordinate])
        assert e.score(array) == pytest.approx(base.score(as_matrix(ocean)), rel=1e-9)
        e = pickle.loads(pickle.dumps(e))
        assert [float(v) for v in e.places_.lat] == [
            float(e.feature_names_in_[j].split("lat=")[1].split(",")[0]) for j in e.selected_
        ]


def test_places_and_fields_of_the_functions(ocean):
    field = Field.of(ocean, "time")
    moments = rg.scan(field.matrix(ocean))
    picked = rg.select(moments, 4, center=True)
    places = field.places(picked.columns)
    assert places.dims == ("place",)
    for j, lat, lon in zip(picked.columns, places.lat.values, places.lon.values, strict=True):
        np.testing.assert_array_equal(ocean.sel(lat=lat, lon=lon), as_matrix(ocean)[:, j])
    mean = field.full(moments.mean)
    xr.testing.assert_allclose(mean, ocean.mean("time"))


def test_chunked_fields_stay_lazy(ocean):
    made = []

    def note(block):
        made.append(block.shape)
        return block

    e = RGCSS(5).fit(ocean)
    array = ocean.chunk({"time": 40})
    array = array.copy(data=array.data.map_blocks(note, dtype=float, meta=np.empty((0, 0, 0))))
    back = e.inverse_transform(e.transform(array))
    assert made == []
    assert back.chunks[0] == (40, 40, 40)
    xr.testing.assert_allclose(back.compute(), e.inverse_transform(e.transform(ocean)))


def test_fewer_rows_than_places_take_the_wide_path(ocean, monkeypatch):
    few = ocean.isel(time=slice(0, 20))
    whole = RGCSS(5, center=True, refine=False).fit_moments(rg.scan(few, rows="time"))
    monkeypatch.setattr("rgcss_dask.estimator.selector.scan", None)
    for array in (few, few.chunk({"time": 7})):
        e = RGCSS(5, center=True).fit(array)
        assert list(e.selected_) == list(whole.selected_)
        np.testing.assert_allclose(e.loss_path_, whole.loss_path_, atol=1e-10 * whole.selection_.start)


def test_a_column_with_values_late_is_not_taken_for_land(ocean):
    late = ocean.copy(deep=True)
    late[17, 1, 0] = 5.0
    for array in (late, late.chunk({"time": 50})):
        with pytest.raises(ValueError, match=r"lat=-20.0, lon=100.0 has none in the first.*one in row 17.*land='all'"):
            rg.scan(array, rows="time")
        filled = rg.scan(Field.of(array, "time", land="all").matrix(array), nan="mean")
        assert filled.n == 36
    gaps = ocean.copy(deep=True)
    gaps[30, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"row 30, column 0 of .*sst holds nan"):
        rg.scan(gaps, rows="time")
    assert rg.scan(gaps, rows="time", nan="drop").dropped == 1


def test_land_can_be_given(ocean):
    land = np.isnan(ocean.to_numpy()).all(axis=0)
    land[0, 0] = True
    dry = ocean.copy(data=np.where(land, np.nan, ocean))
    assert Field.of(dry, "time", land=land).n == 34
    with pytest.raises(ValueError, match=r"land must have the shape \(5, 8\)"):
        Field.of(ocean, "time", land=land.T)
    with pytest.raises(ValueError, match="land must be 'ends', 'all' or a boolean array; got 'sea'"):
        Field.of(ocean, "time", land="sea")


def test_bad_dataarrays(ocean):
    with pytest.raises(ValueError, match=r"sst has \['time', 'lat', 'lon'\], not 'day'"):
        rg.scan(ocean, rows="day")
    with pytest.raises(TypeError, match=r"got a Dataset. Give one of 'sst': dataset\[name\]"):
        rg.scan(ocean.to_dataset(), rows="time")
    with pytest.raises(ValueError, match="a dimension besides its rows"):
        rg.scan(ocean[:, 0, 0], rows="time")
    with pytest.raises(ValueError, match="no column of sst has a value"):
        rg.scan(ocean * np.nan, rows="time")
    e = RGCSS(3).fit(ocean)
    with pytest.raises(ValueError, match=r"lon has 8 entries there; got .*'lon': 7"):
        e.transform(ocean[:, :, 1:])
    with pytest.raises(ValueError, match=r"lat\[0\] is -40.0 there and 40.0 here"):
        e.transform(ocean[:, ::-1])
    with pytest.raises(ValueError, match="the 3 picked columns"):
        e.inverse_transform(e.transform(ocean)[:, 1:])
    with pytest.raises(TypeError, match="this fit was on a matrix"):
        RGCSS(3).fit(as_matrix(ocean)).inverse_transform(e.transform(ocean))
    with pytest.raises(AttributeError, match="after a fit on a DataArray"):
        _ = RGCSS(3).fit(as_matrix(ocean)).places_


# --- packed integers


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_integers_are_decoded(tmp_path, zarr_format):
    values = np.round(np.random.default_rng(0).normal(280, 5, (50, 6)), 2)
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768, "chunks": (20, 6)}
    gaps = values.copy()
    gaps[3, 2] = np.nan
    data = xr.Dataset({"t": (("time", "cell"), values), "g": (("time", "cell"), gaps)})
    data.to_zarr(tmp_path / "t.zarr", zarr_format=zarr_format, encoding={"t": packed, "g": packed}, consolidated=False)
    for source in (tmp_path / "t.zarr" / "t", zarr.open_array(tmp_path / "t.zarr" / "t", mode="r")):
        moments = rg.scan(source)
        np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(moments.scatter, np.cov(values.T) * 49, rtol=1e-8)
    with pytest.raises(ValueError, match=r"row 3, column 2 of .* holds nan"):
        rg.scan(tmp_path / "t.zarr" / "g")
    assert rg.scan(tmp_path / "t.zarr" / "g", nan="drop").dropped == 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_fill_value_of_floats_is_a_gap(tmp_path, zarr_format):
    values = np.ones((10, 3))
    values[4, 1] = np.nan
    encoding = {"t": {"_FillValue": -999.0}}
    data = xr.Dataset({"t": (("time", "cell"), values)})
    data.to_zarr(tmp_path / "t.zarr", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    assert zarr.open_array(tmp_path / "t.zarr" / "t", mode="r")[4, 1] == -999.0
    with pytest.raises(ValueError, match=r"row 4, column 1 of .* holds nan"):
        rg.scan(tmp_path / "t.zarr" / "t")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_weights_are_decoded(tmp_path, zarr_format):
    X = np.random.default_rng(0).standard_normal((100, 4))
    w = np.round(np.random.default_rng(1).uniform(0.5, 3, 100), 2)
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -32768, "chunks": (30,)}
    data = xr.Dataset({"w": ("row", w)})
    data.to_zarr(tmp_path / "w.zarr", zarr_format=zarr_format, encoding={"w": packed}, consolidated=False)
    path = tmp_path / "w.zarr" / "w"
    wanted = rg.scan(X, weights=w)
    for weights in (str(path), path, zarr.open_array(path, mode="r")):
        got = rg.scan(X, weights=weights, archive=tmp_path / f"moments {type(weights).__name__}")
        np.testing.assert_allclose(got.weight, wanted.weight, rtol=1e-12)
        np.testing.assert_allclose(got.gram(), wanted.gram(), rtol=1e-12)
    for weights in (str(path), zarr.open_array(path, mode="r")):
        e, known = rg.RGCSS(2).fit(X, sample_weight=weights), rg.RGCSS(2).fit(X, sample_weight=w)
        np.testing.assert_allclose(e.loss_path_, known.loss_path_, rtol=1e-12)
        assert e.score(X, sample_weight=weights) == pytest.approx(known.score(X, sample_weight=w), rel=1e-12)
        in_batches = rg.RGCSS(2).partial_fit(X, sample_weight=weights)
        np.testing.assert_allclose(in_batches.loss_path_, known.loss_path_, rtol=1e-12)
    zarr.open_array(path).attrs["scale_factor"] = 0.02  # other weights, though nothing else is stored
    with pytest.raises(ValueError, match="weights vector"):
        rg.scan(X, weights=str(path), archive=tmp_path / "moments str")
    zarr.open_array(path)[17] = -32768
    with pytest.raises(ValueError, match="row 17 has nan, or is masked: a weight cannot be missing"):
        rg.scan(X, weights=str(path))


def test_a_plain_array_is_taken_as_it_is(tmp_path):
    zarr.create_array(tmp_path / "z.zarr", data=np.zeros((5, 3), np.int16) + 7, zarr_format=2)
    np.testing.assert_array_equal(rg.scan(tmp_path / "z.zarr").mean, [7, 7, 7])


def test_the_real_air_temperature(data_dir):
    store = data_dir / "air_temperature.zarr"
    with pytest.raises(ValueError, match=r"Open it with dataset = xarray.open_zarr"):
        rg.scan(store / "air")
    air = xr.open_zarr(store)["air"]
    e = RGCSS(10, center=True).fit(air)
    A = air.to_numpy().reshape(2920, -1)
    assert list(e.selected_) == list(RGCSS(10, center=True).fit(A).selected_)
    assert 221 <= float(e.transform(air).min())  # kelvin, not the stored integers
    back = e.inverse_transform(e.transform(air))
    assert float(((back - air) ** 2).sum()) == pytest.approx(e.loss_path_[-1], rel=1e-9)
    assert e.score(air) == pytest.approx(1 - e.loss_path_[-1] / np.sum((A - A.mean(axis=0)) ** 2), rel=1e-9)


def test_the_real_sea_surface(data_dir):
    pytest.importorskip("netCDF4")
    sst = xr.open_dataset(data_dir / "sst.mnmean.nc")["sst"]
    e = RGCSS(8, center=True).fit(sst)
    assert e.n_features_in_ == 10988
    back = e.inverse_transform(e.transform(sst))
    xr.testing.assert_equal(back.isnull(), sst.isnull())
    assert float(((back.astype(float) - sst.astype(float)) ** 2).sum()) == pytest.approx(e.loss_path_[-1], rel=1e-4)


# --- AnnData


@pytest.fixture(scope="module")
def anndata():
    return pytest.importorskip("anndata")


def write(adata, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata announces the formats of its next version
        adata.write_zarr(path)
    return path


def write_h5ad(adata, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adata.write_h5ad(path)
    return path


@pytest.fixture
def cells(anndata):
    X = scipy.sparse.random(400, 30, density=0.1, format="csr", random_state=0, dtype=np.float32)
    names = pd.Index([f"gene{i}" for i in range(30)])
    return anndata.AnnData(X=X, var=pd.DataFrame(index=names), obs=pd.DataFrame(index=[f"c{i}" for i in range(400)]))


def test_anndata_in_every_form_gives_the_same(cells, tmp_path, anndata):
    csr = write(cells, tmp_path / "csr.zarr")
    thick = anndata.AnnData(X=cells.X.toarray(), var=cells.var)
    stored = write(thick, tmp_path / "dense.zarr")
    files = write_h5ad(cells, tmp_path / "csr.h5ad"), write_h5ad(thick, tmp_path / "dense.h5ad")
    backed = [anndata.read_h5ad(file, backed="r") for file in files]
    backed.append(anndata.read_h5ad(write_h5ad(cells, tmp_path / "to_write.h5ad"), backed="r+"))
    base = RGCSS(6).fit(cells.X.toarray())
    for source in (cells, thick, csr, str(csr), stored, zarr.open_group(csr, mode="r"), *files, *backed):
        e = RGCSS(6).fit(source)
        assert list(e.selected_) == list(base.selected_)
        np.testing.assert_allclose(e.loss_path_, base.loss_path_, rtol=1e-10)
        assert list(e.feature_names_in_) == list(cells.var_names)
        assert list(e.get_feature_names_out()) == [f"gene{i}" for i in sorted(base.selected_)]
    np.testing.assert_allclose(rg.scan(csr / "X").gram(), base.moments_.gram(), rtol=1e-12)
    np.testing.assert_array_equal(e.transform(csr).compute(), cells.X.toarray()[:, base.support_])


def test_anndata_is_read_by_ranges(tmp_path, monkeypatch, anndata):
    X = scipy.sparse.random(60_000, 400, density=0.01, format="csr", random_state=0, dtype=np.float32)
    path = write(anndata.AnnData(X=X), tmp_path / "csr.zarr")
    reads = []
    plain = AnnDataSource.read_block
    monkeypatch.setattr(AnnDataSource, "read_block", lambda self, *r: (reads.append(r), plain(self, *r))[1])
    moments = rg.scan(path)
    reads.sort()
    assert (reads[0][0], reads[-1][1]) == (0, 60_000)
    assert all(a[1] == b[0] for a, b in pairwise(reads))
    assert max(b - a for a, b in reads) * 400 * 4 <= 2**25  # even if they were dense
    np.testing.assert_allclose(moments.gram(), (X.T @ X).toarray(), rtol=1e-4, atol=1e-4)


def test_bad_anndata(cells, tmp_path, anndata):
    cells.X = cells.X.tocsc()
    with pytest.raises(ValueError, match=r"is stored by columns \(CSC\). Write it by rows once"):
        rg.scan(write(cells, tmp_path / "csc.zarr"))
    empty = anndata.AnnData(obs=cells.obs, var=cells.var, layers={"counts": cells.X.tocsr()})
    with pytest.raises(ValueError, match=r"no matrix X in the AnnData. It has layers\['counts'\]"):
        rg.scan(empty)
    path = write(empty, tmp_path / "empty.zarr")
    with pytest.raises(ValueError, match=r"no matrix X in .*empty.zarr. It has layers/counts"):
        rg.scan(path)
    assert rg.scan(path / "layers" / "counts").n == 30
    nothing = zarr.open_group(path, mode="a").create_array("X", shape=(), dtype="f8", overwrite=True)
    nothing.attrs["encoding-type"] = "null"  # as anndata 0.12.0 writes it
    with pytest.raises(ValueError, match=r"no matrix X in .*empty.zarr. It has layers/counts"):
        rg.scan(path)
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    with pytest.raises(ValueError, match="must hold an AnnData or a sparse matrix"):
        rg.scan(zarr.open_group(tmp_path / "group.zarr", mode="r"))


def test_bad_h5ad(cells, tmp_path, anndata):
    with pytest.raises(ValueError, match="a backed AnnData must not be a view"):
        rg.scan(anndata.read_h5ad(write_h5ad(cells, tmp_path / "csr.h5ad"), backed="r")[:10])
    with pytest.raises(ValueError, match="read from a disk of this machine; got s3://"):
        rg.scan("s3://bucket/cells.h5ad")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        rg.scan(tmp_path / "none.h5ad")
    (tmp_path / "torn.h5ad").write_bytes(b"\x89HDF")
    with pytest.raises(OSError, match=r"torn.h5ad cannot be opened as HDF5"):
        rg.scan(tmp_path / "torn.h5ad")
    empty = anndata.AnnData(obs=cells.obs, var=cells.var, layers={"counts": cells.X.tocsr()})
    with pytest.raises(ValueError, match=r"no matrix X in .*empty.h5ad. It has layers/counts"):
        rg.scan(write_h5ad(empty, tmp_path / "empty.h5ad"))
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "empty.h5ad", "a") as file:  # as other versions of anndata write it
        file.pop("X", None)
        file["X"] = h5py.Empty("f8")
    with pytest.raises(ValueError, match=r"no matrix X in .*empty.h5ad. It has layers/counts"):
        rg.scan(tmp_path / "empty.h5ad")
    cells.X = cells.X.tocsc()
    with pytest.raises(ValueError, match=r"holds them by columns \(CSC\)"):
        rg.scan(write_h5ad(cells, tmp_path / "csc.h5ad"))


def test_classes_beside_sparse_cells_stay_sparse(cells):
    y = np.where(cells.X[:, 0].toarray().ravel() > 0, "on", "off")
    both = with_targets(open_source(cells), Targets.of(y, 400))
    assert isinstance(both.read_block(0, 10), SparseRows)
    np.testing.assert_array_equal(np.asarray(both.read_block(3, 50)), both.read(3, 50))


def test_some_columns_of_sparse_cells_stay_sparse(cells):
    some = ColumnsSource(open_source(cells), np.array([7, 2, 9]))
    assert isinstance(some.read_block(0, 10), SparseRows)
    np.testing.assert_array_equal(some.read_block(3, 50), cells.X.toarray()[3:50, [7, 2, 9]])
    whole = rg.scan(cells)
    part = rg.scan(some)
    assert part.names == ("gene7", "gene2", "gene9")
    np.testing.assert_allclose(part.gram(), whole.gram()[np.ix_([7, 2, 9], [7, 2, 9])], rtol=1e-12)


def test_a_lost_chunk_of_a_sparse_matrix_is_an_error(cells, tmp_path):
    path = write(cells, tmp_path / "csr.zarr")
    group = zarr.open_group(path, mode="r")["X"]
    victim = path / "X" / "data" / group["data"].metadata.encode_chunk_key((0,))
    victim.unlink()
    with pytest.raises(MissingChunkError):
        rg.scan(path)


# --- sparse products


def test_sparse_products_equal_dense_ones(monkeypatch):
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(500, 60, density=0.05, format="csr", random_state=1)
    X = scipy.sparse.csr_array((X.data, X.indices, X.indptr), X.shape)
    w = rng.integers(0, 3, 500)
    seen = []
    plain = SparseRows.add_products
    monkeypatch.setattr(SparseRows, "add_products", lambda self, *a: (seen.append(len(self)), plain(self, *a))[1])
    for how in ({}, {"weights": w}, {"folds": 3}, {"groups": 4, "folds": 2}, {"rows": slice(100, 300)}):
        sparse, thick = rg.scan(X, **how), rg.scan(X.toarray(), **how)
        for center in (False, True):
            np.testing.assert_allclose(sparse.gram(center), thick.gram(center), rtol=1e-10, atol=1e-12)
        for a, b in zip(sparse.folds + sparse.groups, thick.folds + thick.groups, strict=True):
            np.testing.assert_allclose(a.gram(), b.gram(), rtol=1e-10, atol=1e-12)
    assert seen


def test_sparse_rows_with_a_value_stored_twice():
    X = scipy.sparse.csr_array(([1.0, 2.0, 3.0], [1, 1, 0], [0, 3]), shape=(1, 300))
    assert SparseRows(X).pays
    np.testing.assert_array_equal(rg.scan(X).gram()[:2, :2], [[9, 9], [9, 9]])


def test_sparse_products_do_not_cost_digits_of_a_column_far_from_zero():
    X = np.zeros((400, 200))
    X[:, 0] = 1e7 + np.random.default_rng(0).standard_normal(400)
    X[::50, 5] = 1.0
    assert SparseRows(scipy.sparse.csr_array(X)).pays
    scatter = rg.scan(scipy.sparse.csr_array(X)).scatter
    np.testing.assert_allclose(scatter[0, 0], np.var(X[:, 0]) * 400, rtol=1e-7)


def test_gaps_in_sparse_rows_are_named():
    X = np.zeros((50, 100))
    X[7, 3] = np.nan
    with pytest.raises(ValueError, match="row 7, column 3 of memory holds nan"):
        rg.scan(scipy.sparse.csr_array(X))
    assert rg.scan(scipy.sparse.csr_array(X), nan="drop").dropped == 1


@pytest.mark.integration
def test_labelled_data_on_a_cluster(ocean, cells, tmp_path):
    """Worker processes open the stores themselves; the moments have the bits of this process."""
    ocean.to_dataset().to_zarr(tmp_path / "sst.zarr", encoding={"sst": {"chunks": (30, 5, 8)}}, consolidated=False)
    packed = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768, "chunks": (20, 6)}
    values = np.round(np.random.default_rng(0).normal(0, 5, (50, 6)), 2)
    data = xr.Dataset({"t": (("time", "cell"), values)})
    data.to_zarr(tmp_path / "t.zarr", encoding={"t": packed}, consolidated=False)
    sst = xr.open_zarr(tmp_path / "sst.zarr", consolidated=False)["sst"]
    sources = [sst, write(cells, tmp_path / "csr.zarr"), tmp_path / "t.zarr" / "t", ocean, cells]
    here = [rg.scan(source) for source in sources]
    e = RGCSS(5).fit(sst)
    back = e.inverse_transform(e.transform(sst)).compute()
    with Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"):
        for source, moments in zip(sources, here, strict=True):
            np.testing.assert_array_equal(rg.scan(source).product, moments.product)
        there = RGCSS(5).fit(sst)
        xr.testing.assert_equal(there.inverse_transform(there.transform(sst)).compute(), back)
        np.testing.assert_array_equal(
            RGCSS(5).fit(sources[1]).transform(sources[1]).compute(), RGCSS(5).fit(cells).transform(cells).compute()
        )

"""Masked entries are missing, at every door: no number behind a mask is ever read."""

import dask.array as da
import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.core.missing import plain
from rgcss_dask.core.result import make_result
from rgcss_dask.reporting.samples import sample
from rgcss_dask.scanning.uncounted import scan_uncounted

xarray = pytest.importorskip("xarray")

FILL = -9999  # what stands behind the mask


@pytest.fixture(name="holes", params=[np.float64, np.float32, np.int16, ">f8"])
def some_holes(request):
    """Rows as plain numbers with NaN, and the same rows with a mask in its place."""
    rng = np.random.default_rng(0)
    X = np.rint(100 * (rng.standard_normal((60, 3)) @ rng.standard_normal((3, 6)) + rng.standard_normal((60, 6))))
    gap = rng.random(X.shape) < 0.05
    gap[:, 4] = False
    masked = np.ma.masked_equal(np.where(gap, FILL, X).astype(request.param), FILL)
    return np.where(gap, np.nan, X), masked


def doors(masked):
    """Every kind of source that can hold a mask."""
    lazily = da.from_array(masked, chunks=(13, 6))
    return {
        "array": masked,
        "Dask": lazily,
        "Dask in columns": da.from_array(masked, chunks=(13, 4)),
        "list": [masked, masked[:0:-1]],
        "DataArray": xarray.DataArray(masked, dims=("time", "place")),
        "lazy DataArray": xarray.DataArray(lazily, dims=("time", "place")),
    }


@pytest.mark.parametrize("door", doors(np.ma.zeros((1, 6))))
def test_scan_treats_what_is_masked_as_missing(holes, door):
    X, masked = holes
    X = np.vstack([X, X[:0:-1]]) if door == "list" else X
    for nan in ("drop", "mean"):
        got, wanted = rg.scan(doors(masked)[door], nan=nan), rg.scan(X, nan=nan)
        assert (got.rows, got.dropped) == (wanted.rows, wanted.dropped)
        np.testing.assert_allclose(got.mean, wanted.mean, rtol=1e-12)
        np.testing.assert_allclose(got.scatter, wanted.scatter, rtol=1e-10, atol=1e-7)
    row, column = np.argwhere(np.isnan(X))[0]
    with pytest.raises(ValueError, match=rf"row {row}, column {column} of .* holds nan"):
        rg.scan(doors(masked)[door])


def test_blocks_of_unknown_length_too(holes):
    X, masked = holes
    lazily = da.from_array(masked, chunks=(13, 6))
    lazily = lazily[da.from_array(np.arange(60) % 7 > 0, chunks=13)]
    got = scan_uncounted(lazily, nan="mean")
    np.testing.assert_allclose(got.mean, np.nanmean(X[np.arange(60) % 7 > 0], axis=0), rtol=1e-12)


def test_a_mask_without_gaps_changes_nothing():
    X = np.random.default_rng(0).integers(0, 256, (50, 4), dtype=np.uint8)
    for mask in (np.ma.nomask, np.zeros(X.shape, bool)):
        assert rg.scan(np.ma.array(X, mask=mask)).exact
    assert plain(X) is X


def test_core_functions(holes):
    _, masked = holes
    for call in (rg.Moments.of, lambda X: rg.Moments.of(list(X)), rg.Factor, lambda X: rg.select(X[:6], 2)):
        with pytest.raises(ValueError, match="finite"):
            call(masked)
    moments = rg.Moments.of(np.eye(6))
    with pytest.raises(ValueError, match="center must be finite; got nan for column 2"):
        moments.gram(center=np.ma.masked_equal([0, 0, FILL, 0, 0, 0], FILL))
    with pytest.raises(ValueError, match="finite"):
        rg.stability_under_noise(masked, 2, sd=0.1)


@pytest.mark.parametrize("nan", ["drop", "mean"])
def test_estimator(holes, nan):
    X, masked = holes
    with_nan, with_mask = rg.RGCSS(3, nan=nan).fit(X), rg.RGCSS(3, nan=nan).fit(masked)
    assert np.array_equal(with_mask.selected_, with_nan.selected_)
    in_batches = rg.RGCSS(3, nan=nan).partial_fit(masked[:30]).partial_fit(masked[30:])
    assert np.array_equal(in_batches.selected_, with_nan.selected_)
    for door in ("array", "Dask", "Dask in columns"):
        held = doors(masked)[door]
        taken = np.asarray(with_mask.transform(held))
        assert not np.ma.isMaskedArray(with_mask.transform(held))
        np.testing.assert_allclose(taken, with_nan.transform(X), rtol=1e-6)
        np.testing.assert_allclose(with_mask.score(held), with_nan.score(X), rtol=1e-9)
    reduced = np.ma.masked_invalid(X[:, np.sort(with_nan.selected_)])
    rebuilt = with_nan.inverse_transform(reduced)
    np.testing.assert_allclose(rebuilt, with_nan.inverse_transform(reduced.filled(np.nan)), rtol=1e-12)
    np.testing.assert_allclose(with_nan.inverse_transform(da.from_array(reduced, chunks=(7, 3))), rebuilt, rtol=1e-12)


def test_estimator_names_what_is_masked(holes):
    X, masked = holes
    row, column = np.argwhere(np.isnan(X))[0]
    for rows in (masked, masked[: row + 1], list(masked)):  # tall, perhaps wide, and a list of masked rows
        with pytest.raises(ValueError, match=rf"row {row}, column {column} .*holds nan"):
            rg.RGCSS(2).fit(rows)
    fitted = rg.RGCSS(6).fit(np.nan_to_num(X))
    for call in (fitted.transform, fitted.score):
        with pytest.raises(ValueError, match=rf"row {row}, column {column} .*holds nan"):
            call(masked)


def test_weights_cannot_be_missing(tmp_path):
    X = np.random.default_rng(0).standard_normal((20, 3))
    weights = np.ma.masked_equal(np.where(np.arange(20) == 7, FILL, 2), FILL)
    stored = zarr.create_array(str(tmp_path / "w.zarr"), shape=(20,), chunks=(6,), dtype="f8")
    stored[:] = weights.astype(float).filled(np.nan)
    wrong = r"row 7 has nan, or is masked: a weight cannot be missing. Give 0"
    for given in (weights, weights.astype(float), da.from_array(weights, chunks=6), stored):
        with pytest.raises(ValueError, match=wrong):
            rg.scan(X, weights=given)
    for call in (lambda: rg.Moments.of(X, weights), lambda: rg.RGCSS(2).fit(X, sample_weight=weights)):
        with pytest.raises(ValueError, match=wrong):
            call()
    assert rg.scan(X, weights=np.ma.array(np.full(20, 2))).weight == 40


def test_a_mask_of_rows_cannot_have_gaps():
    X = np.random.default_rng(0).standard_normal((20, 3))
    keep = np.ma.array(np.arange(20) % 2 == 0, mask=np.arange(20) == 9)
    for given in (keep, da.from_array(keep, chunks=6)):
        with pytest.raises(ValueError, match="rows must be True or False for every row; row 9 is masked"):
            rg.scan(X, rows=given)
    assert rg.scan(X, rows=np.ma.array(keep.data)).rows == 10


def test_what_is_written_and_shown(holes, tmp_path):
    X, masked = holes
    moments = rg.scan(masked, nan="mean")
    picked = rg.select(moments, 3)
    rg.write_reduced(picked, masked, tmp_path / "reduced.zarr")
    columns = np.sort(picked.columns)
    assert np.array_equal(zarr.open_array(tmp_path / "reduced.zarr")[:], X[:, columns], equal_nan=True)
    shown = sample(make_result(moments, picked), masked, 6)
    assert np.array_equal(shown.original, X[shown.rows], equal_nan=True)


def test_what_netcdf4_reads(data_dir):
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(data_dir / "sst.mnmean.nc") as file:
        read = file["sst"][:24]
    assert np.ma.is_masked(read)
    flat = read.reshape(24, -1)
    with pytest.raises(ValueError, match="holds nan"):
        rg.scan(flat)
    ocean = flat[:, ~np.ma.getmaskarray(flat).any(axis=0)]
    assert -3 < rg.scan(ocean).mean.min() < rg.scan(ocean).mean.max() < 40

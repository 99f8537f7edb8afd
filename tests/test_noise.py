"""The noise that neighbouring rows tell, found in the pass, and the signals behind the columns."""

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.core.noise import Differences, signal_gram


@pytest.fixture
def series():
    """Rows that change slowly, with noise of known size in each column."""
    rng = np.random.default_rng(0)
    time = np.linspace(0, 60, 4000)[:, None]
    signal = np.sin(time + np.arange(6)) * np.linspace(5, 1, 6)
    noise = np.linspace(0.05, 0.5, 6)
    return signal + noise * rng.standard_normal(signal.shape), noise**2


def by_hand(X):
    return np.nanmean((X[2:] - 2 * X[1:-1] + X[:-2]) ** 2, axis=0) / 6


@pytest.mark.parametrize("folds", [None, 3])
@pytest.mark.parametrize("kind", ["float64", "float32", "int16"])
def test_the_pass_finds_the_noise(series, kind, folds, tmp_path):
    X, noise = series
    X = (100 * X).astype(kind) if kind == "int16" else X.astype(kind)
    moments = rg.scan(X, noise=True, folds=folds, progress=False)
    np.testing.assert_allclose(moments.differences.variance, by_hand(X.astype(float)), rtol=0.05)
    if kind == "float64":
        np.testing.assert_allclose(moments.differences.variance, noise, rtol=0.1)
    assert rg.scan(X, progress=False).differences is None
    rg.save(moments, tmp_path / "m.zarr")
    again = rg.load(tmp_path / "m.zarr")
    assert np.array_equal(again.differences.squares, moments.differences.squares)
    assert np.array_equal(again.take([2, 0]).differences.count, moments.differences.count[[2, 0]])


def test_every_difference_in_a_span_counts_once(series):
    X, _ = series
    whole, parts = Differences.of(X), rg.scan(X, noise=True, progress=False).differences
    assert np.all(parts.count <= whole.count)
    assert np.all(parts.count >= whole.count - 2 * 64)  # two are lost where a span ends


def test_gaps_leave_out_what_they_touch(series):
    X, _ = series
    X = X.copy()
    X[100, 2] = np.nan
    moments = rg.scan(X, noise=True, nan="drop", progress=False)
    full = rg.scan(series[0], noise=True, progress=False)
    assert full.differences.count[2] - moments.differences.count[2] == 3
    assert full.differences.count[1] == moments.differences.count[1]


def test_it_is_kept_appended_and_merged(series, tmp_path):
    X, _ = series
    stored = zarr.create_array(tmp_path / "x.zarr", shape=(3000, 6), chunks=(500, 6), dtype="f8")
    stored[:] = X[:3000]
    rg.scan(tmp_path / "x.zarr", noise=True, archive=tmp_path / "m.zarr", progress=False)
    stored.resize((4000, 6))
    stored[3000:] = X[3000:]
    grown = rg.append(tmp_path / "m.zarr", tmp_path / "x.zarr", progress=False)
    np.testing.assert_allclose(grown.differences.variance, by_hand(X), rtol=0.05)
    assert np.array_equal(rg.load(tmp_path / "m.zarr").differences.squares, grown.differences.squares)
    twice = grown.merge(grown)
    assert np.array_equal(twice.differences.count, 2 * grown.differences.count)
    assert grown.merge(rg.scan(X, progress=False)).differences is None


def test_one_call_takes_noise_of_rows(series):
    X, _ = series
    found = rg.select(X, 3, center=True, noise="rows", scale=1.0)
    given = rg.select(X, 3, center=True, noise=rg.scan(X, noise=True, progress=False).differences.variance, scale=1.0)
    assert np.array_equal(found.columns, given.columns)
    np.testing.assert_allclose(found.loss, given.loss, rtol=1e-12)
    assert found.objective == "all"


def test_signals_are_what_noise_leaves():
    rng = np.random.default_rng(0)
    S = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 5))
    G = S.T @ S + 4.0 * np.eye(5)
    np.testing.assert_allclose(signal_gram(G, np.full(5, 4.0)), S.T @ S, atol=1e-10 * np.trace(G))
    np.testing.assert_allclose(signal_gram(G, np.zeros(5)), G, rtol=1e-9)
    too_much = signal_gram(G, np.full(5, 1e3))
    assert np.linalg.eigvalsh(too_much)[0] >= -1e-9


@pytest.mark.parametrize("kind", ["float16", "bool", "longdouble"])
def test_noise_of_types_that_are_not_compiled_is_that_of_their_values(kind):
    rows = (np.random.default_rng(3).integers(0, 3, (200, 4))).astype(kind)
    got, wanted = (rg.scan(values, noise=True).differences for values in (rows, rows.astype(np.float64)))
    np.testing.assert_array_equal(got.squares, wanted.squares)
    np.testing.assert_array_equal(got.count, wanted.count)

"""The estimator agrees with the functions of the package and with itself, whatever holds the rows and names them."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

import rgcss_dask as rg

pytestmark = pytest.mark.filterwarnings("ignore:columns are on such different scales")  # as random scales make them


@st.composite
def problems(draw):
    """Rows with gaps perhaps, row weights perhaps, and what is asked of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(4, 40)), draw(st.integers(2, 9))
    X = rng.standard_normal((m, 3)) @ rng.standard_normal((3, n)) + 0.5 * rng.standard_normal((m, n))
    X = X * 10.0 ** rng.integers(-1, 3, n) + draw(st.sampled_from([0.0, 7.0])) * rng.standard_normal(n)
    nan = draw(st.sampled_from(["raise", "drop", "mean"]))
    if nan != "raise":
        gap = rng.random(X.shape) < draw(st.sampled_from([0.0, 0.1]))
        gap[:2] = False  # rows are left, and every column has a value
        X[gap] = np.nan
    how = {
        "lam": draw(st.sampled_from([0.01, 1.0, 30.0])),
        "objective": draw(st.sampled_from(["unselected", "all"])),
        "center": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, "std", 2.5])),
    }
    weights = rng.integers(1, 4, m) if draw(st.booleans()) else None
    return X, weights, draw(st.integers(1, n)), nan, how, rng.permutation(n)


def held(X, kind):
    """Hold the same rows in another way."""
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])])
    masked = np.ma.array(np.where(np.isnan(X), 1e20, X), mask=np.isnan(X))
    chunks = (max(1, len(X) // 3), max(1, X.shape[1] // 2))
    return {
        "array": lambda: X,
        "columns first": lambda: np.asfortranarray(X),
        "backwards": lambda: X[::-1].copy()[::-1],
        "other byte order": lambda: X.astype(">f8"),
        "mask": lambda: masked,
        "sparse": lambda: sp.csr_array(X),
        "frame": lambda: frame,
        "nullable frame": lambda: frame.astype("Float64"),
        "Dask": lambda: da.from_array(X, chunks=chunks),
        "Dask mask": lambda: da.from_array(masked, chunks=chunks),
        "Dask frame": lambda: dd.from_pandas(frame, npartitions=2),
    }[kind]()


KINDS = "array,columns first,backwards,other byte order,mask,sparse,frame,nullable frame,Dask,Dask mask,Dask frame"


def values(rows):
    """Return what came back as plain numbers."""
    rows = rows.compute() if hasattr(rows, "compute") else rows
    if isinstance(rows, pd.DataFrame):
        return rows.to_numpy(dtype=float, na_value=np.nan)
    return np.asarray(rows.toarray() if sp.issparse(rows) else rows, dtype=float)


def filled(X, mean, nan):
    """Return the rows that count, and which they are."""
    if nan == "mean":
        return np.where(np.isnan(X), mean, X), np.ones(len(X), bool)
    kept = ~np.isnan(X).any(axis=1)
    return X[kept], kept


@fuzz(60)
@given(problems(), st.sampled_from(KINDS.split(",")))
def test_fit_transform_back_and_score(problem, kind):
    X, weights, k, nan, how, _ = problem
    rows = held(X, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names that plain arrays do not have
        e = rg.RGCSS(k, nan=nan, refine=False, **how).fit(rows, sample_weight=weights)
        picked = rg.select(rg.scan(X, weights=weights, nan=nan), k, **how)
        assert np.array_equal(e.selected_, picked.columns)
        np.testing.assert_allclose(e.loss_path_, picked.loss, rtol=1e-8, atol=1e-11 * picked.start)
        np.testing.assert_allclose(e.coef_, picked.weights(e.moments_), rtol=1e-6, atol=1e-8)
        known = np.where(np.isnan(X), e.moments_.mean, X) if nan == "mean" else X
        reduced = values(e.transform(rows))
        np.testing.assert_allclose(reduced, known[:, e.support_], rtol=1e-12)
        rebuilt = values(e.inverse_transform(e.transform(rows)))
        np.testing.assert_allclose(rebuilt, e.inverse_transform(reduced), rtol=1e-9, atol=1e-9)
        # The promise: what is left after rebuilding is the loss, and the score is the rest.
        whole, counts = filled(X, e.moments_.mean, nan)
        w = np.ones(len(whole)) if weights is None else weights[counts]
        left = w @ (((whole - rebuilt[counts]) / picked.sigma) ** 2).sum(axis=1)
        assert left == pytest.approx(picked.loss[-1], rel=1e-6, abs=1e-9 * picked.start)
        score = 1 - left / picked.start
        assert e.score(rows, sample_weight=weights) == pytest.approx(score, abs=1e-8)


@fuzz(40)
@given(problems(), st.sampled_from(["frame", "Dask frame"]))
def test_names_in_another_order(problem, kind):
    X, weights, k, nan, how, order = problem
    frame = held(X, "frame")
    there = frame.iloc[:, order] if kind == "frame" else dd.from_pandas(frame.iloc[:, order], npartitions=2)
    e = rg.RGCSS(k, nan=nan, **how).fit(frame, sample_weight=weights)
    picked, moments = e.selection_, rg.scan(frame, weights=weights, nan=nan)
    others = rg.scan(there, weights=weights, nan=nan)
    scale = np.abs(picked.weights(moments)).max()
    np.testing.assert_allclose(picked.weights(others), picked.weights(moments), rtol=1e-6, atol=1e-8 * scale)
    here = e.transform(frame)
    mixed = here.iloc[:, np.random.default_rng(k).permutation(k)]
    pd.testing.assert_frame_equal(e.inverse_transform(mixed), e.inverse_transform(here))
    if not np.array_equal(order, np.arange(len(order))):
        for call in (e.transform, e.score):
            with pytest.raises(ValueError, match="order"):
                call(there)

"""Moments, resamples and cross-validation of strange matrices, against fractions that do not round."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np
import oracle
import pytest
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.core.folds import leave_one_out
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.resampling import weighted_sums

EPS = np.finfo(np.float64).eps
FLOATS = ["f8", ">f8", "f4", "f2", "longdouble"]
INTEGERS = ["i8", ">i8", "u8", "i4", "u2", "u1", "i1", "?"]


@st.composite
def matrices(draw, max_rows=12):
    """Columns that are constant, narrow, wide, wild or seldom anything but one value, far from zero or not."""
    dtype = np.dtype(draw(st.sampled_from(FLOATS + INTEGERS)))
    m, n = draw(st.integers(2, max_rows)), draw(st.integers(1, 3))
    columns = [draw(column(dtype, m)) for _ in range(n)]
    return np.stack(columns, axis=1).astype(dtype)


@st.composite
def column(draw, dtype, m):
    steps = np.array(draw(st.lists(st.integers(-9, 9), min_size=m, max_size=m)))
    kind = draw(st.sampled_from(["any", "any", "constant", "seldom", "half"]))
    if kind == "constant":
        steps[:] = steps[0]
    elif kind == "seldom":
        steps[1:] = 0
    elif kind == "half":
        steps[m // 2 :] = steps[-1]
    if dtype.kind == "b":
        return steps > 0
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        middle = draw(st.sampled_from([0, info.min, info.max, info.max // 2, info.max // 8]))
        return np.array([min(max(middle + int(step), info.min), info.max) for step in steps], dtype=dtype)
    narrow = dtype.itemsize == 2
    scale = 10.0 ** draw(st.integers(0, 1) if narrow else st.integers(-18, 18) if dtype.itemsize == 4 else EXPONENTS)
    shift = draw(st.sampled_from([0.0, 1.0, -3.0, 10.0] + ([] if narrow else [1e3, 1e6, -1e9, 1e15])))
    wild = draw(st.booleans()) and kind == "any" and not narrow
    values = scale * (shift + steps.astype(np.longdouble))
    if wild:
        values[0] = scale * 1e12
    return values.astype(dtype)


EXPONENTS = st.sampled_from([0, 0, -1, 3, -100, -30, 30, 100])


@st.composite
def weights(draw, m):
    kind = draw(st.sampled_from(["none", "whole", "fractions", "wild"]))
    if kind == "none":
        return None
    if kind == "whole":
        w = np.array(draw(st.lists(st.integers(0, 3), min_size=m, max_size=m)))
    else:
        powers = st.integers(-1, 0) if kind == "fractions" else st.integers(-8, 8)
        w = np.array([draw(st.integers(0, 9)) / 7 * 10.0 ** draw(powers) for _ in range(m)])
    w[0] = max(w[0], 1)
    return w


def exact(A, w):
    """The weighted mean and the sum of products about it and about zero, in fractions."""
    rows = [[Fraction(*x.as_integer_ratio()) if A.dtype.kind == "f" else Fraction(int(x)) for x in row] for row in A]
    w = [Fraction(1)] * len(A) if w is None else [Fraction(float(x)) for x in w]
    total = sum(w)
    n = range(A.shape[1])
    mean = [sum(v * row[j] for v, row in zip(w, rows, strict=True)) / total for j in n]

    def products(c):
        return [[sum(v * (r[i] - c[i]) * (r[j] - c[j]) for v, r in zip(w, rows, strict=True)) for j in n] for i in n]

    return total, mean, products(mean), products([Fraction(0)] * A.shape[1])


def numbers(M):
    return np.array([[float(x) for x in row] for row in M])


def check(got, A, w, *, noise=None):
    """Compare moments with fractions; ``noise`` is what else rounding may have put into each sum of squares."""
    total, mean, scatter, gram = exact(A, w)
    top = np.abs(np.array([[float(x) for x in row] for row in A]))[slice(None) if w is None else w > 0].max(axis=0)
    size, roots = float(total), np.sqrt([float(scatter[i][i]) for i in range(A.shape[1])])
    # A spread of 16 units in the last place of floats is rounding; of integers only the shift is rounded, and squares
    # about it are known to some units in the last place.
    unit = np.sqrt(size) * (24 * EPS * top if A.dtype.kind == "f" else np.sqrt(1e3 * EPS) * np.spacing(top))
    extra = np.zeros(A.shape[1]) if noise is None else np.sqrt(noise)
    reach = 1e-7 * roots + unit + extra
    assert got.weight == pytest.approx(size, rel=1e-12)
    np.testing.assert_array_less(
        np.abs(got.mean - [float(x) for x in mean]), 16 * EPS * top + extra / np.sqrt(size) + TINY
    )
    want = numbers(scatter)
    bound = np.outer(roots + reach, reach) + np.outer(reach, roots + reach) + TINY
    np.testing.assert_array_less(np.abs(got.scatter - want), bound)
    gram_reach = np.sqrt(np.diagonal(numbers(gram))) * 1e-12 + extra
    gram_roots = np.sqrt(np.diagonal(numbers(gram))) + extra
    limit = np.outer(gram_roots, gram_reach) + np.outer(gram_reach, gram_roots) + TINY
    np.testing.assert_array_less(np.abs(got.gram() - numbers(gram)), limit)
    check_constancy(got, roots, unit + extra)


def check_constancy(got, roots, unsure):
    """What is constant has no spread, what clearly is not has one, and every way of asking agrees."""
    constant = got.spread == 0
    assert np.all(constant[roots == 0])
    assert not np.any(constant[roots > 16 * unsure])
    assert np.array_equal(constant, np.diagonal(got.scatter) == 0)
    standard = got.gram(center=True, scale="std")
    share = np.diagonal(standard) / got.weight
    assert not share[constant].any()
    np.testing.assert_allclose(share[~constant], 1.0, rtol=0.05)
    np.testing.assert_allclose(share[roots > 1e3 * unsure], 1.0, rtol=1e-5)
    assert not standard[constant].any()
    assert np.all((got.preparation(True, "std")[1] == 1.0) | ~constant)


TINY = 1e-290


@given(A=matrices(), data=st.data())
@fuzz(120)
def test_moments_of_any_split(A, data):
    w = data.draw(weights(len(A)))
    check(Moments.of(A, w), A, w)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(A) - 1))))
    pieces = [(A[i], None if w is None else w[i]) for i in np.split(np.arange(len(A)), cuts)]
    parts = [Moments.of(a, v) for a, v in pieces if v is None or v.any()]
    check(reduce(Moments.merge, parts), A, w)
    order = data.draw(st.permutations(range(A.shape[1])))
    check(Moments.of(A, w).take(order), A[:, order], w)


@given(A=matrices(), data=st.data())
@fuzz(80)
def test_moments_less_a_window(A, data):
    w = data.draw(weights(len(A)))
    cut = data.draw(st.integers(1, len(A) - 1))
    if w is not None:
        w[cut:] = np.maximum(w[cut:], w.max() / 9 if w.dtype.kind == "f" else 1)  # what is left must weigh something
    top, rest = (Moments.of(A[i], None if w is None else w[i]) for i in (slice(0, cut), slice(cut, None)))
    left = Moments.of(A, w).minus(top)
    v = None if w is None else w[cut:]
    mean = exact(A[cut:], v)[1]
    away = np.array(
        [
            [
                float(Fraction(*x.as_integer_ratio() if A.dtype.kind == "f" else (int(x), 1)) - c)
                for x, c in zip(row, mean, strict=True)
            ]
            for row in A
        ]
    )
    v_all = np.ones(len(A)) if w is None else w
    # The whole and the window each have the rounding of their values, 16 units in the last place of every row; which
    # of it was the same in both is not known.
    values = (v_all.sum() + v_all[:cut].sum()) * (16 * EPS * np.abs(A.astype(np.float64)).max(axis=0)) ** 2
    noise = 1e4 * EPS * v_all @ away**2 + (values if A.dtype.kind == "f" else 0.0)
    check(left, A[cut:], v, noise=None if left.exact else noise)
    assert left.rows == rest.rows


@given(A=matrices(), data=st.data())
@fuzz(80)
def test_resamples_of_groups(A, data):
    w = data.draw(weights(len(A)))
    if w is not None:
        w = np.maximum(w, w.max() / 9 if w.dtype.kind == "f" else 1)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(A) - 1), min_size=1)))
    pieces = np.split(np.arange(len(A)), cuts)
    groups = [Moments.of(A[i], None if w is None else w[i]) for i in pieces]
    counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(groups), max_size=len(groups))), float)
    counts[-1] = max(counts[-1], 1)
    got = next(weighted_sums(groups, counts[None]))
    rows = np.concatenate([np.tile(i, int(c)) for i, c in zip(pieces, counts, strict=True)]).astype(int)
    check(got, A[rows], None if w is None else w[rows])
    if len(groups) > 1:
        for i, rest in enumerate(leave_one_out(groups)):
            rows = np.concatenate([p for j, p in enumerate(pieces) if j != i])
            check(rest, A[rows], None if w is None else w[rows])


@st.composite
def blocks(draw):
    """Rows in parts, with columns that are constant in some of the parts, and float weights or none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    parts, n = draw(st.integers(2, 5)), draw(st.integers(2, 6))
    X = rng.standard_normal((parts, 12, n)) * 10.0 ** rng.integers(-3, 4, n) + rng.choice([0, 1, 1e4], n)
    still = rng.random((parts, 1, n)) < 0.4
    X = np.where(still, rng.choice([0.0, 0.1, 7.0], n), X)
    w = rng.random((parts, 12)) + 0.1 if draw(st.booleans()) else np.ones((parts, 12))
    return X, w


def prepared(rows, w, like, v):
    """Standardise rows as others are, in extended precision; what holds one value is not divided."""
    L, V = like.astype(np.longdouble), v.astype(np.longdouble)
    mu = (V @ L) / V.sum()
    sigma = np.sqrt(V @ (L - mu) ** 2 / V.sum())
    constant = np.ptp(like, axis=0) == 0
    mu, sigma = np.where(constant, like[0], mu), np.where(constant, 1, sigma)
    return (np.sqrt(w)[:, None] * (rows - mu) / sigma).astype(np.float64)


@given(case=blocks())
@fuzz(30)
def test_held_out_losses(case):
    X, w = case
    folds = tuple(Moments.of(a, v) for a, v in zip(X, w, strict=True))
    moments = replace(reduce(Moments.merge, folds), folds=folds)
    if not moments.spread.any():
        return
    k = 1 + X.shape[2] // 2
    found = rg.cross_validate(moments, k, lams=[0.5, 20.0], center=True, scale="std")
    for f in range(len(X)):
        others = [i for i in range(len(X)) if i != f]
        like, v = np.concatenate(X[others]), np.concatenate(w[others])
        A, B = prepared(like, v, like, v), prepared(X[f], w[f], like, v)
        start = np.sum(B**2)
        assert found.start[f] == pytest.approx(start, rel=1e-8, abs=1e-8)
        for i, lam in enumerate(found.lams):
            picked = found.fold_columns[f, i]
            for t in range(1, k + 1):
                S = picked[:t]
                W = np.linalg.solve(A[:, S].T @ A[:, S] + lam * np.eye(t), A[:, S].T @ A)
                want = np.sum((B - B[:, S] @ W) ** 2)
                assert found.loss_all[i, t - 1, f] == pytest.approx(want, rel=1e-6, abs=1e-8 * start)


@given(case=blocks(), glitch=st.sampled_from([0.0, 1e12]))
@fuzz(30)
def test_picks_of_resamples(case, glitch):
    X, w = case
    X[0, 0, 0] += glitch
    groups = tuple(Moments.of(a, v) for a, v in zip(X, w, strict=True))
    moments = replace(reduce(Moments.merge, groups), groups=groups)
    found = rg.stability(moments, 2, center=True, scale="std", resamples=4, lam=0.5)
    counts = np.random.default_rng(0).multinomial(len(X), np.full(len(X), 1 / len(X)), size=4)
    for row, picks in zip(counts, found.picks, strict=True):
        like, v = (np.concatenate([part for part, c in zip(p, row, strict=True) for _ in range(c)]) for p in (X, w))
        A = prepared(like, v, like, v)
        for t in range(len(picks)):
            after = oracle.losses_after(A, list(picks[:t]), 0.5, "unselected", set(range(A.shape[1])) - set(picks[:t]))
            assert after[picks[t]] <= min(after.values()) + 1e-7 * np.sum(A**2)

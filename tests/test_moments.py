import sys
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rgcss_dask import select
from rgcss_dask.core import triangle
from rgcss_dask.core.accumulate import Accumulator
from rgcss_dask.core.gaps import Gaps
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.resampling import weighted_sums
from rgcss_dask.core.sparse_rows import FULL_STRIP, STRIP, SparseRows
from rgcss_dask.core.wide import Rows

EIGHT_BIT = [np.uint8, np.int8, np.bool_]


def exact_gram(A):
    """The Gram in Python integers, which do not round."""
    rows = [[int(x) for x in row] for row in A]
    n = A.shape[1]
    return [[sum(row[i] * row[j] for row in rows) for j in range(n)] for i in range(n)]


def centred(A):
    C = A.astype(np.longdouble)
    C = C - C.mean(axis=0)
    return (C.T @ C).astype(np.float64)


@pytest.mark.parametrize("dtype", EIGHT_BIT)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_eight_bit_gram_is_the_integer_gram(dtype, data):
    A = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)))
    got = Moments.of(A)
    assert got.exact
    assert got.gram().tolist() == exact_gram(A)


@pytest.mark.parametrize("fill", [0, 255, "both"])
def test_eight_bit_extremes_stay_exact_over_many_rows(fill):
    A = np.full((5000, 3), 0 if fill == "both" else fill, np.uint8)
    if fill == "both":
        A[::2] = 255
    assert Moments.of(A).gram().tolist() == exact_gram(A)


@given(
    # Values whose squares are lost are refused: another test.
    A=hnp.arrays(
        np.float64,
        st.tuples(st.integers(2, 30), st.integers(1, 5)),
        elements=st.floats(-1e3, 1e3).map(lambda x: x if abs(x) > 1e-140 else 0.0),
    ),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_any_split_gives_the_whole(A, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(A) - 1))))
    got = reduce(Moments.merge, map(Moments.of, np.split(A, cuts)))
    scale = max(1.0, float(np.abs(A).max()) ** 2) * len(A)
    np.testing.assert_allclose(got.gram(), A.T @ A, rtol=0, atol=1e-14 * scale)
    np.testing.assert_allclose(got.scatter, centred(A), rtol=0, atol=1e-14 * scale)
    assert got.rows == len(A)


def test_a_mean_far_above_the_spread_costs_no_digits():
    A = np.random.default_rng(1).standard_normal((20_000, 6)) + 1e8
    # A value near 1e8 is itself rounded to 1.5e-8, so the scatter of the stored values is the reference.
    np.testing.assert_allclose(Moments.of(A).scatter, centred(A), rtol=1e-9, atol=1e-4)


def test_rows_are_multiplied_as_they_are_unless_their_mean_is_far():
    """Shifting costs a copy: what a few rows make of columns that are seldom other than 0 is not enough for it."""
    rng = np.random.default_rng(0)
    seldom = np.where(rng.random((2_000, 300)) < 0.005, rng.uniform(1, 9, (2_000, 300)), 0.0)
    accumulator = Accumulator(300, seldom.dtype)
    accumulator.add(seldom)
    assert not accumulator._shift.any()
    accumulator = Accumulator(300, seldom.dtype)
    accumulator.add(seldom + 20.0)
    assert np.all(accumulator._shift > 19.0)


def test_drifting_blocks_keep_their_digits():
    """The shift of the first rows is useless for later ones, thousands of spreads away."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((40_000, 4)) + np.repeat([0.0, 1e5, -1e7, 1e8], 10_000)[:, None]
    accumulator = Accumulator(4, A.dtype)
    for block in np.split(A, 40):
        accumulator.add(block)
    last = Accumulator(4, A.dtype)
    last.add(A[30_000:])
    np.testing.assert_allclose(Moments(*accumulator.numbers()).scatter, centred(A), rtol=1e-13)
    np.testing.assert_allclose(Moments(*last.numbers()).scatter, centred(A[30_000:]), rtol=1e-9, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integer_extremes_do_not_overflow(dtype):
    info = np.iinfo(dtype)
    A = np.array([[info.max, info.min], [info.max, info.max], [info.min, info.max]], dtype=dtype)
    wanted = [[float(Fraction(x)) for x in row] for row in exact_gram(A)]
    np.testing.assert_allclose(Moments.of(A).gram(), wanted, rtol=1e-14)


def test_float32_is_not_added_up_in_float32():
    A = (1e4 + np.random.default_rng(3).standard_normal((300_000, 3))).astype(np.float32)
    np.testing.assert_allclose(Moments.of(A).mean, A.astype(np.float64).mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(Moments.of(A).scatter, centred(A), rtol=1e-11, atol=1e-6)


def test_single_precision_is_right_to_single_precision():
    A = np.random.default_rng(4).standard_normal((9_000, 5)).astype(np.float32) + 100
    accumulator = Accumulator(5, A.dtype, precision="single")
    accumulator.add(A)
    got = Moments(*accumulator.numbers()).scatter
    np.testing.assert_allclose(got, centred(A), rtol=0, atol=3e-5 * np.diagonal(got).max())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 4_999, 7_777])
def test_a_value_that_is_not_finite_is_named(value, row):
    A = np.zeros((8_000, 3))
    A[row, 2] = value
    with pytest.raises(NotFiniteError, match=f"row {row}, column 2 holds {value}") as caught:
        Moments.of(A)
    assert (caught.value.row, caught.value.column) == (row, 2)


def test_squares_beyond_float64_are_an_error():
    with pytest.raises(OverflowError, match="column 1 exceeds the range"):
        Moments.of(np.array([[1.0, 1e200], [1.0, -1e200]]))


def test_integer_weights_stay_exact_and_fractions_do_not():
    rng = np.random.default_rng(5)
    A, w = rng.integers(0, 256, (3_000, 4), dtype=np.uint8), rng.integers(0, 9, 3_000)
    whole = Moments.of(A, w)
    assert whole.exact
    assert whole.gram().tolist() == exact_gram(np.repeat(A.astype(int), w, axis=0))
    part = Moments.of(A, w / 2)
    assert not part.exact
    np.testing.assert_allclose(part.gram(), whole.gram() / 2, rtol=1e-14)


def test_whole_weights_keep_integers_exact_in_tiles_too(monkeypatch):
    monkeypatch.setattr(triangle, "TILE", 16)
    rng = np.random.default_rng(15)
    A, w = rng.integers(0, 256, (3_000, 41), dtype=np.uint8), rng.integers(0, 2**20, 3_000)
    wide = A.astype(np.int64)
    assert Moments.of(A, w).gram().astype(np.int64).tolist() == ((wide * w[:, None]).T @ wide).tolist()


@pytest.mark.parametrize(("dtype", "mean", "rtol"), [(np.float64, 1e8, 1e-6), (np.float32, 300.0, 1e-4)])
def test_what_stands_in_rows_of_no_weight_costs_no_digits(dtype, mean, rtol):
    rng = np.random.default_rng(16)
    A, w = (mean + rng.standard_normal((4_000, 5))).astype(dtype), np.ones(4_000)
    w[::7] = 0.0
    wanted = np.cov(A[w > 0].astype(np.float64).T, bias=True)
    A[::7] = 1e20  # a mark for what is missing
    accumulator = Accumulator(5, A.dtype, precision="single")
    accumulator.add(A, w)
    got = Moments(*accumulator.numbers())
    np.testing.assert_allclose(got.scatter / got.weight, wanted, rtol=rtol, atol=rtol)


def test_a_name_of_several_columns_is_refused():
    moments = Moments.of(np.eye(3), names=["a", "b", "a"])
    with pytest.raises(ValueError, match=r"2 columns are called 'a'\. Give the index"):
        moments.take(["a"])
    assert moments.take(["b"]).n == 1


def test_centring_about_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="center must be finite; got nan for column 1"):
        Moments.of(np.eye(3)).gram(center=[0.0, np.nan, 1.0])


def test_also_gives_other_accumulators_the_same_rows():
    A = np.random.default_rng(6).standard_normal((6_000, 5)) + 3
    first, second, both = (Accumulator(5, A.dtype) for _ in range(3))
    second = Accumulator(5, A.dtype, beside=first)
    both = Accumulator(5, A.dtype, beside=first)
    first.add(A[:2_500], also=[both])
    second.add(A[2_500:], also=[both])
    parts, whole = Moments(*first.numbers()).merge(Moments(*second.numbers())), Moments(*both.numbers())
    np.testing.assert_allclose(parts.scatter, whole.scatter, rtol=1e-13)
    assert parts.rows == whole.rows == 6_000


@pytest.mark.parametrize(
    ("dtype", "precision", "rtol"),
    [(np.float64, "double", 1e-13), (np.uint8, "double", 0), (np.float32, "single", 1e-5)],
)
def test_tiles_on_any_number_of_threads_have_the_same_bits(monkeypatch, dtype, precision, rtol):
    monkeypatch.setattr(triangle, "TILE", 16)
    A = (np.random.default_rng(7).random((50_000, 50)) * 200).astype(dtype)
    found = []
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet wherever they can
    try:
        for threads in (1, 2, 5):
            accumulator = Accumulator(50, A.dtype, precision=precision, threads=threads)
            accumulator.add(A)
            found.append(Moments(*accumulator.numbers()))
    finally:
        sys.setswitchinterval(switching)
    assert np.array_equal(found[0].product, found[1].product)
    assert np.array_equal(found[0].product, found[2].product)
    np.testing.assert_allclose(found[0].gram(), A.astype(float).T @ A.astype(float), rtol=rtol)


def test_overwriting_gives_the_same_bits_and_saves_a_matrix():
    A = np.random.default_rng(8).standard_normal((400, 6))
    kept = Moments.of(A[:200]).merge(Moments.of(A[200:]))
    top = Moments.of(A[:200])
    reused = top.merge(Moments.of(A[200:]), overwrite=True)
    assert np.array_equal(kept.product, reused.product)
    assert reused.product is top.product


def test_minus_takes_an_old_window_away():
    A = np.random.default_rng(9).integers(0, 256, (2_000, 5), dtype=np.uint8)
    left = Moments.of(A).minus(Moments.of(A[:700]))
    assert np.array_equal(left.gram(), Moments.of(A[700:]).gram())
    with pytest.raises(ValueError, match="cannot subtract more than is there"):
        Moments.of(A[:10]).minus(Moments.of(A))


def test_constant_columns_are_constant():
    A = np.random.default_rng(10).standard_normal((70_000, 3))
    A[:, 1] = 0.1 + 1e6
    got = Moments.of(A)
    assert np.all(got.gram(center=True, scale="std")[1] == 0)
    assert np.all(got.scatter[1] == 0)


def test_take_keeps_columns_by_index_or_name():
    A = np.random.default_rng(11).standard_normal((50, 3))
    got = Moments.of(A, names="abc").take(["c", "a"])
    assert got.names == ("c", "a")
    np.testing.assert_allclose(got.gram(), A[:, [2, 0]].T @ A[:, [2, 0]], rtol=1e-13)


@pytest.mark.parametrize(
    ("block", "error", "match"),
    [
        (np.zeros(3), ValueError, "rows and columns; got shape"),
        (np.zeros((3, 0)), ValueError, "rows and columns; got shape"),
        (np.zeros((3, 2), complex), TypeError, "real numbers .* got dtype complex128"),
        (np.array([["a"]]), TypeError, "real numbers"),
        (np.array([["2020-01-01"]], "M8[D]"), TypeError, "real numbers"),
    ],
)
def test_what_is_no_matrix_is_refused(block, error, match):
    with pytest.raises(error, match=match):
        Moments.of(block)


def test_weights_are_checked():
    A = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"one entry per row; got shape \(2,\) for 3 rows"):
        Moments.of(A, [1, 2])
    with pytest.raises(ValueError, match="not negative; row 1 has -1"):
        Moments.of(A, [1, -1, 1])
    with pytest.raises(ValueError, match="must not all be zero"):
        Moments.of(A, [0, 0, 0])


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ([1.9], r"whole number, or by its name; got 1\.9"),
        ([1.0], r"got 1\.0"),
        ([True, False, True], r"got True.*np\.flatnonzero\(mask\)"),
        (np.array([True, False, True]), r"got np\.True_.*np\.flatnonzero\(mask\)"),
        (np.array([[0, 1]]), "whole number"),
        ("ab", "list of indices or names; got 'ab'"),
        (1, "list of indices or names; got 1"),
    ],
)
def test_what_is_neither_index_nor_name_is_no_column(columns, match):
    moments = Moments.of(np.eye(3), names="abc")
    with pytest.raises(ValueError, match=match):
        moments.take(columns)
    with pytest.raises(ValueError, match=match):
        select(moments, 2, include=columns)
    with pytest.raises(ValueError, match=match):
        select(moments, 1, exclude=columns)


@pytest.mark.parametrize("whole", [2, np.int32(2), np.uint64(2)])
def test_any_whole_number_is_an_index(whole):
    assert Moments.of(np.eye(3), names="abc").take([whole, "a"]).names == ("c", "a")


def test_scale_true_means_standard_deviations_and_false_none():
    moments = Moments.of(np.random.default_rng(17).standard_normal((50, 3)) * [1, 10, 100])
    for yes, no in ((True, False), (np.True_, np.False_)):
        assert np.array_equal(moments.gram(True, yes), moments.gram(True, "std"))
        assert np.array_equal(moments.gram(True, no), moments.gram(True))
    assert select(moments.gram(), 2, scale=False).k == 2


def weighted_scatter(A, w):
    """The scatter about the weighted mean in extended precision."""
    C, W = A.astype(np.longdouble), w.astype(np.longdouble)
    C = C - (W @ C) / W.sum()
    return ((C * W[:, None]).T @ C).astype(np.float64)


def test_rows_that_weigh_little_do_not_hide_a_far_mean():
    """By their variance alone the mean is near; by their weight they hardly count."""
    rng = np.random.default_rng(18)
    sd = np.where(rng.random(20_000) < 0.02, 1e6, 0.01)
    A, w = 1e4 + sd[:, None] * rng.standard_normal((20_000, 3)), 1 / sd**2
    got = Moments.of(A, w)
    np.testing.assert_allclose(np.diagonal(got.scatter), np.diagonal(weighted_scatter(A, w)), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ">i8", np.longdouble])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_64_bits_tell_apart_is_not_rounded_away(dtype, weighted):
    if np.dtype(dtype).kind == "f" and np.finfo(dtype).nmant < 63:
        pytest.skip("longdouble is float64 here")
    rng = np.random.default_rng(19)
    small = rng.integers(0, 300, (400, 3))
    A, w = (small + 2**60).astype(dtype), rng.random(400) if weighted else np.ones(400)
    parts = [Moments.of(A[rows], w[rows] if weighted else None) for rows in (slice(0, 150), slice(150, 400))]
    whole = Moments.of(A, w if weighted else None)
    want = weighted_scatter(small, w)
    for got in (whole, parts[0].merge(parts[1])):
        np.testing.assert_allclose(got.scatter, want, rtol=1e-11, atol=1e-11 * np.trace(want))
        np.testing.assert_allclose(np.diagonal(got.gram(True, "std")), got.weight, rtol=1e-11)
    # The mean of half of the rows may be a whole float64 number or not: the other half must not notice.
    left = whole.minus(parts[0])
    want = weighted_scatter(small[150:], w[150:])
    np.testing.assert_allclose(left.scatter, want, rtol=1e-7, atol=1e-9 * np.trace(want))


def test_integers_from_end_to_end_of_64_bits():
    A = np.array([[-(2**63), 0], [2**63 - 1, 1], [5, 2**53 + 1]], dtype=np.int64)
    exact = [[float(Fraction(x)) for x in row] for row in exact_gram(A)]
    np.testing.assert_allclose(Moments.of(A).gram(), exact, rtol=1e-14)


@pytest.mark.parametrize("at", [1e15, -3e15, 7e7])
def test_a_spread_of_a_few_units_in_the_last_place_is_one_everywhere(at):
    rng = np.random.default_rng(20)
    step = np.spacing(abs(at))
    for units, constant in ((1, True), (100, False)):
        A = np.stack([at + step * rng.integers(-units, units + 1, 500), rng.standard_normal(500)], axis=1)
        moments = Moments.of(A)
        halves = Moments.of(A[:200]).merge(Moments.of(A[200:]))
        bootstrap = next(weighted_sums([Moments.of(A[:200]), Moments.of(A[200:])], np.ones((1, 2))))
        rows = Rows.of(A)
        mu, sigma = rows.preparation(True, "std")
        for got in (moments, halves, bootstrap, rows):
            assert (got.spread[0] == 0) == constant
        for got in (moments, halves, bootstrap):
            assert (got.scatter[0, 0] == 0) == constant
            assert (got.preparation(True, "std")[1][0] == 1) == constant
            assert (got.gram(*got.preparation(True, "std"))[0, 0] == 0) == constant
        assert (rows.factor(True, mu, sigma)[:, 0].any() == 0) == constant


def test_minus_knows_what_rounding_it_leaves():
    rng = np.random.default_rng(21)
    A, w = rng.standard_normal((400, 3)) + 4, rng.random(400)
    A[:, 0] = 0.0
    A[:100, 0] = 1e3 * rng.random(100)
    for weights in (w, np.ones(400)):
        left = Moments.of(A, weights).minus(Moments.of(A[:100], weights[:100]))
        want = Moments.of(A[100:], weights[100:])
        np.testing.assert_allclose(left.preparation(True, "std")[1], want.preparation(True, "std")[1], rtol=1e-9)
        np.testing.assert_allclose(left.gram(True, "std"), want.gram(True, "std"), rtol=1e-8, atol=1e-8)
        # What is taken away next does not bring the doubt about the first window to an end.
        rest = left.minus(Moments.of(A[100:250], weights[100:250])).merge(Moments.of(A[250:300], weights[250:300]))
        assert rest.spread[0] == 0


def test_minus_of_the_same_rows_in_another_order_leaves_nothing():
    rng = np.random.default_rng(22)
    A, w = rng.standard_normal((997, 3)), rng.random(997)
    for order in (np.arange(997)[::-1], rng.permutation(997)):
        left = Moments.of(A, w).minus(Moments.of(A[order], w[order]))
        assert (left.rows, left.weight) == (0, 0.0)
        assert not left.product.any()
    still = Moments.of(np.full((6, 1), 3e-100), [1, 3, 3, 0, 3, 2])
    assert still.minus(Moments.of(np.full((1, 1), 3e-100))).spread == 0
    with pytest.raises(ValueError, match="cannot subtract more than is there: 997 rows of weight"):
        Moments.of(A, w).minus(Moments.of(A, 0.9 * w))


def test_a_constant_of_integers_and_floats_together_is_constant():
    A = np.full((1_001, 2), 255, np.uint8)
    A[::3, 1] = 3
    both = Moments.of(A).merge(Moments.of(A + 0.0)).merge(Moments.of(A, np.full(1_001, 0.3)))
    assert both.spread[0] == 0
    assert both.spread[1] == pytest.approx(Moments.of(A).spread[1], rel=1e-13)


@pytest.mark.parametrize("at", [1e-170, 1e-300, 5e-324])
def test_squares_that_are_lost_are_refused_where_they_matter(at):
    rng = np.random.default_rng(23)
    tiny = at * rng.choice([-3.0, -1.0, 1.0, 3.0], (40, 3))
    tiny[:, 2] = 0.0
    for moments in (Moments.of(tiny), Moments.of(tiny, np.full(40, 0.5)), filled(tiny)):
        with pytest.raises(ValueError, match=r"so small that theirs are lost: 0, 1\. Multiply"):
            moments.gram()
    beside = np.hstack([tiny, rng.standard_normal((40, 1))])
    moments = Moments.of(beside)
    assert moments.gram()[3, 3] == pytest.approx(np.sum(beside[:, 3] ** 2))  # beside it they are nothing
    with pytest.raises(ValueError, match="so small that theirs are lost: 0, 1"):
        moments.gram(scale="std")
    # A quiet beginning is no loss.
    later = moments.merge(Moments.of(rng.standard_normal((60, 4))))
    assert np.all(np.isfinite(later.gram(True, "std")))


def filled(A):
    gaps = Gaps.of(A)
    return gaps.fill(gaps.mean)


@pytest.mark.parametrize("at", [1e-25, 1e-44, 1e15])
def test_single_precision_holds_over_the_range_of_float32(at):
    A = (at * (1 + np.random.default_rng(24).random((3_000, 3)))).astype(np.float32)
    A[:, 2] = 1.0
    accumulator = Accumulator(3, A.dtype, precision="single")
    accumulator.add(A)
    got = Moments(*accumulator.numbers())
    wide = A.astype(np.float64)
    np.testing.assert_allclose(np.diagonal(got.gram()), np.sum(wide**2, axis=0), rtol=1e-5)
    np.testing.assert_allclose(got.spread, np.std(wide, axis=0), rtol=1e-3)


def test_single_precision_out_of_range_names_the_way_out():
    accumulator = Accumulator(1, np.dtype(np.float32), precision="single")
    accumulator.add(np.array([[1e25], [-1e25]], np.float32))
    with pytest.raises(OverflowError, match="column 0 exceeds the range of float32; use precision='double'"):
        accumulator.numbers()


@pytest.mark.parametrize("density", [0.004, 0.08])
def test_sparse_rows_are_multiplied_in_tiles_by_any_number_of_threads(density):
    n, rng = 2 * STRIP + 77, np.random.default_rng(3)
    rows = SparseRows(scipy.sparse.random(300, n, density, "csr", np.float64, rng))
    assert (density * STRIP > FULL_STRIP) == (density > 0.01), "one density for each kernel"
    products = []
    for threads in (1, 3):
        sums = Accumulator(n, np.dtype("f8"), threads=threads)
        sums.add(rows, np.arange(300.0))
        products.append(Moments(*sums.numbers()))
    assert np.array_equal(products[0].product, products[1].product)
    X = np.asarray(rows)
    expected = (X.T * np.arange(300.0)) @ X
    np.testing.assert_allclose(products[0].gram(), expected, rtol=1e-12, atol=1e-12 * expected.max())


@pytest.mark.parametrize("turned", [False, True])
def test_whole_numbers_and_others_are_merged_in_the_memory_of_the_first(turned):
    n = 300
    rng = np.random.default_rng(5)
    X = rng.integers(1000, 1100, size=(40, n)).astype(np.float64), rng.normal(3.0, 1.0, size=(50, n))
    parts = [Moments.of(rows) for rows in (X[::-1] if turned else X)]
    assert sorted(part.exact for part in parts) == [False, True]
    whole = parts[0].merge(parts[1])
    copies = [replace(part, product=part.product.copy()) for part in parts]
    tracemalloc.start()
    merged = copies[0].merge(copies[1], overwrite=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.8 * merged.product.nbytes  # no matrix beside the two
    assert merged.product is copies[0].product
    for name in ("product", "total", "shift", "rounding"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_allclose(merged.scatter, np.cov(np.concatenate(X).T, bias=True) * 90, rtol=1e-9, atol=1e-6)


def test_whole_numbers_about_other_shifts_are_merged_in_the_memory_of_the_first():
    n = 300
    rng = np.random.default_rng(6)
    X = [rng.integers(low, low + 100, size=(40, n)).astype(np.float64) for low in (0, 5000)]
    parts = [Moments.of(rows) for rows in X]
    parts[1] = parts[1]._near(parts[1].mean)
    assert all(part.exact for part in parts)
    assert np.all(parts[0].shift != parts[1].shift)
    tracemalloc.start()
    merged = parts[0].merge(parts[1], overwrite=parts[0].product.flags.writeable)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.8 * merged.product.nbytes  # no matrix beside the two
    assert merged.exact
    np.testing.assert_array_equal(merged.gram(), np.concatenate(X).T @ np.concatenate(X))

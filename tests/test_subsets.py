"""Agreement of selections: against exact fractions, sets, and the same bootstrap done on the rows."""

import pickle
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest

import rgcss_dask as rg
from rgcss_dask.core import resampling
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.resampling import planned_bytes, weighted_sums
from rgcss_dask.core.stability import mean_jaccard


def with_groups(parts):
    groups = tuple(Moments.of(part) for part in parts)
    return replace(reduce(Moments.merge, groups), groups=groups)


def drifting(groups=12, rows=10, n=8, seed=0):
    """Groups whose means differ far more than their rows do."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((n, n))
    return [1e3 * rng.standard_normal(n) + rng.standard_normal((rows + i, n)) @ mix for i in range(groups)]


def exact_expectation(n, k):
    """The paper's sum in whole numbers; each term follows from the one before."""
    term, total = 1, Fraction(0)
    for p in range(min(k, n - k) + 1):
        total += Fraction(term * (k - p), k + p)
        term = term * (k - p) * (n - k - p) // (p + 1) ** 2
    return total / comb(n, k)


@pytest.mark.parametrize(
    ("n", "k", "printed"),
    [(4096, 100, 0.012), (784, 100, 0.068), (1024, 100, 0.051), (58, 29, 0.336), (617, 100, 0.088)],
)
def test_expected_agreement_is_that_of_the_paper(n, k, printed):
    assert rg.expected_jaccard(n, k) == pytest.approx(printed, abs=1e-3)


def test_expected_agreement_equals_the_mean_over_all_pairs_of_subsets():
    for n in range(1, 7):
        for k in range(1, n + 1):
            every = [set(subset) for subset in combinations(range(n), k)]
            mean = np.mean([len(a & b) / len(a | b) for a in every for b in every])
            assert rg.expected_jaccard(n, k) == pytest.approx(mean, rel=1e-14)


@pytest.mark.parametrize(("n", "k"), [(60, 1), (60, 59), (1000, 137), (20000, 3), (20000, 200), (20000, 19990)])
def test_expected_agreement_equals_the_exact_fraction(n, k):
    assert rg.expected_jaccard(n, k) == pytest.approx(float(exact_expectation(n, k)), rel=1e-11)


def test_expected_agreement_of_very_many_columns():
    # Half of 20,000 columns: the overlap is k/2 within 1 %, so that the index is near (k/2) / (3k/2).
    assert rg.expected_jaccard(20000, 10000) == pytest.approx(1 / 3, abs=1e-4)
    with pytest.raises(ValueError, match="k must be from 1 to 5, the number of columns; got 6"):
        rg.expected_jaccard(5, 6)


def test_mean_agreement_equals_that_of_sets():
    rng = np.random.default_rng(0)
    chosen = [rng.choice(30, rng.integers(3, 9), replace=False) for _ in range(12)]
    pairs = [len(set(a) & set(b)) / len(set(a) | set(b)) for a, b in combinations(chosen, 2)]
    assert mean_jaccard(chosen) == pytest.approx(np.mean(pairs))
    assert mean_jaccard([[1, 2], [2, 1]]) == 1.0
    assert mean_jaccard([[1, 2], [3, 4]]) == 0.0
    with pytest.raises(ValueError, match="at least 2 subsets; got 1"):
        mean_jaccard([[1]])


def test_random_subsets_agree_as_expected():
    rng = np.random.default_rng(1)
    chosen = [rng.choice(40, 10, replace=False) for _ in range(400)]
    assert mean_jaccard(chosen) == pytest.approx(rg.expected_jaccard(40, 10), abs=0.005)


def test_weighted_sums_are_the_moments_of_the_repeated_groups(monkeypatch):
    monkeypatch.setattr(resampling, "BAND", 3)  # several bands, the last one short
    parts = drifting()
    counts = np.random.default_rng(2).integers(0, 4, (5, len(parts))).astype(float)
    for row, got in zip(counts, weighted_sums([Moments.of(part) for part in parts], counts), strict=True):
        rows = np.vstack([part for part, c in zip(parts, row, strict=True) for _ in range(int(c))])
        want = Moments.of(rows)
        assert (got.rows, got.weight) == (want.rows, want.weight)
        np.testing.assert_allclose(got.mean, want.mean, rtol=1e-12)
        np.testing.assert_allclose(got.scatter, want.scatter, rtol=1e-10, atol=1e-12 * np.trace(want.scatter))
        np.testing.assert_allclose(got.spread, want.spread, rtol=1e-10)


def test_weighted_sums_of_8_bit_groups_are_exact():
    rng = np.random.default_rng(3)
    parts = [rng.integers(0, 256, (50, 70)).astype(np.uint8) for _ in range(6)]
    counts = rng.integers(0, 3, (4, 6)).astype(float)
    for row, got in zip(counts, weighted_sums([Moments.of(part) for part in parts], counts), strict=True):
        rows = np.vstack([part for part, c in zip(parts, row, strict=True) for _ in range(int(c))])
        assert got.exact
        np.testing.assert_array_equal(got.gram(), rows.astype(float).T @ rows.astype(float))
        np.testing.assert_array_equal(got.gram(center=True), Moments.of(rows).gram(center=True))


@pytest.mark.parametrize("per_row", [False, True])
def test_the_bootstrap_equals_the_bootstrap_of_the_rows(per_row):
    parts = drifting()
    moments = with_groups(parts)
    lam = {"lam_per_row": 0.02} if per_row else {"lam": 2.0}
    result = rg.stability(moments, 3, center=True, scale="std", resamples=8, seed=5, **lam)
    counts = np.random.default_rng(5).multinomial(12, np.full(12, 1 / 12), size=8)
    for row, columns in zip(counts, result.picks, strict=True):
        rows = np.vstack([part for part, c in zip(parts, row, strict=True) for _ in range(int(c))])
        used = 0.02 * len(rows) if per_row else 2.0
        want = rg.select(Moments.of(rows), 3, lam=used, center=True, scale="std")
        np.testing.assert_array_equal(columns, want.columns)
    assert result.jaccard == pytest.approx(mean_jaccard(result.picks))
    assert result.frequency.sum() == pytest.approx(3)
    assert result.lam == pytest.approx(0.02 * moments.weight if per_row else 2.0)


def test_the_memory_changes_nothing_but_the_time():
    moments = with_groups(drifting(n=20))
    small = rg.stability(moments, 4, resamples=9, memory=planned_bytes(20, 12, 4, 1))
    large = rg.stability(moments, 4, resamples=9, memory=10**9)
    for a, b in zip(small.picks, large.picks, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("at_once", [1, 5])
def test_the_planned_memory_is_enough(dtype, at_once):
    n, k, groups = 500, 10, 8
    rng = np.random.default_rng(4)
    moments = with_groups([rng.integers(0, 256, (100, n)).astype(dtype) for _ in range(groups)])
    planned = planned_bytes(n, groups, k, at_once)
    rg.stability(moments, k, center=True, resamples=2)  # compile and import first
    tracemalloc.start()
    try:
        rg.stability(moments, k, center=True, resamples=5, memory=planned)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.4 * planned < peak <= planned


def test_what_does_not_fit_is_refused_with_the_figures():
    moments = with_groups(drifting(n=50))
    with pytest.raises(
        MemoryError, match=r"stability needs 0\.000\d+ GB to compute one resample of 12 groups of 50 columns"
    ):
        rg.stability(moments, 3, memory=10_000)


def test_clear_data_are_stable_and_say_so():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((400, 6)) * np.array([10.0, 8.0, 6.0, 0.1, 0.1, 0.1])
    moments = replace(with_groups(np.split(X, 20)), names=tuple("abcdef"))
    result = rg.stability(moments, 3)
    assert result.jaccard == 1.0
    np.testing.assert_array_equal(result.always, [0, 1, 2])
    words = str(result)
    assert "100 selections of 3 of 6 columns on bootstrap resamples of 20 row groups" in words
    assert "have on average 100.0 %" in words
    assert f"random subsets would have {100 * result.expected:.1f} %" in words
    assert "3 columns are in every selection (a, b, c)" in words
    assert str(pickle.loads(pickle.dumps(result))) == words
    assert "few: the figure is rough" in str(rg.stability(with_groups(np.split(X, 4)), 3, resamples=4))


def test_noise_selects_on_each_noisy_block():
    rng = np.random.default_rng(7)
    for shape in ((10, 15), (30, 15)):  # wide and tall
        X = rng.standard_normal(shape)
        both = rg.stability_under_noise(X, 4, lam=[0.0, 1.0], sd=0.1, repeats=6, seed=3)
        alone = rg.stability_under_noise(X, 4, lam=1.0, sd=0.1, repeats=6, seed=3)
        draws = np.random.default_rng(3)
        for i in range(6):
            noisy = X + 0.1 * draws.standard_normal(shape)
            np.testing.assert_array_equal(both[1].picks[i], rg.select(noisy.T @ noisy, 4, lam=1.0).columns)
            np.testing.assert_array_equal(alone.picks[i], both[1].picks[i])
        assert both[0].lam == 0.0
        assert "rows with noise of standard deviation 0.1" in str(alone)
    assert rg.stability_under_noise(X, 4, sd=0.0, repeats=3).jaccard == 1.0


@pytest.mark.integration
def test_a_penalty_makes_the_picks_stable_under_noise_on_real_data(data_dir):
    """The paper's experiment: 100 rows, k = 100, noise of 1e-3; its table has 0.25, 0.63 and 0.85 for these faces."""
    data = np.load(data_dir / "yaleb32.npz")
    rows = np.random.default_rng(0).choice(1200, 100, replace=False)
    none, one, ten = rg.stability_under_noise(data["X"][rows] / data["scale"], 100, lam=[0.0, 1.0, 10.0], repeats=30)
    assert none.jaccard < one.jaccard < ten.jaccard
    assert none.jaccard > 2 * none.expected


def test_bad_input_says_the_rule_the_value_and_the_way_out():
    good = with_groups(drifting())
    empty = replace(good, groups=(*good.groups, Moments.of(np.zeros((0, 8)))))
    for moments, options, message in [
        (Moments.of(np.eye(4)), {}, r"at least 2 row groups; got 0\. .*scan\(source, groups=100\)"),
        (empty, {}, r"every group must have rows; group 12 of 13 has none\. Scan with fewer groups"),
        (good, {"resamples": 1}, "resamples must be a whole number, 2 or more; got 1"),
        (good, {"lam": -1.0}, "0 or more; got -1"),
        (good, {"lam_per_row": -1.0}, "0 or more; got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.stability(moments, 3, **options)
    for block, options, message in [
        (np.zeros(3), {}, r"rows and columns; got shape \(3,\)"),
        (np.eye(4), {"sd": -1.0}, r"sd must be a finite number, 0 or more; got -1\.0"),
        (np.eye(4), {"repeats": 1}, "repeats must be a whole number, 2 or more; got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.stability_under_noise(block, 2, **options)


def test_conditioning_on_train_and_on_other_rows():
    rng = np.random.default_rng(8)
    train, other = rng.standard_normal((50, 6)) + 5.0, rng.standard_normal((40, 6)) + 5.0
    picked = rg.select(Moments.of(train), 3, center=True)
    for rows in (train, other):
        C = (rows - train.mean(axis=0))[:, picked.columns]  # other rows are centred as the training rows were
        assert picked.conditioning(Moments.of(rows)).value == pytest.approx(np.linalg.cond(C))
    plain = rg.select(train.T @ train, 3)
    assert plain.conditioning(other.T @ other).value == pytest.approx(np.linalg.cond(other[:, plain.columns]))
    twin = np.column_stack([train, train[:, 0]])
    both = rg.select(twin.T @ twin, 2, include=[0, 6])
    assert not both.conditioning(twin.T @ twin).resolved


def test_parts_have_the_names_of_the_whole(tmp_path):
    X = np.random.default_rng(9).standard_normal((120, 4))
    scanned = rg.scan(pd.DataFrame(X, columns=list("abcd")), folds=3, groups=4)
    rg.save(scanned, tmp_path / "m.zarr")
    loaded = rg.load(tmp_path / "m.zarr")
    by_hand = replace(with_groups(np.split(X, 4)), names=tuple("abcd"))
    for moments in (scanned, loaded, by_hand, loaded.merge(loaded), loaded.take(list("abcd"))):
        assert {part.names for part in (*moments.folds, *moments.groups)} == {tuple("abcd")}
        assert all(2 in picks for picks in rg.stability(moments, 2, include=["c"], resamples=5).picks)
        assert rg.stability(moments, 2, exclude=["c"], resamples=5).frequency[2] == 0


def test_a_column_that_is_constant_in_a_resample_is_not_inflated():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2)) + 4
    X[:, 0] = 0
    X[:20, 0] = rng.random(20)
    moments = rg.scan(X, groups=10)
    result = rg.stability(moments, 1, center=True, scale="std")
    counts = np.random.default_rng(0).multinomial(10, np.full(10, 0.1), size=100)
    for row, picks in zip(counts, result.picks, strict=True):
        assert row[0] > 0 or picks[0] == 1
    for row, resample in zip(counts, weighted_sums(moments.groups, counts.astype(float)), strict=True):
        assert (resample.spread[0] > 0) == (row[0] > 0)


@pytest.mark.parametrize("glitch", [1e12, -1e12, 1e100])
@pytest.mark.parametrize("groups", [2, 12])
def test_a_wild_group_costs_other_resamples_nothing(glitch, groups):
    """Resamples without it are those of the data without the wild value."""
    rng = np.random.default_rng(11)
    X = rng.standard_normal((groups * 20, 6)) @ rng.standard_normal((6, 6)) + 3
    wild = X.copy()
    wild[7, 2] = glitch  # in group 0
    counts = rng.multinomial(groups, np.full(groups, 1 / groups), size=24).astype(float)
    sums = [weighted_sums([Moments.of(part) for part in np.split(A, groups)], counts) for A in (X, wild)]
    without = 0
    for row, tame, got in zip(counts, *sums, strict=True):
        if row[0] == 0:
            without += 1
            np.testing.assert_allclose(got.gram(True, "std"), tame.gram(True, "std"), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(got.gram(), tame.gram(), rtol=1e-9, atol=1e-9)
    assert without > 2

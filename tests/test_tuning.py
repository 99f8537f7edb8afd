"""Cross-validation from moments against the same done on the rows, its choices, and choose_k."""

import pickle
import shutil
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.core.folds import leave_one_out
from rgcss_dask.core.grid import GRID, default_grid, leading_spectrum
from rgcss_dask.core.hashing import fold_of
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.tuning import chosen, mean_and_error
from rgcss_dask.workflow import Question, answer

LAMS = [0.0, 0.01, 1.0, 100.0]


def with_folds(parts):
    folds = tuple(Moments.of(part) for part in parts)
    return replace(reduce(Moments.merge, folds), folds=folds)


def factor_model(seed, rows=60, n=12, rank=4, noise=0.3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, n)) + noise * rng.standard_normal((rows, n))


def uneven(A, folds=4, seed=0):
    """Rows in folds of different size and different mean, so that learning from the wrong rows shows."""
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(8, len(A) - 8), folds - 1, replace=False))
    return [part + 3.0 * i for i, part in enumerate(np.split(A, cuts))]


def prepared(A, B, center, scale):
    """Both blocks with the centring and scaling of A alone."""
    mu = A.mean(axis=0) if center else np.zeros(A.shape[1])
    sigma = A.std(axis=0) if scale == "std" else np.full(A.shape[1], scale or 1.0)
    return (A - mu) / sigma, (B - mu) / sigma


def direct_losses(A, B, columns, lam):
    """The paper's L(S) from the rows, over all columns and over those not picked."""
    S = list(columns)
    C = A[:, S]
    E = B - B[:, S] @ np.linalg.solve(C.T @ C + lam * np.eye(len(S)), C.T @ A)
    return np.sum(E**2), np.sum(np.delete(E, S, axis=1) ** 2)


def assert_held_out_losses(result, parts, center, scale):
    for f in range(len(parts)):
        A, B = prepared(np.vstack([p for i, p in enumerate(parts) if i != f]), parts[f], center, scale)
        assert result.start[f] == pytest.approx(np.sum(B**2))
        for i, lam in enumerate(result.lams):
            used = lam / result.rows * len(A) if result.per_row else lam
            for t in range(result.fold_columns.shape[2]):
                everything, unselected = direct_losses(A, B, result.fold_columns[f, i, : t + 1], used)
                tol = 1e-10 * np.sum(B**2)
                assert abs(result.loss_all[i, t, f] - everything) <= tol
                assert abs(result.loss_unselected[i, t, f] - unselected) <= tol


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize(("center", "scale"), [(False, None), (True, None), (True, "std"), (False, 255.0)])
def test_held_out_loss_equals_the_loss_of_the_rows(objective, center, scale):
    parts = uneven(factor_model(1))
    result = rg.cross_validate(with_folds(parts), 5, lams=LAMS, objective=objective, center=center, scale=scale)
    assert result.loss_all.shape == result.loss_unselected.shape == (4, 5, 4)
    assert_held_out_losses(result, parts, center, scale)


def test_held_out_loss_of_exact_8_bit_folds_equals_the_loss_of_the_rows():
    rng = np.random.default_rng(2)
    parts = [rng.integers(0, 256, (20, 8)).astype(np.uint8) for _ in range(3)]
    moments = with_folds(parts)
    assert all(fold.exact for fold in moments.folds)
    result = rg.cross_validate(moments, 4, lams=[1.0, 1e4], center=True)
    assert_held_out_losses(result, [part.astype(float) for part in parts], True, None)


@pytest.mark.integration
@pytest.mark.parametrize(("center", "scale"), [(False, 255.0), (True, "std")])
def test_held_out_losses_of_real_images_equal_those_of_the_rows(data_dir, center, scale):
    X = np.load(data_dir / "mnist.npz")["train"][:1500]
    X = X[:, np.all([part.std(axis=0) > 0 for part in np.split(X, 3)], axis=0)]  # dead pixels cannot be standardised
    parts = np.split(X, 3)
    result = rg.cross_validate(with_folds(parts), 24, lam_per_row=[1e-6, 1e-3], center=center, scale=scale)
    assert_held_out_losses(result, [part.astype(float) for part in parts], center, scale)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["unselected", "all"]), st.booleans(), st.booleans())
def test_held_out_losses_of_generated_folds(seed, objective, center, per_row):
    parts = uneven(factor_model(seed, rows=50, n=7, rank=3), folds=3, seed=seed)
    grid = {"lam_per_row" if per_row else "lams": np.random.default_rng(seed).uniform(1e-3, 10, 3)}
    result = rg.cross_validate(with_folds(parts), 4, objective=objective, center=center, **grid)
    assert_held_out_losses(result, parts, center, None)


def test_each_fold_is_selected_on_the_others_alone():
    parts = uneven(factor_model(3))
    result = rg.cross_validate(with_folds(parts), 4, lams=[0.5], center=True, scale="std")
    for f in range(len(parts)):
        rest = Moments.of(np.vstack([p for i, p in enumerate(parts) if i != f]))
        alone = rg.select(rest, 4, lam=0.5, center=True, scale="std")
        np.testing.assert_array_equal(result.fold_columns[f, 0], alone.columns)


def test_centring_and_scaling_do_not_leak_from_the_held_out_fold():
    parts = uneven(factor_model(4))
    parts[1] = 5.0 * parts[1] + 40.0
    result = rg.cross_validate(with_folds(parts), 3, lams=[1.0], center=True, scale="std")
    # What leaks when mean and deviation come from all rows is far above the tolerance of the comparison above.
    A, B = np.vstack([parts[0], *parts[2:]]), parts[1]
    everything = np.vstack(parts)
    leaky = (B - everything.mean(0)) / everything.std(0)
    assert abs(np.sum(leaky**2) - result.start[1]) > 0.5 * result.start[1]
    assert result.start[1] == pytest.approx(np.sum(((B - A.mean(0)) / A.std(0)) ** 2))
    # And nothing of the held-out fold reaches what is picked without it.
    other = [*parts]
    other[1] = parts[1][::-1] ** 3
    again = rg.cross_validate(with_folds(other), 3, lams=[1.0], center=True, scale="std")
    np.testing.assert_array_equal(again.fold_columns[1], result.fold_columns[1])


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_others_are_merged_never_subtracted(count):
    rng = np.random.default_rng(count)
    parts = [rng.standard_normal((10, 4)) * (1e6 if i == 0 else 1.0) for i in range(count)]
    folds = [Moments.of(part) for part in parts]
    for f, rest in enumerate(leave_one_out(folds)):
        rows = np.vstack([p for i, p in enumerate(parts) if i != f])
        np.testing.assert_allclose(rest.gram(), rows.T @ rows, rtol=1e-12, atol=1e-12 * np.sum(rows**2))
        assert rest.rows == 10 * (count - 1)
    # Leaving out the large fold by subtraction would lose half of the digits.
    rest = reduce(Moments.merge, folds).minus(folds[0]).gram()
    rows = np.vstack(parts[1:])
    assert np.abs(rest - rows.T @ rows).max() > 1e-7 * np.sum(rows**2)


def test_a_lambda_is_one_number_and_a_lambda_per_row_follows_the_rows():
    parts = uneven(factor_model(5))
    moments = with_folds(parts)
    twice = with_folds([np.vstack([part, part]) for part in parts])
    once, doubled = (rg.cross_validate(m, 4, lam_per_row=[0.01, 0.1, 1.0]) for m in (moments, twice))
    np.testing.assert_allclose(doubled.lams, 2 * once.lams)
    np.testing.assert_allclose(once.lam_per_row, [0.01, 0.1, 1.0])
    np.testing.assert_array_equal(doubled.columns, once.columns)
    np.testing.assert_allclose(doubled.mean, once.mean)  # per row, nothing has changed
    assert once.per_row
    assert once.selection.lam == once.lam == pytest.approx(once.lam_per_row[list(once.lams).index(once.lam)] * 60)
    fixed, fixed_twice = (rg.cross_validate(m, 4, lams=[0.1, 10.0]) for m in (moments, twice))
    np.testing.assert_array_equal(fixed.lams, fixed_twice.lams)
    assert not fixed.per_row
    assert not np.allclose(fixed.mean, fixed_twice.mean)


def test_the_refit_is_the_selection_on_all_rows():
    moments = with_folds(uneven(factor_model(6)))
    result = rg.cross_validate(moments, 6, center=True, include=[3], exclude=[0])
    again = rg.select(moments, result.k, lam=result.lam, center=True, include=[3], exclude=[0])
    np.testing.assert_array_equal(result.selection.columns, again.columns)
    assert result.selection.columns[0] == 3
    assert np.all(result.fold_columns[:, :, 0] == 3)
    assert 0 not in result.fold_columns


def test_included_columns_are_part_of_every_choice():
    rng = np.random.default_rng(6)
    # Noise, few rows and hardly a penalty: each further column predicts the others worse.
    moments = with_folds(np.split(rng.standard_normal((12, 20)), 3))
    assert rg.cross_validate(moments, 5, lams=1e-6).k == 1
    result = rg.cross_validate(moments, 5, lams=1e-6, include=[4, 2, 7])
    assert result.k == result.selection.k == 3


def test_groups_may_serve_as_folds():
    parts = uneven(factor_model(6))
    moments = with_folds(parts)
    grouped = replace(moments, folds=(), groups=moments.folds)
    held_out = rg.cross_validate(replace(grouped, folds=grouped.groups), 3)
    np.testing.assert_array_equal(held_out.loss, rg.cross_validate(moments, 3).loss)


def test_columns_may_be_named():
    moments = with_folds(uneven(factor_model(6)))
    named = replace(moments, names=tuple("abcdefghijkl"))
    result = rg.cross_validate(named, 3, lams=[1.0, 2.0], include=["d"])
    assert result.selection.names[0] == "d"


def test_the_default_grid_comes_from_the_spectrum_and_is_reported():
    A = factor_model(7)
    moments = with_folds(np.split(A, 4))
    result = rg.cross_validate(moments, 4)
    s = np.linalg.eigvalsh(A.T @ A)[::-1]
    assert len(result.lams) == GRID
    assert result.per_row
    assert not result.given
    assert result.lams[-1] == pytest.approx(s[0])
    assert result.lams[0] == pytest.approx(1e-3 * s[3], rel=0.1)
    np.testing.assert_allclose(np.diff(np.log(result.lams)), np.log(result.lams[1] / result.lams[0]))
    larger = rg.cross_validate(with_folds(np.split(100 * A, 4)), 4)
    np.testing.assert_allclose(larger.lams, 1e4 * result.lams)
    np.testing.assert_array_equal(larger.selection.columns, result.selection.columns)


def test_the_default_grid_stays_above_rounding_where_the_rank_is_used_up():
    A = factor_model(8, rank=2, noise=0.0)
    grid = default_grid(A.T @ A, 6)
    s = np.linalg.eigvalsh(A.T @ A)[::-1]
    assert grid[0] == pytest.approx(1e-3 * s[1], rel=1e-6)


def test_leading_eigenvalues_are_good_enough_to_place_a_grid():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((300, 200)) * np.geomspace(1, 1e-3, 200)
    s = np.linalg.eigvalsh(A.T @ A)[::-1]
    found = leading_spectrum(A.T @ A, 40)
    assert np.all(found <= s[:40] * (1 + 1e-9))
    assert np.all(found >= 0.9 * s[:40])


def test_the_rule_of_one_standard_error():
    losses = np.zeros((2, 3, 4))
    fold_noise = np.array([-1.0, 1.0, -1.0, 1.0])
    for i, row in enumerate([[20.0, 10.2, 10.0], [20.0, 10.5, 10.4]]):
        losses[i] = np.array(row)[:, None] + fold_noise
    weight, start = np.ones(4), np.full(4, 100.0)
    mean, error = mean_and_error(losses, weight)
    np.testing.assert_allclose(mean[0], [20, 10.2, 10])
    np.testing.assert_allclose(error, np.std(fold_noise, ddof=1) / 2)  # 0.577
    assert chosen(losses, start, weight, False, least=1, most=3) == (0, 3)
    assert chosen(losses, start, weight, True, least=1, most=3) == (1, 2)  # fewest columns, then the largest lambda
    assert chosen(losses, start, weight, False, least=2, most=2) == (0, 2)
    assert chosen(losses, start, weight, True, least=3, most=3) == (1, 3)


def test_folds_count_by_their_weight():
    losses, weight = np.array([30.0, 2.0]), np.array([10.0, 1.0])
    mean, error = mean_and_error(losses, weight)
    assert mean == pytest.approx(32 / 11)
    assert error == pytest.approx(np.sqrt((10 * (3 - mean) ** 2 + (2 - mean) ** 2) / 11))


def test_minimum_and_one_standard_error_on_data():
    moments = with_folds(uneven(factor_model(9, rows=40, noise=1.0)))
    smallest, simpler = (rg.cross_validate(moments, 10, one_se=rule) for rule in (False, True))
    assert smallest.mean.min() == pytest.approx(smallest.mean[list(smallest.lams).index(smallest.lam), smallest.k - 1])
    assert simpler.k <= smallest.k
    at = list(simpler.lams).index(simpler.lam), simpler.k - 1
    best = np.unravel_index(simpler.mean.argmin(), simpler.mean.shape)
    assert simpler.mean[at] <= simpler.mean[best] + simpler.error[best]


def test_a_fixed_number_of_columns():
    moments = with_folds(uneven(factor_model(10)))
    result = rg.cross_validate(moments, 5, lams=LAMS, fixed_k=True)
    assert result.k == result.selection.k == 5
    assert result.lam == result.best_lam(5) == LAMS[int(result.mean[:, 4].argmin())]
    assert result.best_lam(2) == LAMS[int(result.mean[:, 1].argmin())]
    with pytest.raises(ValueError, match="from 1 to 5, the sizes that were tried; got 6"):
        result.best_lam(6)


def test_the_measure_may_differ_from_the_objective():
    moments = with_folds(uneven(factor_model(10)))
    result = rg.cross_validate(moments, 4, lams=LAMS, measure="all")
    np.testing.assert_array_equal(result.held_out_loss, result.loss_all)
    assert result.selection.objective == "unselected"
    with pytest.raises(ValueError, match="'unselected' or 'all'; got 'both'"):
        rg.cross_validate(moments, 4, measure="both")


def test_one_lambda_still_chooses_the_number_of_columns():
    moments = with_folds(uneven(factor_model(11)))
    for lams in (2.0, [2.0]):
        result = rg.cross_validate(moments, 4, lams=lams)
        assert result.lam == 2.0
        assert result.held_out_loss.shape == (1, 4, 4)
        assert "one lambda (2, given)" in result.words


def test_the_result_reads_as_words_and_travels():
    moments = with_folds(uneven(factor_model(12)))
    result = rg.cross_validate(moments, 4, lams=[1e-3, 1e-2, 1e6])
    words = result.words
    assert "4-fold cross-validation over 3 lambdas (0.001 to 1e+06, given) and 1 to 4 columns" in words
    assert f"{result.k} columns" in words
    assert "per row" in words
    edge = rg.cross_validate(moments, 4, lams=[1e5, 1e6])
    assert "the smallest lambda tried; a smaller one may be better" in edge.words
    copy = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(copy.held_out_loss, result.held_out_loss)
    assert (copy.words, str(copy)) == (words, str(result))


def test_tuning_needs_no_second_pass(tmp_path):
    store = tmp_path / "rows.zarr"
    zarr.save_array(store, factor_model(13, rows=500))
    moments = rg.scan(store, folds=5, groups=10)
    shutil.rmtree(store)  # there is nothing left to open
    assert rg.cross_validate(moments, 4).selection.k <= 4
    assert rg.stability(moments, 4, resamples=5).jaccard > 0


def test_choose_k():
    G = factor_model(14).T @ factor_model(14)
    picked = rg.select(G, 8, lam=0.1, bound=True)
    k = rg.choose_k(picked, explained=0.9)
    assert picked.explained[k - 1] >= 0.9 > picked.explained[k - 2]
    k = rg.choose_k(picked, bound=1.5)
    ratio = picked.loss / picked.bound
    assert ratio[k - 1] <= 1.5
    assert np.all(ratio[: k - 1] > 1.5)
    tuned = rg.cross_validate(with_folds(uneven(factor_model(14))), 8)
    mean = tuned.mean[list(tuned.lams).index(tuned.lam)]
    k = rg.choose_k(tuned, heldout=1.2)
    assert mean[k - 1] <= 1.2 * mean.min()
    assert np.all(mean[: k - 1] > 1.2 * mean.min())
    assert rg.choose_k(tuned, heldout=1.0) == mean.argmin() + 1
    assert tuned.held_out_explained[list(tuned.lams).index(tuned.lam), rg.choose_k(tuned, explained=0.5) - 1] >= 0.5


def test_choose_k_says_what_it_needs():
    picked = rg.select(np.diag([3.0, 2.0, 1.0]), 2)
    tuned = rg.cross_validate(with_folds(uneven(factor_model(15))), 3)
    for given_rules, message in [
        ({}, "exactly one of bound, heldout and explained; got none"),
        ({"bound": 2.0, "explained": 0.5}, "got bound and explained"),
        ({"explained": 1.5}, "share above 0 and at most 1; got 1.5"),
        ({"explained": 0.0}, "share above 0 and at most 1; got 0"),
        ({"bound": 0.9}, "bound must be 1 or more, .*; got 0.9"),
        ({"bound": 2.0}, "with bounds, .*Make it with select"),
        ({"heldout": 1.1}, "heldout needs a cross-validation; .*Give the result of cross_validate"),
        ({"explained": 0.99}, "explained=0.99 must be reachable; with up to 2 columns the best is 0.8"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.choose_k(picked, **given_rules)
    with pytest.raises(ValueError, match="bound needs a selection; got a cross-validation"):
        rg.choose_k(tuned, bound=1.1)


def test_bad_input_says_the_rule_the_value_and_the_way_out():
    A = factor_model(16)
    whole, good = Moments.of(A), with_folds(np.split(A, 4))
    empty = replace(good, folds=(*good.folds, Moments.of(np.zeros((0, 12)))))
    for moments, options, message in [
        (whole, {}, r"at least 2 folds; got 0. .*scan\(source, folds=5\)"),
        (replace(good, folds=good.folds[:1]), {}, "at least 2 folds; got 1"),
        (empty, {}, "every fold must have rows; fold 4 of 5 has none. Scan with fewer folds"),
        (good, {"lams": [1.0, -2.0]}, "0 or more; got -2"),
        (good, {"lams": [1.0, np.nan]}, "finite number, 0 or more; got nan"),
        (good, {"lam_per_row": [1.0, 3.0, 1.0]}, "lambdas must differ; got 1 more than once"),
        (good, {"lams": []}, "at least one value; got shape"),
        (good, {"lams": [[1.0, 2.0]]}, "at least one value; got shape"),
        (good, {"lams": [1.0], "lam_per_row": [1.0]}, "only one of lams and lam_per_row may be given"),
        (good, {"objective": "both"}, "objective must be .*; got 'both'"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.cross_validate(moments, 4, **options)
    for k in (0, 13, 2.5):
        with pytest.raises(ValueError, match=f"k must be a whole number from 1 to 12.*got {k}"):
            rg.cross_validate(good, k)


def test_no_variation_leaves_nothing_to_choose():
    flat = with_folds([np.full((5, 3), 2.0)] * 3)
    with pytest.raises(
        ValueError, match="some column must vary for a choice of lambda; all are zero, or constant and centred"
    ):
        rg.cross_validate(flat, 2, center=True)


def test_more_columns_than_a_training_fold_spans_need_a_penalty():
    A = factor_model(17, rows=12)
    moments = with_folds(np.split(A, 3))
    with pytest.raises(ValueError, match=r"k must be at most 8 with lambda = 0: the rows outside fold 0 .* got k=10"):
        rg.cross_validate(moments, 10, lams=[0.0, 1.0])
    assert rg.cross_validate(moments, 10, lams=[0.5, 1.0]).held_out_loss.shape == (2, 10, 3)
    dependent = with_folds(np.split(factor_model(18, rank=3, noise=0.0), 3))
    with (
        pytest.warns(UserWarning, match="picked 3 columns instead of 5"),
        pytest.raises(ValueError, match=r"at most 3 with lambda = 0.*Use a smaller k, or leave 0 out"),
    ):
        rg.cross_validate(dependent, 5, lams=[0.0, 1.0])


def test_a_column_that_is_constant_outside_a_fold_is_not_inflated():
    """With weights of fractions the mean of zeros was not quite zero, nor their spread."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((400, 3)) + 4, rng.random(400)
    folds = [np.flatnonzero(fold_of(np.arange(400, dtype=np.uint64), 5, 0) == k) for k in range(5)]
    X[:, 0] = 0
    X[folds[0][:3], 0] = 5.0
    found = rg.cross_validate(rg.scan(X, folds=5, weights=w), 2, center=True, scale="std")
    for start, fold in zip(found.start, folds, strict=True):
        rest = np.setdiff1d(np.arange(400), fold)
        mu = np.average(X[rest], axis=0, weights=w[rest])
        sigma = np.sqrt(np.average((X[rest] - mu) ** 2, axis=0, weights=w[rest]))
        sigma[sigma == 0] = 1.0
        assert start == pytest.approx(w[fold] @ np.sum(((X[fold] - mu) / sigma) ** 2, axis=1), rel=1e-9)


def test_flat_valleys_and_edges_are_told_as_such():
    """Ridge of a strong factor model: small lambdas do alike, large ones do worse."""
    moments = with_folds(np.array_split(factor_model(1, rows=300), 5))

    def words(lams):
        found = rg.cross_validate(moments, 4, lams=lams, fixed_k=True)
        mean, (first, last) = found.mean[:, 3], found.valley
        assert first <= found._at <= last
        assert np.all(mean[first : last + 1] <= mean[found._at] * 1.01)
        return found.words

    assert "All lambdas that were tried do equally well." in words([1e-6, 1e-5, 1e-4])
    assert "All lambdas up to 0.0001 do equally well." in words([1e-6, 1e-5, 1e-4, 1e4])
    for lams in ([1e-6, 1e-5, 1e-4], [1e-6, 1e-5, 1e-4, 1e4], [1e-6]):
        assert "may be better" not in words(lams)
    assert "This is the smallest lambda tried; a smaller one may be better." in words([1e4, 1e5])


@pytest.mark.parametrize("options", [{"lams": [2.0]}, {"lam_per_row": [0.05]}, {"lams": [2.0], "objective": "all"}])
def test_swaps_in_every_fold_equal_those_made_on_the_rows(options):
    parts = uneven(factor_model(7, rows=80, n=14, rank=6))
    moments = with_folds(parts)
    found = rg.cross_validate(moments, 5, fixed_k=True, center=True, scale="std", refine=True, **options)
    for f, wanted in enumerate(found.swapped):
        rest = np.vstack([part for i, part in enumerate(parts) if i != f])
        A, B = prepared(rest, parts[f], True, "std")
        lam = found.lam / len(np.vstack(parts)) * len(rest) if found.per_row else found.lam
        picked = rg.select(
            Moments.of(rest), 5, lam=lam, center=True, scale="std", objective=options.get("objective", "unselected")
        )
        swapped = rg.refine(picked, Moments.of(rest))
        loss = direct_losses(A, B, swapped.columns, lam)[0 if "objective" in options else 1]
        assert wanted == pytest.approx(loss, rel=1e-9)
    before = rg.cross_validate(moments, 5, fixed_k=True, center=True, scale="std", **options)
    after = rg.refine(before.selection)
    assert after.swaps > 0
    np.testing.assert_array_equal(found.columns, after.columns)
    assert (found.lam, found.k) == (before.lam, before.k)
    assert not np.allclose(found.swapped, before.held_out_loss[0, -1])
    assert "with swaps in every fold" in found.words
    assert "with swaps" not in before.words
    share = 1 - found.swapped.sum() / found.start.sum()
    assert found.summary.words == found.words
    assert f"keep {100 * share:.2f} %" in found.sentence


def test_without_a_better_swap_the_held_out_losses_stay():
    moments = with_folds(uneven(factor_model(8)))
    for options in ({"center": True}, {"measure": "all"}, {"column_weights": np.arange(12.0)}, {"targets": [0, 3]}):
        plain = rg.cross_validate(moments, 1, **options)  # a single greedy pick is the best one
        swapped = rg.cross_validate(moments, 1, refine=True, **options)
        at = plain.lams.tolist().index(plain.lam)
        np.testing.assert_allclose(swapped.swapped, plain.held_out_loss[at, 0], rtol=1e-9)


def test_every_door_tells_the_held_out_loss_of_swapped_picks():
    rows = factor_model(7, rows=300, n=14, rank=6)
    moments = rg.scan(rows, folds=5)
    options = {"center": True, "scale": "std"}
    wanted = rg.cross_validate(moments, 5, fixed_k=True, refine=True, **options)
    fitted = rg.RGCSS(5, lam="cv", **options).fit(rows)
    np.testing.assert_array_equal(fitted.cv_results_.swapped, wanted.swapped)
    np.testing.assert_array_equal(fitted.cv_results_.columns, fitted.selected_)
    words = {
        wanted.summary.words,
        fitted.result().tuning.words,
        rg.select(rows, 5, lam="cv", refine=True, **options).result().tuning.words,
        answer(moments, Question(k=5, lam="cv", **options), {}, say=lambda words: None).tuning.words,
    }
    assert words == {wanted.words}
    greedy = rg.RGCSS(5, lam="cv", refine=False, **options).fit(rows)
    assert greedy.cv_results_.swapped is None
    wide = rg.RGCSS(3, lam="cv", refine=True, **options).fit(rows[:12])
    dense = rg.cross_validate(rg.scan(rows[:12], folds=5), 3, fixed_k=True, refine=True, **options)
    np.testing.assert_allclose(wide.cv_results_.swapped, dense.swapped, rtol=1e-6)

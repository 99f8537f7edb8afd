"""Swap refinement against brute force: the score of every swap, the end of the search, and exhaustive search."""

import pickle
import warnings
from dataclasses import replace
from itertools import combinations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.core import evaluate, refinement
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.objective import objective_named
from rgcss_dask.core.solver.band_rows import BandRows
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.swaps import Products, lambdas, swap_losses

OBJECTIVES = ["unselected", "all"]


def factor_model(seed):
    """A few hidden causes in more columns, and k: where the greedy way is seldom the best."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(8, 13)), int(rng.integers(3, 6))
    A = rng.standard_normal((40, k)) @ rng.standard_normal((k, n)) + 0.3 * rng.standard_normal((40, n))
    return A, k, [0.0, 0.1, 1.0, 10.0][seed % 4], OBJECTIVES[seed // 4 % 2]


def smallest_loss(A, k, lam, objective):
    """The loss of the best of all subsets, from the Gram and one solve each."""
    G = A.T @ A
    best = np.inf
    for S in map(list, combinations(range(len(G)), k)):
        W = np.linalg.solve(G[np.ix_(S, S)] + lam * np.eye(k), G[S])
        errors = np.diagonal(G) - np.einsum("ij,ij->j", W, 2 * G[S] - G[np.ix_(S, S)] @ W)
        best = min(best, errors.sum() - (errors[S].sum() if objective == "unselected" else 0.0))
    return best


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", [0.0, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("unit", [1.0, 1e-120, 1e120])
def test_every_swap_is_scored_with_its_loss(objective, lam, unit):
    A = factor_model(1)[0]
    lam, picked = lam * unit, rg.select(A.T @ A, 4, lam=lam, objective=objective).columns
    with Pool() as pool:
        table = swap_losses(Gram(unit * (A.T @ A)), picked, lam, objective_named(objective), pool)
    for a in range(4):
        for j in range(A.shape[1]):
            swapped = [j if i == a else c for i, c in enumerate(picked)]
            want = np.inf if j in picked else unit * oracle.loss(A, swapped, lam / unit, objective)
            assert table[a, j] == pytest.approx(want, rel=1e-10)


def bases_of(A):
    """The three representations of one Gram, the last for all columns but the first."""
    G, some = A.T @ A, np.arange(1, A.shape[1])
    return [Gram(G), rg.Factor(A), BandRows(G[some], np.diagonal(G).copy(), some)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_products_kept_over_swaps_score_all_swaps_alike(objective, weighted):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((25, 6)) @ rng.standard_normal((6, 30)) + 0.3 * rng.standard_normal((25, 30))
    counting = objective_named(objective).weighted(rng.uniform(0, 2, 30) if weighted else None)
    with Pool() as pool:
        for base in bases_of(A):
            lams, columns = lambdas(base, 5, np.full(30, 0.7)), np.array([4, 9, 2, 7, 20])
            kept = Products(base, columns, lams, counting, pool)
            for swaps in ([], [(1, 12), (3, 5)], [(1, 9), (0, 29), (0, 4)]):  # a column may come back
                for place, column in swaps:
                    columns[place] = column
                    loss, inner = kept.loss_after(place, column)
                    assert loss == pytest.approx(evaluate.loss(A.T @ A, columns, 0.7, counting), rel=1e-9)
                    kept.swap(place, column, inner)
                table = swap_losses(base, columns, lams * base.unit, counting, pool)
                assert kept.swap_losses()[:, 1:] == pytest.approx(table[:, 1:], rel=1e-9)


def test_refinement_with_kept_products_ends_where_it_would_without(monkeypatch):
    for seed in range(20):
        G, k = wide_model(seed, n=60)
        picked = rg.select(G, k, lam=0.5, objective=OBJECTIVES[seed % 2], include=[3])
        ends = []
        for kept in (0, 2**62):
            monkeypatch.setattr(refinement, "_KEPT", kept)
            ends.append(rg.refine(picked, G))
        one, other = ends
        assert np.array_equal(one.columns, other.columns)
        assert (one.swaps, one.sweeps, one.settled) == (other.swaps, other.sweeps, True)
        assert one.after == other.after


def test_swaps_found_where_digits_do_not_suffice_are_not_made(monkeypatch):
    """Losses told too low by the kept products end these, and what they found is forgotten."""
    G, k = wide_model(0, n=60)
    picked = rg.select(G, k, lam=0.5)
    want = rg.refine(picked, G)
    monkeypatch.setattr(refinement, "_KEPT", 0)
    told = Products.loss_after
    monkeypatch.setattr(Products, "loss_after", lambda self, *swap: (0.1 * told(self, *swap)[0], self._inner))
    monkeypatch.setattr(Products, "swap_losses", lambda self: np.zeros((k, 60)))
    refined = rg.refine(picked, G)
    assert np.array_equal(refined.columns, want.columns)
    assert refined.after == want.after
    assert refined.settled


def test_refinement_finds_the_best_subset_far_more_often_than_the_greedy():
    """The figures in the docstring of refine."""
    found = {"greedy": 0, "refined": 0, "searched": 0}
    for seed in range(100):
        A, k, lam, objective = factor_model(seed)
        best = smallest_loss(A, k, lam, objective) * (1 + 1e-9)
        picked = rg.select(A.T @ A, k, lam=lam, objective=objective)
        refined = rg.refine(picked, A.T @ A)
        searched = rg.refine(picked, A.T @ A, effort=5)
        found["searched"] += oracle.loss(A, searched.columns, lam, objective) <= best
        found["greedy"] += oracle.loss(A, picked.columns, lam, objective) <= best
        found["refined"] += oracle.loss(A, refined.selection.columns, lam, objective) <= best
    assert found == {"greedy": 19, "refined": 87, "searched": 100}


def wide_model(seed, n=130, k=12):
    """More columns than a search begins anywhere among, so that it goes on by kicks."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((200, 20)) @ rng.standard_normal((20, n)) + 0.5 * rng.standard_normal((200, n))
    return A.T @ A, k


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_more_effort_is_never_worse_and_the_same_for_any_number_of_threads(objective, monkeypatch):
    for seed in range(3):
        G, k = wide_model(seed)
        picked = rg.select(G, k, include=[5], exclude=[7], objective=objective)
        losses, found = [rg.refine(picked, G).after], []
        for threads in (1, 2, 5):
            monkeypatch.setattr(refinement, "Pool", lambda threads=threads: Pool(threads))
            said = []
            refined = rg.refine(picked, G, effort=10, seed=seed, progress=lambda *args, said=said: said.append(args))
            assert [made for made, _, _ in said] == [4, 8, 10]
            assert said[-1] == (10, 10, refined.after)
            found.append(refined)
        assert len({(tuple(one.columns), one.after, str(one)) for one in found}) == 1
        losses.append(refined.after)
        assert losses == sorted(losses, reverse=True)
        assert refined.columns[0] == 5
        assert 7 not in refined.columns
        assert refined.loss[-1] == pytest.approx(evaluate.loss(G, refined.columns, 1.0, objective))
        assert "Of 11 searches, the first and those after 10 kicks, " in refined.sentence
        assert refined.tries.best >= 1


def test_tries_end_where_nothing_can_be_exchanged():
    G = np.diag([3.0, 2.0, 1.0])
    every = rg.refine(rg.select(G, 3, objective="all"), G, effort=3)
    assert (every.swaps, every.tries.made) == (0, 0)
    kept = rg.refine(rg.select(G, 1, include=[2]), G, effort=3)
    assert list(kept.columns) == [2]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-8, 0.1, 1.0, 1e3]),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(["plain", "dependent", "twins", "zeros", "decades"]),
)
def test_never_worse_than_the_greedy_and_no_swap_is_left(seed, lam, objective, kind):
    A, k = rows_of(seed, kind)
    G = A.T @ A
    free = np.flatnonzero(np.diagonal(G) > 0)
    # Any subset may be refined, not only one the greedy chose; so the picks may depend on each other.
    picked = rg.select(G, k, lam=max(lam, 1e-6), objective=objective, include=free[: min(k, 2)])
    picked = replace(picked, lam=lam)
    refined = rg.refine(picked, G, include=())
    tol = 1e-9 * refined.before + 1e-11 * np.trace(G)
    now = oracle.loss(A, refined.selection.columns, lam, objective)
    assert refined.after <= refined.before
    assert now <= oracle.loss(A, picked.columns, lam, objective) + tol
    assert refined.after == pytest.approx(now, abs=tol)
    assert len(set(refined.selection.columns)) == picked.k
    if refined.settled and kind == "plain":
        columns = list(refined.selection.columns)
        for a in range(picked.k):
            for j in set(range(A.shape[1])) - set(columns):
                swapped = [*columns[:a], j, *columns[a + 1 :]]
                assert oracle.loss(A, swapped, lam, objective) >= now * (1 - 1e-9) - tol


@pytest.mark.parametrize("kept", [0, refinement._KEPT])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", [0.0, 1e-6, 1.0, 1e3])
def test_no_swap_is_left_where_columns_dominate(lam, objective, kept, monkeypatch):
    """What a swap among small columns brings must not drown in a large one, picked or not."""
    monkeypatch.setattr(refinement, "_KEPT", kept)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n, k = int(rng.integers(5, 9)), int(rng.integers(2, 4))
        A = rng.standard_normal((40, k)) @ rng.standard_normal((k, n)) + 0.3 * rng.standard_normal((40, n))
        A[:, rng.integers(n)] *= 10.0 ** rng.uniform(5, 9)
        if seed % 3 == 0:
            A *= 10.0 ** rng.uniform(-8, 8, n)
        include = rng.permutation(n)[: seed % 3]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "lam=1e-06 is below")
            refined = rg.refine(
                rg.select(A.T @ A, k, lam=lam, objective=objective, include=include), A.T @ A, include=()
            )
        columns, now = list(refined.selection.columns), refined.after
        counts = np.sum(A**2, axis=0)
        resolved = 1e-12 * np.delete(counts, columns).sum() + (1e-13 * counts.sum() if objective == "all" else 0.0)
        assert now == pytest.approx(oracle.loss(A, columns, lam, objective), rel=1e-9, abs=resolved)
        assert refined.settled
        for a in range(k):
            for j in set(range(n)) - set(columns):
                swapped = oracle.loss(A, [*columns[:a], j, *columns[a + 1 :]], lam, objective)
                assert swapped >= now * (1 - 1e-9) - resolved, seed


def rows_of(seed, kind):
    A, k, _, _ = factor_model(seed)
    n = A.shape[1]
    if kind == "dependent":
        A = A @ np.diag(np.arange(n) % 3 > 0) + A[:, :1]
    elif kind == "twins":
        A[:, 1] = A[:, 0]
    elif kind == "zeros":
        A[:, 1:3] = 0.0
    elif kind == "decades":
        A = A * np.geomspace(1.0, 1e-5, n)
    return A, k


def test_a_refined_selection_is_a_selection():
    A, k, lam, _ = factor_model(2)
    moments = Moments.of(A + 3.0, names=[f"x{j}" for j in range(A.shape[1])])
    picked = rg.select(moments, k, lam=lam, center=True, scale="std", bound=True)
    result = rg.refine(picked, moments)
    refined = result.selection
    assert result.swaps > 0
    assert refined.names == tuple(f"x{j}" for j in refined.columns)
    prepared = (A - A.mean(axis=0)) / A.std(axis=0)
    for t in range(k):
        assert refined.loss[t] == pytest.approx(oracle.loss(prepared, refined.columns[: t + 1], lam))
    assert refined.loss[-1] == pytest.approx(result.after)
    assert refined.loss[-1] < picked.loss[-1]
    assert np.all(refined.bound <= refined.loss * (1 + 1e-9))
    assert refined.weights(moments).shape == (k, A.shape[1])
    assert str(pickle.loads(pickle.dumps(result))) == str(result)


def test_included_columns_stay_and_excluded_ones_stay_out():
    A, k, lam, objective = factor_model(2)
    G = A.T @ A
    worst = min(range(len(G)), key=lambda j: G[j, j])
    first = rg.select(G, k, lam=lam, objective=objective, include=[worst])
    assert rg.refine(first, G).selection.columns[0] == worst  # the selection knows what it was asked
    free = rg.refine(first, G, include=())
    assert worst not in free.selection.columns
    never = [int(j) for j in free.selection.columns if j != worst][:1]
    picked = rg.select(G, k, lam=lam, objective=objective, include=[worst], exclude=never)
    again = pickle.loads(pickle.dumps(picked))
    for kept in (rg.refine(picked, G), rg.refine(picked, G, effort=8), rg.refine(again, G)):
        assert kept.columns[0] == worst
        assert never[0] not in kept.columns


def test_sweeps_are_bounded_and_the_words_say_how_it_ended():
    A, k, lam, objective = factor_model(6)
    bad = rg.select(A.T @ A, k, lam=lam, objective=objective, include=np.argsort(np.sum(A**2, axis=0))[:k])
    short = rg.refine(bad, A.T @ A, include=(), sweeps=1)
    assert (short.sweeps, short.settled) == (1, False)
    assert "more may be gained after 1 sweep." in str(short)
    full = rg.refine(bad, A.T @ A, include=())
    assert full.settled
    assert full.after <= short.after
    assert f"{full.swaps} swaps lowered the loss by" in str(full)
    assert "no further swap lowers it" in str(full)
    again = rg.refine(full.selection, A.T @ A)
    assert (again.swaps, again.sweeps) == (0, 1)
    assert again.selection is full.selection
    assert again.sentence == "No swap of one picked column for another lowers the loss."


def test_nothing_to_explain_and_nothing_to_swap():
    nothing = rg.refine(rg.select(np.zeros((4, 4)), 2), np.zeros((4, 4)))
    assert (nothing.swaps, nothing.after, nothing.settled) == (0, 0.0, True)
    every = rg.refine(rg.select(np.diag([1.0, 2.0]), 2, objective="all"), np.diag([1.0, 2.0]))
    assert (every.swaps, every.settled) == (0, True)


def test_bad_input_says_the_rule_and_the_value():
    G = np.diag([3.0, 2.0, 1.0])
    picked = rg.select(G, 2)
    for source, options, message in [
        (G, {"sweeps": 0}, "sweeps must be a whole number, 1 or more; got 0"),
        (np.eye(4), {}, "the columns that were selected from: 3 of them; got 4"),
        (G, {"effort": -1}, "effort must be a whole number, 0 or more; got -1"),
        (G, {"effort": 1.5}, "effort must be a whole number, 0 or more; got 1.5"),
        (G, {"include": [2]}, "columns that must stay must have been picked; column 2 was not"),
        (G, {"exclude": [3]}, "between 0 and 2; got 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            rg.refine(picked, source, **options)

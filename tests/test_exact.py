"""The exact search against exhaustive search, and its certificate against the time."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.core import exact, refinement
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.solver.pool import Pool

OBJECTIVES = ["unselected", "all"]
KINDS = ["plain", "dependent", "twins", "zeros", "decades", "one large"]


def rows_of(seed, kind):
    """A few hidden causes in more columns, where the greedy way is seldom the best; of some kinds badly behaved."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(6, 11)), int(rng.integers(1, 6))
    A = rng.standard_normal((30, k + 1)) @ rng.standard_normal((k + 1, n)) + 0.3 * rng.standard_normal((30, n))
    if kind == "dependent":
        A[:, ::3] = A[:, 1::3][:, : A[:, ::3].shape[1]] @ rng.standard_normal((A[:, 1::3].shape[1], A[:, ::3].shape[1]))
    elif kind == "twins":
        A[:, 1::2] = A[:, ::2][:, : A[:, 1::2].shape[1]]
    elif kind == "zeros":
        A[:, 1:4] = 0.0
    elif kind == "decades":
        A = A * np.geomspace(1.0, 1e-4, n)
    elif kind == "one large":
        A[:, 2] *= 1e3
    return A, min(k, n)


def best_of_all(A, k, lam, objective, include, exclude):
    """The smallest loss of all subsets, from the rows."""
    free = [j for j in range(A.shape[1]) if j not in include and j not in exclude]
    return min(oracle.loss(A, [*include, *S], lam, objective) for S in combinations(free, k - len(include)))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 1.0, 30.0, 1e3]),
    st.sampled_from(OBJECTIVES),
    st.sampled_from(KINDS),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_the_best_of_all_subsets_is_found_and_proved(seed, lam, objective, kind, included, excluded):
    A, k = rows_of(seed, kind)
    G, order = A.T @ A, np.random.default_rng(seed).permutation(A.shape[1])
    include, exclude = [int(j) for j in order[: min(included, k)]], [int(j) for j in order[len(order) - excluded :]]
    k = min(k, len(order) - excluded)
    # Any picks may be improved on; these depend on each other less than with lam=0.
    picked = rg.select(G, k, lam=max(lam, 1e-3), objective=objective, include=include, exclude=exclude)
    picked = replace(picked, lam=lam)
    found = rg.refine(picked, G, exact=True)
    best, start = best_of_all(A, k, lam, objective, include, exclude), np.sum(A**2)
    resolved = 1e-9 * best + 1e-11 * start
    assert found.selection.certificate.optimal
    assert oracle.loss(A, found.columns, lam, objective) <= best + resolved
    assert found.selection.certificate.lower <= best + resolved
    assert found.selection.certificate.lower >= best - resolved
    assert set(include) <= set(found.columns)
    assert not set(exclude) & set(found.columns)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(4))
def test_columns_may_count_and_be_penalised_each_in_its_own_way(objective, seed):
    A, k = rows_of(seed, "plain")
    rng, n = np.random.default_rng(seed), A.shape[1]
    weights, penalties = rng.uniform(0.0, 3.0, n), rng.uniform(0.0, 40.0, n)
    asked = {"column_weights": weights, "penalties": penalties, "candidates": range(1, n)}
    found = rg.select(A.T @ A, min(k, n - 1), objective=objective, exact=True, **asked)
    sets = combinations(range(1, n), found.k)
    best = min(oracle.loss_of_targets(A, A, S, penalties, weights, objective) for S in sets)
    assert found.loss[-1] == pytest.approx(best)
    assert found.certificate.optimal
    with pytest.raises(ValueError, match="an exact search does not support budget"):
        rg.select(A.T @ A, 2, exact=True, costs=np.ones(n), budget=3)


def test_kicks_and_restarts_keep_to_constraints():
    for n in (12, 120):
        A = np.random.default_rng(n).standard_normal((150, n))
        limits = [(range(0, n, 2), 2), (range(0, n, 3), 1)]
        picked = rg.select(A, 6, limits=limits)
        found = rg.refine(picked, effort=6)
        assert sum(c % 2 == 0 for c in found.columns) <= 2
        assert sum(c % 3 == 0 for c in found.columns) <= 1
        assert found.after <= rg.refine(picked).after


def hard():
    """Columns without structure: the bounds say little, so that there is much to go through."""
    A = np.random.default_rng(0).standard_normal((400, 60))
    return A.T @ A


def test_when_the_time_is_up_the_certificate_is_a_bound():
    G = hard()
    found = rg.refine(rg.select(G, 12), G, exact=True, seconds=0.2)
    proved = found.selection.certificate
    assert not proved.optimal
    tail = rg.select(G, 12, bound=True).bound[-1]
    assert tail * (1 - 1e-9) <= proved.lower <= found.after
    assert "Not proved to be the best within 0.2 s: other picks may have a loss that is lower by up to" in str(found)
    assert "no 12 columns can keep more than" in found.selection.sentence


def test_equal_picks_are_found_for_any_number_of_threads(monkeypatch):
    A, k = rows_of(4, "twins")
    G, found = A.T @ A, set()
    for threads in (1, 2, 5):
        monkeypatch.setattr(refinement, "Pool", lambda threads=threads: Pool(threads))
        found.add(tuple(rg.refine(rg.select(G, k), G, exact=True).columns))
    assert len(found) == 1


def test_what_is_proved_is_said_and_kept(tmp_path):
    A, k = rows_of(13, "plain")
    moments = Moments.of(A)
    found = rg.refine(rg.select(moments, k, center=True), exact=True)
    assert f"Proved to be the best {k} column" in found.sentence
    assert f"with lambda = 1: the best {k} column" in found.selection.sentence
    for t in range(k):  # in the order of the greedy selection among them
        assert found.loss[t] == pytest.approx(oracle.loss(A - A.mean(axis=0), found.columns[: t + 1], 1.0))
    save_result(found.result(), tmp_path / "r.json")
    assert rg.load_result(tmp_path / "r.json").selection.certificate == found.selection.certificate


def test_select_takes_effort_and_exact_for_whatever_it_is_given():
    A, k = rows_of(11, "plain")
    A[:, 0] /= 10.0
    best = best_of_all(A, k, 1.0, "unselected", [0], [1])
    for data in (A, Moments.of(A), A.T @ A):
        for options in ({"effort": 10}, {"exact": True}, {"refine": True}):
            picked = rg.select(data, k, include=[0], exclude=[1], **options)
            plain = rg.select(data, k, include=[0], exclude=[1])
            assert picked.columns[0] == 0
            assert 1 not in picked.columns
            assert picked.loss[-1] <= plain.loss[-1]
            assert "refine" in options or picked.loss[-1] == pytest.approx(best)
    few = rg.select(A[:5], 2, lam=[0.5, 1.0], exact=True)  # fewer rows than columns
    assert [one.loss[-1] for one in few] == [
        pytest.approx(best_of_all(A[:5], 2, lam, "unselected", [], [])) for lam in (0.5, 1.0)
    ]
    with pytest.raises(ValueError, match="swaps need moments, a Gram or rows"):
        rg.select(rg.Factor(A[:5]), 2, refine=True)


def test_too_many_columns_are_refused():
    G = np.eye(exact.MOST + 1)
    with pytest.raises(ValueError, match=r"an exact search takes at most 500 columns; got 501\. Use effort=20"):
        rg.refine(rg.select(G, 2), G, exact=True)

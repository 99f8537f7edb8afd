"""What differs between objectives is asked of `Objective` alone: one with weights needs no more of the mathematics."""

import numpy as np
import pytest

from rgcss_dask import cross_validate, refine, scan, select, stability
from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.objective import ALL, OBJECTIVES, UNSELECTED, Objective
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.result import make_result
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.swaps import swap_losses

N, K = 9, 5


def loss(A, S, lam, weights, objective):
    """Sum the weighted squared errors, from the rows themselves."""
    C = A[:, S]
    E = A - C @ np.linalg.solve(C.T @ C + lam * np.eye(len(S)), C.T @ A)
    errors = np.asarray(weights) * np.sum(E * E, axis=0)
    return errors.sum() if objective.picks_count else np.delete(errors, S).sum()


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, N)) @ np.diag(np.logspace(0, -1, N)) @ rng.standard_normal((N, N))


WEIGHTS = tuple(np.random.default_rng(1).uniform(0, 3, N) * (np.arange(N) != 4))  # one counts for nothing


@pytest.mark.parametrize("lam", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("objective", [UNSELECTED, ALL], ids=lambda one: one.name)
@pytest.mark.parametrize("wide", [False, True])
def test_weights_need_nothing_but_an_objective(rows, lam, objective, wide):
    problem = Problem(objective=objective.name, lam=lam, aims=Aims(column_weights=WEIGHTS))
    source = Factor(rows) if wide else rows.T @ rows
    (picked,) = solve(source, K, problem, bound=lam == 0)
    for t in range(K):
        before = list(picked.columns[:t])
        after = {j: loss(rows, [*before, j], lam, WEIGHTS, objective) for j in set(range(N)) - set(before)}
        assert picked.loss[t] == pytest.approx(min(after.values()), rel=1e-9, abs=1e-12 * picked.start)
        assert after[picked.columns[t]] == pytest.approx(picked.loss[t], rel=1e-9, abs=1e-12 * picked.start)
        if lam == 0:
            assert picked.bound[t] <= picked.loss[t] * (1 + 1e-9) + 1e-12 * picked.start
    S = picked.columns
    assert evaluate.loss(rows.T @ rows, S, lam, problem.counting) == pytest.approx(picked.loss[-1], rel=1e-8, abs=1e-11)
    prefixes = evaluate.prefix_losses(rows.T @ rows, S, lam, objective=problem.counting)
    np.testing.assert_allclose(prefixes, picked.loss, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("objective", [UNSELECTED, ALL], ids=lambda one: one.name)
def test_swaps_are_scored_with_weights(rows, objective):
    counting = Problem(objective=objective.name, aims=Aims(column_weights=WEIGHTS)).counting
    S = np.array([1, 6, 3])
    with Pool() as pool:
        table = swap_losses(Gram(rows.T @ rows), S, 0.3, counting, pool)
    for a in range(len(S)):
        for j in set(range(N)) - set(S):
            swapped = [j if i == a else c for i, c in enumerate(S)]
            assert table[a, j] == pytest.approx(loss(rows, swapped, 0.3, WEIGHTS, objective), rel=1e-9)


def test_another_objective_is_one_entry(rows, monkeypatch):
    """Selections, bounds, cross-validation and results take it by its name."""
    monkeypatch.setitem(
        OBJECTIVES, "third", Objective("third", picks_count=True, columns="all columns, by another name")
    )
    moments = scan(np.tile(rows, (4, 1)), folds=3, groups=4, progress=False)
    one, other = (select(moments, 3, objective=name, bound=True) for name in ("third", "all"))
    assert np.array_equal(one.loss, other.loss)
    assert np.array_equal(one.bound, other.bound)
    tuned = cross_validate(moments, 3, objective="third", lams=[0.1, 1.0])
    assert np.array_equal(tuned.held_out_loss, tuned.loss_all)
    assert "counted over all columns, by another name" in tuned.words
    assert refine(one, moments).after <= one.loss[-1]
    assert stability(moments, 3, objective="third", resamples=3).k == 3
    assert make_result(Moments.of(rows), select(Moments.of(rows), 3, objective="third")).k == 3

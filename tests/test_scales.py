"""Columns whose scales differ by many decades: weights, losses and scores say the same."""

import numpy as np
import oracle
import pytest

import rgcss_dask as rg
from rgcss_dask.core import evaluate
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.wide import Rows, select_from_rows

# Both warnings are true of these columns: that is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:lam=1e-06 is below", "ignore:columns are on such different scales")

OBJECTIVES = ["unselected", "all"]
LAMBDAS = [0.0, 1e-6, 1.0, 1e6]


def of_all_scales(seed, rows=(4, 30)):
    """Return correlated columns, each in its own unit, and how many of them to pick."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(3, 9)), int(rng.integers(*rows))
    A = rng.standard_normal((m, n)) @ (np.eye(n) + 0.5 * rng.standard_normal((n, n))) * 10.0 ** rng.uniform(-8, 8, n)
    return A, int(rng.integers(1, min(m, n) + 1))


def loss_on_rows(A, picked, W, objective):
    """The loss of these weights, in extended precision."""
    A = A.astype(np.longdouble)
    E = A - A[:, picked] @ W.astype(np.longdouble)
    if objective == "unselected":
        E[:, picked] = 0
    return float(np.sum(E * E))


def resolved(A, picked, loss, objective):
    """What a Gram resolves: a share of the columns that count, not of those that are picked and known."""
    counts = np.sum(A * A, axis=0)
    rest = np.delete(counts, picked).sum()
    return 1e-9 * loss + 1e-12 * rest + (1e-13 * counts.sum() if objective == "all" else 0.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", LAMBDAS)
def test_weights_have_the_loss_that_was_tracked(lam, objective):
    for seed in range(40):
        A, k = of_all_scales(seed)
        for source in (A.T @ A, rg.Moments.of(A), rg.Factor(A)):
            picked = rg.select(source, k, lam=lam, objective=objective)
            S = picked.columns
            want = oracle.loss(A, S, lam, objective)
            tol = resolved(A, S, want, objective)
            assert picked.loss[-1] == pytest.approx(want, rel=0, abs=tol)
            if isinstance(source, rg.Factor):
                W = select_from_rows(Rows.of(A), k, Problem(lam=lam, objective=objective))[1]
            else:
                W = picked.weights(source)
                assert evaluate.loss_on(A.T @ A, W, S, objective) == pytest.approx(want, rel=0, abs=tol)
                prefixes = evaluate.prefix_losses(A.T @ A, S, lam, objective=objective)
                assert prefixes[-1] == pytest.approx(want, rel=0, abs=tol)
            assert loss_on_rows(A, S, W, objective) == pytest.approx(want, rel=0, abs=tol)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", LAMBDAS)
@pytest.mark.parametrize("rows", [(4, 6), (40, 60)])
def test_an_estimator_scores_and_rebuilds_as_its_losses_say(rows, lam, objective):
    """From the rows themselves when they are few, and else from their moments."""
    for seed in range(10):
        A, k = of_all_scales(seed, rows)
        fitted = rg.RGCSS(k, lam=lam, objective=objective).fit(A)
        want = oracle.loss(A, fitted.selected_, lam, objective)
        tol, start = resolved(A, fitted.selected_, want, objective), float(np.sum(A * A))
        assert fitted.score(A) == pytest.approx(1 - want / start, rel=0, abs=1e-12)
        rebuilt = fitted.inverse_transform(fitted.transform(A))
        # Entries are rounded once more here, each by its own size.
        assert np.sum((rebuilt - A) ** 2) == pytest.approx(want, rel=1e-7, abs=tol)


def test_a_clock_beside_small_columns():
    rng = np.random.default_rng(0)
    X = np.column_stack([1.7e9 + 60.0 * np.arange(500), rng.random((500, 3)) @ rng.random((3, 9))])
    fitted = rg.RGCSS(4, lam=0.0).fit(X)
    assert np.sum((fitted.inverse_transform(fitted.transform(X)) - X) ** 2) < 1e-12 * np.sum(X[:, 1:] ** 2)
    tiny = np.array([[1e-5, 1000, 300], [2e-5, 500, -300.0]] * 3)
    fitted = rg.RGCSS(2, lam=0.0).fit(tiny)
    assert fitted.loss_path_[-1] == pytest.approx(0.0, abs=1e-9)
    assert fitted.score(tiny) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("lam", [0.0, 1e-3])
def test_a_copy_gets_no_weight_whatever_its_scale(lam):
    """A mix of columns picked before it is told by its own norm, and changes nothing."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((30, 6)) * 10.0 ** np.array([8, -8, 0, 4, -4, 1])
    A = np.column_stack([A, 2.0**40 * A[:, 1], A[:, 1] + 1e-16 * A[:, 0]])
    for twin in (6, 7):
        W = evaluate.weights(A.T @ A, [1, 0, twin, 2], 0.0)
        assert not W[2].any()
        for t, loss in enumerate(evaluate.prefix_losses(A.T @ A, [1, 0, twin, 2], lam)):
            want = oracle.loss(A, [1, 0, twin, 2][: t + 1], lam)
            assert loss == pytest.approx(want, rel=1e-9, abs=1e-12 * np.sum(A[:, [2, 3, 4, 5, 6]] ** 2))

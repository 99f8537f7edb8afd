"""Weights, losses, bounds and condition numbers against the rows themselves."""

from itertools import combinations

import numpy as np
import oracle
import pytest

from rgcss_dask import Moments, refine, select
from rgcss_dask.core import evaluate

rng = np.random.default_rng(20)
A = rng.standard_normal((40, 9)) * rng.uniform(0.2, 3, 9)
B = rng.standard_normal((25, 9)) * rng.uniform(0.2, 3, 9)
S = [4, 1, 7, 0]


def from_rows(train, test, picked, lam, objective):
    C = train[:, picked]
    W = np.linalg.solve(C.T @ C + lam * np.eye(len(picked)), C.T @ train)
    E = test - test[:, picked] @ W
    return np.sum((np.delete(E, picked, axis=1) if objective == "unselected" else E) ** 2)


@pytest.mark.parametrize("lam", [0.0, 0.7, 50.0])
def test_weights_are_the_ridge_solution(lam):
    W = evaluate.weights(A.T @ A, S, lam)
    np.testing.assert_allclose(A - A[:, S] @ W, oracle.residual(A, S, lam), atol=1e-12)


def test_weights_of_a_selection_undo_nothing_but_the_choice():
    picked = select(Moments.of(A + 3), 4, lam=0.5, center=True, scale="std")
    X = (A + 3 - (A + 3).mean(axis=0)) / (A + 3).std(axis=0)
    W = picked.weights(Moments.of(A + 3))
    assert W.shape == (4, 9)
    np.testing.assert_allclose(X - X[:, picked.columns] @ W, oracle.residual(X, list(picked.columns), 0.5), atol=1e-11)


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize("lam", [0.0, 0.7, 50.0])
def test_losses_of_every_prefix_on_other_data(lam, objective):
    got = evaluate.prefix_losses(A.T @ A, S, lam, B.T @ B, objective)
    want = [from_rows(A, B, S[: t + 1], lam, objective) for t in range(len(S))]
    np.testing.assert_allclose(got, want, atol=1e-10 * np.sum(B * B))
    assert evaluate.loss_on(B.T @ B, evaluate.weights(A.T @ A, S, lam), S, objective) == pytest.approx(want[-1])
    own = [oracle.loss(A, S[: t + 1], lam, objective) for t in range(len(S))]
    np.testing.assert_allclose(evaluate.prefix_losses(A.T @ A, S, lam, objective=objective), own, rtol=1e-9)


@pytest.mark.parametrize("objective", ["unselected", "all"])
def test_dependent_columns_do_not_break_the_prefix_losses(objective):
    X = np.hstack([A, A[:, :3], np.full((40, 1), 1e7)])
    picked = [0, 12, 9, 4]  # column 9 is column 0 again
    got = evaluate.prefix_losses(X.T @ X, picked, 0.0, objective=objective)
    want = [oracle.loss(X, picked[: t + 1], 0.0, objective) for t in range(4)]
    np.testing.assert_allclose(got, want, atol=1e-12 * np.sum(X * X))
    assert np.all(np.isfinite(got))


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize("lam", [0.0, 0.5, 30.0])
def test_no_subset_at_all_is_below_the_bounds(lam, objective):
    bounds = evaluate.bounds(np.linalg.svd(A, compute_uv=False) ** 2, 9, lam, objective)
    for k in (1, 2, 3):
        best = min(oracle.loss(A, list(c), lam, objective) for c in combinations(range(9), k))
        assert bounds.paper[k - 1] <= bounds.tight[k - 1] <= best


def test_bounds_without_regularisation_are_eckart_young():
    s = np.linalg.svd(A, compute_uv=False) ** 2
    bounds = evaluate.bounds(s, 9, 0.0)
    np.testing.assert_allclose(bounds.tight, [s[k:].sum() for k in range(1, 10)], atol=1e-12)
    assert not bounds.paper.any()


def test_condition_number_of_the_picked_columns():
    assert evaluate.condition(A.T @ A, S).value == pytest.approx(np.linalg.cond(A[:, S]), rel=1e-8)
    assert evaluate.condition(A.T @ A, S).resolved
    near = np.column_stack([A[:, 0], A[:, 0] + 1e-11 * A[:, 1]])
    told = evaluate.condition(near.T @ near, [0, 1])
    assert not told.resolved
    assert np.linalg.cond(near) > told.value
    assert "beyond what a Gram resolves" in str(told)
    assert not evaluate.condition(np.zeros((2, 2)), [0]).resolved


def test_shares_people_read():
    picked = select(A.T @ A, 4, lam=0.0, bound=True)
    spectrum = np.linalg.svd(A, compute_uv=False) ** 2
    shares = evaluate.share_of_components(picked.loss, spectrum)
    np.testing.assert_allclose(shares, (picked.start - picked.loss) / np.cumsum(spectrum)[:4])
    assert np.all(shares <= 1)
    np.testing.assert_allclose(picked.explained, 1 - picked.loss / picked.start)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate.weights(A, S, 1.0), "a Gram must be square"),
        (lambda: evaluate.weights(A.T @ A, S, -1.0), "lam must be a finite number"),
        (lambda: evaluate.bounds([1.0, 0.5], 3, 1.0), "k must be from 0 to 2"),
        (lambda: evaluate.bounds([1.0, 0.5], 1, 1.0, "none"), "objective must be"),
        (lambda: evaluate.loss(A.T @ A, S, 1.0, "none"), "objective must be"),
        (lambda: evaluate.condition(A.T @ A, []), "needs at least one column"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_and_conditioning_of_what_is_no_gram_are_refused():
    picked = select(np.eye(3), 2)
    with_gaps = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])
    for ask in (picked.weights, picked.conditioning, lambda G: refine(picked, G)):
        with pytest.raises(ValueError, match="positive semi-definite"):
            ask(with_gaps)


@pytest.mark.parametrize("seed", range(40))
def test_the_factor_of_the_picks_leaves_out_mixes(seed):
    draw = np.random.default_rng(seed)
    k = int(draw.integers(1, 9))
    rank = int(draw.integers(1, k + 1)) if seed % 2 else k
    X = draw.standard_normal((40, rank)) @ draw.standard_normal((rank, k)) * 10.0 ** draw.integers(-4, 5, k)
    G = X.T @ X
    L, kept = evaluate.triangle(np.asfortranarray(G), 0.0)
    assert kept.tolist() == list(range(rank))  # any of these columns are independent, and the others are mixes of them
    np.testing.assert_array_equal(L, np.tril(L))
    wanted = G[np.ix_(kept, kept)]
    norms = np.sqrt(np.diagonal(wanted))
    assert np.all(np.abs(L @ L.T - wanted) <= 1e-13 * np.outer(norms, norms))


def test_the_factor_adds_the_lambda_of_each_pick():
    G, lams = A.T @ A, np.linspace(0.0, 2.0, 9)
    L, kept = evaluate.triangle(G, lams)
    np.testing.assert_allclose(L @ L.T, G + np.diag(lams), atol=1e-12 * G.max())
    assert kept.tolist() == list(range(9))

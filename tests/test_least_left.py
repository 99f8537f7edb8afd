"""The bound that looks one pick ahead: below every choice of columns that there is, and above the eigenvalues alone."""

from itertools import combinations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine
from test_greedy import lambdas, matrices, quiet_select

from rgcss_dask import Factor, Moments, refine, select
from rgcss_dask.core import evaluate, spectrum
from rgcss_dask.core.objective import OBJECTIVES


def weighted_loss(A, picked, lam, objective, counts):
    E = oracle.residual(A, list(picked), lam)
    left = counts.copy()
    if objective == "unselected":
        left[list(picked)] = 0.0
    return float(np.sum(E * E, axis=0) @ left)


@settings(max_examples=150, deadline=None)
@given(
    matrices(max_columns=6),
    lambdas,
    st.sampled_from(sorted(OBJECTIVES)),
    st.one_of(st.none(), st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=6, max_size=6)),
    st.booleans(),
)
def test_no_choice_of_columns_is_below_the_bound(A, lam, objective, weights, wide):
    n = A.shape[1]
    counts = np.ones(n) if weights is None else np.array(weights[:n])
    if not counts.any():
        return
    source = Factor(A) if wide else Moments.of(A)
    how = {} if weights is None or wide else {"column_weights": counts}
    counts = counts if how else np.ones(n)
    picked = quiet_select(source, n, lam=lam, objective=objective, bound=True, **how)
    rounding = 1e-12 * float(np.sum(A * A, axis=0) @ counts)
    for t, bound in enumerate(picked.bound, start=1):
        best = min(weighted_loss(A, some, lam, objective, counts) for some in combinations(range(n), t))
        assert bound <= best + 1e-9 * best + rounding
        assert bound >= oracle.least_left(A, t, counts) * (1 - 1e-9) - rounding


def test_it_is_exact_for_one_column_and_closer_for_more():
    X = load_wine().data
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    moments = Moments.of(X)
    picked = select(moments, 4, lam=0.0, bound=True)
    alone = evaluate.bounds(np.linalg.eigvalsh(X.T @ X)[::-1], 4, 0.0).tight
    best = [refine(select(moments, k, lam=0.0), moments, exact=True).selection.loss[-1] for k in (1, 2, 3, 4)]
    assert picked.bound[0] == pytest.approx(best[0], rel=1e-9)
    closed = (picked.bound - alone) / (best - alone)
    assert np.all(closed > 0.15)
    assert np.all(closed < 1 + 1e-9)


def test_of_many_columns_it_is_not_known():
    G = np.eye(spectrum.FEW + 1)
    assert spectrum.least_left(G, np.ones(len(G))) is None
    assert spectrum.least_left(G[1:, 1:], np.ones(spectrum.FEW)) is not None

"""Everything the solver says about columns of any scale, copies, mixes, constants and zeros, against brute force."""

import warnings
from dataclasses import dataclass

import numpy as np
import oracle
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.core import evaluate
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.wide import Rows, select_from_rows


@dataclass
class Case:
    """Rows, and what to ask of them."""

    A: np.ndarray
    k: int
    lam: float
    objective: str
    include: list
    exclude: list
    source: str

    def loss(self, picked):
        return oracle.loss(self.A, list(picked), self.lam, self.objective)

    def resolved(self, picked):
        """What a Gram resolves: a share of the columns that count. (Those picked are known, but for lambda.)"""
        squares = np.sum(self.A**2, axis=0)
        share = 1e-12 * np.delete(squares, list(picked)).sum()
        return share if self.objective == "unselected" else share + 1e-13 * squares.sum()


def column(rng, A, kind, j):
    """Return another column in the place of column j."""
    others = np.delete(A, j, axis=1) if A.shape[1] > 1 else A
    return {
        "copy": others[:, rng.integers(others.shape[1])],
        "mix": others @ rng.standard_normal(others.shape[1]),
        "near": others[:, rng.integers(others.shape[1])] + 1e-2 * A[:, j],
        "constant": np.full(len(A), 3.0),
        "zero": np.zeros(len(A)),
    }[kind]


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n = draw(st.integers(1, 14)), draw(st.integers(1, 8))
    A = rng.standard_normal((m, n))
    for kind in draw(st.lists(st.sampled_from(["copy", "mix", "near", "constant", "zero"]), max_size=3)):
        j = int(rng.integers(n))
        A[:, j] = column(rng, A, kind, j)
    A *= {
        "one": 1.0,
        "decades": 10.0 ** rng.uniform(-8, 8, n),
        "dominated": np.where(np.arange(n) == rng.integers(n), 10.0 ** rng.uniform(3, 8), 1.0),
    }[draw(st.sampled_from(["one", "decades", "dominated"]))]
    k = draw(st.integers(1, n))
    order = [int(j) for j in rng.permutation(n)]
    include = order[: draw(st.integers(0, k))] if draw(st.booleans()) else []
    exclude = order[k : k + draw(st.integers(0, n - k))] if draw(st.booleans()) else []
    return Case(
        A,
        k,
        draw(st.sampled_from([0.0, 1e-12, 1e-3, 1.0, 1e12])),
        draw(st.sampled_from(["unselected", "all"])),
        include,
        exclude,
        draw(st.sampled_from(["gram", "moments", "factor"])),
    )


def loss_on_rows(case, picked, W):
    """The loss of these weights, in extended precision."""
    A = case.A.astype(np.longdouble)
    E = A - A[:, picked] @ W.astype(np.longdouble)
    if case.objective == "unselected":
        E[:, picked] = 0
    return float(np.sum(E * E))


def check_selection(case, picked):
    """Check which columns were picked, and each loss, with how far rounding may have moved it."""
    S, n = [int(j) for j in picked.columns], case.A.shape[1]
    assert len(set(S)) == len(S)
    assert S[: len(case.include)] == case.include[: len(S)]
    assert not set(S) & set(case.exclude)
    free = set(range(n)) - set(case.exclude)
    if len(S) < case.k:
        assert case.lam == 0
        left = oracle.residual(case.A, S, 0.0)[:, sorted(free)]
        assert np.all(np.sum(left**2, axis=0) <= 1e-12 * np.sum(case.A[:, sorted(free)] ** 2, axis=0))
    before = float(np.sum(case.A**2))
    for t, loss in enumerate(picked.loss):
        true, tol = case.loss(S[: t + 1]), case.resolved(S[:t])
        assert abs(loss - true) <= 1e-9 * true + case.resolved(S[: t + 1]) + picked.rounding[t]
        if t >= len(case.include):
            best = min(oracle.losses_after(case.A, S[:t], case.lam, case.objective, free - set(S[:t])).values())
            # Gains are equal that differ by less than a millionth. (One may be negative where no other may be picked.)
            assert true <= best + 1e-9 * true + 2e-6 * abs(before - best) + tol + picked.rounding[t]
        before = true
    slack = 1e-9 * picked.loss + 1e-12 * picked.start + picked.rounding
    assert np.all(picked.bound <= picked.loss + slack)


def check_weights(case, picked, W):
    """Check that weights and prefixes have the loss that was tracked."""
    G, S = case.A.T @ case.A, picked.columns
    true = case.loss(S)
    tol = 1e-9 * true + case.resolved(S) + picked.rounding[-1]
    assert abs(loss_on_rows(case, S, W) - true) <= tol
    assert abs(evaluate.loss_on(G, W, S, case.objective) - true) <= tol
    prefixes = evaluate.prefix_losses(G, S, case.lam, objective=case.objective)
    for t, loss in enumerate(prefixes):
        true = case.loss(S[: t + 1])
        assert abs(loss - true) <= 1e-9 * true + case.resolved(S[: t + 1]) + picked.rounding[t]


def check_swaps(case, picked):
    """Check that swaps lower the loss, say by how much, and that none is left when they have settled."""
    refined = rg.refine(picked, case.A.T @ case.A, include=case.include, exclude=case.exclude)
    S = [int(j) for j in refined.selection.columns]
    now, tol = case.loss(S), case.resolved(S) + picked.rounding[-1]
    assert refined.after <= refined.before
    assert abs(refined.after - now) <= 1e-9 * now + tol
    assert S[: len(case.include)] == case.include
    assert not set(S) & set(case.exclude)
    if refined.settled:
        for a in range(len(case.include), len(S)):
            for j in set(range(case.A.shape[1])) - set(S) - set(case.exclude):
                swapped = [*S[:a], j, *S[a + 1 :]]
                assert case.loss(swapped) >= now * (1 - 1e-9) - tol - case.resolved(swapped)


def check_everything(case):
    source = {"gram": lambda A: A.T @ A, "moments": rg.Moments.of, "factor": rg.Factor}[case.source](case.A)
    options = {"lam": case.lam, "objective": case.objective, "include": case.include, "exclude": case.exclude}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        picked = rg.select(source, case.k, bound=True, **options)
        check_selection(case, picked)
        if picked.k == 0:
            return
        if case.source == "factor":
            check_weights(case, picked, select_from_rows(Rows.of(case.A), case.k, Problem(**options))[1])
        else:
            check_weights(case, picked, picked.weights(source))
        check_swaps(case, picked)


@fuzz(150)
@given(cases())
def test_selections_weights_swaps_and_bounds_agree_with_brute_force(case):
    check_everything(case)

"""Cross-validation: columns are picked without each fold, and every prefix of the picks is measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.folds import outside_folds
from rgcss_dask.core.grid import checked_grid, default_grid
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.objective import OBJECTIVES, objective_named
from rgcss_dask.core.problem import Lambdas, Problem
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.tuning import Array, CrossValidation, chosen
from rgcss_dask.core.wide import Rows, solved
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.disk_matrices import empty_like


def validate(
    moments: Moments | Rows,
    k: int,
    problem: Problem,
    *,
    lams: Lambdas | None = None,
    lam_per_row: Lambdas | None = None,
    measure: str | None = None,
    one_se: bool = False,
    fixed_k: bool = False,
) -> CrossValidation:
    """Choose lambda and the number of columns for a problem; see `rgcss_dask.cross_validate`."""
    folds, problem = _checked_folds(moments), problem.settled(moments)
    grid, per_row = _lambdas(moments, k, problem, lams, lam_per_row)
    measure = objective_named(problem.objective if measure is None else measure, "measure").name
    with single_threaded_blas():  # thin products: on a busy machine, threads make them much slower
        parts = [
            _hold_out(i, fold, rest, k, problem.at(grid * (rest.weight if per_row else 1.0)))
            for i, (fold, rest) in enumerate(zip(folds, outside_folds(moments), strict=True))
        ]
    losses = {what: np.stack([part.loss[what] for part in parts], axis=2) for what in OBJECTIVES}
    start = np.array([part.start for part in parts])
    weight = np.array([fold.weight for fold in folds])
    least = k if fixed_k else max(1, len(problem.include))
    best, size = chosen(losses[measure], start, weight, one_se, least=least, most=k)
    grid = grid * (moments.weight if per_row else 1.0)
    lam = float(grid[best])
    return CrossValidation(
        lams=grid,
        rows=moments.weight,
        per_row=per_row,
        given=lams is not None or lam_per_row is not None,
        losses=losses,
        start=start,
        weight=weight,
        fold_columns=np.stack([part.columns for part in parts]),
        measure=measure,
        one_se=one_se,
        lam=lam,
        k=size,
        selection=solved(moments, size, problem.at(lam)),
        fixed_k=fixed_k,
    )


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """The losses of one fold, with columns and weights learnt on the other folds."""

    loss: dict[str, Array]  # objective: (L, k)
    start: float
    columns: NDArray[np.intp]  # (L, k)


def _lambdas(
    moments: Moments | Rows, k: int, problem: Problem, lams: Lambdas | None, lam_per_row: Lambdas | None
) -> tuple[Array, bool]:
    """Return the grid of lambdas, and whether its values are per row."""
    if lams is not None and lam_per_row is not None:
        raise ValueError("only one of lams and lam_per_row may be given; got both.")
    if lams is not None:
        return checked_grid(lams), False
    if lam_per_row is not None:
        return checked_grid(lam_per_row), True
    core = problem.base(moments).core()
    return default_grid(np.divide(core, moments.weight, out=empty_like(core)), k), True


def _hold_out(index: int, fold: Moments | Rows, rest: Moments | Rows, k: int, problem: Problem) -> _HeldOut:
    """Select on ``rest`` for all lambdas, and measure every prefix on ``fold`` with the preparation of ``rest``."""
    G, B = problem.base(rest), problem.preparation(rest).base(fold)
    norms = B.diagonal * B.unit
    if problem.lams[0] == 0 and rest.rows < k:  # before the work; the rank may be lower still
        raise _too_few(index, k, rest.rows)
    prepared = problem.prepared(rest.n).without_stop()
    paths = solve(G, k, prepared)
    short = min(path.k for path in paths)
    if short < k and not any(path.spent for path in paths):
        raise _too_few(index, k, short)
    losses: dict[str, list[Array]] = {what: [] for what in OBJECTIVES}
    for path in paths:
        GS, BS = G.rows(path.columns), B.rows(path.columns)
        errors = evaluate.prefix_column_losses_from_rows(GS, path.columns, path.lams, norms, BS)
        for what, rows in losses.items():
            objective = objective_named(what).weighted(prepared.aims.column_weights)
            rows.append(_up_to(k, evaluate.sum_prefixes(errors, path.columns, objective)))
    tables = {what: np.array(rows) for what, rows in losses.items()}
    start = float(norms @ prepared.counting.counts(B.n))
    return _HeldOut(tables, start, np.array([_up_to(k, path.columns, -1) for path in paths]))


def _up_to(k: int, values: NDArray[Any], beyond: Any = None) -> NDArray[Any]:
    """Extend the values of a path that constraints ended early by its last value."""
    last = values[-1] if beyond is None else beyond
    return np.concatenate([values, np.full(k - len(values), last, dtype=values.dtype)])


def _too_few(index: int, k: int, rank: int) -> ValueError:
    return ValueError(
        f"k must be at most {rank} with lambda = 0: the rows outside fold {index} have no higher rank; "
        f"got k={k}. Use a smaller k, or leave 0 out of the lambdas."
    )


def _checked_folds(moments: Moments | Rows) -> tuple[Moments | Rows, ...]:
    folds: tuple[Moments | Rows, ...] = getattr(moments, "folds", ())
    if len(folds) < 2:
        raise ValueError(
            f"cross-validation needs moments with at least 2 folds; got {len(folds)}. "
            "Make them in the pass: scan(source, folds=5)."
        )
    for i, fold in enumerate(folds):
        if fold.weight <= 0:
            raise ValueError(f"every fold must have rows; fold {i} of {len(folds)} has none. Scan with fewer folds.")
    return folds

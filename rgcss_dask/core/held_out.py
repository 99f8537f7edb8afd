"""Held-out errors of each column: rebuilt from columns that were picked without the held-out rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.folds import outside_folds
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.objective import objective_named
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.refinement import improve
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.wide import Rows, solved
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]


def held_out_losses(
    moments: Moments | Rows, k: int, problem: Problem, *, per_row: bool = False, swaps: bool = False, effort: int = 0
) -> Array:
    """Return the squared error of each column in each fold, (folds, n); picked and fitted on the other folds.

    With ``per_row`` lambda is scaled to the number of rows outside each fold. A picked column is known and has no
    error, unless the objective counts it.
    """
    found = []
    for picked, losses in _each_fold(moments, k, problem, per_row=per_row, swaps=swaps, effort=effort):
        if not picked.counting.picks_count:
            losses[picked.columns] = 0.0
        found.append(losses)
    return np.array(found)


def swapped_losses(
    moments: Moments | Rows, k: int, problem: Problem, *, per_row: bool, measure: str, effort: int = 0
) -> Array:
    """Return the loss on each fold, (folds,), of k columns that were picked and swapped on the other folds."""
    found, problem = [], problem.settled(moments).without_stop()
    for picked, losses in _each_fold(moments, k, problem, per_row=per_row, swaps=True, effort=effort):
        objective = objective_named(measure).weighted(picked.counting.weights)
        found.append(float(losses @ objective.counts(len(losses), picked.columns)))
    return np.array(found)


def _each_fold(
    moments: Moments | Rows, k: int, problem: Problem, *, per_row: bool, swaps: bool, effort: int
) -> Iterator[tuple[Selection, Array]]:
    """Yield for each fold the picks from the other folds, and the squared error of each column, (n,), in the fold."""
    problem = problem.settled(moments)
    with single_threaded_blas():  # as in cross-validation
        folds: tuple[Moments | Rows, ...] = moments.folds
        for fold, rest in zip(folds, outside_folds(moments), strict=True):
            asked = problem.at(problem.lams[0] * rest.weight / moments.weight) if per_row else problem
            picked = solved(rest, k, asked)
            if swaps or effort:
                picked = improve(picked, rest, effort=effort).selection
            W = evaluate.weights_from_rows(picked.base(rest).rows(picked.columns), picked.columns, picked.lams)
            B = picked.preparation.base(fold)
            norms = B.diagonal * B.unit
            yield picked, evaluate.column_losses_from_rows(norms, B.rows(picked.columns), W, picked.columns)

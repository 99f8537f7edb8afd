"""Candidate columns, noted during a selection on a sketch; a second pass computes their exact products."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import EPS
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.core.solver.greedy import solve

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Columns with the largest gains that are noted before each pick, on the sketch and on each of its halves.
RUNNERS_UP = 8
# Largest difference between the sums of two passes, as a share of the sum of squares: the order of addition may differ.
SAME = 1e6 * EPS


def noted(sketch: Sketch, k: int, problem: Problem, runners_up: int = RUNNERS_UP) -> Index:
    """Return the columns that a selection of k picks, or that have the next largest gains, in ascending order.

    The halves of the sketch select too: their errors differ, so a column that one underrates another one notes. For
    the same number of candidates, these lose less than the runners-up of a single path.
    """
    found: set[int] = set()

    def watch(gains: Array, free: NDArray[np.bool_]) -> None:
        worth = np.where(free, gains, -np.inf)
        most = min(runners_up, int(free.sum()))
        if most:
            found.update(int(j) for j in np.argpartition(-worth, most - 1)[:most])

    halves = sketch.halves() if sketch.height >= 2 * k else ()
    for part in (sketch, *halves):
        for picked in solve(part, k, problem.without_stop(), watch=watch, quiet=part is not sketch):
            found.update(int(j) for j in picked.columns)
    include = problem.by_index(sketch.n, sketch.names).include
    return np.array(sorted(found | {int(j) for j in include}), dtype=np.intp)


def check_same_data(first: Moments, second: Moments, address: str) -> None:
    """Refuse to continue if the data changed between the passes, as sums and squares of the columns show."""
    same = (first.rows, first.dropped) == (second.rows, second.dropped)
    if same:
        (sums, squares), (sums_now, squares_now) = (_about_zero(moments) for moments in (first, second))
        most = SAME * np.sqrt(squares * max(first.weight, 1.0))
        same = bool(np.all(np.abs(sums - sums_now) <= most) and np.all(np.abs(squares - squares_now) <= SAME * squares))
    if not same:
        raise ValueError(
            f"{address} changed between the two readings: its column sums are others now, so candidates of the first "
            "reading say nothing of it. Make the same call again when nothing writes to it."
        )


def _about_zero(moments: Moments) -> tuple[Array, Array]:
    """Return the column sums and the sums of squares, about zero."""
    total, weight, shift = moments.total, moments.weight, moments.shift
    return total + weight * shift, moments.squares + shift * (2.0 * total + weight * shift)

"""Estimates of losses from a sketch, without the bias of picks on their own sketch, with standard errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.sketch import FEW_PER_PICK, ROWS_PER_PICK, Sketch, with_norms
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

# A function that picks columns on some rows of a prepared sketch, with a lambda.
Pick = Callable[[Array, float], NDArray[np.intp]]
FINISH = "Losses and weights are exact after a second pass: rgcss_dask.select_wide(source, k)."


def check_sketch(sketch: Sketch, k: Any, *, bounded: bool, quiet: bool) -> None:
    """Refuse a sketch with too few rows, and warn about one with few rows."""
    if bounded:
        raise ValueError(f"a lower bound needs exact products; a sketch has estimates only. {FINISH}")
    if not is_whole(k):
        return  # refused later, by the rules
    check_height(sketch.height, k)
    if sketch.height < FEW_PER_PICK * k and not quiet:
        warnings.warn(
            f"{sketch.height} rows of a sketch are few for {k} columns: picks and losses are rough. Scan again with "
            f"sketch={ROWS_PER_PICK * k}.",
            stacklevel=4,
        )


def check_height(rows: int, k: int) -> None:
    """Refuse a sketch of fewer rows than columns are to be picked."""
    if rows < k:
        raise ValueError(
            f"a sketch must have as many rows as columns are picked, and better {ROWS_PER_PICK} times as many; got "
            f"{rows} rows for k={k}. Scan again with sketch={ROWS_PER_PICK * k}."
        )


def estimated(picked: Selection, sketch: Sketch, pick: Pick) -> Selection:
    """Return a selection on a sketch with estimated losses and their standard errors.

    Picks look better on the sketch they were picked on than on the data. So each half of the rows of the sketch also
    picks columns, which the other half evaluates: that is the estimate. On factor models and Isolet it was on average
    1.02 to 1.04 of the true loss. Half of its difference from the biased loss is added to the standard error.
    """
    if picked.k == 0:
        return replace(picked, error=np.empty(0))
    center = False if picked.mu is None else picked.mu
    F, norms = sketch.prepared(center, picked.sigma, rest=picked.mu_rest)
    start = float(norms @ picked.counting.counts(picked.n))
    own, error = _losses(F, picked.columns, picked.lams, picked)
    crossed = np.zeros(picked.k)
    halves = (F[0::2], F[1::2])
    for mine, others in (halves, halves[::-1]):
        columns = pick(with_norms(mine.copy(), norms / 2), picked.lam / 2)
        losses = _losses(others, columns, picked.lams / 2, picked)[0]
        crossed += losses[np.minimum(np.arange(picked.k), len(losses) - 1)]
    gap = (crossed - own) / 2
    return replace(
        picked, loss=np.minimum(crossed, start), start=start, error=np.hypot(error, gap), bound=None, rounding=None
    )


def _losses(F: Array, columns: NDArray[np.intp], lams: ArrayLike, picked: Selection) -> tuple[Array, Array]:
    """Return the estimated loss after each column and its standard error, (k,), in O(k d n).

    Weights are fitted to the rows, so the residual of a row is smaller than that of an unseen row by the factor 1 - p,
    where p is its leverage. After division by that factor, the sum over rows estimates the loss of the best weights on
    all data; the differences between rows give the standard error.
    """
    E, leverage, k = F.copy(), np.zeros(len(F)), len(columns)
    found, own = np.empty((2, k)), np.broadcast_to(lams, (max(k, np.size(lams)),))
    with single_threaded_blas():
        for t, column in enumerate(columns):
            left = E[:, column].copy()
            alpha = own[t] + float(left @ F[:, column])
            if alpha > 0:
                h = left @ F
                h /= alpha
                for row, value in zip(E, left, strict=True):
                    row -= value * h
                leverage += left**2 / alpha
            counts = picked.counting.counts(picked.n, columns[: t + 1])
            rows = np.array([counts @ (row * row) for row in E]) / np.maximum(1.0 - leverage, 1.0 / len(F))
            found[0, t] = rows.sum()
            found[1, t] = np.sqrt(len(rows) * rows.var(ddof=1)) if len(rows) > 1 else np.inf
    return found[0], found[1]

"""Training data: the rows outside each fold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.moments import Moments
from rgcss_dask.core.wide import Rows

Array = NDArray[np.float64]


def outside_folds(source: Moments | Rows) -> Iterator[Moments | Rows]:
    """Yield the training data of each fold."""
    yield from source.outside_folds() if isinstance(source, Rows) else leave_one_out(source.folds)


def leave_one_out(folds: Sequence[Moments], rest: Moments | None = None) -> Iterator[Moments]:
    """Yield for each fold the merge of all others.

    Subtracting the fold from the whole would lose digits if folds differ in size. Halving the folds recursively takes
    K log K merges and keeps log K of them in memory.
    """
    if len(folds) == 1:
        assert rest is not None  # there are at least two folds
        yield rest
        return
    half = len(folds) // 2
    for inside, outside in ((folds[:half], folds[half:]), (folds[half:], folds[:half])):
        yield from leave_one_out(inside, reduce(Moments.merge, outside if rest is None else (rest, *outside)))

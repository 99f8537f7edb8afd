"""Whether columns differ so much in size that a few of them decide a loss in which all are counted as they are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.problem import Problem
from rgcss_dask.core.words import counted, shortened

Array = NDArray[np.float64]

# A column is small beside one that is so many times as large.
FAR_BELOW = 100.0
# It is said where so large a share of the columns is small. Of images and counts (MNIST, ISOLET, YaleB, ORL, COIL-20,
# pixels of a satellite, normalised gene counts) at most a thousandth is; of tables in different units (OnlineNews,
# wine, breast cancer) more than two thirds.
MANY = 0.1
# Standard errors within which a mean counts as zero: a column that is mostly zero has one, as it has few values.
_ZERO = 0.5


class Described(Protocol):
    """What is known of columns, by moments or by rows."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names, (n,)."""

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""

    @property
    def mean(self) -> Array:
        """Means, (n,)."""

    @property
    def spread(self) -> Array:
        """Standard deviations, (n,)."""


def size_remark(source: Described, problem: Problem) -> str | None:
    """Say which column is far larger than many others, if these are to be counted as they are."""
    if problem.prepares or source.weight <= 0:
        return None
    mean, spread = source.mean, source.spread
    norm = np.sqrt(mean**2 + spread**2)
    varies = np.flatnonzero(spread > 0)
    if len(varies) < 2:
        return None
    sizes, largest = _sizes(mean, spread, source.weight)[varies], varies[norm[varies].argmax()]
    small = int(np.sum(sizes < norm[largest] / FAR_BELOW))
    if small < MANY * len(varies):
        return None
    label = f"column {largest}" if source.names is None else f"column {shortened(source.names[largest])!r}"
    return (
        f"columns differ so much in size that a few decide the loss: {label} is more than {FAR_BELOW:g} times as large "
        f"as {small:,} of {counted(len(varies), 'column')} that vary. Give scale='std' (--scale std) to count all "
        "columns alike, and center=True (--center) for their variation; or scale=1.0 (--scale 1) to keep their sizes."
    )


def _sizes(mean: Array, spread: Array, weight: float) -> Array:
    """Return how large values are where they are not zero: pixels at an edge and rare genes are seldom so, not small.

    Of a column that is v in a share p of the rows and zero elsewhere, the mean is p v and the mean square p v^2. Where
    the mean is nearly zero, values have both signs, and the root of the mean square is their size.
    """
    squares = mean**2 + spread**2
    signed = np.abs(mean) <= _ZERO * spread / np.sqrt(weight)
    return np.where(signed, np.sqrt(squares), squares / np.where(signed, 1.0, np.abs(mean)))

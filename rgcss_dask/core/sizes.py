"""Detecting columns on such different scales that a few of them dominate an unscaled loss."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.problem import Problem
from rgcss_dask.core.words import counted, shortened

Array = NDArray[np.float64]

# A column is small compared with one that is this many times as large.
FAR_BELOW = 100.0
# The remark is made if this share of the columns is small. In images and counts (MNIST, ISOLET, YaleB, ORL, COIL-20,
# satellite pixels, normalised gene counts) at most a thousandth is; in tables with different units (OnlineNews, wine,
# breast cancer) more than two thirds.
MANY = 0.1
# A mean within this many standard errors counts as zero; a mostly zero column has a positive mean.
_ZERO = 0.5


class Described(Protocol):
    """Statistics of columns, from moments or rows."""

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
    """Name a column that is far larger than many others, if columns are not scaled."""
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
        f"columns are on such different scales that a few dominate the loss: {label} is more than {FAR_BELOW:g} times "
        f"as large as {small:,} of {counted(len(varies), 'column')} that vary. Give scale='std' (--scale std) to "
        "weight all columns alike, and center=True (--center) for their variation; or scale=1.0 (--scale 1) to keep "
        "the scales."
    )


def _sizes(mean: Array, spread: Array, weight: float) -> Array:
    """Return the typical size of nonzero values: pixels at an edge and rare genes are rarely nonzero, but not small.

    A column that is v in a share p of the rows and zero elsewhere has mean p v and mean square p v^2. If the mean is
    nearly zero, values have both signs, and the root mean square is their size.
    """
    squares = mean**2 + spread**2
    signed = np.abs(mean) <= _ZERO * spread / np.sqrt(weight)
    return np.where(signed, np.sqrt(squares), squares / np.where(signed, 1.0, np.abs(mean)))

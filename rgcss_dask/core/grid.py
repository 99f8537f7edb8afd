"""The grid of lambdas: as given, or computed from the spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.evaluate import EPS, checked_lambda
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

GRID = 13  # number of lambdas of the default grid
# Below this share of the k-th eigenvalue, lambda has almost no effect.
GRID_BELOW = 1e-3
# Additional directions, and products with the Gram, for accurate leading eigenvalues of a sketch.
OVERSAMPLING, POWERS = 10, 3


def default_grid(mean_gram: Array, k: int) -> Array:
    """Return lambdas per row from the Gram of the average row, in equal log steps from negligible to dominant.

    The largest is the leading eigenvalue, which shrinks every direction by half or more. The smallest is 1e-3 of the
    k-th eigenvalue (or of the last above rounding), which has no effect on directions that k columns can use.
    """
    s = leading_spectrum(mean_gram, k)
    if s[0] <= 0:
        raise ValueError("some column must vary for a choice of lambda; all are zero, or constant and centred.")
    floor = len(mean_gram) * EPS * s[0]
    low = max(GRID_BELOW * s[s > floor][-1], 64 * floor)
    return np.geomspace(low, s[0], GRID)


def leading_spectrum(G: Array, k: int) -> Array:
    """Return about the k largest eigenvalues of G, largest first: subspace iteration from a fixed start, O(n^2 k).

    Exact if k is near n, never too large, and otherwise accurate to a few per cent, which is enough for a grid.
    """
    n = len(G)
    k = min(max(int(k), 1), n)
    with single_threaded_blas():  # on a busy machine threads make a narrow QR many times slower
        if k + OVERSAMPLING >= n:
            return np.asarray(scipy.linalg.eigvalsh(G)[::-1][:k])
        Q = np.random.default_rng(0).standard_normal((n, k + OVERSAMPLING))
        for _ in range(POWERS):
            Q = np.linalg.qr(G @ Q)[0]
        return np.asarray(scipy.linalg.eigvalsh(Q.T @ G @ Q)[::-1][:k])


def checked_grid(given: float | Sequence[float] | NDArray[Any] | None) -> Array:
    """Return the lambdas in ascending order; refuse invalid ones."""
    grid = np.sort(np.atleast_1d(np.asarray(given, dtype=np.float64)))
    if grid.ndim != 1 or len(grid) == 0:
        raise ValueError(f"lambdas must be a list of at least one value; got shape {grid.shape}.")
    for lam in grid:
        checked_lambda(lam)
    twice = np.flatnonzero(np.diff(grid) == 0)
    if len(twice):
        raise ValueError(f"lambdas must differ; got {grid[twice[0]]:g} more than once.")
    return grid

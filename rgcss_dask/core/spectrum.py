"""Eigenvalues of a Gram for bounds: all of them, or the leading ones and the sum of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

# Up to this many columns, all eigenvalues take a second or less.
SMALL = 1024
# Up to this many columns, the eigenvalues after each single pick take some hundredths of a second.
FEW = 64
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of a Gram of n columns, largest first, none negative."""

    values: Array  # (n,), or the leading ones
    total: float  # the sum of all
    n: int
    doubt: float = 0.0  # upper bound on the error of each eigenvalue, which may be too low
    left: Array | None = None  # lower bounds on the loss of any 1, 2, ... columns, see `least_left`; None: not known

    @classmethod
    def whole(cls, values: ArrayLike, left: Array | None = None) -> Spectrum:
        """Return a spectrum of all eigenvalues, largest first."""
        s = np.maximum(np.asarray(values, dtype=np.float64), 0.0)
        return cls(s, float(s.sum()), len(s), left=left)

    def of_rank(self, n: int) -> Spectrum:
        """Return only the first n eigenvalues; the others are zero."""
        return self if n == self.n else replace(self, values=self.values[:n], n=n)

    @property
    def is_whole(self) -> bool:
        """Whether all eigenvalues are known."""
        return len(self.values) == self.n

    @property
    def tails(self) -> Array:
        """Sums of the eigenvalues from each place on, (n + 1,); with leading ones only, lower bounds, (p + 1,)."""
        if self.is_whole:
            return tails(self.values)
        return np.maximum(self.total - np.concatenate([[0.0], np.cumsum(self.values + self.doubt)]), 0.0)


def tails(values: Array) -> Array:
    """Return the sums from each place on, accumulated from the smallest value: (len + 1,)."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])


def least_left(G: Array, counts: Array) -> Array | None:
    """Return lower bounds on the weighted loss of any 1, 2, ..., n columns; None if there are more than `FEW` columns.

    After column w is picked, t - 1 further picks leave at least the eigenvalues beyond the first t - 1 of the remainder
    (Eckart and Young). Any t columns can begin with each of their t columns, so the t-th smallest sum is a bound.
    """
    n = len(G)
    if n > FEW:
        return None
    d, roots = np.diagonal(G), np.sqrt(counts)
    picked = G / np.sqrt(np.where(d > 0, d, 1.0))  # 0 where a column is zero
    left = (G - picked.T[:, :, None] * picked.T[:, None, :]) * roots * roots[:, None]
    with single_threaded_blas():  # the same bits for any number of threads
        values = np.maximum(np.linalg.eigvalsh(left), 0.0)
    beyond = np.cumsum(values, axis=1)[:, ::-1]  # for each w the sums of the smallest n, n - 1, ... eigenvalues
    rounding = n * EPS * float(d @ counts)
    return np.maximum(np.diagonal(np.sort(beyond, axis=0)) - rounding, 0.0)

"""Columns as signal plus noise: noise estimated from neighbouring rows, and the Gram of the signals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels
from rgcss_dask.core.integers import compilable
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

# The variance of x[i-1] - 2 x[i] + x[i+1] is this many times that of independent noise in x.
_OF_SECOND_DIFFERENCES = 6.0
# Noise below this share of a column cannot be distinguished from rounding in its Gram.
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class Differences:
    """Sums of squared second differences of consecutive rows, in which linear trends vanish."""

    count: Array  # (n,) differences without a gap
    squares: Array  # (n,) summed

    @classmethod
    def of(cls, block: ArrayLike) -> Differences:
        """Return the second differences of the rows of a block."""
        X = compilable(np.asarray(block))
        found = cls(np.zeros(X.shape[1]), np.zeros(X.shape[1]))
        kernels.add_second_differences(X, found.count, found.squares)
        return found

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.count)

    def merge(self, other: Differences, *, overwrite: bool = False) -> Differences:
        """Add the differences of other rows."""
        return Differences(self.count + other.count, self.squares + other.squares)

    def take(self, columns: NDArray[np.intp]) -> Differences:
        """Keep some columns."""
        return Differences(self.count[columns], self.squares[columns])

    @property
    def variance(self) -> Array:
        """The variance of the noise in each column, (n,), if it is independent from row to row."""
        if not self.count.all():
            column = int(np.argmin(self.count))
            raise ValueError(
                f"the noise of a column is estimated from three or more consecutive rows without gaps; column {column} "
                "has none. Give its noise as a variance."
            )
        return self.squares / (_OF_SECOND_DIFFERENCES * self.count)


def merged_differences(one: Differences | None, other: Differences | None) -> Differences | None:
    """Merge differences; None if either is missing."""
    return None if one is None or other is None else one.merge(other)


def checked_noise(noise: Array, variance: Array, names: tuple[str, ...] | None) -> Array:
    """Return given noise variances; refuse those above the variance of their column."""
    over = noise > variance * (1.0 + 1e-9)
    if over.any():
        i = int(np.argmax(over))
        label = f"column {i}" if names is None else f"column {names[i]!r}"
        raise ValueError(
            f"noise must not exceed the variance of its column; {label} has noise of variance {noise[i]:g} and varies "
            f"by {variance[i]:g}. Noise is given as a variance, in the squared units of the data."
        )
    return noise


def signal_gram(G: Array, noise: Array) -> Array:
    """Return the Gram of the signals behind columns with Gram G and noise of these squared norms.

    That is G - diag(noise), except for directions in which the noise exceeds the whole variance: they become 0. With
    columns divided by their noise, the eigenvalues above 1 are kept, minus 1.
    """
    least = _LEAST * np.maximum(np.diagonal(G), float(np.diagonal(G).max(initial=0.0)) * _LEAST)
    root = np.sqrt(np.maximum(np.maximum(noise, least), np.finfo(np.float64).tiny))
    with single_threaded_blas():  # the same bits for any number of threads
        values, U = scipy.linalg.eigh(G / root / root[:, None])
        U *= np.sqrt(np.maximum(values - 1.0, 0.0))
        signal = U @ U.T
    signal *= root
    signal *= root[:, None]
    return np.asarray(signal)


def with_signals(G: Array, noise: Array) -> Array:
    """Return the Gram of the columns followed by their signals, (2n, 2n)."""
    S = signal_gram(G, noise)
    return np.block([[G, S], [S, S]])

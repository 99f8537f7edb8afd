"""The eigenvalues of a Gram as bounds need them: all of them, or the leading ones and the sum of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Up to so many columns all eigenvalues take a second or less.
SMALL = 1024


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of a Gram of n columns, largest first, none negative."""

    values: Array  # (n,), or the leading ones
    total: float  # the sum of all
    n: int
    doubt: float = 0.0  # how far each eigenvalue may lie above its value here, at most

    @classmethod
    def whole(cls, values: ArrayLike) -> Spectrum:
        """Take all eigenvalues, largest first."""
        s = np.maximum(np.asarray(values, dtype=np.float64), 0.0)
        return cls(s, float(s.sum()), len(s))

    def of_rank(self, n: int) -> Spectrum:
        """Leave out what is zero, as no more than n eigenvalues are above it."""
        return self if n == self.n else replace(self, values=self.values[:n], n=n)

    @property
    def is_whole(self) -> bool:
        """Whether all eigenvalues are there."""
        return len(self.values) == self.n

    @property
    def tails(self) -> Array:
        """What all eigenvalues sum to from each place on, (n + 1,); or at least, after the leading ones, (p + 1,)."""
        if self.is_whole:
            return tails(self.values)
        return np.maximum(self.total - np.concatenate([[0.0], np.cumsum(self.values + self.doubt)]), 0.0)


def tails(values: Array) -> Array:
    """Sum what remains from each place on, the smallest first so that no digit is lost: (len + 1,)."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])

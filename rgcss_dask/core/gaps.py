"""Sums for exact imputation of column means, which are known only after the pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import ROUNDING, TINY, doubt_of_values, faint
from rgcss_dask.core.triangle import Array


@dataclass(frozen=True, eq=False)
class Gaps:
    """Products of rows with gaps (NaN) and of their masks, as a value that can be merged.

    With x a row minus ``shift``, set to 0 at its gaps, and m its mask (1 where there is a value): ``total`` is the sum
    of w x, ``product`` of w x x', ``cross`` of w x m' and ``present`` of w m m'. These give the means, and with them
    the moments of the imputed rows. Memory is three n x n matrices.
    """

    rows: int
    weight: float
    shift: Array  # (n,)
    total: Array  # (n,)
    product: Array  # (n, n)
    cross: Array  # (n, n)
    present: Array  # (n, n)

    @classmethod
    def of(cls, block: NDArray[Any], weights: NDArray[Any] | None = None) -> Gaps:
        """Return the sums of a block of rows; an infinity raises a `NotFiniteError`."""
        X = np.array(block, dtype=np.float64)
        refuse_infinity(X)
        gap = np.isnan(X)
        w = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64)
        M = np.where(gap, 0.0, np.sqrt(w)[:, None])
        X[gap] = 0.0
        count = w @ ~gap
        shift = np.divide(w @ X, count, out=np.zeros(X.shape[1]), where=count > 0)
        np.subtract(X, shift, out=X)
        np.multiply(X, M, out=X)  # gaps are 0 again, and each row is times the root of its weight
        if not gap.any():
            total = np.sqrt(w) @ X
            cross = np.repeat(total[:, None], len(shift), axis=1)
            present = np.full((len(shift), len(shift)), float(w.sum()))
        else:
            total, cross, present = np.sqrt(w) @ X, X.T @ M, M.T @ M
        product = X.T @ X
        squares = np.einsum("ii->i", product)
        low = squares < faint(np.float64)
        squares[low] = np.maximum(squares[low], TINY * X[:, low].any(axis=0))  # underflowed, but not zero
        return cls(len(X), float(w.sum()), shift, total, product, cross, present)

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.shift)

    @property
    def counts(self) -> Array:
        """Weight of the values present in each column, (n,)."""
        return np.diagonal(self.present)

    @property
    def mean(self) -> Array:
        """Mean of the values present in each column, (n,)."""
        if np.any(self.counts <= 0):
            column = int(np.flatnonzero(self.counts <= 0)[0])
            raise ValueError(
                f"nan='mean' needs at least one value in every column; column {column} has none. Leave it out."
            )
        return self.shift + self.total / self.counts

    def about(self, shift: Array) -> Gaps:
        """Return the sums about another shift."""
        e = shift - self.shift
        step = self.cross * e
        # Added first, so that the product is exactly symmetric: a checkpoint stores only half of it.
        product = self.product - (step + step.T) + self.present * np.outer(e, e)
        return replace(
            self,
            shift=shift,
            total=self.total - e * self.counts,
            product=product,
            cross=self.cross - e[:, None] * self.present,
        )

    def merge(self, other: Gaps, *, overwrite: bool = False) -> Gaps:
        """Add the rows of ``other``, about the mean of both; ``overwrite`` applies to `Moments` only."""
        count = self.counts + other.counts
        pull = np.divide(other.counts, count, out=np.zeros(self.n), where=count > 0)
        mean_a, mean_b = (
            g.shift + np.divide(g.total, g.counts, out=np.zeros(g.n), where=g.counts > 0) for g in (self, other)
        )
        shift = mean_a + (mean_b - mean_a) * pull
        a, b = self.about(shift), other.about(shift)
        return Gaps(
            a.rows + b.rows,
            a.weight + b.weight,
            shift,
            a.total + b.total,
            a.product + b.product,
            a.cross + b.cross,
            a.present + b.present,
        )

    def fill(self, mean: Array) -> Moments:
        """Return the moments of the rows with every gap set to ``mean``, the mean of these rows or of more rows.

        A gap then holds e = mean - shift instead of 0. The sums stay about their own mean; about the mean of more rows,
        which may be far away, they would lose digits.
        """
        own = self.about(np.where(self.counts > 0, self.shift, mean))
        e = mean - own.shift
        step = (own.total[:, None] - own.cross) * e
        gaps = own.weight - own.counts[:, None] - own.counts + own.present
        product = own.product + (step + step.T) + gaps * np.outer(e, e)
        total = own.total + e * (own.weight - own.counts)
        squares = np.diagonal(product).copy()
        d = total / own.weight if own.weight > 0 else np.zeros(own.n)
        shift = own.shift + d
        d = shift - own.shift
        step = np.outer(total, d)
        product += own.weight * np.outer(d, d) - (step + step.T)
        rounding = np.maximum(ROUNDING * squares, own.weight * TINY * ((squares > 0) & (squares < faint(np.float64))))
        rounding += doubt_of_values(own.weight, shift)
        return Moments(own.rows, own.weight, shift, total - own.weight * d, product, rounding)


def refuse_infinity(X: Array) -> None:
    """Raise a `NotFiniteError` for the first infinity; NaN is a gap."""
    bad = np.isinf(X)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        raise NotFiniteError(row, column, float(X[row, column]))

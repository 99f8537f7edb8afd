"""Sums of rows about a shift: counts, totals and products, and how those of two blocks become one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from rgcss_dask.core import kernels
from rgcss_dask.core.accumulate import common_shift
from rgcss_dask.core.integers import is_within
from rgcss_dask.core.precision import ROUNDING
from rgcss_dask.core.triangle import Array, add_moved, add_outer
from rgcss_dask.runtime.disk_matrices import copied, empty_like

# Rounding of a mean counts from this share of the spread on: losses are accurate to 1e-9.
_COUNTS = 1e-9


@dataclass(frozen=True, eq=False)
class Sums:
    """Row count, column sums and product sums of a matrix about a shift; those of several blocks can be merged."""

    rows: int  #: rows seen
    weight: float  #: sum of their weights; equal to rows without weights
    shift: Array  #: (n,)
    total: Array  #: (n,)
    product: Array  #: (n, n)
    rounding: Array  #: (n,) bound on the rounding error of each sum of squares about the mean
    exact: bool = False  #: whether all numbers are integers without rounding
    dropped: int = 0  #: rows left out because of gaps

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.shift)

    @property
    def squares(self) -> Array:
        """Sum of squares of each column about the shift, (n,)."""
        return np.einsum("ii->i", self.product)

    @property
    def mean(self) -> Array:
        """Column means, (n,)."""
        if self.weight <= 0:
            raise ValueError("the mean of no rows is not defined; these moments hold a weight of 0.")
        if self.exact:  # rounded once
            return (self.weight * self.shift + self.total) / self.weight
        return self.shift + self.total / self.weight

    @property
    def mean_rest(self) -> Array | None:
        """Rounding errors of the means in float64, (n,); None if they are small relative to the spread of each column.

        For integers near 2^60 with a spread of 100, a mean in float64 is wrong by up to 64.
        """
        if self.exact:
            return None
        mean, spread = self.mean, self.spread
        rest = np.where(spread > 0, (self.shift - mean) + self.total / self.weight, 0.0)
        return rest if np.any(np.abs(rest) > _COUNTS * spread) else None

    @property
    def spread(self) -> Array:
        """Standard deviation of each column (dividing by the weight), (n,); 0 if it may be rounding only."""
        # Exact sums about the integer nearest to the mean are as small as possible, and still exact.
        mean = self.mean
        d = np.rint(mean) - self.shift if self.exact else np.zeros(self.n)
        total = self.total - self.weight * d
        squares = self.squares + d * (self.weight * d - 2.0 * self.total)
        left = squares - total**2 / self.weight
        doubt = 0.0 if self.exact else np.maximum(self.rounding, ROUNDING * squares)
        return np.sqrt(np.where(left > doubt, left, 0.0) / self.weight)

    def _plus(self, other: Self, sign: float = 1.0, *, overwrite: bool = False) -> Self:
        """Add (or with ``sign=-1`` subtract) the rows of ``other``; nothing but sums is kept."""
        a, b, make = self, other, self.__class__  # of a handle, the class of what it stands for
        rows, dropped = a.rows + int(sign) * b.rows, a.dropped + int(sign) * b.dropped
        weight = a.weight + sign * b.weight
        if weight == 0:
            none = np.zeros(a.n)
            return make(rows, weight, a.shift, none, np.zeros((a.n, a.n)), none, a.exact and b.exact, dropped)
        if a.weight == 0 or b.weight == 0:
            keep = a if b.weight == 0 else b
            return make(rows, keep.weight, keep.shift, keep.total, keep.product, keep.rounding, keep.exact, dropped)
        combine = np.add if sign > 0 else np.subtract
        if a.exact and b.exact:
            near, moves = b._moves_near(a.shift)
            total, squares = combine(a.total, near.total), b.squares + sum(u * v for u, v in moves)
            if is_within(weight, a.shift, total, combine(a.squares, squares)):
                product = a._merged_product(b, moves, sign, overwrite=overwrite)
                kernels.mirror(product)
                return make(rows, weight, a.shift, total, product, a.rounding, True, dropped)
        a = a._near(a.mean, overwrite=overwrite) if a.exact else a
        b, moves = b._moves_near(b.mean) if b.exact else (b, [])
        terms, (weight, shift, total) = common_shift((a.weight, a.shift, a.total), (b.weight, b.shift, b.total), sign)
        before = a.squares + b.squares + sum(u * v for u, v in moves) + sum(np.abs(u * v) for u, v in terms)
        product = a._merged_product(b, moves, sign, overwrite=overwrite)
        add_outer(product, terms)
        kernels.mirror(product)
        # A sum is rounded as much as its parts; a difference is rounded at least as much as what it was taken from.
        known = a.rounding + b.rounding
        rounding = known + ROUNDING * before if sign < 0 else np.maximum(known, ROUNDING * np.diagonal(product))
        return make(rows, weight, shift, total, product, rounding, False, dropped)

    def _merged_product(self, other: Self, moves: list[tuple[Array, Array]], sign: float, *, overwrite: bool) -> Array:
        """Return the lower triangle of the merged product, in the memory of this one if it may be overwritten.

        The outer products that move ``other`` to another shift are added on the way, so that its product is not copied.
        """
        product = self.product if overwrite and self.product.flags.writeable else empty_like(self.product)
        add_moved(self.product, other.product, moves, product, sign=sign)
        return product

    def _near(self, point: Array, *, overwrite: bool = False) -> Self:
        """Move exact sums to the integers nearest to ``point``; every number stays an exact integer."""
        moved, moves = self._moves_near(point)
        if moves:
            product = self.product if overwrite and self.product.flags.writeable else copied(self.product)
            add_outer(product, moves)
            kernels.mirror(product)
            moved = replace(moved, product=product)
        return moved

    def _moves_near(self, point: Array) -> tuple[Self, list[tuple[Array, Array]]]:
        """Return the same but for the product, and the outer products that must still be added to it."""
        d = np.rint(point) - self.shift
        if not d.any():
            return self, []
        moved = replace(self, shift=self.shift + d, total=self.total - self.weight * d)
        return moved, [(d, self.weight * d - self.total), (self.total, -d)]

"""Sums whose matrix does not have a row for every column: the common part of bands and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.accumulate import common_shift
from rgcss_dask.core.integers import EXACT_WEIGHT
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.precision import EPS, ROUNDING

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Rectangle(Moments):
    """Exact column sums and sums of squares, as in `Moments`, with a matrix that has fewer rows than columns."""

    column_squares: Array = field(kw_only=True)  #: (n,) sums of squares about the shift

    ARRAYS: ClassVar[tuple[str, ...]] = (*Moments.ARRAYS, "column_squares")
    SUMS: ClassVar[tuple[str, ...]] = ("total", "product", "column_squares")  # what a merge adds if the shifts agree

    @property
    def squares(self) -> Array:
        """Sum of squares of each column about the shift, (n,)."""
        return self.column_squares

    def gram(self, *asked: Any, **preparation: Any) -> NoReturn:
        """Raise an error: the Gram matrix of all columns is not known."""
        raise ValueError(f"the Gram of all {self.n:,} columns is not known here. {self._way_out}")

    _way_out: ClassVar[str]

    def about(self, shift: Array) -> Self:
        """Change the shift: Q about c + d is Q + w d d' - s d' - d s'."""
        d = shift - self.shift
        if not d.any():
            return self
        return replace(self._sums_about(shift), product=self._product_about(d))

    def _sums_about(self, shift: Array) -> Self:
        """Change the shift of all but the matrix, which stays as it is."""
        d = shift - self.shift
        squares = self.column_squares + d * (self.weight * d - 2.0 * self.total)
        return replace(self, shift=shift, total=self.total - self.weight * d, column_squares=squares)

    def _product_about(self, d: Array) -> Array:
        """Return the matrix with the shift moved by d."""
        raise NotImplementedError

    def _near(self, point: Array, *, overwrite: bool = False) -> Self:
        return self.about(np.rint(point))  # a new matrix if it moves

    def _merged(self, other: Moments, sign: float = 1.0, *, overwrite: bool = False) -> Moments:
        assert isinstance(other, Rectangle)  # both are of the same kind: this was checked before
        rows, dropped = self.rows + int(sign) * other.rows, self.dropped + int(sign) * other.dropped
        weight = self.weight + sign * other.weight
        plain: dict[str, Any] = {"rows": rows, "dropped": dropped, "weight": weight, "names": None}
        plain |= {"folds": (), "groups": (), "differences": None}
        if weight == 0:
            nothing = {name: np.zeros_like(getattr(self, name)) for name in (*self.SUMS, "rounding")}
            return replace(self, exact=self.exact and other.exact, **{**plain, **nothing})
        if self.weight == 0 or other.weight == 0:
            return replace(self if other.weight == 0 else other, **plain)
        exact, shift = self.exact and other.exact, self.shift
        if not exact:
            mine, others = ((side.weight, side.shift, side.total) for side in (self, other))
            shift = common_shift(mine, others, sign)[1][1]
        combine = np.add if sign > 0 else np.subtract
        a, b, product = self._combined(other, shift, sign, overwrite=overwrite and self.product.flags.writeable)
        before = a.column_squares + b.column_squares
        known = a.rounding + b.rounding
        sums = {name: combine(getattr(a, name), getattr(b, name)) for name in self.SUMS if name != "product"}
        sums["product"] = product
        if not exact:
            squares = sums["column_squares"]
            known = known + ROUNDING * before if sign < 0 else np.maximum(known, ROUNDING * squares)
        exact = exact and weight <= EXACT_WEIGHT
        return replace(self, **plain, **sums, shift=shift, rounding=known, exact=exact)

    def _combined(self, other: Self, shift: Array, sign: float, *, overwrite: bool) -> tuple[Self, Self, Array]:
        """Return both about a shift, and the sum or difference of their matrices; the own one may be overwritten."""
        a, b = self.about(shift), other.about(shift)
        combine = np.add if sign > 0 else np.subtract
        return a, b, combine(a.product, b.product, out=a.product if overwrite or a is not self else None)

    def times(self, count: float) -> Self:
        """Return the sums with every row counted ``count`` times."""
        counted = ("total", "product", "column_squares", "rounding")
        arrays = {name: count * getattr(self, name) for name in counted}
        exact = self.exact and count * self.weight <= EXACT_WEIGHT
        rows, weight = round(count * self.rows), count * self.weight
        return replace(self, rows=rows, weight=weight, exact=exact, folds=(), groups=(), differences=None, **arrays)

    def take(self, columns: Sequence[int] | Sequence[str] | NDArray[Any]) -> Self:
        """Keep only some columns, given by index or by name, in the given order."""
        index = column_indices(columns, self.n, self.names)
        return replace(
            self,
            names=None if self.names is None else tuple(self.names[i] for i in index),
            folds=tuple(part.take(index) for part in self.folds),
            groups=tuple(part.take(index) for part in self.groups),
            **{name: getattr(self, name)[index] for name in ("shift", "total", "rounding", "column_squares")},
            **self._taken(index),
        )

    def _taken(self, index: NDArray[np.intp]) -> dict[str, Any]:
        """Return the arrays of the matrix, by name, for these columns only."""
        return {"product": np.ascontiguousarray(self.product[:, index])}

    def prepared(
        self,
        center: bool | ArrayLike = False,
        scale: float | str | ArrayLike | None = None,
        *,
        rest: Array | None = None,
    ) -> tuple[Array, Array]:
        """Return the prepared matrix and the prepared squared norms of the columns, (n,); see `Moments.preparation`."""
        mu, sigma = self.preparation(center, scale)
        base = self._near(mu) if self.exact else self
        constant, d, terms = base._moves(center, mu, rest)
        norms = np.where(constant, 0.0, base.column_squares)
        norms = np.maximum(norms + np.sum([u * v for u, v in terms], axis=0), 0.0) / sigma**2
        self._refuse_lost(self.rounding / sigma**2 > EPS * norms.max())
        return base._moved_matrix(constant, d, terms, sigma), norms

    def _moved_matrix(
        self, constant: NDArray[np.bool_], d: Array, terms: list[tuple[Array, Array]], sigma: Array
    ) -> Array:
        """Return a scaled copy of the matrix with the shift moved by d."""
        raise NotImplementedError

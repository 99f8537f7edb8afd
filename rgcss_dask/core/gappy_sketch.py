"""Sketches of rows with gaps: one pass, after which the gaps are filled with the column means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.gaps import refuse_infinity
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import ROUNDING
from rgcss_dask.core.rectangle import Rectangle
from rgcss_dask.core.sketch import RowNumbers, Sketch, SketchSums
from rgcss_dask.core.sparse_rows import SparseRows

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class GappySketch(Sketch):
    """A sketch of rows in which gaps count as the shift, with a sketch of the positions of the gaps."""

    gaps: Array = field(kw_only=True)  #: (d, n) sketch of the rows with 1 at a gap and 0 elsewhere
    missing: Array = field(kw_only=True)  #: (n,) weight of the gaps

    KIND: ClassVar[str] = "sketch with gaps"
    ARRAYS: ClassVar[tuple[str, ...]] = (*Sketch.ARRAYS, "gaps", "missing")
    SUMS: ClassVar[tuple[str, ...]] = (*Sketch.SUMS, "gaps", "missing")

    @property
    def mean(self) -> Array:
        """Mean of the values present in each column, (n,)."""
        present = self.weight - self.missing
        if np.any(present <= 0):
            column = int(np.flatnonzero(present <= 0)[0])
            raise ValueError(f"nan='mean' needs a value in every column; column {column} has none. Leave it out.")
        return self.shift + self.total / present

    def about(self, shift: Array) -> GappySketch:
        """Change the shift; gaps still count as the shift."""
        d, present = shift - self.shift, self.weight - self.missing
        if not d.any():
            return self
        squares = self.column_squares + d * (present * d - 2.0 * self.total)
        product = self.product - (self.ones[:, None] - self.gaps) * d
        return replace(
            self, shift=shift, total=self.total - present * d, product=product, column_squares=np.maximum(squares, 0.0)
        )

    def _combined(self, other: Self, shift: Array, sign: float, *, overwrite: bool) -> tuple[Self, Self, Array]:
        return Rectangle._combined(self, other, shift, sign, overwrite=overwrite)  # gaps do not move

    def fill(self, mean: Array) -> Sketch:
        """Return the sketch of the rows with every gap set to ``mean``, the mean of these rows or of more rows."""
        own = self.about(np.where(self.weight > self.missing, self.shift, mean))
        e = mean - own.shift
        squares = own.column_squares + own.missing * e**2
        return Sketch(
            own.rows,
            own.weight,
            own.shift,
            own.total + own.missing * e,
            own.product + own.gaps * e,
            np.maximum(own.rounding, ROUNDING * squares),
            dropped=own.dropped,
            column_squares=squares,
            ones=own.ones,
            seed=own.seed,
        )


class GappySums:
    """An unfinished sketch of rows with gaps."""

    def __init__(self, n: int, dtype: np.dtype[Any], rows: int, seed: int) -> None:
        self._n, self._dtype = n, dtype
        self._values = SketchSums(n, dtype, rows, seed, whole=False)
        self._gaps = SketchSums(n, np.dtype(np.bool_), rows, seed)

    def add(self, block: NDArray[Any] | SparseRows, numbers: RowNumbers, weights: NDArray[Any] | None = None) -> None:
        """Add rows; an infinity raises a `NotFiniteError` that gives its place in the block."""
        if len(block) == 0:
            return
        filled, gap = self._of_sparse(block) if isinstance(block, SparseRows) else self._of_dense(block)
        self._values.add(filled, numbers, weights)
        self._gaps.add(gap, numbers, weights)

    def _of_sparse(self, block: SparseRows) -> tuple[SparseRows, SparseRows]:
        if not np.all(np.isfinite(block.values) | np.isnan(block.values)):
            refuse_infinity(np.asarray(block, dtype=np.float64))
        shift = self._values.about(np.zeros(self._n))
        return block.filled(shift, np.float64), block.with_values(np.isnan(block.values)).without_zeros()

    def _of_dense(self, block: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        X = np.array(block, dtype=np.float64)
        refuse_infinity(X)
        gap = np.isnan(X)
        X[gap] = 0.0
        present = len(X) - gap.sum(axis=0)
        shift = self._values.about(X.sum(axis=0) / np.maximum(present, 1))
        np.copyto(X, shift, where=gap)
        return X, gap

    def finished(self) -> Moments:
        """Return the sketch."""
        values, gaps = self._values.finished(), self._gaps.finished().about(np.zeros(self._n))
        known = {name: getattr(values, name) for name in ("rows", "weight", "shift", "total", "product", "rounding")}
        known |= {"column_squares": values.column_squares, "ones": values.ones, "seed": values.seed}
        return GappySketch(**known, gaps=gaps.product, missing=gaps.total)

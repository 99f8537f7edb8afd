"""Products of some candidate columns with all columns: exact selection among them, for m c n instead of m n^2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels
from rgcss_dask.core.floats import DRIFT, block_rows, is_single
from rgcss_dask.core.input_checks import checked_weights, raise_not_finite
from rgcss_dask.core.integers import EXACT_ROWS, EXACT_WEIGHT, is_exact
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.precision import TINY, ULPS, difference, doubt_of_values, faint, resolution
from rgcss_dask.core.rectangle import Rectangle
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.words import counted

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Rows of the matrix that are moved to another shift at once, so that they fit in the cache.
_ROWS = 16
# Columns multiplied at once, so that a product of single precision does not need a second matrix.
_COLUMNS = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Band(Rectangle):
    """Moments with only the products of some candidate columns with all columns.

    ``product`` is the sum of w (x_C - shift_C)(x - shift)', (c, n). Selection among the candidates is exact, as from
    `Moments`. `scan` makes a band with ``candidates=``.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rows = np.random.default_rng(0).normal(size=(500, 3)) @ np.random.default_rng(1).normal(size=(3, 9))
    >>> band = rg.scan(rows, candidates=[0, 4, 7])
    >>> band
    <Band of 3 candidates of 500 rows and 9 columns>
    >>> rg.select(band, 2)
    2 of 9 columns keep 95.2 % of the squared norm, with lambda = 1.
    Picked, in order: 4, 0.
    """

    candidates: tuple[int, ...] = field(kw_only=True)  #: columns that may be picked; row i of ``product`` is the i-th

    KIND: ClassVar[str] = "band"
    NUMBERS: ClassVar[tuple[str, ...]] = (*Moments.NUMBERS, "candidates")
    _way_out: ClassVar[str] = (
        "These are the products of some candidates with all columns; scan without candidates= for all of them."
    )

    @classmethod
    def of(  # type: ignore[override]
        cls,
        block: ArrayLike,
        candidates: Sequence[int] | Sequence[str] | NDArray[Any],
        weights: ArrayLike | None = None,
        *,
        names: Iterable[str] | None = None,
    ) -> Band:
        """Compute the products of some columns of a block with all columns; see `Moments.of`.

        Parameters
        ----------
        block : array-like of shape (m, n)
            Rows of any real dtype.
        candidates : sequence of int or str
            The columns that may be picked, by index or name.
        weights : array-like of shape (m,), optional
            Non-negative row weights.
        names : iterable of str, optional
            Names of the n columns.

        Returns
        -------
        Band
            The products of these rows.
        """
        X = plain(block)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
        called = None if names is None else tuple(names)
        places = column_indices(candidates, X.shape[1], called)
        sums = BandSums(X.shape[1], X.dtype, places)
        sums.add(X, None if weights is None else checked_weights(weights, len(X)))
        return replace(sums.finished(), names=called)

    @property
    def _title(self) -> str:
        return f"Band of {counted(len(self.candidates), 'candidate')}"

    @property
    def index(self) -> Index:
        """The candidates as an index, (c,)."""
        return np.array(self.candidates, dtype=np.intp)

    def _check_same_columns(self, other: Moments, verb: str) -> None:
        super()._check_same_columns(other, verb)
        if isinstance(other, Band) and self.candidates != other.candidates:
            raise ValueError(f"cannot {verb} bands of different candidates. Scan both with the same candidates=.")

    def _product_about(self, d: Array) -> Array:
        terms = [(d, self.weight * d - self.total), (self.total, -d)]
        return _with_outer(np.array(self.product), self.index, terms)

    def _moved_matrix(
        self, constant: NDArray[np.bool_], d: Array, terms: list[tuple[Array, Array]], sigma: Array
    ) -> Array:
        rows, index = np.array(self.product), self.index
        rows[constant[index]] = 0.0
        rows[:, constant] = 0.0
        rows = _with_outer(rows, index, terms)
        if np.any(sigma != 1.0):
            rows /= sigma[index][:, None]
            rows /= sigma
        return rows

    def _taken(self, index: Index) -> dict[str, Any]:
        place = {int(column): i for i, column in enumerate(index)}
        kept = [i for i, column in enumerate(self.candidates) if column in place]
        if not kept:
            raise ValueError("a band needs a candidate or more; none of its candidates is among these columns.")
        candidates = tuple(place[self.candidates[i]] for i in kept)
        return {"product": self.product[np.array(kept)[:, None], index], "candidates": candidates}


def _with_outer(rows: Array, index: Index, terms: list[tuple[Array, Array]]) -> Array:
    """Add the rows ``index`` of the sum of the outer products u v', in place."""
    U, V = np.stack([u[index] for u, _ in terms], axis=1), np.stack([v for _, v in terms])
    for start in range(0, len(rows), _ROWS):
        rows[start : start + _ROWS] += U[start : start + _ROWS] @ V
    return rows


class BandSums:
    """An unfinished band: each block is multiplied about its own mean, and merged."""

    def __init__(self, n: int, dtype: np.dtype[Any], candidates: Index, precision: str = "double") -> None:
        self._n, self._dtype, self._index = n, dtype, candidates
        self._precision = precision
        self._place = np.full(n, -1, dtype=np.int64)
        self._place[candidates] = np.arange(len(candidates))
        self._band: Band | None = None

    def add(
        self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None = None, *, also: Sequence[BandSums] = ()
    ) -> None:
        """Add the rows of a block, also to ``also``; a value that is not finite raises an error with its place."""
        if isinstance(block, SparseRows):
            found = self._of_sparse(block, weights)
            if found is not None:
                self._take(found, also)
                return
            block = np.asarray(block)
        step = block_rows(self._n, self._dtype, self._precision)
        for start in range(0, len(block), step):
            piece = block[start : start + step]
            w = None if weights is None else weights[start : start + step]
            whole = is_exact(self._dtype) and (w is None or w.dtype.kind != "f")
            self._take(self._of_integers(piece, w) if whole else self._of_floats(piece, w), also)

    def finished(self) -> Band:
        """Return the band."""
        band = self._empty() if self._band is None else self._band
        if not np.all(np.isfinite(band.column_squares)):
            column = int(np.flatnonzero(~np.isfinite(band.column_squares))[0])
            raise OverflowError(
                f"the sum of squares of column {column} exceeds the range of float64; divide the data by a constant "
                "first."
            )
        return band

    def _take(self, piece: Band, also: Sequence[BandSums]) -> None:
        for sums in (self, *also):
            mine = sums._band
            merged = piece if mine is None else mine.merge(piece, overwrite=True)
            # Each of several bands needs a copy of the first piece, because merges write into it.
            sums._band = replace(merged, product=merged.product.copy()) if mine is None and also else merged  # type: ignore[assignment]

    def _empty(self) -> Band:
        return self._made(0, 0.0, np.zeros(self._n), np.zeros(self._n), np.zeros((len(self._index), self._n)))

    def _made(
        self, rows: int, weight: float, shift: Array, total: Array, product: Array, squares: Array | None = None
    ) -> Band:
        return Band(
            rows,
            weight,
            shift,
            total,
            product,
            np.zeros(self._n),
            exact=is_exact(self._dtype) and weight <= EXACT_WEIGHT,
            column_squares=np.zeros(self._n) if squares is None else squares,
            candidates=tuple(self._index.tolist()),
        )

    def _of_integers(self, piece: NDArray[Any], weights: NDArray[Any] | None) -> Band:
        """Multiply 8-bit integers exactly: in float32 for few rows at a time, or in float64 with weights."""
        offset = 128.0 if self._dtype == np.uint8 else 0.0
        X: NDArray[Any] = piece.astype(np.float32 if weights is None else np.float64)
        X = np.subtract(X, offset, out=X, dtype=X.dtype)
        w = np.ones(len(X)) if weights is None else weights.astype(np.float64)
        left = X[:, self._index] if weights is None else X[:, self._index] * w[:, None]
        total, squares = np.zeros(self._n), np.zeros(self._n)
        kernels.weighted_column_sums(X, w, total, squares)
        shift = np.full(self._n, offset)
        return self._made(len(X), float(w.sum()), shift, total, self._product(left, X), squares)

    def _of_floats(self, piece: NDArray[Any], weights: NDArray[Any] | None) -> Band:
        w = np.ones(len(piece)) if weights is None else weights.astype(np.float64)
        weight = float(w.sum())
        if weight == 0:
            return replace(self._empty(), rows=len(piece))
        work = np.float32 if is_single(self._dtype, self._precision) else np.float64
        with np.errstate(invalid="ignore", over="ignore"):
            shift = ((w @ piece) / weight).astype(work).astype(np.float64)
            if not np.all(np.isfinite(shift)):
                raise_not_finite(piece)
            X = difference(piece, shift.astype(work), np.empty(piece.shape, work))
            total, squares = np.zeros(self._n), np.zeros(self._n)
            kernels.weighted_column_sums(X, w, total, squares)
            left = X[:, self._index] if weights is None else X[:, self._index] * w.astype(work)[:, None]
            band = self._made(len(X), weight, shift, total, self._product(left, X), squares)
        rounding = ULPS * float(np.finfo(work).eps) * squares
        low = squares < faint(np.float64)
        rounding[low] += len(X) * TINY * X[:, low].any(axis=0)
        return replace(band, rounding=rounding + doubt_of_values(weight, shift, resolution(self._dtype)), exact=False)

    def _of_sparse(self, block: SparseRows, weights: NDArray[Any] | None) -> Band | None:
        """Return the products of sparse rows about zero; None if a column is too far from zero to keep its digits."""
        w = np.ones(len(block)) if weights is None else weights.astype(np.float64)
        weight = float(w.sum())
        total, squares = block.sums(w)
        if not np.all(np.isfinite(squares)):
            return None  # the dense method finds the place
        if weight > 0 and not is_exact(self._dtype):
            mean = total / weight
            if np.any(mean**2 > DRIFT * np.maximum(squares / weight - mean**2, 0.0)):
                return None
        product = np.zeros((len(self._index), self._n))
        block.add_rows_of_products(w, self._place, product)
        band = self._made(len(block), weight, np.zeros(self._n), total, product, squares)
        if is_exact(self._dtype):
            return replace(band, exact=band.exact and (weights is None or weights.dtype.kind != "f"))
        rounding = ULPS * float(np.finfo(np.float64).eps) * squares
        return replace(band, rounding=rounding + doubt_of_values(weight, total / max(weight, TINY)), exact=False)

    def _product(self, left: NDArray[Any], X: NDArray[Any]) -> Array:
        """Return left'X in float64; single precision is used for few rows, so that sums of 8-bit integers are exact."""
        if X.dtype == np.float64:
            return np.asarray(left.T @ X)
        product = np.zeros((left.shape[1], X.shape[1]))
        for start in range(0, len(X), EXACT_ROWS):
            rows = slice(start, start + EXACT_ROWS)
            for first in range(0, X.shape[1], _COLUMNS):
                columns = slice(first, first + _COLUMNS)
                product[:, columns] += left[rows].T @ X[rows, columns]
        return product

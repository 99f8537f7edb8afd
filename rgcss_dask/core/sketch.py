"""Sketches: rows are summed with random signs into a few rows, for any number of columns; sketches can be merged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import sketch_kernels
from rgcss_dask.core.hashing import hashed
from rgcss_dask.core.input_checks import check_real, checked_rows, checked_weights, raise_not_finite
from rgcss_dask.core.integers import compilable, is_exact, is_within, may_be_small, small_range
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import ROUNDING, doubt_of_values, resolution
from rgcss_dask.core.rectangle import Rectangle
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.words import counted
from rgcss_dask.runtime.page_pool import empty_sums

Array = NDArray[np.float64]
RowNumbers = NDArray[np.uint64]

# Default number of sketch rows for each pick; the error falls as one over the square root of the rows.
ROWS_PER_PICK = 10
# Below this number of sketch rows for each pick, the picks are poor.
FEW_PER_PICK = 4
# Numbers of 8-bit values whose sum is sure to fit 16 bits, and of squares whose sum fits 32 bits.
_ROWS_OF_BYTES, _ROWS_OF_SQUARES = 2**8 - 1, 2**17


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(Rectangle):
    """Moments whose products are estimated from d rows: each row of the data is added, with a random sign, to one.

    ``product`` is the sketch of the rows less the shift, (d, n). A hash of the row number and a seed determines to
    which row of the sketch a row is added, and with which sign. Column sums and sums of squares are exact, and so are
    centring and scaling. Losses are estimates whose error falls as one over the square root of d; `select_wide`
    follows the picks with an exact second pass. `scan` makes a sketch with ``sketch=d``.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rows = np.random.default_rng(0).normal(size=(5000, 3)) @ np.random.default_rng(1).normal(size=(3, 40))
    >>> sketch = rg.scan(rows, sketch=60)
    >>> sketch
    <Sketch in 60 rows of 5,000 rows and 40 columns>
    >>> len(rg.select(sketch, 2))
    2
    """

    ones: Array = field(kw_only=True)  #: (d,) the sketch of a column of ones, needed for centring
    seed: int = field(kw_only=True)  #: seed of the sketch rows and signs
    seen: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)  #: numbers of the rows in it; () for parts

    KIND: ClassVar[str] = "sketch"
    ARRAYS: ClassVar[tuple[str, ...]] = (*Rectangle.ARRAYS, "ones")
    NUMBERS: ClassVar[tuple[str, ...]] = (*Moments.NUMBERS, "seed", "seen")
    SUMS: ClassVar[tuple[str, ...]] = (*Rectangle.SUMS, "ones")
    _way_out: ClassVar[str] = (
        "A sketch estimates them: for exact losses, weights and bounds finish with rgcss_dask.select_wide(source, k)."
    )

    @classmethod
    def of(  # type: ignore[override]
        cls,
        block: ArrayLike,
        rows: int,
        weights: ArrayLike | None = None,
        *,
        first: int = 0,
        seed: int = 0,
        names: Iterable[str] | None = None,
    ) -> Sketch:
        """Sketch a block of rows.

        Parameters
        ----------
        block : array-like of shape (m, n)
            Rows of any real dtype.
        rows : int
            Number d of rows of the sketch.
        weights : array-like of shape (m,), optional
            Non-negative row weights.
        first : int, default=0
            Number of the first row: rows of one sketch must have distinct numbers.
        seed : int, default=0
            Seed of the sketch rows and signs.
        names : iterable of str, optional
            Names of the n columns.

        Returns
        -------
        Sketch
            The sketch of these rows.
        """
        X = plain(block)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
        sums = SketchSums(X.shape[1], X.dtype, rows, seed)
        numbers = np.arange(first, first + len(X), dtype=np.uint64)
        sums.add(X, numbers, None if weights is None else checked_weights(weights, len(X)))
        called = None if names is None else tuple(names)
        return replace(sums.finished(), names=called, seen=((first, first + len(X)),))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seen", tuple((int(a), int(b)) for a, b in self.seen))

    @property
    def height(self) -> int:
        """Number d of rows of the sketch."""
        return len(self.ones)

    @property
    def _title(self) -> str:
        return f"Sketch in {counted(self.height, 'row')}"

    def _check_same_columns(self, other: Moments, verb: str) -> None:
        super()._check_same_columns(other, verb)
        if not isinstance(other, Sketch):
            return
        if (self.height, self.seed) != (other.height, other.seed):
            raise ValueError(
                f"cannot {verb} sketches that were drawn differently: {self.height} rows with seed {self.seed} here, "
                f"{other.height} with seed {other.seed} there. Scan both with the same sketch= and seed=."
            )
        twice = [(a, b) for a in self.seen for b in other.seen if max(a[0], b[0]) < min(a[1], b[1])]
        if verb == "merge" and twice:
            (start, stop), _ = twice[0]
            raise ValueError(
                f"rows in one sketch must have numbers of their own, or their signs agree; rows {start:,} to "
                f"{stop - 1:,} are in both. Scan all sources in one pass: scan([first, second], sketch=...)."
            )

    def _merged(self, other: Moments, sign: float = 1.0, *, overwrite: bool = False) -> Moments:
        merged = super()._merged(other, sign, overwrite=overwrite)
        assert isinstance(other, Sketch)  # both are sketches: this was checked before
        assert isinstance(merged, Sketch)
        seen = _united(self.seen + other.seen) if sign > 0 else ()
        return replace(merged, seen=seen)

    def of_rows(self, ranges: Iterable[tuple[int, int]]) -> Sketch:
        """Return the same sketch with ``ranges`` added to the numbers of its rows."""
        return replace(self, seen=_united((*self.seen, *ranges)))

    def halves(self) -> tuple[Sketch, Sketch]:
        """Return two sketches, each of every other row of this one, with the exact sums of all rows."""
        alone = replace(self, folds=(), groups=())
        one, other = (replace(alone, product=self.product[i::2], ones=self.ones[i::2]) for i in range(2))
        return one, other

    def times(self, count: float) -> Sketch:
        """Return the sums with every row counted ``count`` times: the sketch is multiplied by its square root."""
        root = float(np.sqrt(count))
        known = super().times(count)
        return replace(known, product=root * self.product, ones=root * self.ones, exact=known.exact and root % 1 == 0)

    def _product_about(self, d: Array) -> Array:
        return self.product - np.outer(self.ones, d)

    def _combined(self, other: Self, shift: Array, sign: float, *, overwrite: bool) -> tuple[Self, Self, Array]:
        product = self.product
        if not overwrite:
            product = empty_sums(product.shape)
            product[...] = self.product
        moves = (shift - self.shift, shift - other.shift)
        sketch_kernels.combine(product, self.ones, moves[0], other.product, other.ones, moves[1], sign)
        return self._sums_about(shift), other._sums_about(shift), product

    def _moved_matrix(
        self, constant: NDArray[np.bool_], d: Array, terms: list[tuple[Array, Array]], sigma: Array
    ) -> Array:
        F = np.array(self.product)
        F[:, constant] = 0.0
        for row, one in zip(F, self.ones, strict=True):
            row -= one * d
        F /= sigma
        return F

    def factor(
        self, center: bool | ArrayLike, scale: float | str | ArrayLike | None, rest: Array | None = None
    ) -> Array:
        """Return the prepared sketch F, (d, n); F'F is an estimate of the Gram matrix, with its exact diagonal."""
        return with_norms(*self.prepared(center, scale, rest=rest))


def with_norms(F: Array, norms: Array) -> Array:
    """Scale the columns of F to these squared norms, in place; columns of zeros stay.

    The exact norms take the error of their estimates out of every product. On eight data sets, what picks on the sketch
    alone lose fell from 2.1 to 1.8 % for 16 columns on 160 rows, and rose from 0.8 to 0.9 % for 64 on 640 rows.
    """
    own = np.einsum("ij,ij->j", F, F)
    F *= np.sqrt(norms / np.where(own > 0, own, 1.0))
    return F


def _united(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join adjacent ranges."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


class SketchSums:
    """An unfinished sketch: rows are added in place; sums of small integers, of whatever type, are exact integers."""

    def __init__(self, n: int, dtype: np.dtype[Any], rows: int, seed: int, *, whole: bool = True) -> None:
        """Start without rows; if ``whole`` is false, values are not treated as integers even if they are."""
        check_real(dtype)
        self._n, self._dtype, self._height, self._seed = n, dtype, checked_rows(rows), seed
        self._product = empty_sums((rows, n))
        self._product.fill(0.0)
        self._ones = np.zeros(rows)
        self._total, self._squares = np.zeros(n), np.zeros(n)
        self._shift: Array | None = None
        self._rows, self._weight, self._whole = 0, 0.0, whole and may_be_small(dtype)
        self._bytes = _Bytes(dtype, self._product, self._total, self._squares)

    def add(self, block: NDArray[Any] | SparseRows, numbers: RowNumbers, weights: NDArray[Any] | None = None) -> None:
        """Add the rows of a block, with their numbers; a value that is not finite raises an error with its place."""
        if len(block) == 0:
            return
        block = block if isinstance(block, SparseRows) else np.ascontiguousarray(compilable(block))
        places, signs = drawn(numbers, self._height, self._seed)
        order = sketch_kernels.in_order(places, self._height)
        w = np.ones(len(block)) if weights is None else weights.astype(np.float64)
        roots = signs * np.sqrt(w)
        with np.errstate(invalid="ignore", over="ignore"):
            if self._whole and not (weights is None and _is_whole(block)):
                self._leave_integers()
            if self._adds_bytes(block):
                self._bytes.add(block, order, places, signs)  # type: ignore[arg-type]
            else:
                self._add(block, order, places, roots, w)
            if not np.all(np.isfinite(self._squares)):
                raise_not_finite(np.asarray(block))
        self._ones += np.bincount(places, roots, self._height)
        self._rows += len(block)
        self._weight += float(w.sum())

    def _adds_bytes(self, block: NDArray[Any] | SparseRows) -> bool:
        """Tell whether a block is added in 16 bits, about a constant, which must be the shift of the rows before."""
        if not self._whole or not is_exact(self._dtype) or isinstance(block, SparseRows):
            return False
        return np.array_equal(self.about(self._bytes.shift), self._bytes.shift)

    def _add(
        self,
        block: NDArray[Any] | SparseRows,
        order: NDArray[np.int64],
        places: NDArray[np.int64],
        roots: Array,
        w: Array,
    ) -> None:
        if isinstance(block, SparseRows):
            if not self.about(np.zeros(self._n)).any():
                block.add_signed(order, places, roots, w, self._product, self._total, self._squares)
                return
            block = np.asarray(block)  # the shift of earlier dense rows is not zero
        if self._shift is None and not self._whole:
            self.about(block[:_NEAR].mean(axis=0, dtype=np.float64))
        shift = self.about(np.zeros(self._n))
        sums = (self._product, self._total, self._squares)
        sketch_kernels.add_signed_rows(block, order, shift, places, roots, w, *sums)

    def about(self, shift: Array) -> Array:
        """Set the shift if there is none, with 0 for NaN and inf, and return it; it only needs to be near the mean."""
        if self._shift is None:
            self._shift = np.where(np.isfinite(shift), shift, 0.0)
        return self._shift

    def _leave_integers(self) -> None:
        """Move the shift from a constant to integers near the mean, where other values lose fewer digits."""
        self._whole = False
        if self._shift is None or self._weight == 0:
            return
        self._bytes.empty()
        d = np.rint(self._total / self._weight)
        self._squares += d * (self._weight * d - 2.0 * self._total)
        self._total -= self._weight * d
        self._product -= np.outer(self._ones, d)
        self._shift = self._shift + d

    def finished(self) -> Sketch:
        """Return the sketch."""
        self._bytes.empty()
        shift = self.about(np.zeros(self._n))
        exact = self._whole and is_within(self._weight, shift, self._total, self._squares)
        mean = shift + self._total / self._weight if self._weight > 0 else shift
        rounding = ROUNDING * self._squares + doubt_of_values(self._weight, mean, resolution(self._dtype))
        return Sketch(
            self._rows,
            self._weight,
            shift,
            self._total,
            self._product,
            np.zeros(self._n) if exact else rounding,
            exact,
            column_squares=self._squares,
            ones=self._ones,
            seed=self._seed,
        )


class _Bytes:
    """Sums of 8-bit integers in 16 and 32 bits, until these may overflow."""

    def __init__(self, dtype: np.dtype[Any], product: Array, total: Array, squares: Array) -> None:
        self._product, self._total, self._squares = product, total, squares  # the final sums
        self._height, self._n = product.shape
        self._offset = 128 if dtype == np.uint8 else 0
        self.shift = np.full(self._n, float(self._offset))
        self._rows, self._in_place = 0, np.zeros(self._height, dtype=np.int64)
        self._sums = np.zeros((2, self._n), np.int32)

    def add(self, block: NDArray[Any], order: NDArray[np.int64], places: NDArray[np.int64], signs: Array) -> None:
        """Add rows in the given order; every other row first if too many belong to one row of the sketch."""
        rows = np.bincount(places[order], minlength=self._height)
        if len(order) + self._rows > _ROWS_OF_SQUARES or (rows + self._in_place).max() > _ROWS_OF_BYTES:
            self.empty()
        if len(order) > _ROWS_OF_SQUARES or rows.max() > _ROWS_OF_BYTES:
            self.add(block, order[0::2], places, signs)
            self.add(block, order[1::2], places, signs)
            return
        X = block.view(np.int8) if block.dtype == np.bool_ else block
        sums = (self._short, self._sums[0], self._sums[1])
        order = np.ascontiguousarray(order)
        sketch_kernels.add_signed_bytes(X, order, np.int16(self._offset), places, signs.astype(np.int16), *sums)
        self._rows += len(order)
        self._in_place += rows

    @cached_property
    def _short(self) -> NDArray[np.int16]:
        return np.zeros((self._height, self._n), np.int16)

    def empty(self) -> None:
        """Add the sums to the final sums and set them to zero."""
        if self._rows == 0:
            return
        sketch_kernels.take_over(self._short, self._product)
        self._total += self._sums[0]
        self._squares += self._sums[1]
        self._squares -= self._sums[0]  # the kernel summed x (x + 1)
        self._sums.fill(0)
        self._in_place.fill(0)
        self._rows = 0


def _is_whole(block: NDArray[Any] | SparseRows) -> bool:
    return small_range(block) is not None


# Rows whose mean is taken as the shift; it only needs to be near the mean of all rows.
_NEAR = 64


def drawn(numbers: RowNumbers, height: int, seed: int) -> tuple[NDArray[np.int64], Array]:
    """Return for each row number the row of the sketch that it is added to, and its sign."""
    bits = hashed(numbers, seed, stream=2)
    places = ((bits >> np.uint64(1)) % np.uint64(height)).astype(np.int64)
    return places, np.where(bits & np.uint64(1), 1.0, -1.0)

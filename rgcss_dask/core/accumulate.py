"""Rows in, sums out: blocks are converted, shifted and multiplied in fixed buffers and added up in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels, triangle
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import flawed_weight, plain
from rgcss_dask.core.precision import ROUNDING, TINY, ULPS, difference, doubt_of_values, faint, resolution
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.triangle import Array, add_outer
from rgcss_dask.runtime.page_pool import empty_sums

# Signed 8-bit products are at most 2**14, so a float32 sum of 1024 of them is at most 2**24: still exact.
EXACT_ROWS = 1024
# Such sums are put into float64 so many at a time, because reading and writing n x n doubles costs as much as they do.
STACK = 4
# A raw 8-bit product is below 2**16, so that up to this weight every float64 sum of them is exact.
EXACT_WEIGHT = 2.0**37
# A mean whose square is so many variances costs the product sum one digit of sixteen: move the shift.
DRIFT = 16.0
# Rows are multiplied as they are only where that costs no more than a bit.
UNSHIFTED = 1.0
EPS_SINGLE = float(np.finfo(np.float32).eps)
# Rows looked at to judge where a block lies and how wide it spreads.
SAMPLE = 64

Numbers = tuple[int, float, Array, Array, Array, Array, bool]  # rows, weight, shift, total, product, rounding, exact
ShiftedSums = tuple[float, Array, Array]  # weight, shift, total


class Accumulator:
    """Sums in the making: blocks of rows are added in place, in one n x n matrix and fixed buffers."""

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        *,
        precision: str = "double",
        threads: int = 1,
        beside: Accumulator | None = None,
    ) -> None:
        """Start with no rows; ``beside`` another accumulator of the same kind of rows, share its buffers.

        ``threads`` divide the tiles of a large matrix among them, with BLAS at one thread each.
        """
        self._work: _Integers | _Floats
        if beside is not None:
            self._work = beside._work
        elif is_exact(dtype):
            self._work = _Integers(n, dtype, threads)
        else:
            self._work = _Floats(n, dtype, precision, threads)
        self._rows = 0
        self._weight = 0.0
        self._shift = np.full(n, self._work.offset)
        self._total = np.zeros(n)
        self._product: Array = empty_sums((n, n))
        self._product.fill(0.0)
        self._rounding = np.zeros(n)  # what of the sums of squares may be rounding

    def add(
        self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None = None, *, also: Sequence[Accumulator] = ()
    ) -> None:
        """Add the rows of a block; a value that is not finite is a `NotFiniteError` that gives its place.

        ``also`` names further accumulators, which get the same rows for an addition instead of a product.
        """
        targets = (self, *also)
        if isinstance(block, SparseRows):
            if isinstance(self._work, _Floats) and block.pays and _add_sparse(block, weights, targets):
                return
            block = np.asarray(block)
        if weights is not None and weights.dtype.kind == "f" and isinstance(self._work, _Integers):
            floats = self._work.as_floats()  # weights with fractions cannot be exact
            for target in targets:
                target._work = floats
        step = self._work.step(len(block))
        for start in range(0, len(block), step):
            piece = block[start : start + step]
            w = None if weights is None else weights[start : start + len(piece)].astype(np.float64)
            try:
                # Whatever is not finite is found, and its place given, by the kernel itself.
                with np.errstate(invalid="ignore", over="ignore"):
                    self._work.add(piece, w, targets)
            except NotFiniteError as error:
                raise NotFiniteError(start + error.row, error.column, error.value) from None
        for target in targets:
            target._rows += len(block)

    def numbers(self) -> Numbers:
        """Hand over what was added; the accumulator must not be used after."""
        if not np.all(np.isfinite(np.diagonal(self._product))):
            column = int(np.flatnonzero(~np.isfinite(np.diagonal(self._product)))[0])
            raise OverflowError(f"the sum of squares of column {column} exceeds the range of {self._work.way_out}.")
        exact = isinstance(self._work, _Integers) and self._weight <= EXACT_WEIGHT
        if not exact and self._weight > 0:
            self._move(self._shift + self._total / self._weight)
            self._rounding += doubt_of_values(self._weight, self._shift, self._work.resolution)
        kernels.mirror(self._product)
        return self._rows, self._weight, self._shift, self._total, self._product, self._rounding, exact

    def _move(self, shift: Array) -> None:
        """Put the sums about another shift: Q about c + d is Q + w d d' - s d' - d s'."""
        d = shift - self._shift
        self._round()
        if d.any():
            add_outer(self._product, [(d, self._weight * d - self._total), (self._total, -d)])
            self._total = self._total - self._weight * d
        self._shift = shift

    def _take(self, weight: float, shift: Array, total: Array) -> None:
        """Count in a block whose products were added about ``shift``."""
        if self._weight == 0:
            self._shift, self._total = shift, total
        elif np.array_equal(shift, self._shift):
            self._total = self._total + total
        else:  # the sums now in the matrix are about two shifts: put both about the common mean
            terms, (_, self._shift, self._total) = common_shift(
                (self._weight, self._shift, self._total), (weight, shift, total)
            )
            self._round()
            add_outer(self._product, terms)
        self._weight += weight

    def _round(self) -> None:
        """Note the rounding of the sums as they are, before what is moved makes them smaller."""
        np.maximum(self._rounding, self._work.rounding * np.diagonal(self._product), out=self._rounding)


class _Integers:
    """Rows of 8-bit integers, as float32 about a constant, in blocks whose products are exact."""

    resolution, rounding = 0.0, ROUNDING  # of sums that have outgrown what is exact
    way_out = "float64; divide the weights by a constant first"

    def __init__(self, n: int, dtype: np.dtype[Any], threads: int) -> None:
        self.offset = 128.0 if dtype == np.uint8 else 0.0
        self._n, self._dtype, self._threads = n, dtype, threads
        count = stacked(n, dtype)
        self._tiles = triangle.Tiles(n, threads) if count == 0 else None
        self._buffer: NDArray[np.float32] = empty_sums((EXACT_ROWS, n), np.float32)
        self._stack: NDArray[np.float32] = empty_sums((count, n, n) if count else (1, 0, 0), np.float32)

    def as_floats(self) -> _Floats:
        """Return what goes on in float64."""
        return _Floats(self._n, self._dtype, "double", self._threads)

    def step(self, rows: int) -> int:
        """Rows to be added at once."""
        return EXACT_ROWS * len(self._stack)

    def add(self, piece: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]) -> None:
        """Add the products of the rows to every target."""
        if weights is None:
            weight, total = float(len(piece)), self._add_blocks(piece, targets)
        else:
            weight, total = float(weights.sum()), self._add_weighted(piece, weights, targets)
        for target in targets:
            target._take(weight, target._shift, total)

    def _add_weighted(self, piece: NDArray[Any], weights: Array, targets: Sequence[Accumulator]) -> Array:
        """Add products times a weight, which outgrow float32, not float64; in the memory of the buffer."""
        wide, weighted = self._buffer.reshape(-1).view(np.float64).reshape(2, -1, self._n)
        total = np.zeros(self._n)
        for start in range(0, len(piece), len(wide)):
            rows = piece[start : start + len(wide)]
            X = np.subtract(rows, self.offset, out=wide[: len(rows)])
            Y = np.multiply(X, weights[start : start + len(rows), None], out=weighted[: len(rows)])
            total += Y.sum(axis=0)
            for target in targets:
                for tile in triangle.lower_tiles(self._n):
                    triangle.add_products(X, target._product, *tile, weighted=Y)
        return total

    def _add_blocks(self, piece: NDArray[Any], targets: Sequence[Accumulator]) -> Array:
        totals = np.zeros((len(self._stack), piece.shape[1]), np.float32)
        used = -(-len(piece) // EXACT_ROWS)
        for i in range(used):
            rows = np.ascontiguousarray(piece[i * EXACT_ROWS : (i + 1) * EXACT_ROWS])
            X = self._buffer[: len(rows)]
            kernels.convert(rows, self.offset, X, totals[i])
            if self._tiles is None:
                np.matmul(X.T, X, out=self._stack[i])
            else:
                self._tiles.add(X, [target._product for target in targets])
        if self._tiles is None:
            for target in targets:
                kernels.add_lower(self._stack[:used], target._product)
        return totals.sum(axis=0, dtype=np.float64)


class _Floats:
    """Rows of any other kind, about a shift near enough to the mean that centring costs no digits.

    That is the shift of the blocks before, at first zero, so that adding needs no move, nor even a copy of the rows,
    unless the data lie elsewhere.
    """

    offset = 0.0

    def __init__(self, n: int, dtype: np.dtype[Any], precision: str, threads: int) -> None:
        check_real(dtype)
        self._rows = block_rows(n, dtype, precision)
        single = is_single(dtype, precision)
        work = np.float32 if single else np.float64
        self.way_out = "float32; use precision='double'" if single else "float64; divide the data by a constant first"
        self.resolution, self.rounding = resolution(dtype), ULPS * float(np.finfo(work).eps)
        self._buffer: NDArray[Any] = empty_sums((self._rows, n), work)
        self._ones: NDArray[Any] = np.ones(self._rows, work)
        self._shift: NDArray[Any] = np.zeros(n, work)  # that of the last block
        self._tiles = triangle.Tiles(n, threads)

    def step(self, rows: int) -> int:
        """Rows to be added at once: pieces of one size, because short ones are slow."""
        return -(-rows // -(-rows // self._rows)) if rows else 1

    def add(self, piece: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]) -> None:
        """Add the products of the rows to every target."""
        weight = float(len(piece) if weights is None else weights.sum())
        if weight == 0:
            return
        X, total = self._shifted(piece, weights)
        if not np.all(np.isfinite(total)):
            raise_not_finite(piece)
        limit = DRIFT if self._shift.any() else UNSHIFTED
        if _has_drifted(X, total / weight, self._shift, limit, None if weights is None else weight):
            # In the buffer's own precision, so that what is subtracted is what is recorded.
            self._shift = (self._shift + total / weight).astype(X.dtype)
            X, total = self._shifted(piece, weights)
        if X.dtype == np.float32 and any(_loses_squares(X, target._product) for target in targets):
            X = X.astype(np.float64)
        self._tiles.add(X, [target._product for target in targets])
        for target in targets:
            target._take(weight, self._shift.astype(np.float64), total)
            low = np.diagonal(target._product) < faint(np.float64)
            if low.any():
                target._rounding[low] += len(X) * TINY * X[:, low].any(axis=0)

    def _shifted(self, piece: NDArray[Any], weights: Array | None) -> tuple[NDArray[Any], Array]:
        """Return the rows less the shift, each times the root of its weight, and their weighted sum.

        In the buffer, or as they are where there is nothing to do.
        """
        X = self._buffer[: len(piece)]
        as_it_is = piece.dtype == X.dtype and piece.flags.c_contiguous and piece.flags.aligned
        X = piece if as_it_is and not self._shift.any() else difference(piece, self._shift, X)
        if weights is None:
            return X, (self._ones[: len(X)] @ X).astype(np.float64)
        total = (weights.astype(X.dtype) @ X).astype(np.float64)
        return np.multiply(X, np.sqrt(weights)[:, None], out=self._buffer[: len(X)], casting="unsafe"), total


def _add_sparse(block: SparseRows, weights: NDArray[Any] | None, targets: Sequence[Accumulator]) -> bool:
    """Add products about zero, unless a column lies so far from it that centring would cost digits."""
    w = np.ones(len(block)) if weights is None else weights.astype(np.float64)
    weight = float(w.sum())
    total, squares = block.sums(w)
    if not np.all(np.isfinite(squares)):
        return False  # the dense way finds the place
    if weight > 0:
        mean = total / weight
        if np.any(mean**2 > DRIFT * np.maximum(squares / weight - mean**2, 0.0)):
            return False
        for target in targets:
            block.add_products(w, target._product)
            target._take(weight, np.zeros(len(total)), total)
    for target in targets:
        target._rows += len(block)
    return True


def _loses_squares(X: NDArray[Any], product: Array) -> bool:
    """Tell whether squares of X are lost in its precision that count beside those already in the product."""
    smallest = faint(X.dtype)
    low = np.diagonal(product) < smallest / EPS_SINGLE
    if not low.any():
        return False
    Y = X[:, low]
    return bool(np.any(Y[:, np.einsum("ij,ij->j", Y, Y) < smallest]))


def _has_drifted(X: NDArray[Any], d: Array, shift: NDArray[Any], limit: float, weight: float | None) -> bool:
    """Tell whether the mean d of the shifted rows is so far from 0 that a product about 0 loses digits.

    With a ``weight``, the sum of the weights, X holds each row times the root of its own.
    """
    rounding = 4 * np.finfo(X.dtype).eps * np.abs(shift)

    def far(rows: NDArray[Any], mean: NDArray[Any], weight: float) -> bool:
        variance = np.einsum("ij,ij->j", rows, rows) / weight - mean**2
        return bool(np.any(d**2 > limit * np.maximum(variance, 0.0) + rounding**2))

    if weight is not None:  # a few rows may be just those that weigh nothing
        return far(X, d, weight)
    # A few rows decide for most blocks. Among many columns some look narrow in a sample by chance, and a sample
    # misses rare values: where the sample says far, all rows are looked at.
    few = X[:: max(1, len(X) // SAMPLE)]
    return far(few, few.mean(axis=0), len(few)) and far(X, d, len(X))


class NotFiniteError(ValueError):
    """A NaN or an infinity where numbers are needed, with its place in the block."""

    def __init__(self, row: int, column: int, value: float, where: str = "", name: str | None = None) -> None:
        place = f"row {row}, column {column}{f' of {where}' if where else ''}"
        called = "" if name is None else f"; the column is called {name!r}"
        fill = ", or nan='mean' (--nan mean) to fill gaps with the means of columns" if np.isnan(value) else ""
        super().__init__(
            f"values must be finite; {place} holds {value}{called}. "
            f"Use nan='drop' (--nan drop) to leave out such rows{fill}."
        )
        self.row, self.column, self.value, self.where, self.name = row, column, value, where, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.value, self.where, self.name)

    def at(self, where: str, names: Sequence[str] | None) -> NotFiniteError:
        """Return the same error with where the rows are, and the name of the column."""
        return NotFiniteError(self.row, self.column, self.value, where, None if names is None else names[self.column])


def is_exact(dtype: np.dtype[Any]) -> bool:
    """Tell whether sums of products are exact integers: those of booleans and of 8-bit integers."""
    return dtype.kind in "biu" and dtype.itemsize == 1


def is_single(dtype: np.dtype[Any], precision: str) -> bool:
    """Tell whether rows are multiplied in single precision because the caller asked for that."""
    return precision == "single" and dtype.kind == "f" and dtype.itemsize <= 4


def block_rows(n: int, dtype: np.dtype[Any], precision: str = "double") -> int:
    """Rows multiplied at once: many enough to hide the addition of an n x n matrix, and no more."""
    short = is_exact(dtype) or is_single(dtype, precision)
    return EXACT_ROWS if short else int(np.clip(2**21 // n, 1024, 2**15))


def stacked(n: int, dtype: np.dtype[Any]) -> int:
    """Whole products kept before they are added up in float64."""
    return STACK if is_exact(dtype) and n <= triangle.TILE else 0


def buffer_bytes(n: int, dtype: np.dtype[Any], precision: str, *, threads: int, shared: bool) -> int:
    """Bytes of the buffers of an accumulator; ``shared`` if several get the same products."""
    short = is_exact(dtype) or is_single(dtype, precision)
    tiles = stacked(n, dtype) or (threads if short or shared else 0)
    return (4 if short else 8) * (tiles * min(n, triangle.TILE) ** 2 + n * block_rows(n, dtype, precision))


def is_whole(value: object) -> bool:
    """Tell whether something is a whole number, of Python or of NumPy; not 2.0, and not True."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse what is not a matrix of real numbers."""
    if dtype.kind not in "biuf":
        raise WrongKindError(f"values must be real numbers (bool, integer or float); got dtype {dtype}.")


def checked_weights(weights: ArrayLike, rows: int) -> NDArray[Any]:
    """Return row weights as an array, or say what is wrong with them."""
    w = plain(weights)
    check_real(w.dtype)
    if w.shape != (rows,):
        raise ValueError(f"weights must have one entry per row; got shape {w.shape} for {rows} rows.")
    if (flaw := flawed_weight(w)) is not None:
        raise ValueError(flaw)
    if rows and not np.any(w > 0):
        raise ValueError("weights must not all be zero; nothing would be left to add up.")
    return w


def raise_not_finite(piece: NDArray[Any]) -> None:
    """Say where a value is not finite, given rows in which a sum is not."""
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad) == 0:
        raise OverflowError("the sum of a column exceeds the range of float64; divide the data by a constant first.")
    row, column = (int(i) for i in bad[0])
    raise NotFiniteError(row, column, float(piece[row, column]))


def common_shift(a: ShiftedSums, b: ShiftedSums, sign: float = 1.0) -> tuple[list[tuple[Array, Array]], ShiftedSums]:
    """Return the outer products that put both product sums about the common mean, and the merged sums.

    Moving a sum Q about c to c + d adds w d d' - s d' - d s'. Chan, Golub and LeVeque (1983) for s = 0.
    """
    (w_a, c_a, s_a), (w_b, c_b, s_b) = a, b
    weight = w_a + sign * w_b
    mean_a, mean_b = c_a + s_a / w_a, c_b + s_b / w_b
    mean = mean_a + (mean_b - mean_a) * (sign * w_b / weight)
    d_a, d_b = mean - c_a, mean - c_b
    terms = [(d_a, w_a * d_a - s_a), (s_a, -d_a), (d_b, sign * (w_b * d_b - s_b)), (s_b, -sign * d_b)]
    return terms, (weight, mean, (s_a - w_a * d_a) + sign * (s_b - w_b * d_b))

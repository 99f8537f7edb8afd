"""Sums of products: blocks of rows are converted, shifted, multiplied in fixed buffers and added in place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels, triangle
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.integers import (
    EXACT_ROWS,
    EXACT_SQUARES,
    PIECE,
    IntegerProducts,
    Range,
    double_rows,
    integer_bytes,
    is_exact,
    is_within,
    may_be_small,
)
from rgcss_dask.core.missing import flawed_weight, plain
from rgcss_dask.core.precision import ROUNDING, TINY, ULPS, difference, doubt_of_values, faint, resolution
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.triangle import Array, add_outer
from rgcss_dask.runtime.page_pool import empty_sums

# If a squared mean is this many times the variance, the sum of products loses one digit of sixteen: move the shift.
DRIFT = 16.0
# Rows are multiplied without a shift only where that costs at most one bit.
UNSHIFTED = 1.0
EPS_SINGLE = float(np.finfo(np.float32).eps)
# Rows sampled to estimate the mean and spread of a block.
SAMPLE = 64

Numbers = tuple[int, float, Array, Array, Array, Array, bool]  # rows, weight, shift, total, product, rounding, exact
ShiftedSums = tuple[float, Array, Array]  # weight, shift, total


class Accumulator:
    """Unfinished sums: blocks of rows are added in place, in one n x n matrix and fixed buffers.

    While all values are small integers, of whatever type, the sums are exact integers about an integer shift.
    """

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        *,
        precision: str = "double",
        threads: int = 1,
        beside: Accumulator | None = None,
    ) -> None:
        """Start without rows; ``beside`` is another accumulator of rows of the same kind, whose buffers are shared.

        ``threads`` threads share the tiles of a large matrix, with BLAS at one thread in each.
        """
        self._work: _Work = _Work(n, dtype, precision, threads) if beside is None else beside._work
        self._rows = 0
        self._weight = 0.0
        self._shift = self._work.offset
        self._total = np.zeros(n)
        self._product: Array = empty_sums((n, n))
        self._product.fill(0.0)
        self._rounding = np.zeros(n)  # bound on the rounding error of the sums of squares
        self._whole = True  # whether sums and shift are integers

    def add(
        self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None = None, *, also: Sequence[Accumulator] = ()
    ) -> None:
        """Add the rows of a block; a value that is not finite raises a `NotFiniteError` with its place.

        The product is computed once and also added to the accumulators in ``also``.
        """
        targets = (self, *also)
        self._work.add(block, weights, targets)
        for target in targets:
            target._rows += len(block)

    @property
    def kernels(self) -> set[str]:
        """Names of the methods that computed the products."""
        return self._work.used

    def numbers(self) -> Numbers:
        """Return the sums; the accumulator must not be used afterwards."""
        if not np.all(np.isfinite(np.diagonal(self._product))):
            column = int(np.flatnonzero(~np.isfinite(np.diagonal(self._product)))[0])
            raise OverflowError(f"the sum of squares of column {column} exceeds the range of {self._work.way_out}.")
        exact = self._whole and is_within(self._weight, self._shift, self._total, np.diagonal(self._product))
        if not exact and self._weight > 0:
            self._move(self._shift + self._total / self._weight)
            self._rounding += doubt_of_values(self._weight, self._shift, self._work.resolution)
        kernels.mirror(self._product)
        return self._rows, self._weight, self._shift, self._total, self._product, self._rounding, exact

    def _move(self, shift: Array, *, rounds: bool = True) -> None:
        """Change the shift: Q about c + d is Q + w d d' - s d' - d s'."""
        d = shift - self._shift
        if rounds:
            self._round()
        if d.any():
            add_outer(self._product, [(d, self._weight * d - self._total), (self._total, -d)])
            self._total = self._total - self._weight * d
        self._shift = shift

    def _to_integers_near_mean(self) -> None:
        """Move the shift to the integers nearest to the mean, where sums are smallest and still integers."""
        if self._weight > 0:
            self._move(np.rint(self._shift + self._total / self._weight), rounds=False)

    def _leave_integers(self) -> None:
        if self._whole:
            self._to_integers_near_mean()
            self._whole = False

    def _stay_exact(self) -> None:
        """Move the shift when sums of squares come near the largest integer that float64 holds exactly."""
        if self._whole and np.any(np.diagonal(self._product) > EXACT_SQUARES / 2):
            self._to_integers_near_mean()

    def _take(self, weight: float, shift: Array, total: Array) -> None:
        """Count a block whose products were added about ``shift``."""
        if weight == 0:
            return
        if self._weight == 0:
            self._shift, self._total = shift, total
        elif np.array_equal(shift, self._shift):
            self._total = self._total + total
        elif self._whole:  # like all blocks before, move the products from one integer shift to another
            d = self._shift - shift
            add_outer(self._product, [(d, weight * d - total), (total, -d)])
            self._total = self._total + (total - weight * d)
        else:  # the matrix now holds sums about two shifts: move both to the common mean
            terms, (_, self._shift, self._total) = common_shift(
                (self._weight, self._shift, self._total), (weight, shift, total)
            )
            self._round()
            add_outer(self._product, terms)
        self._weight += weight

    def _round(self) -> None:
        """Record the rounding error of the sums before a move makes them smaller."""
        np.maximum(self._rounding, self._work.rounding * np.diagonal(self._product), out=self._rounding)


class _Work:
    """The method of multiplication: integer products while all values are small integers, floating point afterwards."""

    def __init__(self, n: int, dtype: np.dtype[Any], precision: str, threads: int) -> None:
        check_real(dtype)
        self._kind = (n, dtype, precision, threads)
        self._integers = IntegerProducts(n, dtype, threads) if may_be_small(dtype) else None
        self._floats = None if self._integers is not None else _Floats(*self._kind)
        self._pool = ThreadPoolExecutor(threads, "rgcss-sparse") if threads > 1 else None  # starts threads when used
        self.offset = np.full(n, 0.0 if self._integers is None else self._integers.offset)
        self.used: set[str] = set()  # names of the methods used

    @property
    def resolution(self) -> float:
        """Spread, as a share of the mean, below which it is rounding of the values."""
        return 0.0 if self._floats is None else self._floats.resolution

    @property
    def rounding(self) -> float:
        """Rounding error of a sum of squares, as a share of it."""
        return ROUNDING if self._floats is None else self._floats.rounding

    @property
    def way_out(self) -> str:
        """The type of the sums that may overflow, and the remedy, for an error message."""
        return "float64; divide the weights by a constant first" if self._floats is None else self._floats.way_out

    def add(
        self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None, targets: Sequence[Accumulator]
    ) -> None:
        """Add the products of the rows to every target."""
        whole = None if self._integers is None else self._integers.range_of(block, weights)
        if whole is None:
            self._leave_integers(targets)
        w = None if weights is None else weights.astype(np.float64)
        if isinstance(block, SparseRows):
            if self._sparse_pays(block, whole) and _add_sparse(block, w, whole is not None, targets, self._pool):
                self.used.add("float64")
                return
            block = np.asarray(block)
        if self._integers is not None and whole is not None:
            self._add_integers(self._integers, block, w, whole, targets)
        elif self._floats is not None:
            self.used.add(self._floats.name)
            self._floats.add(block, w, targets)

    def _leave_integers(self, targets: Sequence[Accumulator]) -> None:
        self._integers = None
        if self._floats is None:
            self._floats = _Floats(*self._kind)
        for target in targets:
            target._leave_integers()

    def _sparse_pays(self, block: SparseRows, whole: Range | None) -> bool:
        faster = 1.0 if self._integers is None or whole is None else self._integers.faster(whole)
        return block.pays(faster)

    def _add_integers(
        self,
        integers: IntegerProducts,
        block: NDArray[Any],
        weights: Array | None,
        whole: Range,
        targets: Sequence[Accumulator],
    ) -> None:
        matrices = [target._product for target in targets]
        for start in range(0, len(block), PIECE):
            piece = block[start : start + PIECE]
            if weights is None:
                weight, total = float(len(piece)), integers.add(piece, whole, matrices)
            else:
                w = weights[start : start + PIECE]
                weight, total = float(w.sum()), integers.add_weighted(piece, w, matrices)
            for target in targets:
                target._take(weight, self.offset, total)
                target._stay_exact()
        self.used.add(integers.name if weights is None else "float64")


class _Floats:
    """Products of rows that are not small integers, about a shift so near the mean that centring loses no digits.

    The shift is that of the previous block, at first zero. Adding a block then needs no move of the sums, and no copy
    of the rows either, unless their mean is too far from the shift.
    """

    def __init__(self, n: int, dtype: np.dtype[Any], precision: str, threads: int) -> None:
        self._rows = block_rows(n, dtype, precision)
        single = is_single(dtype, precision)
        work = np.float32 if single else np.float64
        self.name = np.dtype(work).name
        self.way_out = "float32; use precision='double'" if single else "float64; divide the data by a constant first"
        self.resolution, self.rounding = resolution(dtype), ULPS * float(np.finfo(work).eps)
        self._buffer: NDArray[Any] = empty_sums((self._rows, n), work)
        self._ones: NDArray[Any] = np.ones(self._rows, work)
        self._shift: NDArray[Any] = np.zeros(n, work)  # of the previous block
        self._tiles = triangle.Tiles(n, threads)

    def add(self, block: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]) -> None:
        """Add the products of the rows to every target, in pieces of equal size, because short pieces are slow."""
        rows = len(block)
        step = -(-rows // -(-rows // self._rows)) if rows else 1
        for start in range(0, rows, step):
            try:
                # The kernel itself finds values that are not finite and gives their place.
                with np.errstate(invalid="ignore", over="ignore"):
                    w = None if weights is None else weights[start : start + step]
                    self._add_piece(block[start : start + step], w, targets)
            except NotFiniteError as error:
                raise NotFiniteError(start + error.row, error.column, error.value) from None

    def _add_piece(self, piece: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]) -> None:
        weight = float(len(piece) if weights is None else weights.sum())
        if weight == 0:
            return
        X, total = self._shifted(piece, weights)
        if not np.all(np.isfinite(total)):
            raise_not_finite(piece)
        limit = DRIFT if self._shift.any() else UNSHIFTED
        if _has_drifted(X, total / weight, self._shift, limit, None if weights is None else weight):
            # In the precision of the buffer, so that the recorded shift equals the subtracted one.
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
        """Return the rows less the shift, times the square root of their weights, and their weighted sum.

        The rows are written to the buffer, or returned without a copy if nothing changes them.
        """
        X = self._buffer[: len(piece)]
        as_it_is = piece.dtype == X.dtype and piece.flags.c_contiguous and piece.flags.aligned
        X = piece if as_it_is and not self._shift.any() else difference(piece, self._shift, X)
        if weights is None:
            return X, (self._ones[: len(X)] @ X).astype(np.float64)
        total = (weights.astype(X.dtype) @ X).astype(np.float64)
        return np.multiply(X, np.sqrt(weights)[:, None], out=self._buffer[: len(X)], casting="unsafe"), total


def _add_sparse(
    block: SparseRows, weights: Array | None, whole: bool, targets: Sequence[Accumulator], pool: Executor | None
) -> bool:
    """Add products about zero; return False if a column is so far from zero that centring would lose digits."""
    w = np.ones(len(block)) if weights is None else weights
    weight = float(w.sum())
    total, squares = block.sums(w)
    if not np.all(np.isfinite(squares)):
        return False  # the dense method finds the place
    if weight > 0:
        mean = total / weight
        if not whole and np.any(mean**2 > DRIFT * np.maximum(squares / weight - mean**2, 0.0)):
            return False
        for target in targets:
            block.add_products(w, target._product, pool)
            target._take(weight, np.zeros(len(total)), total)
            target._stay_exact()
    return True


def _loses_squares(X: NDArray[Any], product: Array) -> bool:
    """Tell whether squares underflow in the precision of X that would count beside those already in the product."""
    smallest = faint(X.dtype)
    low = np.diagonal(product) < smallest / EPS_SINGLE
    if not low.any():
        return False
    Y = X[:, low]
    return bool(np.any(Y[:, np.einsum("ij,ij->j", Y, Y) < smallest]))


def _has_drifted(X: NDArray[Any], d: Array, shift: NDArray[Any], limit: float, weight: float | None) -> bool:
    """Tell whether the mean d of the shifted rows is so far from 0 that a product about 0 loses digits.

    If ``weight``, the sum of the weights, is given, each row of X is multiplied by the square root of its own weight.
    """
    rounding = 4 * np.finfo(X.dtype).eps * np.abs(shift)

    def far(rows: NDArray[Any], mean: NDArray[Any], weight: float) -> bool:
        variance = np.einsum("ij,ij->j", rows, rows) / weight - mean**2
        return bool(np.any(d**2 > limit * np.maximum(variance, 0.0) + rounding**2))

    if weight is not None:  # all rows in a sample may have weight 0
        return far(X, d, weight)
    # A sample decides for most blocks. Among many columns some have a small spread in the sample by chance, and a
    # sample misses rare values: if the sample has drifted, all rows are tested.
    few = X[:: max(1, len(X) // SAMPLE)]
    return far(few, few.mean(axis=0), len(few)) and far(X, d, len(X))


class NotFiniteError(ValueError):
    """A NaN or an infinity where numbers are needed, with its place in the block."""

    def __init__(self, row: int, column: int, value: float, where: str = "", name: str | None = None) -> None:
        place = f"row {row}, column {column}{f' of {where}' if where else ''}"
        called = "" if name is None else f"; the column is called {name!r}"
        fill = ", or nan='mean' (--nan mean) to fill gaps (NaN) with the means of columns" if np.isnan(value) else ""
        super().__init__(
            f"values must be finite; {place} holds {value}{called}. "
            f"Use nan='drop' (--nan drop) to leave out such rows{fill}."
        )
        self.row, self.column, self.value, self.where, self.name = row, column, value, where, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.value, self.where, self.name)

    def at(self, where: str, names: Sequence[str] | None) -> NotFiniteError:
        """Return the same error with the address of the rows and the name of the column."""
        return NotFiniteError(self.row, self.column, self.value, where, None if names is None else names[self.column])


def is_single(dtype: np.dtype[Any], precision: str) -> bool:
    """Tell whether rows are multiplied in single precision because the caller asked for it."""
    return precision == "single" and dtype.kind == "f" and dtype.itemsize <= 4


def block_rows(n: int, dtype: np.dtype[Any], precision: str = "double") -> int:
    """Return the number of rows multiplied at once: in single precision few, so that little accuracy is lost."""
    return EXACT_ROWS if is_exact(dtype) or is_single(dtype, precision) else double_rows(n)


def buffer_bytes(n: int, dtype: np.dtype[Any], precision: str, *, threads: int, shared: bool) -> int:
    """Return the bytes of the buffers of an accumulator; ``shared`` if several accumulators get the same products."""
    integers = integer_bytes(n, dtype, threads=threads) if may_be_small(dtype) else 0
    if is_exact(dtype):
        return integers
    single = is_single(dtype, precision)
    tiles = threads if single or shared else 0
    floats = (4 if single else 8) * (tiles * min(n, triangle.TILE) ** 2 + n * block_rows(n, dtype, precision))
    return max(integers, floats)  # never both at once: the buffer for floats is used only after integers were left


def is_whole(value: object) -> bool:
    """Tell whether something is a whole number, of Python or of NumPy; False for 2.0 and for True."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_rows(rows: Any) -> int:
    """Return the number of rows of a sketch, or raise an error with the rule."""
    if not is_whole(rows) or rows < 1:
        raise ValueError(f"a sketch must have a whole number of rows, 1 or more; got {rows!r}.")
    return int(rows)


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse anything but a matrix of real numbers."""
    if dtype.kind not in "biuf":
        raise WrongKindError(f"values must be real numbers (bool, integer or float); got dtype {dtype}.")


def checked_weights(weights: ArrayLike, rows: int) -> NDArray[Any]:
    """Return row weights as an array, or raise an error that states what is wrong with them."""
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
    """Raise the error with the place of a value that is not finite, given rows whose sum is not finite."""
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad) == 0:
        raise OverflowError("the sum of a column exceeds the range of float64; divide the data by a constant first.")
    row, column = (int(i) for i in bad[0])
    raise NotFiniteError(row, column, float(piece[row, column]))


def common_shift(a: ShiftedSums, b: ShiftedSums, sign: float = 1.0) -> tuple[list[tuple[Array, Array]], ShiftedSums]:
    """Return the outer products that move both product sums to the common mean, and the merged sums.

    Moving a sum Q about c to c + d adds w d d' - s d' - d s'. Chan, Golub and LeVeque (1983) for s = 0.
    """
    (w_a, c_a, s_a), (w_b, c_b, s_b) = a, b
    weight = w_a + sign * w_b
    mean_a, mean_b = c_a + s_a / w_a, c_b + s_b / w_b
    mean = mean_a + (mean_b - mean_a) * (sign * w_b / weight)
    d_a, d_b = mean - c_a, mean - c_b
    terms = [(d_a, w_a * d_a - s_a), (s_a, -d_a), (d_b, sign * (w_b * d_b - s_b)), (s_b, -sign * d_b)]
    return terms, (weight, mean, (s_a - w_a * d_a) + sign * (s_b - w_b * d_b))

"""Sums of products: blocks of rows are converted, shifted, multiplied in fixed buffers and added in place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import kernels, triangle
from rgcss_dask.core.floats import DRIFT, FloatProducts, block_rows, is_single
from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.integers import (
    EXACT_SQUARES,
    PIECE,
    IntegerProducts,
    Range,
    integer_bytes,
    is_exact,
    is_within,
    may_be_small,
)
from rgcss_dask.core.precision import ROUNDING, TINY, doubt_of_values, faint
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.triangle import Array, add_outer
from rgcss_dask.runtime.disk_matrices import zero_matrix

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
        self._product: Array = zero_matrix((n, n))
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

    def _doubt_faint(self, X: NDArray[Any]) -> None:
        """Record the rounding error of squares of rows X that may have underflowed."""
        low = np.diagonal(self._product) < faint(np.float64)
        if low.any():
            self._rounding[low] += len(X) * TINY * X[:, low].any(axis=0)

    def _round(self) -> None:
        """Record the rounding error of the sums before a move makes them smaller."""
        np.maximum(self._rounding, self._work.rounding * np.diagonal(self._product), out=self._rounding)


class _Work:
    """The method of multiplication: integer products while all values are small integers, floating point afterwards."""

    def __init__(self, n: int, dtype: np.dtype[Any], precision: str, threads: int) -> None:
        check_real(dtype)
        self._kind = (n, dtype, precision, threads)
        self._integers = IntegerProducts(n, dtype, threads) if may_be_small(dtype) else None
        self._floats = None if self._integers is not None else FloatProducts(*self._kind)
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
            self._add_floats(self._floats, block, w, targets)

    def _leave_integers(self, targets: Sequence[Accumulator]) -> None:
        self._integers = None
        if self._floats is None:
            self._floats = FloatProducts(*self._kind)
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

    def _add_floats(
        self, floats: FloatProducts, block: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]
    ) -> None:
        self.used.add(floats.name)
        # The products themselves find values that are not finite and give their place.
        with np.errstate(invalid="ignore", over="ignore"):
            for X, weight, shift, total in floats.add(block, weights, [target._product for target in targets]):
                for target in targets:
                    target._take(weight, shift, total)
                    target._doubt_faint(X)


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


def buffer_bytes(n: int, dtype: np.dtype[Any], precision: str, *, threads: int, shared: bool) -> int:
    """Return the bytes of the buffers of an accumulator; ``shared`` if several accumulators get the same products."""
    integers = integer_bytes(n, dtype, threads=threads) if may_be_small(dtype) else 0
    if is_exact(dtype):
        return integers
    single = is_single(dtype, precision)
    tiles = threads if single or shared else 0
    floats = (4 if single else 8) * (tiles * min(n, triangle.TILE) ** 2 + n * block_rows(n, dtype, precision))
    return max(integers, floats)  # never both at once: the buffer for floats is used only after integers were left


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

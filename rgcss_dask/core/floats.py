"""Products of rows that are not small integers, about a shift so near the mean that centring loses no digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import triangle
from rgcss_dask.core.input_checks import NotFiniteError, raise_not_finite
from rgcss_dask.core.integers import EXACT_ROWS, double_rows, is_exact
from rgcss_dask.core.precision import ULPS, difference, faint, resolution
from rgcss_dask.core.triangle import Array
from rgcss_dask.runtime.page_pool import empty_sums

# If a squared mean is this many times the variance, the sum of products loses one digit of sixteen: move the shift.
DRIFT = 16.0
# Rows are multiplied without a shift only where that costs at most one bit.
UNSHIFTED = 1.0
EPS_SINGLE = float(np.finfo(np.float32).eps)
# Rows sampled to estimate the mean and spread of a block.
SAMPLE = 64

Piece = tuple[NDArray[Any], float, Array, Array]  # rows less the shift, their weight, the shift, their weighted sum


class FloatProducts:
    """Products of rows, added to matrices about a shift near the mean.

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

    def add(self, block: NDArray[Any], weights: Array | None, matrices: Sequence[Array]) -> Iterator[Piece]:
        """Add the products of the rows to every matrix, and yield each piece once its products are there.

        Pieces are of equal size, because short pieces are slow.
        """
        rows = len(block)
        step = -(-rows // -(-rows // self._rows)) if rows else 1
        for start in range(0, rows, step):
            piece = block[start : start + step]
            w = None if weights is None else weights[start : start + step]
            weight = float(len(piece) if w is None else w.sum())
            if weight == 0:
                continue
            try:
                yield self._added(piece, w, weight, matrices)
            except NotFiniteError as error:
                raise NotFiniteError(start + error.row, error.column, error.value) from None

    def _added(self, piece: NDArray[Any], weights: Array | None, weight: float, matrices: Sequence[Array]) -> Piece:
        X, total = self._shifted(piece, weights)
        if not np.all(np.isfinite(total)):
            raise_not_finite(piece)
        limit = DRIFT if self._shift.any() else UNSHIFTED
        if _has_drifted(X, total / weight, self._shift, limit, None if weights is None else weight):
            rows = piece if weights is not None or self._shift.any() or not _is_plain(piece.dtype) else X
            # In the precision of the buffer, so that the recorded shift equals the subtracted one.
            self._shift = (self._shift + total / weight).astype(X.dtype)
            X, total = self._shifted(rows, weights)
        if X.dtype == np.float32 and any(_loses_squares(X, matrix) for matrix in matrices):
            X = X.astype(np.float64)
        self._tiles.add(X, matrices)
        return X, weight, self._shift.astype(np.float64), total

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


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Tell whether floats are converted without rounding, so that a converted copy replaces them."""
    return dtype.kind == "f" and dtype.itemsize <= 8


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


def is_single(dtype: np.dtype[Any], precision: str) -> bool:
    """Tell whether rows are multiplied in single precision because the caller asked for it."""
    return precision == "single" and dtype.kind == "f" and dtype.itemsize <= 4


def block_rows(n: int, dtype: np.dtype[Any], precision: str = "double") -> int:
    """Return the number of rows multiplied at once: in single precision few, so that little accuracy is lost."""
    return EXACT_ROWS if is_exact(dtype) or is_single(dtype, precision) else double_rows(n)

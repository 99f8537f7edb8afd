"""Exact products of rows of small integers: from their bytes if the processor has instructions for it, or in floats."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.core import kernels, triangle
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.triangle import Array
from rgcss_dask.runtime.integer_products import ByteProducts, byte_products
from rgcss_dask.runtime.page_pool import empty_sums

# Signed 8-bit products are at most 2**14, so a float32 sum of 1024 of them is at most 2**24: still exact.
EXACT_ROWS = 1024
# An 8-bit product is below 2**16, so that float64 sums of them are exact up to this weight.
EXACT_WEIGHT = 2.0**37
# No sum of products is larger than the largest sum of squares; up to here float64 holds every integer.
EXACT_SQUARES = 2.0**53
# Integers up to this size, of either sign, are multiplied exactly, as one or two bytes each.
LARGEST = 2**16 - 1
# Rows added at once: the more, the less often an n x n matrix is read and written. With the largest two-byte values
# 2**15 rows are the limit, because two products of bytes are summed in 32 bits.
PIECE = 4096
# Rows and columns of a tile of the triangle: enough rows for full speed, and little work above the diagonal.
STRIP, STRIP_COLUMNS = 256, 4096
# Bytes that oneDNN takes once for itself, and in each thread for packed data; measured: 16 to 21 MB, below 1 MB.
LIBRARY, PACKED = 20 * 2**20, 2**20
# Speed of products of bytes relative to products of doubles; measured, n = 784 to 4096.
FASTER = 11.0


class Range(NamedTuple):
    """The range of the integers in a block."""

    least: int
    most: int

    @property
    def bytes_each(self) -> int:
        """Bytes needed for every value less the least."""
        return 1 if self.most - self.least < 2**8 else 2

    @property
    def largest(self) -> int:
        """The largest absolute value."""
        return max(-self.least, self.most)

    @property
    def is_small(self) -> bool:
        """Whether two bytes hold every value, and sums of products stay exact over many rows."""
        return 0 <= self.most - self.least <= LARGEST and self.largest <= LARGEST


def is_exact(dtype: np.dtype[Any]) -> bool:
    """Tell whether sums of products are exact for all values of a type: booleans and 8-bit integers."""
    return dtype.kind in "biu" and dtype.itemsize == 1


def may_be_small(dtype: np.dtype[Any]) -> bool:
    """Tell whether values of a type may be small integers, so that they are checked."""
    return dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)


def is_within(weight: float, shift: Array, total: Array, squares: Array) -> bool:
    """Tell whether sums of integers, with squares about the shift and about zero, are within exact float64."""
    about_zero = squares + shift * (2.0 * total + weight * shift)
    return weight <= EXACT_WEIGHT and bool(np.all(np.maximum(squares, about_zero) <= EXACT_SQUARES))


class IntegerProducts:
    """Adds X'X of blocks of small integers about a constant: every method gives the same integers, so the same bits."""

    def __init__(self, n: int, dtype: np.dtype[Any], threads: int) -> None:
        self.offset = 128.0 if dtype == np.uint8 else 0.0
        self._n, self._dtype, self._threads = n, dtype, threads

    @cached_property
    def _way(self) -> _Bytes | _Singles | _Doubles:
        """The method of multiplication, chosen when there are integers to multiply."""
        products = byte_products()
        if products is not None:
            return _Bytes(self._n, self._threads, products)
        return (_Singles if is_exact(self._dtype) else _Doubles)(self._n, self._threads)

    @property
    def name(self) -> str:
        """Name of the method of multiplication."""
        return self._way.name

    def range_of(self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None) -> Range | None:
        """Return the range of the values; None if they are not small integers, or their sums would not be exact."""
        if weights is not None and weights.dtype.kind == "f":
            return None  # sums with fractional weights are not exact
        found = small_range(block)
        if found is None or weights is None or len(weights) == 0:
            return found
        heaviest = np.add.reduceat(weights.astype(np.float64), np.arange(0, len(weights), PIECE)).max()
        return found if heaviest * found.largest**2 <= EXACT_SQUARES / 4 else None

    def faster(self, found: Range) -> float:
        """Return the speed of products of such values relative to products of doubles, about."""
        return FASTER / found.bytes_each**2 if isinstance(self._way, _Bytes) else self._way.faster

    def add(self, piece: NDArray[Any], found: Range, matrices: Sequence[Array]) -> Array:
        """Add the products of at most `PIECE` rows to every matrix, and return the column sums."""
        return self._way.add(np.ascontiguousarray(compilable(piece)), found, self.offset, matrices)

    def add_weighted(self, piece: NDArray[Any], weights: Array, matrices: Sequence[Array]) -> Array:
        """Add weighted products, which need float64."""
        total, step = np.zeros(self._n), EXACT_ROWS // 2
        for start in range(0, len(piece), step):
            X = np.subtract(piece[start : start + step], self.offset, dtype=np.float64, order="C")
            Y = X * weights[start : start + step, None]
            total += Y.sum(axis=0)
            for matrix in matrices:
                for tile in triangle.lower_tiles(self._n):
                    triangle.add_products(X, matrix, *tile, weighted=Y)
        return total


def compilable(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows in a type that compiled loops accept: native byte order, numbers of 32 or 64 bits, or integers."""
    if rows.dtype == np.bool_:
        return rows.view(np.uint8)
    if rows.dtype.kind == "f" and rows.dtype.itemsize > 8:
        return rows.astype(np.float64)
    single = rows.dtype.kind == "f" and rows.dtype.itemsize < 4
    return rows.astype(np.float32 if single else rows.dtype.newbyteorder("="), copy=False)


def small_range(block: NDArray[Any] | SparseRows) -> Range | None:
    """Return the range of a block whose values, of whatever type, are all small integers; None if they are not."""
    if isinstance(block, SparseRows):
        stored = small_range(block.values[None])
        return None if stored is None else Range(min(0, stored.least), max(0, stored.most))
    if block.size == 0:
        return Range(0, 0)
    if block.dtype == np.bool_:
        return Range(0, 1)
    if is_exact(block.dtype):
        return Range(int(np.iinfo(block.dtype).min), int(np.iinfo(block.dtype).max))
    if block.dtype.kind == "f":
        least, most = kernels.whole_range(compilable(block), float(LARGEST))
        found = Range(int(least), int(most))
    else:
        found = Range(int(block.min()), int(block.max()))
    return found if found.is_small else None


class _Bytes:
    """Multiplies bytes by processor instructions: a number is one byte, or a high and a low byte.

    One factor is unsigned, 0 to 255, the other is less 128. The column sums give the correction for the 128.
    """

    def __init__(self, n: int, threads: int, products: ByteProducts) -> None:
        self._n, self._products, self.name = n, products, products.name
        self._strips = [slice(start, min(start + STRIP, n)) for start in range(0, n, STRIP)]
        self._pool = ThreadPoolExecutor(threads, "rgcss-strip") if threads > 1 and len(self._strips) > 1 else None
        self._spare = triangle.Spare(scratch)
        self._planes: list[NDArray[Any]] = [np.empty((0, 0, n), np.uint8), np.empty((0, 0, n), np.int8)]

    def add(self, rows: NDArray[Any], found: Range, offset: float, matrices: Sequence[Array]) -> Array:
        """Add the products of the rows to every matrix, and return the column sums."""
        step = byte_rows(self._n) // found.bytes_each  # keeps the number of bytes constant
        pieces = [rows[start : start + step] for start in range(0, len(rows), step)]
        return np.sum([self._add_piece(piece, found, offset, matrices) for piece in pieces], axis=0)

    def _add_piece(self, rows: NDArray[Any], found: Range, offset: float, matrices: Sequence[Array]) -> Array:
        (m, n), width = rows.shape, found.bytes_each
        U, S, total = self._split(rows, found)
        # With y >= 0 the values less the least, S holds y - half. Move the sums of y (y - half)' to the offset.
        half, e = (128, 32896)[width - 1], offset - found.least
        by_row, by_column = (half - e) * total + m * e * e, -e * total

        def add_strip(strip: slice) -> None:
            height = strip.stop - strip.start
            C = self._spare.take((2 * width - 1, STRIP, min(n, STRIP_COLUMNS)), np.int32)
            for first in range(0, strip.stop, STRIP_COLUMNS):
                columns = slice(first, min(first + STRIP_COLUMNS, strip.stop))
                products = C[:, :height, : columns.stop - first]
                self._multiply(U[:, :, strip], S[:, :, columns], products)
                for matrix in matrices:
                    left = strip.start - first
                    kernels.add_strip(C, by_row[strip], by_column[columns], matrix[strip], first, left)
            self._spare.give(C)

        list(map(add_strip, self._strips) if self._pool is None else self._pool.map(add_strip, self._strips))
        return total - m * e

    def _multiply(self, U: NDArray[np.uint8], S: NDArray[np.int8], C: NDArray[np.int32]) -> None:
        """Multiply low by low; with two bytes also high by high, and both mixed products, summed."""
        self._products.multiply(U[0], S[0], C[0])
        if len(U) > 1:
            self._products.multiply(U[1], S[1], C[1])
            self._products.multiply(U[0], S[1], C[2])
            self._products.multiply(U[1], S[0], C[2], add=True)

    def _split(self, rows: NDArray[Any], found: Range) -> tuple[NDArray[np.uint8], NDArray[np.int8], Array]:
        """Return the bytes, and the bytes less 128, each (1 or 2, rows, n), and the column sums."""
        m, width, total = len(rows), found.bytes_each, np.zeros(rows.shape[1], np.int32)
        if self._planes[0].shape[1] < m or len(self._planes[0]) < width:
            shape = (width, max(m, self._planes[0].shape[1]), rows.shape[1])
            self._planes = [scratch(shape, np.uint8), scratch(shape, np.int8)]
        U, S = (plane[:width, :m] for plane in self._planes)
        if rows.dtype == np.uint8 or rows.dtype == np.bool_:
            kernels.signed_bytes(rows.view(np.uint8), S[0], total)
            U = rows.view(np.uint8)[None]
        elif width == 1:
            kernels.one_byte(rows, found.least, U[0], S[0], total)
        else:
            kernels.two_bytes(rows, found.least, U, S, total)
        return U, S, total.astype(np.float64)


class _Singles:
    """8-bit integers as float32 about a constant, in blocks whose products are exact."""

    name, faster = "float32", 2.0

    def __init__(self, n: int, threads: int) -> None:
        count = PIECE // EXACT_ROWS if n <= triangle.TILE else 0
        self._tiles = triangle.Tiles(n, threads) if count == 0 else None
        self._buffer: NDArray[np.float32] = empty_sums((EXACT_ROWS, n), np.float32)
        # Several products are added to float64 at once: reading and writing n x n doubles costs as much as a product.
        self._stack: NDArray[np.float32] = empty_sums((count, n, n), np.float32)

    def add(self, rows: NDArray[Any], found: Range, offset: float, matrices: Sequence[Array]) -> Array:
        """Add the products of the rows to every matrix, and return the column sums."""
        used = -(-len(rows) // EXACT_ROWS)
        totals = np.zeros((used, rows.shape[1]), np.float32)
        for i in range(used):
            block = rows[i * EXACT_ROWS : (i + 1) * EXACT_ROWS]
            X = self._buffer[: len(block)]
            kernels.convert(block, offset, X, totals[i])
            if self._tiles is None:
                np.matmul(X.T, X, out=self._stack[i])
            else:
                self._tiles.add(X, matrices)
        if self._tiles is None:
            for matrix in matrices:
                kernels.add_lower(self._stack[:used], matrix)
        return totals.sum(axis=0, dtype=np.float64)


class _Doubles:
    """Small integers of any type in float64, in pieces whose products are exact."""

    name, faster = "float64", 1.0

    def __init__(self, n: int, threads: int) -> None:
        self._tiles = triangle.Tiles(n, threads)
        self._buffer: Array = scratch((min(PIECE, double_rows(n)), n), np.float64)

    def add(self, rows: NDArray[Any], found: Range, offset: float, matrices: Sequence[Array]) -> Array:
        """Add the products of the rows to every matrix, and return the column sums."""
        total, step = np.zeros(rows.shape[1]), len(self._buffer)
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            X = np.subtract(block, offset, out=self._buffer[: len(block)], dtype=np.float64)
            self._tiles.add(X, matrices)
            total += X.sum(axis=0)
        return total


def scratch(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array, whose memory is freed once rows are no longer small integers."""
    return np.empty(shape, dtype)


def byte_rows(n: int) -> int:
    """Return the number of rows of single bytes multiplied at once: fewer for more columns."""
    return int(np.clip(2**25 // n, 1024, PIECE))


def double_rows(n: int) -> int:
    """Return the rows multiplied at once in float64: enough to hide the addition of an n x n matrix, and no more."""
    return int(np.clip(2**21 // n, 1024, 2**15))


def integer_bytes(n: int, dtype: np.dtype[Any], *, threads: int) -> int:
    """Return the bytes of the buffers for integers, for the method that needs most: machines may use different ones.

    oneDNN takes `LIBRARY` more, once in a process.
    """
    width, side = 1 if is_exact(dtype) else 2, min(n, triangle.TILE)
    strip = 4 * (2 * width - 1) * STRIP * min(n, STRIP_COLUMNS)
    by_bytes = 2 * byte_rows(n) * n + threads * (PACKED + strip)
    if width == 2:
        return max(by_bytes, 8 * min(PIECE, double_rows(n)) * n)
    products = PIECE // EXACT_ROWS if n <= triangle.TILE else threads
    return max(by_bytes, 4 * (products * side**2 + EXACT_ROWS * n))

"""Compiled loops: each reads its matrices once, without temporary arrays and without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Sums may be reordered for vector instructions. Not "fast": NaN and infinity keep their meaning. (Numba does not notice
# a change of these options: delete its cache, `__pycache__/*.nb*`, after a change.)
_REORDER = {"reassoc", "contract", "nsz", "arcp"}
# Numbers in a cache line. If dimensions are powers of two, longer blocks of a column evict each other.
LINE = 8


def compiled(function: Any, **options: Any) -> Any:
    """Compile a function that releases the GIL; it is cached on disk if there is a folder for it."""
    try:
        return _compile(function, cache=True, **options)
    except RuntimeError:  # no folder for the cache, as in a read-only installation
        return _compile(function, **options)


def compiled_in_order(function: Any) -> Any:
    """Compile a function whose operations keep their order; in another order they might leave the range of float64."""
    return compiled(function, fastmath=False)


def vectorized(function: Any) -> Any:
    """Compile a function of numbers so that it also takes arrays, entry by entry."""
    make: Any = numba.vectorize
    try:
        return make(nopython=True, cache=True)(function.py_func)
    except RuntimeError:
        return make(nopython=True)(function.py_func)


def part_of_compiled(function: Any) -> Any:
    """Compile a function that only compiled functions call: it is cached with them, and Python cannot call it."""
    return _compile(function, no_cpython_wrapper=True)


def copied_into_compiled(function: Any) -> Any:
    """Inline a function into its caller: a large function that is called once compiles faster this way."""
    return _compile(function, inline="always")


def _compile(function: Any, **options: Any) -> Any:
    compiler: Any = numba.njit
    return compiler(**{"nogil": True, "fastmath": _REORDER, "no_cfunc_wrapper": True, **options})(function)


@compiled
def add_sparse_products(
    indptr: NDArray[Any], indices: NDArray[Any], data: Array, weights: Array, product: Array
) -> None:
    """Add w x x' to the lower triangle for each row x of a CSR block with sorted indices."""
    for r in range(len(indptr) - 1):
        for a in range(indptr[r], indptr[r + 1]):
            v = weights[r] * data[a]
            row = product[indices[a]]
            for b in range(indptr[r], a + 1):
                row[indices[b]] += v * data[b]


@compiled
def add_sparse_tile(
    starts: NDArray[Any],
    i: int,
    j: int,
    indices: NDArray[Any],
    data: Array,
    weights: Array,
    product: Array,
) -> None:
    """Add the same products for one tile: ``starts[r, i]`` is the index at which strip i begins in row r."""
    for r in range(len(starts)):
        first, last = starts[r, j], starts[r, j + 1]
        if first == last:
            continue
        for a in range(starts[r, i], starts[r, i + 1]):
            v = weights[r] * data[a]
            row = product[indices[a]]
            for b in range(first, min(last, a + 1)):
                row[indices[b]] += v * data[b]


@compiled
def strip_starts(indptr: NDArray[Any], indices: NDArray[Any], width: int, starts: NDArray[np.int64]) -> None:
    """Find the index at which each strip of columns begins in each row of a CSR block with sorted indices."""
    strips = starts.shape[1] - 1
    for r in range(len(starts)):
        a = indptr[r]
        for i in range(strips):
            while a < indptr[r + 1] and indices[a] < i * width:
                a += 1
            starts[r, i] = a
        starts[r, strips] = indptr[r + 1]


@compiled
def add_rows_of_sparse_products(
    indptr: NDArray[Any], indices: NDArray[Any], data: Array, weights: Array, place: NDArray[np.int64], product: Array
) -> None:
    """Add w x_i x' to row ``place[i]`` for each stored value x_i of each row x of a CSR block, if ``place[i]`` >= 0."""
    for r in range(len(indptr) - 1):
        for a in range(indptr[r], indptr[r + 1]):
            to = place[indices[a]]
            if to >= 0:
                v = weights[r] * data[a]
                row = product[to]
                for b in range(indptr[r], indptr[r + 1]):
                    row[indices[b]] += v * data[b]


@compiled
def weighted_column_sums(rows: NDArray[Any], weights: Array, total: Array, squares: Array) -> None:
    """Add the weighted column sums, and the weighted sums of squares, in float64."""
    for i in range(rows.shape[0]):
        row, w = rows[i], weights[i]
        for j in range(row.size):
            value = np.float64(row[j])
            total[j] += w * value
            squares[j] += w * value * value


@compiled
def convert(integers: NDArray[Any], offset: float, out: NDArray[np.float32], total: NDArray[np.float32]) -> None:
    """Write the integers less ``offset`` to ``out``, and add the column sums to ``total``."""
    shift = np.float32(offset)
    for i in range(integers.shape[0]):
        row, x = integers[i], out[i]
        for j in range(row.size):
            value = np.float32(row[j]) - shift
            x[j] = value
            total[j] += value


@compiled
def signed_bytes(rows: NDArray[np.uint8], signed: NDArray[np.int8], total: NDArray[np.int32]) -> None:
    """Write bytes less 128 to ``signed``, and add the column sums of the bytes to ``total``."""
    for i in range(rows.shape[0]):
        row, s = rows[i], signed[i]
        for j in range(row.size):
            s[j] = np.int8(row[j] ^ np.uint8(128))
            total[j] += np.int32(row[j])


@compiled
def one_byte(
    rows: NDArray[Any], least: int, plain: NDArray[np.uint8], signed: NDArray[np.int8], total: NDArray[np.int32]
) -> None:
    """Write values less the least to ``plain``, the same less 128 to ``signed``, and add the sums to ``total``."""
    for i in range(rows.shape[0]):
        row, u, s = rows[i], plain[i], signed[i]
        for j in range(row.size):
            y = np.int32(row[j]) - np.int32(least)
            u[j] = np.uint8(y)
            s[j] = np.int8(y - 128)
            total[j] += y


@compiled
def two_bytes(
    rows: NDArray[Any], least: int, plain: NDArray[np.uint8], signed: NDArray[np.int8], total: NDArray[np.int32]
) -> None:
    """Do the same as `one_byte` with two bytes for each value, low bytes first: outputs are (2, rows, n)."""
    for i in range(rows.shape[0]):
        row, low, high, signed_low, signed_high = rows[i], plain[0, i], plain[1, i], signed[0, i], signed[1, i]
        for j in range(row.size):
            y = np.int32(row[j]) - np.int32(least)
            low[j], high[j] = np.uint8(y & 255), np.uint8(y >> 8)
            signed_low[j], signed_high[j] = np.int8((y & 255) - 128), np.int8((y >> 8) - 128)
            total[j] += y


@compiled
def add_strip(
    products: NDArray[np.int32], by_row: Array, by_column: Array, strip: Array, first: int, left: int
) -> None:
    """Add products of bytes and two vectors to rows of a lower triangle, from column ``first`` to the diagonal.

    ``left`` is the column of the diagonal in the first row, counted from ``first``. ``products`` holds the products of
    low bytes and, for two bytes, high by high and the sum of both mixed products.
    """
    for i in range(by_row.size):
        row, low, u = strip[i, first:], products[0, i], by_row[i]
        stop = min(left + i + 1, by_column.size)
        if len(products) == 1:
            for j in range(stop):
                row[j] += low[j] + (u + by_column[j])
        else:
            high, mixed = products[1, i], products[2, i]
            for j in range(stop):
                row[j] += (65536.0 * high[j] + (256.0 * mixed[j] + low[j])) + (u + by_column[j])


@compiled_in_order
def whole_range(block: NDArray[Any], largest: float) -> tuple[float, float]:
    """Return the least and the largest value if all are integers of at most ``largest`` in size, otherwise (1, 0)."""
    least, most = block[0, 0], block[0, 0]
    for i in range(block.shape[0]):
        row, whole = block[i], True
        for j in range(row.size):
            x = row[j]
            least, most = min(least, x), max(most, x)
            whole &= np.trunc(x) == x
        if not (whole and least >= -largest and most <= largest):
            return 1.0, 0.0
    return float(least), float(most)


@compiled
def add_lower(stack: NDArray[np.float32], product: Array) -> None:
    """Add the matrices of a stack to the lower triangle of ``product``, which is read and written only once."""
    for i in range(len(product)):
        row = product[i]
        for k in range(len(stack)):
            x = stack[k, i]
            for j in range(i + 1):
                row[j] += x[j]


@compiled
def mirror(G: Array) -> None:
    """Copy the lower triangle to the upper one, in blocks as wide as a cache line, which fit in the first cache."""
    n = len(G)
    for a in range(0, n, LINE):
        for b in range(0, a + LINE, 32):
            for j in range(b, min(b + 32, n)):
                for i in range(max(a, j + 1), min(a + LINE, n)):
                    G[j, i] = G[i, j]


@compiled
def factor_picks(G: Array, lams: Array, doubt: float, hidden: float, L: Array, kept: NDArray[np.intp]) -> int:
    """Write the factor of G + lams without the picks whose remainder is rounding; return how many are kept, and which.

    The remainder of a pick is rounding if it is at most ``doubt`` times the squared norms of the pick and of what it is
    mixed of, or ``hidden`` times its own.
    """
    past, W = 0, np.empty(len(G))
    for t in range(len(G)):
        y, squares, norm = L[past], 0.0, max(G[t, t], 0.0)
        for j in range(past):
            row, dot = L[j], 0.0
            for i in range(j):
                dot += row[i] * y[i]
            W[j] = y[j] = (G[kept[j], t] - dot) / row[j]
            squares += y[j] * y[j]
        mixed = norm
        for j in range(past - 1, -1, -1):
            W[j] /= L[j, j]
            row, before, wj = L[j, :j], W[:j], W[j]
            for i in range(j):
                before[i] -= wj * row[i]
            mixed += wj * wj * max(G[kept[j], kept[j]], 0.0)
        left = G[t, t] - squares
        if left > min(doubt * mixed, hidden * norm):
            L[past, past], kept[past] = np.sqrt(lams[t] + left), t
            past += 1
    return past


@compiled_in_order
def add_second_differences(X: NDArray[Any], count: Array, squares: Array) -> None:
    """Add the squares of x[i-1] - 2 x[i] + x[i+1] of each column, and the number of those without a gap."""
    for i in range(1, len(X) - 1):
        before, here, after = X[i - 1], X[i], X[i + 1]
        for j in range(len(here)):
            d = float(before[j]) - 2.0 * float(here[j]) + float(after[j])
            if abs(d) < np.inf:
                count[j] += 1.0
                squares[j] += d * d

"""Compiled loops of a sketch: rows are added with signs to the rows of the sketch, and to the column sums.

Rows are taken in an order in which those of one sketch row follow each other, four at a time, so that the sketch and
the sums are read and written seldom: reading and writing them takes longer than the additions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.kernels import compiled, part_of_compiled

Array = NDArray[np.float64]
Bytes = NDArray[Any]
Signed = NDArray[np.int16]

# Columns of a tile: the sums of a tile stay in the second-level cache, and pieces of rows are long.
_TILE = 2**12


@compiled
def in_order(places: NDArray[np.int64], height: int) -> NDArray[np.int64]:
    """Return an order in which rows of one sketch row follow each other, in their own order."""
    starts, order = np.zeros(height + 1, np.int64), np.empty(len(places), np.int64)
    for place in places:
        starts[place + 1] += 1
    for place in range(height):
        starts[place + 1] += starts[place]
    for i, place in enumerate(places):
        order[starts[place]] = i
        starts[place] += 1
    return order


@compiled
def add_signed_rows(
    rows: NDArray[Any],
    order: NDArray[np.int64],
    shift: Array,
    places: NDArray[np.int64],
    roots: Array,
    weights: Array,
    product: Array,
    total: Array,
    squares: Array,
) -> None:
    """Add each row less the shift, times its signed root, to its sketch row, and the weighted column sums and squares.

    ``order`` puts rows of one sketch row after another.
    """
    count, n = len(order), rows.shape[1]
    for first in range(0, n, _TILE):
        last = min(first + _TILE, n)
        # Slices start at index 0: an index that is a sum might be negative, which would prevent vector instructions.
        about, sums, of_squares = shift[first:last], total[first:last], squares[first:last]
        for t in range(0, count - count % 4, 4):
            a, b, c, d = order[t], order[t + 1], order[t + 2], order[t + 3]
            A, B, C, D = rows[a][first:last], rows[b][first:last], rows[c][first:last], rows[d][first:last]
            w = weights[a], weights[b], weights[c], weights[d]
            _add_sums(w, A, B, C, D, about, sums, of_squares)
            if places[a] == places[d]:
                r = roots[a], roots[b], roots[c], roots[d]
                _add_four(product[places[a]][first:last], r, A, B, C, D, about)
                continue
            _add_pair(product, places[a], places[b], roots[a], roots[b], A, B, about, first)
            _add_pair(product, places[c], places[d], roots[c], roots[d], C, D, about, first)
        for t in range(count - count % 4, count):
            a = order[t]
            A, w1 = rows[a][first:last], weights[a]
            _add_row(product[places[a]][first:last], roots[a], A, about)
            for j in range(A.size):
                x = np.float64(A[j]) - about[j]
                sums[j] += w1 * x
                of_squares[j] += w1 * x * x


@part_of_compiled
def _add_four(
    to: Array,
    r: tuple[float, float, float, float],
    A: NDArray[Any],
    B: NDArray[Any],
    C: NDArray[Any],
    D: NDArray[Any],
    about: Array,
) -> None:
    """Add four rows to one sketch row."""
    ra, rb, rc, rd = r
    for j in range(A.size):
        xa, xb = np.float64(A[j]) - about[j], np.float64(B[j]) - about[j]
        xc, xd = np.float64(C[j]) - about[j], np.float64(D[j]) - about[j]
        to[j] += (ra * xa + rb * xb) + (rc * xc + rd * xd)


@part_of_compiled
def _add_sums(
    w: tuple[float, float, float, float],
    A: NDArray[Any],
    B: NDArray[Any],
    C: NDArray[Any],
    D: NDArray[Any],
    about: Array,
    sums: Array,
    of_squares: Array,
) -> None:
    """Add four rows to the sums."""
    wa, wb, wc, wd = w
    for j in range(A.size):
        xa, xb = np.float64(A[j]) - about[j], np.float64(B[j]) - about[j]
        xc, xd = np.float64(C[j]) - about[j], np.float64(D[j]) - about[j]
        sums[j] += (wa * xa + wb * xb) + (wc * xc + wd * xd)
        of_squares[j] += (wa * xa * xa + wb * xb * xb) + (wc * xc * xc + wd * xd * xd)


@part_of_compiled
def _add_pair(
    product: Array,
    a: int,
    b: int,
    ra: float,
    rb: float,
    A: NDArray[Any],
    B: NDArray[Any],
    about: Array,
    first: int,
) -> None:
    """Add two rows to one sketch row or to two."""
    if a != b:
        _add_row(product[a][first : first + A.size], ra, A, about)
        _add_row(product[b][first : first + A.size], rb, B, about)
        return
    to = product[a][first : first + A.size]
    for j in range(A.size):
        to[j] += ra * (np.float64(A[j]) - about[j]) + rb * (np.float64(B[j]) - about[j])


@part_of_compiled
def _add_row(to: Array, root: float, row: NDArray[Any], about: Array) -> None:
    for j in range(row.size):
        to[j] += root * (np.float64(row[j]) - about[j])


@compiled
def add_signed_bytes(
    rows: Bytes,
    order: NDArray[np.int64],
    offset: np.int16,
    places: NDArray[np.int64],
    signs: Signed,
    product: Signed,
    total: NDArray[np.int32],
    squares: NDArray[np.int32],
) -> None:
    """Do the same as `add_signed_rows` in 16 bits, for 8-bit integers less ``offset``, which are -128 to 127.

    ``squares`` get x (x + 1): the sum of four of these fits 16 bits, while four squares of -128 do not. At most 255
    rows may belong to one of the sketch rows, and 2^17 in all.
    """
    count, n = len(order), rows.shape[1]
    for first in range(0, n, _TILE):
        last = min(first + _TILE, n)
        sums, of_squares = total[first:last], squares[first:last]
        for t in range(0, count - count % 4, 4):
            a, b, c, d = order[t], order[t + 1], order[t + 2], order[t + 3]
            A, B, C, D = rows[a][first:last], rows[b][first:last], rows[c][first:last], rows[d][first:last]
            _add_sums_of_bytes(A, B, C, D, offset, sums, of_squares)
            if places[a] == places[d]:
                s = signs[a], signs[b], signs[c], signs[d]
                _add_four_bytes(product[places[a]][first:last], s, A, B, C, D, offset)
                continue
            _add_pair_of_bytes(product, places[a], places[b], signs[a], signs[b], A, B, offset, first)
            _add_pair_of_bytes(product, places[c], places[d], signs[c], signs[d], C, D, offset, first)
        for t in range(count - count % 4, count):
            a = order[t]
            A = rows[a][first:last]
            _add_row_of_bytes(product[places[a]][first:last], signs[a], A, offset)
            for j in range(A.size):
                x = np.int32(A[j]) - np.int32(offset)
                sums[j] += x
                of_squares[j] += x * (x + np.int32(1))


# Each operation on bytes is cast, because otherwise it would be done in 64 bits.
@part_of_compiled
def _add_four_bytes(
    to: Signed,
    s: tuple[np.int16, np.int16, np.int16, np.int16],
    A: Bytes,
    B: Bytes,
    C: Bytes,
    D: Bytes,
    offset: np.int16,
) -> None:
    """Add four rows of bytes to one sketch row."""
    sa, sb, sc, sd = s
    for j in range(A.size):
        xa, xb = np.int16(np.int16(A[j]) - offset), np.int16(np.int16(B[j]) - offset)
        xc, xd = np.int16(np.int16(C[j]) - offset), np.int16(np.int16(D[j]) - offset)
        first, second = np.int16(np.int16(sa * xa) + np.int16(sb * xb)), np.int16(np.int16(sc * xc) + np.int16(sd * xd))
        to[j] = np.int16(to[j] + np.int16(first + second))


@part_of_compiled
def _add_sums_of_bytes(
    A: Bytes, B: Bytes, C: Bytes, D: Bytes, offset: np.int16, sums: NDArray[np.int32], of_squares: NDArray[np.int32]
) -> None:
    """Add four rows of bytes to the sums."""
    one = np.int16(1)
    for j in range(A.size):
        xa, xb = np.int16(np.int16(A[j]) - offset), np.int16(np.int16(B[j]) - offset)
        xc, xd = np.int16(np.int16(C[j]) - offset), np.int16(np.int16(D[j]) - offset)
        ya, yb = np.uint16(np.int16(xa * np.int16(xa + one))), np.uint16(np.int16(xb * np.int16(xb + one)))
        yc, yd = np.uint16(np.int16(xc * np.int16(xc + one))), np.uint16(np.int16(xd * np.int16(xd + one)))
        sums[j] += np.int32(np.int16(xa + xb + xc + xd))
        of_squares[j] += np.int32(np.uint16(ya + yb + yc + yd))


@part_of_compiled
def _add_pair_of_bytes(
    product: Signed,
    a: int,
    b: int,
    sa: np.int16,
    sb: np.int16,
    A: Bytes,
    B: Bytes,
    offset: np.int16,
    first: int,
) -> None:
    """Add two rows of bytes to one sketch row or to two."""
    if a != b:
        _add_row_of_bytes(product[a][first : first + A.size], sa, A, offset)
        _add_row_of_bytes(product[b][first : first + A.size], sb, B, offset)
        return
    to = product[a][first : first + A.size]
    for j in range(A.size):
        xa, xb = np.int16(np.int16(A[j]) - offset), np.int16(np.int16(B[j]) - offset)
        to[j] = np.int16(to[j] + np.int16(np.int16(sa * xa) + np.int16(sb * xb)))


@part_of_compiled
def _add_row_of_bytes(to: Signed, sign: np.int16, row: Bytes, offset: np.int16) -> None:
    for j in range(row.size):
        to[j] = np.int16(to[j] + np.int16(sign * np.int16(np.int16(row[j]) - offset)))


@compiled
def take_over(short: Signed, product: Array) -> None:
    """Add sums in 16 bits to those in float64, and set them to zero."""
    for i in range(short.shape[0]):
        row, to = short[i], product[i]
        for j in range(row.size):
            to[j] += np.float64(row[j])
            row[j] = np.int16(0)


@compiled
def combine(mine: Array, my_ones: Array, d: Array, others: Array, their_ones: Array, e: Array, sign: float) -> None:
    """Move two sketches by d and e, and add the second one, times the sign, to the first one: one visit to each.

    The ones are the sketch of a column of ones.
    """
    for i in range(mine.shape[0]):
        row, other, one, another = mine[i], others[i], my_ones[i], their_ones[i]
        for j in range(row.size):
            row[j] = (row[j] - one * d[j]) + sign * (other[j] - another * e[j])


@compiled
def add_signed_sparse(
    indptr: NDArray[Any],
    indices: NDArray[Any],
    data: NDArray[Any],
    order: NDArray[np.int64],
    places: NDArray[np.int64],
    roots: Array,
    weights: Array,
    product: Array,
    sums: Array,
) -> None:
    """Do the same as `add_signed_rows` with the stored values of a CSR block, about zero; ``sums`` is (n, 2)."""
    for i in order:
        to, root, w = product[places[i]], roots[i], weights[i]
        for a in range(indptr[i], indptr[i + 1]):
            j, value = np.uint64(indices[a]), np.float64(data[a])
            to[j] += root * value
            sums[j, 0] += w * value
            sums[j, 1] += w * value * value

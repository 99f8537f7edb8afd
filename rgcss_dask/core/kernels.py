"""The loops that are compiled: each reads its matrices once, without temporaries and without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Sums may be reordered into vector lanes. Not "fast": NaN and infinity keep their meaning. (Numba does not see that
# these options have changed: remove what it has kept, `__pycache__/*.nb*`, when you change them.)
_REORDER = {"reassoc", "contract", "nsz", "arcp"}
# Gains closer than the first share are one gain, and no two that differ by more than the second.
_TIES = 1e-12, 1e-6
# Rounding is mostly this share of the floor, which it must not exceed.
_MOSTLY = 0.25
# Numbers in a cache line. With powers of two as dimensions, longer blocks of a column evict each other.
LINE = 8


def compiled(function: Any) -> Any:
    """Compile a function that holds no GIL; kept on disk where there is a folder for it."""
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # no folder to cache in, as in a read-only installation
        return _compile(function)


def part_of_compiled(function: Any) -> Any:
    """Compile a function that only compiled ones call: it is kept with those, and Python cannot call it."""
    return _compile(function, no_cpython_wrapper=True)


def copied_into_compiled(function: Any) -> Any:
    """Copy a function into the one that calls it: what is large and called once takes less time to compile so."""
    return _compile(function, inline="always")


def _compile(function: Any, **options: Any) -> Any:
    compiler: Any = numba.njit
    return compiler(nogil=True, fastmath=_REORDER, no_cfunc_wrapper=True, **options)(function)


@part_of_compiled
def _certain(gain: float, left: float, rounding: float) -> float:
    """Return what is certain of a gain, given what is left of its column and the rounding in that."""
    return gain - abs(gain) * min(rounding / left, 1.0) if left > 0.0 else gain


@compiled
def best_gain(
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
    floor: Array,
    candidate: NDArray[np.bool_],
    lam: float,
    own_error_leaves: bool,
    loss: float,
    rounding: float,
    gain: Array,
) -> int:
    """Score every candidate by how much the loss falls if it is picked next, and return the best.

    An exhausted column gains nothing, one of which little is left no more than rounding in G leaves certain, and none
    more than the loss: where any pick would explain all that is left, noise must not choose. Of gains that ``rounding``
    cannot tell from the best, the lowest index wins.
    """
    best = -np.inf
    for i in range(len(gain)):
        if not candidate[i]:
            gain[i] = -np.inf
        elif diag_h[i] <= floor[i]:
            gain[i] = 0.0
        else:
            alpha = lam + diag_h[i]
            share = lam / alpha
            gain[i] = 2.0 * rho[i] / alpha - diag_r[i] / alpha * (eta[i] / alpha)
            if own_error_leaves:
                gain[i] += diag_r[i] * share * share
            if not abs(gain[i]) < np.inf:  # so small a column that alpha^2 is 0
                gain[i] = 0.0
        best = max(best, _certain(min(gain[i], loss), diag_h[i], _MOSTLY * floor[i]))
    tie = min(max(rounding, _TIES[0] * abs(best)), _TIES[1] * abs(best))
    for i in range(len(gain)):
        if candidate[i] and _certain(min(gain[i], loss), diag_h[i], _MOSTLY * floor[i]) >= best - tie:
            return i
    return -1


@compiled
def tile_sums(
    G: Array,
    C: Array,
    D: Array,
    lam: float,
    mask: Array,
    top: int,
    left: int,
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
) -> None:
    """Add one tile of H = G - C and R = H - lam D, with its first entry at (top, left) of G, to the sums.

    A tile right of the diagonal stands below it too, so half of the matrix is enough.
    """
    rows, cols = C.shape
    mirrored = left != top
    counts, eta_left, rho_left = mask[left : left + cols], eta[left : left + cols], rho[left : left + cols]
    for i in range(rows):
        row = top + i
        m = mask[row] if mirrored else 0.0
        g, c, d = G[row, left : left + cols], C[i], D[i]
        e = p = 0.0
        for j in range(cols):
            h = g[j] - c[j]
            r = h - lam * d[j]
            e += counts[j] * h * h
            p += counts[j] * h * r
            eta_left[j] += m * h * h
            rho_left[j] += m * h * r
        eta[row] += e
        rho[row] += p
        if not mirrored:
            diag_h[row] = g[i] - c[i]
            diag_r[row] = diag_h[row] - lam * d[i]


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
def convert(integers: NDArray[Any], offset: float, out: NDArray[np.float32], total: NDArray[np.float32]) -> None:
    """Put the integers less ``offset`` into ``out``, and add the sums of the columns to ``total``."""
    shift = np.float32(offset)
    for i in range(integers.shape[0]):
        row, x = integers[i], out[i]
        for j in range(row.size):
            value = np.float32(row[j]) - shift
            x[j] = value
            total[j] += value


@compiled
def add_lower(stack: NDArray[np.float32], product: Array) -> None:
    """Add the matrices of a stack to the lower triangle of ``product``, which is read and written once."""
    for i in range(len(product)):
        row = product[i]
        for k in range(len(stack)):
            x = stack[k, i]
            for j in range(i + 1):
                row[j] += x[j]


@compiled
def mirror(G: Array) -> None:
    """Copy the lower triangle to the upper one, in blocks a cache line wide, of which the first cache holds enough."""
    n = len(G)
    for a in range(0, n, LINE):
        for b in range(0, a + LINE, 32):
            for j in range(b, min(b + 32, n)):
                for i in range(max(a, j + 1), min(a + LINE, n)):
                    G[j, i] = G[i, j]


@compiled
def row_squares(G: Array, out: Array, start: int, stop: int) -> None:
    """Put the squared norm of rows start to stop of G into ``out``."""
    for i in range(start, stop):
        e = 0.0
        for j in range(G.shape[1]):
            e += G[i, j] * G[i, j]
        out[i] = e


@compiled
def flaws(G: Array, roots: Array, start: int, stop: int) -> tuple[float, float]:
    """Return what no Gram has, for rows start to stop: how far entries differ from their mirror image at most.

    And how far one exceeds the norms of its two columns, the ``roots`` of the diagonal. The first is not finite if any
    entry is not. In blocks as those of `mirror`.
    """
    worst = finite = excess = 0.0
    n = len(G)
    for a in range(start, stop, 32):
        for b in range(a // LINE * LINE, n, LINE):
            for i in range(a, min(a + 32, stop)):
                for j in range(b, min(b + LINE, n)):
                    gap = abs(G[i, j] - G[j, i])
                    worst = max(worst, gap)
                    finite += 0.0 * gap
                    excess = max(excess, abs(G[i, j]) - roots[i] * roots[j])
    return worst + finite, excess

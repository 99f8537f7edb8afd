"""The loops that are compiled: each reads its matrices once, without temporaries and without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Sums may be reordered into vector lanes. Not "fast": NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz", "arcp"}


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, fastmath=_REORDER, cache=True)(function)
    except RuntimeError:  # no folder to cache in, as in a read-only installation
        return numba.njit(nogil=True, fastmath=_REORDER)(function)


@_compiled
def multiply_pair(G: Array, X: Array, out: Array, start: int, stop: int) -> None:
    """Put X G into ``out`` for rows start to stop of the lower triangle of G only, and their mirror image.

    Each entry of the triangle is read once and used four times, for both rows of X and both of its places: half of G is
    all that passes through memory. ``start`` and ``stop`` are multiples of four, but for the end of the matrix.
    """
    x, y, ox, oy = X[0], X[1], out[0], out[1]
    for i in range(stop):
        ox[i] = oy[i] = 0.0
    whole = stop - (stop - start) % 4
    for i in range(start, whole, 4):
        g0, g1, g2, g3 = G[i], G[i + 1], G[i + 2], G[i + 3]
        x0, x1, x2, x3 = x[i], x[i + 1], x[i + 2], x[i + 3]
        y0, y1, y2, y3 = y[i], y[i + 1], y[i + 2], y[i + 3]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
        for j in range(i):
            p, q, r, s = g0[j], g1[j], g2[j], g3[j]
            a0 += p * x[j]
            b0 += p * y[j]
            a1 += q * x[j]
            b1 += q * y[j]
            a2 += r * x[j]
            b2 += r * y[j]
            a3 += s * x[j]
            b3 += s * y[j]
            ox[j] += p * x0 + q * x1 + r * x2 + s * x3
            oy[j] += p * y0 + q * y1 + r * y2 + s * y3
        for j in range(i, i + 4):
            a0 += g0[j] * x[j]
            b0 += g0[j] * y[j]
            a1 += g1[j] * x[j]
            b1 += g1[j] * y[j]
            a2 += g2[j] * x[j]
            b2 += g2[j] * y[j]
            a3 += g3[j] * x[j]
            b3 += g3[j] * y[j]
        ox[i], ox[i + 1], ox[i + 2], ox[i + 3] = a0, a1, a2, a3
        oy[i], oy[i + 1], oy[i + 2], oy[i + 3] = b0, b1, b2, b3
    for i in range(whole, stop):
        a0 = b0 = 0.0
        for j in range(i):
            a0 += G[i, j] * x[j]
            b0 += G[i, j] * y[j]
            ox[j] += G[i, j] * x[i]
            oy[j] += G[i, j] * y[i]
        ox[i], oy[i] = a0 + G[i, i] * x[i], b0 + G[i, i] * y[i]


@_compiled
def multiply_pair_by_factor(F: Array, X: Array, out: Array, start: int, stop: int) -> None:
    """Put X F'F into ``out`` for rows start to stop of F only: each row is read once and used twice."""
    n = F.shape[1]
    out[:, :] = 0.0
    for i in range(start, stop):
        f = F[i]
        a = b = 0.0
        for j in range(n):
            a += f[j] * X[0, j]
            b += f[j] * X[1, j]
        for j in range(n):
            out[0, j] += a * f[j]
            out[1, j] += b * f[j]


@_compiled
def residual_column(
    g: Array,
    U: Array,
    V: Array,
    t: int,
    on_u: Array,
    on_r: Array,
    mask: Array,
    skip: int,
    h: Array,
    r: Array,
    masked: Array,
    dots: Array,
    squares: Array,
) -> None:
    """Take column w of H and of R from column w of G and the factors (n, k) of the past picks.

    ``t`` is their number rounded up to whole vectors: the factors beyond the last pick are zero.

    ``on_u[j]`` is alpha_j u_j[w] and ``on_r[j]`` is r_j[w]. On the same reading of the factors, with x and y the
    entries of h and r that count (``mask``, and not ``skip``): ``masked`` becomes x and y, ``squares`` x'x and x'y,
    and the rows of ``dots`` u_j'x, u_j'y and v_j'x.
    """
    hh = hr = 0.0
    ux, uy, vx = dots[0], dots[1], dots[2]
    for j in range(t):
        ux[j] = uy[j] = vx[j] = 0.0
    for i in range(len(g)):
        u, v = U[i], V[i]
        a = b = c = 0.0
        for j in range(t):
            a += on_u[j] * u[j]
            b += on_r[j] * u[j]
            c += on_u[j] * v[j]
        h[i], r[i] = g[i] - a, g[i] - (b + c)
        m = 0.0 if i == skip else mask[i]
        x, y = m * h[i], m * r[i]
        masked[0, i], masked[1, i] = x, y
        hh += x * x
        hr += x * y
        if m != 0.0:
            for j in range(t):
                ux[j] += u[j] * x
                uy[j] += u[j] * y
                vx[j] += v[j] * x
    squares[0], squares[1] = hh, hr


@_compiled
def update_scores(
    U: Array,
    V: Array,
    t: int,
    pick: int,
    alpha: Array,
    own: Array,
    dropped: float,
    dots: Array,
    h: Array,
    r: Array,
    squares: Array,
    Gx: Array,
    Gy: Array,
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
) -> None:
    """Put a pick's vectors u and v into the factors, and bring eta, rho and both diagonals up to date for it.

    ``t`` counts the picks before it, rounded up as in `residual_column`; ``Gx`` and ``Gy`` are G times the masked h
    and r; ``own[j]`` is r_j[w_j]; ``dropped`` is 1 if the picked column no longer counts in the sums, else 0;
    ``dots`` and ``squares`` are those of `residual_column`. All in one reading of the factors.
    """
    hh, hr = squares[0], squares[1]
    p, q = alpha[:t] * dots[0, :t], alpha[:t] * dots[1, :t]
    s = alpha[:t] * dots[2, :t] + own[:t] * dots[0, :t]
    for i in range(len(h)):
        uj, vj = U[i], V[i]
        a = b = c = d = 0.0
        for j in range(t):
            a += p[j] * uj[j]
            b += q[j] * uj[j]
            c += s[j] * uj[j]
            d += p[j] * vj[j]
        Hh, Hr, Rh = Gx[i] - a, Gy[i] - b, Gx[i] - (c + d)
        u = h[i] / alpha[pick]
        v = (r[i] - own[pick] * u) / alpha[pick]
        eta[i] += u * (u * hh - 2.0 * Hh) - dropped * h[i] * h[i]
        rho[i] += u * (u * hr + v * hh - Hr - Rh) - v * Hh - dropped * h[i] * r[i]
        diag_h[i] -= u * h[i]
        diag_r[i] -= u * r[i] + v * h[i]
        uj[pick], vj[pick] = u, v


@_compiled
def best_gain(
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
    floor: Array,
    candidate: NDArray[np.bool_],
    lam: float,
    own_error_leaves: bool,
    tie: float,
    gain: Array,
) -> int:
    """Score every candidate by how much the loss falls if it is picked next, and return the best.

    An exhausted column gains nothing. Of gains within ``tie`` of the best, relatively, the lowest index wins.
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
        best = max(best, gain[i])
    for i in range(len(gain)):
        if candidate[i] and gain[i] >= best - tie * abs(best):
            return i
    return -1


@_compiled
def widen(room: Array, n: int, width: int, wider: int) -> None:
    """Turn n rows of ``width`` into rows of ``wider``, zero where they are new, in place: the last is moved first."""
    for i in range(n - 1, -1, -1):
        for j in range(width - 1, -1, -1):
            room[i * wider + j] = room[i * width + j]
        for j in range(width, wider):
            room[i * wider + j] = 0.0


@_compiled
def tile_sums(
    G: Array, C: Array, D: Array, mask: Array, top: int, left: int, eta: Array, rho: Array, diag_h: Array, diag_r: Array
) -> None:
    """Add one tile of H = G - C and R = H - D, with its first entry at (top, left), to the sums.

    A tile right of the diagonal stands below it too, so half of the matrix is enough.
    """
    rows, cols = C.shape
    mirrored = left != top
    for i in range(rows):
        row = top + i
        m = mask[row]
        e = p = 0.0
        for j in range(cols):
            h = G[i, j] - C[i, j]
            r = h - D[i, j]
            e += mask[left + j] * h * h
            p += mask[left + j] * h * r
        if mirrored and m != 0.0:
            for j in range(cols):
                h = G[i, j] - C[i, j]
                r = h - D[i, j]
                eta[left + j] += h * h
                rho[left + j] += h * r
        eta[row] += e
        rho[row] += p
        if not mirrored:
            diag_h[row] = G[i, i] - C[i, i]
            diag_r[row] = diag_h[row] - D[i, i]


@_compiled
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


@_compiled
def convert(integers: NDArray[Any], offset: float, out: NDArray[np.float32], total: NDArray[np.float32]) -> None:
    """Put the integers less ``offset`` into ``out``, and add the sums of the columns to ``total``."""
    shift = np.float32(offset)
    for i in range(integers.shape[0]):
        row, x = integers[i], out[i]
        for j in range(row.size):
            value = np.float32(row[j]) - shift
            x[j] = value
            total[j] += value


@_compiled
def add_lower(stack: NDArray[np.float32], product: Array) -> None:
    """Add the matrices of a stack to the lower triangle of ``product``, which is read and written once."""
    for i in range(len(product)):
        row = product[i]
        for k in range(len(stack)):
            x = stack[k, i]
            for j in range(i + 1):
                row[j] += x[j]


@_compiled
def mirror(G: Array) -> None:
    """Copy the lower triangle to the upper one, in blocks that fit the first cache."""
    n = len(G)
    for a in range(0, n, 32):
        for b in range(0, a + 1, 32):
            for i in range(a, min(a + 32, n)):
                for j in range(b, min(b + 32, i)):
                    G[j, i] = G[i, j]


@_compiled
def row_squares(G: Array, out: Array, start: int, stop: int) -> None:
    """Put the squared norm of rows start to stop of G into ``out``."""
    for i in range(start, stop):
        e = 0.0
        for j in range(G.shape[1]):
            e += G[i, j] * G[i, j]
        out[i] = e


@_compiled
def asymmetry(G: Array) -> float:
    """Return the largest difference between an entry and its mirror image; not finite if any entry is not.

    In blocks that fit the first cache.
    """
    worst = finite = 0.0
    n = len(G)
    for a in range(0, n, 32):
        for b in range(a, n, 32):
            for i in range(a, min(a + 32, n)):
                for j in range(b, min(b + 32, n)):
                    gap = abs(G[i, j] - G[j, i])
                    worst = max(worst, gap)
                    finite += 0.0 * gap
    return worst + finite

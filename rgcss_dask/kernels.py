"""The loops that are compiled: each reads its matrices once, without temporaries and without the GIL."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Sums may be reordered into vector lanes. Not "fast": NaN and infinity keep their meaning.
_REORDER = {"reassoc", "contract", "nsz", "arcp"}
# Columns of the factors worked on at once: h and r stay in the first cache over all past picks.
_STRIP = 1024


def _compiled(function: Any) -> Any:
    try:
        return numba.njit(nogil=True, fastmath=_REORDER, cache=True)(function)
    except RuntimeError:  # no folder to cache in, as in a read-only installation
        return numba.njit(nogil=True, fastmath=_REORDER)(function)


@_compiled
def multiply_pair(G: Array, X: Array, out: Array, start: int, stop: int) -> None:
    """Put G X' into ``out`` for rows start to stop of G and the two rows of X, reading G once.

    Four rows at a time; the last four overlap, so that every row is added up in the same order and equal rows of
    G give equal results to the last bit.
    """
    n = G.shape[1]
    x, y = X[0], X[1]
    i = start
    while i + 4 <= stop or (i < stop and stop - start >= 4):
        i = min(i, stop - 4)
        g0, g1, g2, g3 = G[i], G[i + 1], G[i + 2], G[i + 3]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
        for j in range(n):
            xj, yj = x[j], y[j]
            a0 += g0[j] * xj
            b0 += g0[j] * yj
            a1 += g1[j] * xj
            b1 += g1[j] * yj
            a2 += g2[j] * xj
            b2 += g2[j] * yj
            a3 += g3[j] * xj
            b3 += g3[j] * yj
        out[0, i], out[0, i + 1], out[0, i + 2], out[0, i + 3] = a0, a1, a2, a3
        out[1, i], out[1, i + 1], out[1, i + 2], out[1, i + 3] = b0, b1, b2, b3
        i += 4
    while i < stop:
        a0 = b0 = 0.0
        for j in range(n):
            a0 += G[i, j] * x[j]
            b0 += G[i, j] * y[j]
        out[0, i], out[1, i] = a0, b0
        i += 1


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
    g: Array, U: Array, V: Array, t: int, on_u: Array, on_r: Array, h: Array, r: Array
) -> None:
    """Take column w of H and of R from column w of G and the factors of the t past picks.

    ``on_u[j]`` is alpha_j u_j[w] and ``on_r[j]`` is r_j[w].
    """
    n = len(g)
    for lo in range(0, n, _STRIP):
        hi = min(lo + _STRIP, n)
        for i in range(lo, hi):
            h[i] = g[i]
            r[i] = g[i]
        for j in range(t):
            a, b = on_u[j], on_r[j]
            for i in range(lo, hi):
                u = U[j, i]
                h[i] -= a * u
                r[i] -= b * u + a * V[j, i]


@_compiled
def factor_dots(U: Array, V: Array, t: int, x: Array, y: Array, dots: Array) -> None:
    """Put u_j'x, u_j'y and v_j'x of the t past picks into the rows of ``dots``."""
    n = len(x)
    for j in range(t):
        ux = uy = vx = 0.0
        for i in range(n):
            ux += U[j, i] * x[i]
            uy += U[j, i] * y[i]
            vx += V[j, i] * x[i]
        dots[0, j], dots[1, j], dots[2, j] = ux, uy, vx


@_compiled
def update_scores(
    U: Array,
    V: Array,
    t: int,
    alpha: Array,
    own: Array,
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
    """Bring eta, rho and both diagonals up to date for pick t, whose u and v are already in the factors.

    ``Gx`` and ``Gy`` are G times the masked h and r and become H h and H r; ``own[j]`` is r_j[w_j]; ``squares`` holds
    h'h and h'r over the masked entries.
    """
    n = len(h)
    Rx = np.empty(min(n, _STRIP))
    u, v = U[t], V[t]
    hh, hr = squares[0], squares[1]
    for lo in range(0, n, _STRIP):
        hi = min(lo + _STRIP, n)
        for i in range(lo, hi):
            Rx[i - lo] = Gx[i]
        for j in range(t):
            p, q = alpha[j] * dots[0, j], alpha[j] * dots[1, j]
            s = alpha[j] * dots[2, j] + own[j] * dots[0, j]
            for i in range(lo, hi):
                uj = U[j, i]
                Gx[i] -= p * uj
                Gy[i] -= q * uj
                Rx[i - lo] -= s * uj + p * V[j, i]
        for i in range(lo, hi):
            Hh, Hr, Rh = Gx[i], Gy[i], Rx[i - lo]
            eta[i] += u[i] * (u[i] * hh - 2.0 * Hh)
            rho[i] += u[i] * (u[i] * hr + v[i] * hh - Hr - Rh) - v[i] * Hh
            diag_h[i] -= u[i] * h[i]
            diag_r[i] -= u[i] * r[i] + v[i] * h[i]


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
    gain: Array,
) -> None:
    """Score every candidate: how much the loss falls if it is picked next; an exhausted column gains nothing."""
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


@_compiled
def tile_sums(
    G: Array,
    C: Array,
    D: Array,
    mask: Array,
    start: int,
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
) -> None:
    """Add one band of H = G - C and R = H - D to the sums; only columns from ``start`` on are given.

    What lies right of the band's square stands below it too, so half of the matrix is enough.
    """
    rows, cols = C.shape
    for i in range(rows):
        row = start + i
        e = p = 0.0
        for j in range(rows):
            h = G[i, j] - C[i, j]
            r = h - D[i, j]
            e += mask[start + j] * h * h
            p += mask[start + j] * h * r
        m = mask[row]
        for j in range(rows, cols):
            h = G[i, j] - C[i, j]
            r = h - D[i, j]
            e += mask[start + j] * h * h
            p += mask[start + j] * h * r
            eta[start + j] += m * h * h
            rho[start + j] += m * h * r
        eta[row] += e
        rho[row] += p
        diag_h[row] = G[i, i] - C[i, i]
        diag_r[row] = diag_h[row] - D[i, i]

"""The compiled loops of the solver: gains, updates after a pick, products with half of G, refreshes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.kernels import (
    LINE,
    compiled,
    compiled_in_order,
    copied_into_compiled,
    part_of_compiled,
    vectorized,
)

Array = NDArray[np.float64]

# Rows of G multiplied at once.
ROWS = 6
# Columns of the factors processed at once, so that they stay in the innermost cache.
PIECE = 512
# Gains that differ by less than the first share are tied; gains that differ by more than the second are not.
_TIES = 1e-12, 1e-6
# Rounding is usually below this share of the floor, its limit.
_MOSTLY = 0.25


@compiled_in_order
def gain(eta: float, rho: float, h: float, r: float, lam: float, leaving: float) -> float:
    """Return the decrease of the loss if a column is picked next; h and r are its diagonal entries of H and R.

    With alpha = lam + h that is 2 rho / alpha - r eta / alpha^2, and the column's own error after it is picked,
    r (lam / alpha)^2, as far as that leaves the loss.
    """
    alpha = lam + h
    share = lam / alpha
    return 2.0 * rho / alpha - r / alpha * (eta / alpha) + leaving * r * (share * share)


gains = vectorized(gain)


@part_of_compiled
def _certain(gain: float, left: float, rounding: float) -> float:
    """Return the certain part of a gain, given the remainder of its column and the rounding in it."""
    return gain - abs(gain) * min(rounding / left, 1.0) if left > 0.0 else gain


@compiled
def best_gain(
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
    lams: Array,
    leaving: Array,
    floor: Array,
    candidate: NDArray[np.bool_],
    worth: Array,
    loss: float,
    rounding: float,
    found: Array,
) -> int:
    """Write the gain of every candidate to ``found``, and return the candidate with the best gain times worth.

    An exhausted column gains nothing; for a column with a small remainder only the certain part of the gain counts; no
    gain exceeds the loss, so that noise does not decide where any pick would explain the rest. Among gains that differ
    by at most ``rounding`` from the best, the lowest index wins.
    """
    best = -np.inf
    for i in range(len(found)):
        if not candidate[i]:
            found[i] = -np.inf
        elif diag_h[i] <= floor[i]:
            found[i] = 0.0
        else:
            found[i] = gain(eta[i], rho[i], diag_h[i], diag_r[i], lams[i], leaving[i])
            if not abs(found[i]) < np.inf:  # the column is so small that alpha^2 is 0
                found[i] = 0.0
        best = max(best, worth[i] * _certain(min(found[i], loss), diag_h[i], _MOSTLY * floor[i]))
    tie = min(max(rounding, _TIES[0] * abs(best)), _TIES[1] * abs(best))
    for i in range(len(found)):
        if candidate[i] and worth[i] * _certain(min(found[i], loss), diag_h[i], _MOSTLY * floor[i]) >= best - tie:
            return i
    return -1


@compiled
def residual_column(
    found: Array, w: int, leaving: float, counts: Array, L: Array, own: Array, Y: Array, weights: Array
) -> tuple[float, float]:
    """Write h and r, columns w of H and R, to ``found``, and x and y, their entries that count once w is picked.

    The first row of ``found`` is column w of G before. ``weights`` get those of the factors in h and in r, and those of
    the picks as if lam were 0. Return x'h and x'r.
    """
    # Unpacked in one go, the rows would not be known to be contiguous.
    h, r, x, y = found[0], found[1], found[2], found[3]
    weights[0] = Y[:, w]
    mix(L, weights[0], own, weights[1], weights[2])
    r[:] = h
    subtract_factors(weights, Y, found)
    for j in range(len(h)):
        x[j] = counts[j] * h[j]
        y[j] = counts[j] * r[j]
    x[w] -= leaving * h[w]
    y[w] -= leaving * r[w]
    xx = xy = 0.0
    for j in range(len(h)):
        xx += x[j] * h[j]
        xy += x[j] * r[j]
    return xx, xy


@compiled
def pick(
    found: Array,
    w: int,
    lam: float,
    leaving: float,
    xx: float,
    xy: float,
    products: Array,
    L: Array,
    own: Array,
    Y: Array,
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
    factor: Array,
) -> None:
    """Update the terms of the gains for a pick w, given its columns h and r, and the ``products`` of x and y with G.

    H becomes H - h h'/alpha, and R becomes R - (r h' + h r')/alpha + (r_w/alpha^2) h h'. With u = h/alpha and
    v = (r - r_w u)/alpha that takes u h' from H and u r' + v h' from R; eta and rho follow from H x and H y + R x, and
    from x'h and x'r. What leaves the loss is the row w of H.
    """
    h, r, x, y = found[0], found[1], found[2], found[3]
    weights = np.empty((3, len(Y)))
    factor_products(x, y, Y, weights)
    mix(L, weights[0], own, weights[2], np.empty(len(Y)))
    weights[1] += weights[2]
    Hx, HyRx = products[0], products[1]
    HyRx += Hx
    subtract_factors(weights, Y, products)
    alpha = lam + h[w]
    root, rw = np.sqrt(alpha), r[w]
    for i in range(len(h)):
        u = h[i] / alpha
        v = (r[i] - rw * u) / alpha
        eta[i] += u * (u * xx - 2.0 * Hx[i]) - leaving * h[i] * h[i]
        rho[i] += u * (u * xy + v * xx - HyRx[i]) - v * Hx[i] - leaving * h[i] * r[i]
        diag_h[i] -= u * h[i]
        diag_r[i] -= u * r[i] + v * h[i]
        factor[i] = h[i] / root


@part_of_compiled
def mix(L: Array, y: Array, lams: Array, of_r: Array, W: Array) -> None:
    """Write L^-T y to ``W`` and y + L^-1 lam L^-T y to ``of_r``, which takes the place of y in R.

    ``lams`` are the lambdas of the picks. L L' is at least the diagonal matrix of these lambdas, so the solves do not
    amplify errors.
    """
    t = len(y)
    for j in range(t):
        W[j] = y[j]
    for j in range(t - 1, -1, -1):
        W[j] /= L[j, j]
        row, before, wj = L[j, :j], W[:j], W[j]
        for i in range(j):
            before[i] -= wj * row[i]
    for j in range(t):
        row, before, dot = L[j, :j], of_r[:j], 0.0
        for i in range(j):
            dot += row[i] * before[i]
        of_r[j] = (lams[j] * W[j] - dot) / L[j, j]
    for j in range(t):
        of_r[j] += y[j]


@part_of_compiled
def factor_products(x: Array, y: Array, Y: Array, out: Array) -> None:
    """Write Y x and Y y to ``out``, reading Y once; BLAS would copy Y first, which is slower."""
    for i in range(len(Y)):
        row, a, b = Y[i], 0.0, 0.0
        for j in range(len(row)):
            a += x[j] * row[j]
            b += y[j] * row[j]
        out[0, i], out[1, i] = a, b


@part_of_compiled
def subtract_factors(W: Array, Y: Array, out: Array) -> None:
    """Subtract W Y from ``out`` for the first two rows of both, four rows of Y at once."""
    whole = len(Y) - len(Y) % 4
    for first in range(0, Y.shape[1], PIECE):
        last = min(first + PIECE, Y.shape[1])
        x, y = out[0, first:last], out[1, first:last]
        for i in range(0, whole, 4):
            a, b, c, d = Y[i, first:last], Y[i + 1, first:last], Y[i + 2, first:last], Y[i + 3, first:last]
            p, q, r, s = W[0, i], W[0, i + 1], W[0, i + 2], W[0, i + 3]
            e, f, g, h = W[1, i], W[1, i + 1], W[1, i + 2], W[1, i + 3]
            for j in range(len(x)):
                x[j] -= p * a[j] + q * b[j] + r * c[j] + s * d[j]
                y[j] -= e * a[j] + f * b[j] + g * c[j] + h * d[j]
        for i in range(whole, len(Y)):
            a, p, e = Y[i, first:last], W[0, i], W[1, i]
            for j in range(len(x)):
                x[j] -= p * a[j]
                y[j] -= e * a[j]


@compiled
def multiply_triangle(G: Array, X: Array, out: Array, start: int, stop: int) -> None:
    """Write the contribution of rows start to stop of the lower triangle of G, with their mirror image, to X G.

    Each entry of the triangle is read once and used in both of its places, for any even number of vectors, so only half
    of G passes through memory. Entries of ``out`` from ``stop`` on are not changed.
    """
    for c in range(len(X)):
        of = out[c]
        for j in range(stop):
            of[j] = 0.0
    whole = stop - (stop - start) % ROWS
    for i in range(start, whole, ROWS):
        for c in range(0, len(X), 2):
            _multiply_rows(G, X[c], X[c + 1], out[c], out[c + 1], i)
    for i in range(whole, stop):
        for c in range(0, len(X), 2):
            _multiply_row(G[i], X[c], X[c + 1], out[c], out[c + 1], i)


@copied_into_compiled
def _multiply_rows(G: Array, x: Array, y: Array, ox: Array, oy: Array, i: int) -> None:
    """Multiply six rows at once: the most arithmetic per entry read that fits into the registers."""
    g0, g1, g2, g3, g4, g5 = G[i], G[i + 1], G[i + 2], G[i + 3], G[i + 4], G[i + 5]
    x0, x1, x2, x3, x4, x5 = x[i], x[i + 1], x[i + 2], x[i + 3], x[i + 4], x[i + 5]
    y0, y1, y2, y3, y4, y5 = y[i], y[i + 1], y[i + 2], y[i + 3], y[i + 4], y[i + 5]
    a0 = a1 = a2 = a3 = a4 = a5 = b0 = b1 = b2 = b3 = b4 = b5 = 0.0
    for j in range(i):
        p, q, r, s, t, u, xj, yj = g0[j], g1[j], g2[j], g3[j], g4[j], g5[j], x[j], y[j]
        a0, a1, a2, a3, a4, a5 = a0 + p * xj, a1 + q * xj, a2 + r * xj, a3 + s * xj, a4 + t * xj, a5 + u * xj
        b0, b1, b2, b3, b4, b5 = b0 + p * yj, b1 + q * yj, b2 + r * yj, b3 + s * yj, b4 + t * yj, b5 + u * yj
        ox[j] += p * x0 + q * x1 + r * x2 + s * x3 + t * x4 + u * x5
        oy[j] += p * y0 + q * y1 + r * y2 + s * y3 + t * y4 + u * y5
    for j in range(i, i + 6):  # the block on the diagonal is its own mirror image
        p, q, r, s, t, u, xj, yj = g0[j], g1[j], g2[j], g3[j], g4[j], g5[j], x[j], y[j]
        a0, a1, a2, a3, a4, a5 = a0 + p * xj, a1 + q * xj, a2 + r * xj, a3 + s * xj, a4 + t * xj, a5 + u * xj
        b0, b1, b2, b3, b4, b5 = b0 + p * yj, b1 + q * yj, b2 + r * yj, b3 + s * yj, b4 + t * yj, b5 + u * yj
    ox[i], ox[i + 1], ox[i + 2], ox[i + 3], ox[i + 4], ox[i + 5] = a0, a1, a2, a3, a4, a5
    oy[i], oy[i + 1], oy[i + 2], oy[i + 3], oy[i + 4], oy[i + 5] = b0, b1, b2, b3, b4, b5


@part_of_compiled
def _multiply_row(g: Array, x: Array, y: Array, ox: Array, oy: Array, i: int) -> None:
    a = b = 0.0
    for j in range(i):
        a += g[j] * x[j]
        b += g[j] * y[j]
        ox[j] += g[j] * x[i]
        oy[j] += g[j] * y[i]
    ox[i], oy[i] = a + g[i] * x[i], b + g[i] * y[i]


@compiled
def tile_sums(
    G: Array,
    C: Array,
    D: Array,
    mask: Array,
    top: int,
    left: int,
    eta: Array,
    rho: Array,
    diag_h: Array,
    diag_r: Array,
) -> None:
    """Add one tile of H = G - C and R = H - D, with its first entry at (top, left) of G, to the sums.

    A tile right of the diagonal also counts for its mirror image, so half of the matrix is enough.
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
            r = h - d[j]
            e += counts[j] * h * h
            p += counts[j] * h * r
            eta_left[j] += m * h * h
            rho_left[j] += m * h * r
        eta[row] += e
        rho[row] += p
        if not mirrored:
            diag_h[row] = g[i] - c[i]
            diag_r[row] = diag_h[row] - d[i]


@compiled
def row_squares(G: Array, counts: Array, out: Array, start: int, stop: int) -> None:
    """Write the weighted squared norms of rows start to stop of G to ``out``."""
    for i in range(start, stop):
        e = 0.0
        for j in range(G.shape[1]):
            e += counts[j] * G[i, j] * G[i, j]
        out[i] = e


@compiled
def flaws(G: Array, roots: Array, start: int, stop: int) -> tuple[float, float]:
    """Return two measures that are 0 for a Gram, for rows start to stop: the largest asymmetry, and the largest excess.

    The excess is that of an entry over the norms of its two columns, the ``roots`` of the diagonal. The first measure
    is not finite if an entry is not. Entries are visited in blocks as in `mirror`.
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

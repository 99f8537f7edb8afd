"""The compiled loops of the exact search: levels of the search tree, bounds for further picks, the best pair.

With M = I - C (C'C + diag lam)^-1 C' of the picks so far, H = A'MA and R = A'M^2 A; D holds the weights of the columns.
A level of the search keeps H and R for its candidates against all columns, and E = HDH and P = HDR among candidates.
Each entry follows from the entries of the level before in a few operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.kernels import compiled, part_of_compiled

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# A column counts as linearly dependent on the picks if its remainder is at most this share.
NOTHING = 1e-10
# Rounding errors of eigenvalues of nearly dependent columns, amplified by 1 over their remainder.
_ROUNDING = 1e-15
# Bounds are recomputed after this fraction of the candidates: one in eight.
_SHARE = 8


@compiled
def pick(
    H: Array, R: Array, E: Array, P: Array, counts: Array, d: int, w: int, C: Index, lam: Array, drops: bool, tiny: bool
) -> None:
    """Fill level d + 1 with the state after picking w at level d, for the candidates C."""
    n = H.shape[2]
    Hd, Rd, Ed, Pd, Hn, Rn, En, Pn = H[d], R[d], E[d], P[d], H[d + 1], R[d + 1], E[d + 1], P[d + 1]
    h, r, own, alpha = Hd[w], Rd[w], Rd[w, w], lam[w] + Hd[w, w]
    counts[d + 1] = counts[d]
    gone = counts[d, w] if drops else 0.0
    counts[d + 1, w] -= gone
    u, v = np.zeros(n), np.zeros(n)
    if not tiny:
        for j in range(n):
            u[j] = h[j] / alpha
            v[j] = (r[j] - own * u[j]) / alpha
    e_w, p_w = Ed[w, w] - gone * h[w] * h[w], Pd[w, w] - gone * h[w] * r[w]
    for i in C:
        for j in range(n):
            Hn[i, j] = Hd[i, j] - u[i] * h[j]
            Rn[i, j] = Rd[i, j] - r[i] * u[j] - h[i] * v[j]
        e_i, p_i = Ed[i, w] - gone * h[i] * h[w], Pd[i, w] - gone * h[i] * r[w]
        for j in C:
            e_j, p_j = Ed[w, j] - gone * h[w] * h[j], Pd[w, j] - gone * h[w] * r[j]
            En[i, j] = Ed[i, j] - gone * h[i] * h[j] - e_i * u[j] - u[i] * e_j + u[i] * u[j] * e_w
            Pn[i, j] = Pd[i, j] - gone * h[i] * r[j] - p_i * u[j] - e_i * v[j] - u[i] * p_j
            Pn[i, j] += u[i] * (p_w * u[j] + e_w * v[j])


@part_of_compiled
def _single(H: Array, R: Array, E: Array, P: Array, i: int, lam: Array, leaving: Array, floor: Array) -> float:
    """Return the gain of one pick."""
    if H[i, i] <= floor[i]:
        return 0.0
    a = 1.0 / (lam[i] + H[i, i])
    return 2.0 * P[i, i] * a - R[i, i] * E[i, i] * a * a + leaving[i] * R[i, i] * (lam[i] * a) ** 2


@compiled
def gain_of(H: Array, R: Array, E: Array, P: Array, i: int, lam: Array, leaving: Array, floor: Array) -> float:
    """Return the gain of one pick."""
    return _single(H, R, E, P, i, lam, leaving, floor)


@part_of_compiled
def _pair(H: Array, R: Array, E: Array, P: Array, i: int, j: int, lam: Array, leaving: Array, floor: Array) -> float:
    """Return the gain of two picks: 2 tr K^-1 P - tr K^-1 E K^-1 R, and their own error that leaves the loss."""
    one, other = H[i, i] > floor[i], H[j, j] > floor[j]
    a, b, c = lam[i] + H[i, i], lam[j] + H[j, j], H[i, j]
    # The remainder of the second after the first, and of the first after the second.
    if not (one and other) or b - c * c / a <= lam[j] + floor[j] or a - c * c / b <= lam[i] + floor[i]:
        first = _single(H, R, E, P, i, lam, leaving, floor)
        second = _single(H, R, E, P, j, lam, leaving, floor)
        return max(first, second)
    det = a * b - c * c
    x, y, z = b / det, a / det, -c / det  # K^-1
    gain = 2.0 * (x * P[i, i] + y * P[j, j] + z * (P[i, j] + P[j, i]))
    # K^-1 R K^-1
    s, t, m = R[i, i], R[j, j], R[i, j]
    p, q = x * s + z * m, x * m + z * t
    f, g = z * s + y * m, z * m + y * t
    xx, xy, yy = p * x + q * z, p * z + q * y, f * z + g * y
    gain -= xx * E[i, i] + yy * E[j, j] + 2.0 * xy * E[i, j]
    return gain + leaving[i] * lam[i] ** 2 * xx + leaving[j] * lam[j] ** 2 * yy


@compiled
def best_end(
    H: Array, R: Array, E: Array, P: Array, C: Index, more: int, lam: Array, leaving: Array, floor: Array, end: Index
) -> float:
    """Return the largest gain of one or two more picks among C, and write the picks to ``end``."""
    best = -np.inf
    for a in range(len(C)):
        i = C[a]
        if more == 1:
            gain = _single(H, R, E, P, i, lam, leaving, floor)
            if gain > best:
                best, end[0] = gain, i
        else:
            for b in range(a + 1, len(C)):
                gain = _pair(H, R, E, P, i, C[b], lam, leaving, floor)
                if gain > best:
                    best, end[0], end[1] = gain, i, C[b]
    return best


@compiled
def reach(R: Array, counts: Array, C: Index, more: int, loss: float, floor: Array, gains: Array) -> tuple[float, float]:
    """Return upper bounds of what ``more`` picks among C, and one fewer, can explain; write single bounds to ``gains``.

    For any lambda, picks among C leave at least what the best subspace of that dimension within the span of MA_C leaves
    of MA: they explain at most the sum of the largest eigenvalues of R_CC^-1 (RDR)_CC, and by interlacing no subset has
    larger ones.
    """
    kept, L, worst = _independent(R, C, floor)
    m, n = len(kept), R.shape[1]
    U, V = np.empty((m, n)), np.empty((m, n))
    for a in range(m):
        scale = 1.0 / np.sqrt(R[kept[a], kept[a]])
        for j in range(n):
            U[a, j] = R[kept[a], j] * scale
            V[a, j] = U[a, j] * counts[j]
    for a in range(len(C)):
        gains[a] = 0.0
        if R[C[a], C[a]] > floor[C[a]]:
            for j in range(n):
                gains[a] += counts[j] * R[C[a], j] ** 2 / R[C[a], C[a]]
    B = U @ V.T
    _solve_rows(L, B)
    B = B.T.copy()
    _solve_rows(L, B)
    values = np.linalg.eigvalsh(B)[::-1] if m else np.zeros(0)
    less = most = more * _ROUNDING * max(m, 1) * loss / worst
    for t in range(min(more, m)):
        most += max(values[t], 0.0)
        if t < more - 1:
            less += max(values[t], 0.0)
    return most, less


@part_of_compiled
def _independent(R: Array, C: Index, floor: Array) -> tuple[Index, Array, float]:
    """Return the independent columns of C, the triangular factor of R among them, and the smallest remainder.

    All for columns scaled to length 1.
    """
    kept, L, m, worst = np.empty(len(C), dtype=np.int64), np.zeros((len(C), len(C))), 0, 1.0
    for i in C:
        if R[i, i] <= floor[i]:
            continue
        left = 1.0
        for t in range(m):
            dot = R[i, kept[t]] / np.sqrt(R[i, i] * R[kept[t], kept[t]])
            for s in range(t):
                dot -= L[m, s] * L[t, s]
            L[m, t] = dot / L[t, t]
            left -= L[m, t] ** 2
        if left > NOTHING:
            L[m, m], kept[m], worst, m = np.sqrt(left), i, min(worst, left), m + 1
    return kept[:m], L[:m, :m], worst


@part_of_compiled
def _solve_rows(L: Array, B: Array) -> None:
    """Replace B by L^-1 B."""
    for a in range(len(L)):
        row = B[a]
        for t in range(a):
            factor, other = L[a, t], B[t]
            for j in range(B.shape[1]):
                row[j] -= factor * other[j]
        for j in range(B.shape[1]):
            row[j] /= L[a, a]


@compiled
def explore(
    H: Array,
    R: Array,
    E: Array,
    P: Array,
    counts: Array,
    loss: Array,
    bound: Array,
    cand: Index,
    size: Index,
    place: Index,
    due: Index,
    picks: Index,
    depth: int,
    lam: Array,
    drops: bool,
    leaving: Array,
    floor: Array,
    best: float,
    found: Index,
    slack: float,
    budget: int,
) -> tuple[int, float, int]:
    """Search the subsets below the current levels, depth first, for at most ``budget`` nodes.

    Return the depth reached, -1 at the end, the lowest loss, and the remaining budget; ``found`` holds the picks if the
    loss is lower than ``best`` was. A branch whose bound is within ``slack`` of the best is not entered.
    """
    k = len(picks)
    end, gains = np.empty(2, dtype=np.int64), np.empty(cand.shape[1])
    while depth >= 0 and budget > 0:
        more, C = k - depth, cand[depth, place[depth] : size[depth]]
        budget -= 1
        if len(C) < more:
            depth -= 1
            continue
        if more <= 2:
            gain = best_end(H[depth], R[depth], E[depth], P[depth], C, more, lam, leaving, floor, end)
            if loss[depth] - gain < best - slack:
                best = loss[depth] - gain
                found[:depth], found[depth:] = picks[:depth], end[:more]
            depth -= 1
            continue
        if len(C) <= due[depth]:
            most, less = reach(R[depth], counts[depth], C, more, loss[depth], floor, gains)
            bound[depth] = max(bound[depth], loss[depth] - most)
            if bound[depth] >= best - slack:
                depth -= 1
                continue
            size[depth] = place[depth] + _within(C, gains, loss[depth] - less - best + slack)
            due[depth] = size[depth] - place[depth] - max(1, (size[depth] - place[depth]) // _SHARE)
            continue
        place[depth] += 1
        C = cand[depth, place[depth] : size[depth]]
        depth = _entered(H, R, E, P, counts, loss, depth, cand[depth, place[depth] - 1], C, lam, drops, leaving, floor)
        picks[depth - 1], bound[depth] = cand[depth - 1, place[depth - 1] - 1], bound[depth - 1]
        cand[depth, : len(C)], size[depth], place[depth], due[depth] = C, len(C), 0, len(C)
    return depth, best, budget


@part_of_compiled
def _entered(
    H: Array,
    R: Array,
    E: Array,
    P: Array,
    counts: Array,
    loss: Array,
    depth: int,
    w: int,
    C: Index,
    lam: Array,
    drops: bool,
    leaving: Array,
    floor: Array,
) -> int:
    """Pick w, with C the remaining candidates, and return the new depth."""
    gain = _single(H[depth], R[depth], E[depth], P[depth], w, lam, leaving, floor)
    pick(H, R, E, P, counts, depth, w, C, lam, drops, H[depth, w, w] <= floor[w])
    loss[depth + 1] = loss[depth] - gain
    return depth + 1


@part_of_compiled
def _within(C: Index, gains: Array, least: float) -> int:
    """Keep the candidates with gains above ``least``, best first; return their number."""
    m = 0
    for a in range(len(C)):
        if gains[a] > least:
            i, gain, t = C[a], gains[a], m
            while t > 0 and gains[t - 1] < gain:
                gains[t], C[t] = gains[t - 1], C[t - 1]
                t -= 1
            gains[t], C[t], m = gain, i, m + 1
    return m

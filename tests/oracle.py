"""Brute force: the objective straight from the rows, by least squares. Imports nothing of the package."""

import numpy as np


def residual(A, picked, lam):
    """A minus its ridge approximation by the picked columns: least squares on A stacked over sqrt(lam) I."""
    C = A[:, picked]
    if C.shape[1] == 0:
        return A.copy()
    stacked = np.vstack([C, np.sqrt(lam) * np.eye(C.shape[1])])
    target = np.vstack([A, np.zeros((C.shape[1], A.shape[1]))])
    # The columns are balanced first, so that a tiny column is not taken for rounding by the least squares.
    norms = np.linalg.norm(stacked, axis=0)
    norms[norms == 0] = 1.0
    W = np.linalg.lstsq(stacked / norms, target, rcond=None)[0] / norms[:, None]
    return A - C @ W


def loss(A, picked, lam, objective="unselected"):
    """The squared norm of what the picked columns leave unexplained."""
    E = residual(A, list(picked), lam)
    if objective == "unselected":
        E = np.delete(E, list(picked), axis=1)
    return float(np.sum(E * E))


def losses_after(A, picked, lam, objective, candidates):
    """The loss for each candidate as the next pick."""
    return {j: loss(A, [*picked, j], lam, objective) for j in candidates}


def select(A, k, lam, objective="unselected"):
    """Greedy by trying every column at every step; the lowest index wins a tie."""
    picked = []
    for _ in range(k):
        after = losses_after(A, picked, lam, objective, [j for j in range(A.shape[1]) if j not in picked])
        picked.append(min(after, key=lambda j: (after[j], j)))
    return picked


def explicit(G, k, lam, objective="unselected", dtype=np.longdouble):
    """Greedy with H and R updated whole, in extended precision: picks, losses, losses of all candidates."""
    H = np.array(G, dtype=dtype)
    R = H.copy()
    n = len(H)
    free = np.ones(n, dtype=bool)
    loss_now = np.trace(R)
    picks, losses, tables = [], [], []
    for _ in range(k):
        count = free if objective == "unselected" else np.ones(n, dtype=bool)
        alpha = lam + np.diagonal(H)
        safe = np.where(alpha > 0, alpha, 1)
        eta = (H[:, count] ** 2).sum(axis=1)
        rho = (H[:, count] * R[:, count]).sum(axis=1)
        gain = 2 * rho / safe - np.diagonal(R) * eta / safe**2
        if objective == "unselected":
            gain = gain + np.diagonal(R) * (lam / safe) ** 2
        gain = np.where(free & (alpha > 0), gain, -np.inf)
        w = int(np.argmax(gain))
        tables.append((loss_now - gain).astype(np.float64))
        loss_now = loss_now - gain[w]
        h, r, a = H[:, w].copy(), R[:, w].copy(), alpha[w]
        H -= np.outer(h, h) / a
        R -= (np.outer(r, h) + np.outer(h, r)) / a - (r[w] / a**2) * np.outer(h, h)
        free[w] = False
        picks.append(w)
        losses.append(float(loss_now))
    return picks, losses, tables

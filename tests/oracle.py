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


def least_left(A, k, counts=None):
    """What any k columns leave at least: the k-th smallest of what each and k - 1 principal components leave."""
    counts = np.ones(A.shape[1]) if counts is None else counts
    found = []
    for w in range(A.shape[1]):
        values = np.linalg.svd(residual(A, [w], 0.0) * np.sqrt(counts), compute_uv=False) ** 2
        found.append(float(values[k - 1 :].sum()))
    return sorted(found)[k - 1]


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


def loss_of_targets(A, T, picked, lams, weights, objective="all"):
    """The weighted squared norm of what the picked columns of A leave of T, each with a lambda of its own.

    With ``"unselected"`` a column of T at the place of a picked one does not count.
    """
    C, own = A[:, list(picked)], np.asarray(lams)[list(picked)]
    E = T
    if len(own):
        stacked = np.vstack([C, np.diag(np.sqrt(own))])
        norms = np.linalg.norm(stacked, axis=0)
        norms[norms == 0] = 1.0
        E = T - C @ (
            np.linalg.lstsq(stacked / norms, np.vstack([T, np.zeros((len(own), T.shape[1]))]), rcond=None)[0]
            / norms[:, None]
        )
    w = np.array(weights, dtype=float)
    if objective == "unselected":
        w[list(picked)] = 0.0
    return float(np.sum(w * E * E))


def columns_and_signals(X, noise):
    """Rows in place of X, and of the signals behind its columns, given the squared norms of their noise.

    With whitened noise, directions whose squared norm is below that of the noise hold no signal.
    """
    root = np.sqrt(noise + 1e-300)
    _, s, Vt = np.linalg.svd(X / root, full_matrices=False)
    kept = np.sqrt(np.maximum(s**2 - 1.0, 0.0))
    # Signals are what is left of each direction, and noise, which is orthogonal to all signals, makes up the rest.
    lost = np.sqrt(s**2 - kept**2)
    signal = np.vstack([kept[:, None] * Vt, np.zeros_like(Vt)]) * root
    return signal + np.vstack([np.zeros_like(Vt), lost[:, None] * Vt]) * root, signal

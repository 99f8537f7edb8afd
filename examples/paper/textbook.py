"""GCSS by the recursion of Farahat et al. as textbooks have it, careless of rounding: to explain printed figures."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def textbook_gcss(A: Array, k: int) -> NDArray[np.intp]:
    """Pick k columns by f/g, with f = |H_i|^2 and g = H_ii updated pick by pick; columns may come twice.

    Picked columns, and scores that are not numbers, are left out as long as there is any other. Beyond the rank f and
    g are rounding, then not numbers at all, and NumPy's argmax of nothing is column 0, again and again.
    """
    f, g = np.sum((A.T @ A) ** 2, axis=0), np.sum(A**2, axis=0)
    W = np.zeros((k, A.shape[1]))
    picked: list[int] = []
    with np.errstate(all="ignore"):
        for t in range(k):
            score = f / g
            score[picked] = -np.inf
            score[np.isnan(score)] = -np.inf
            p = int(np.argmax(score))
            picked.append(p)
            h = A.T @ A[:, p] - W[:t].T @ W[:t, p]
            W[t] = h / np.sqrt(h[p])
            Hw = A.T @ (A @ W[t]) - W[:t].T @ (W[:t] @ W[t])
            f = f - 2.0 * W[t] * Hw + (W[t] @ W[t]) * W[t] ** 2
            g = g - W[t] ** 2
    return np.array(picked, dtype=np.intp)

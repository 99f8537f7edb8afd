"""What a set of columns is worth: weights, losses on any Gram, lower bounds, condition numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]

EPS = float(np.finfo(np.float64).eps)
# A Gram squares the condition number, so that beyond this its smallest eigenvalue is rounding.
RESOLVED_CONDITION = 1e8


@dataclass(frozen=True, eq=False)
class Bounds:
    """No k columns can have a loss below these, for k = 1, 2, ...: each (k,)."""

    paper: Array
    tight: Array


@dataclass(frozen=True)
class Condition:
    """The condition number of the picked columns, as far as a Gram tells."""

    value: float
    resolved: bool  # False when it is beyond what a Gram resolves; then ``value`` is a lower limit

    def __str__(self) -> str:
        return f"{self.value:.3g}" if self.resolved else f"over {self.value:.3g} (beyond what a Gram resolves)"


def weights(G: ArrayLike, columns: ArrayLike, lam: float) -> Array:
    """Return W = (G_SS + lam I)^-1 G_S, (k, n): the picked columns times W approximate all columns.

    Directions that a Gram cannot tell from rounding get no weight, as in a pseudo-inverse.
    """
    S = np.asarray(columns, dtype=np.intp)
    return weights_from_rows(_gram(G)[S], S, lam)


def weights_from_rows(GS: Array, S: Index, lam: float) -> Array:
    """Return the same from the picked rows of the Gram alone, (k, n)."""
    checked_lambda(lam)
    values, Q = scipy.linalg.eigh(GS[:, S])
    values = np.maximum(values, 0.0) + lam
    keep = values > GS.shape[1] * EPS * values.max(initial=0.0)
    Q = Q[:, keep]
    return np.asarray(Q @ ((Q.T @ GS) / values[keep, None]))


def loss(G: ArrayLike, columns: ArrayLike, lam: float, objective: str = "unselected") -> float:
    """Return the loss of a subset on its own Gram."""
    return float(loss_on(G, weights(G, columns, lam), columns, objective))


def loss_on(B: ArrayLike, W: Array, columns: ArrayLike, objective: str = "unselected") -> float:
    """Return the loss of the weights W on data whose Gram is B: no rows are needed."""
    return float(column_losses(B, W, columns)[counted(len(np.asarray(B)), columns, objective)].sum())


def column_losses(B: ArrayLike, W: Array, columns: ArrayLike) -> Array:
    """Return the squared error of every column on data with Gram B, (n,)."""
    B, S = _gram(B), np.asarray(columns, dtype=np.intp)
    return column_losses_from_rows(np.diagonal(B), B[S], W, S)


def column_losses_from_rows(diagonal: Array, BS: Array, W: Array, S: Index) -> Array:
    """Return the same from the diagonal and the picked rows of the Gram alone."""
    return np.maximum(diagonal - np.einsum("ij,ij->j", W, 2.0 * BS - BS[:, S] @ W), 0.0)


def prefix_losses(
    G: ArrayLike, columns: ArrayLike, lam: float, B: ArrayLike | None = None, objective: str = "unselected"
) -> Array:
    """Return the loss on B (default: on G) of the first 1, 2, ..., k columns with the weights learnt on G, (k,)."""
    return sum_prefixes(prefix_column_losses(G, columns, lam, B), columns, objective)


def prefix_column_losses(G: ArrayLike, columns: ArrayLike, lam: float, B: ArrayLike | None = None) -> Array:
    """Return the squared error of every column for every prefix of the picks, (k, n); see `prefix_losses`.

    All prefixes at once in O(k^2 n), by one Cholesky factor; where the columns are too dependent for it, one by one.
    """
    G, S = _gram(G), np.asarray(columns, dtype=np.intp)
    B = G if B is None else _gram(B)
    checked_lambda(lam)
    losses = _prefix_column_losses(G, B, S, lam)
    if losses is None:
        losses = np.array([column_losses(B, weights(G, S[: t + 1], lam), S[: t + 1]) for t in range(len(S))])
    return np.maximum(losses, 0.0)


def sum_prefixes(losses: Array, columns: ArrayLike, objective: str) -> Array:
    """Sum the column losses of each prefix over the columns that count, (k,)."""
    S = np.asarray(columns, dtype=np.intp)
    counts = np.tile(counted(losses.shape[1], [], objective), (len(S), 1))
    if objective == "unselected":
        for t, j in enumerate(S):
            counts[t:, j] = False
    return np.einsum("tj,tj->t", losses, counts)


def _prefix_column_losses(G: Array, B: Array, S: Index, lam: float) -> Array | None:
    K = G[np.ix_(S, S)].copy()
    K[np.diag_indices_from(K)] += lam
    try:
        L = np.linalg.cholesky(K)
    except np.linalg.LinAlgError:
        return None
    pivots = np.diagonal(L)
    if len(S) and np.any(pivots**2 <= 4 * len(G) * EPS * np.diagonal(K)):
        return None  # a pivot that is mostly rounding would spoil every later prefix
    Y = scipy.linalg.solve_triangular(L, G[S], lower=True)
    Z = scipy.linalg.solve_triangular(L, B[S], lower=True)
    D = scipy.linalg.solve_triangular(L, scipy.linalg.solve_triangular(L, B[np.ix_(S, S)], lower=True).T, lower=True)
    steps = Y * (2.0 * (np.tril(D, -1) @ Y - Z) + np.diagonal(D)[:, None] * Y)
    return np.asarray(np.diagonal(B) + np.cumsum(steps, axis=0))


def counted(n: int, columns: ArrayLike, objective: str) -> NDArray[np.bool_]:
    """Say which columns count in the objective, (n,)."""
    mask = np.ones(n, dtype=bool)
    if objective == "unselected":
        mask[np.asarray(columns, dtype=np.intp)] = False
    elif objective != "all":
        raise ValueError(f"objective must be 'unselected' or 'all'; got {objective!r}.")
    return mask


def bounds(spectrum: ArrayLike, k: int, lam: float, objective: str = "unselected") -> Bounds:
    """Bound the loss of any 1, 2, ..., k columns from below, given the eigenvalues of the Gram, largest first.

    ``paper`` is the paper's lemma: lam^2 s/(s + lam)^2 summed over the eigenvalues s beyond the first k (over all of
    them for ``"all"``). ``tight`` is never below it. For ``"unselected"`` the exact picked columns and the approximated
    rest form a matrix of rank k at most, so by Eckart and Young the loss is at least the sum of s beyond the first k.
    For ``"all"`` von Neumann's trace inequality leaves the first k eigenvalues their shrinkage as well.
    """
    s = np.maximum(np.asarray(spectrum, dtype=np.float64), 0.0)
    checked_lambda(lam)
    counted(len(s), [], objective)
    if not 0 <= k <= len(s):
        raise ValueError(f"k must be from 0 to {len(s)}, the number of columns; got {k}.")
    shrunk = s * (lam / (s + lam)) ** 2 if lam > 0 else np.zeros_like(s)
    tail = _tails(s)[1 : k + 1]
    if objective == "unselected":
        return Bounds(_tails(shrunk)[1 : k + 1], tail)
    return Bounds(np.full(k, shrunk.sum()), np.cumsum(shrunk)[:k] + tail)


def tight_bound(spectrum: Array, k: int, lam: float, objective: str) -> float:
    """Return the tight bound for exactly k columns."""
    return float(bounds(spectrum, k, lam, objective).tight[-1]) if k else float(np.sum(spectrum))


def _tails(values: Array) -> Array:
    """Sum what remains from each place on, the smallest first so that no digit is lost: (len + 1,)."""
    return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])


def explained_share(losses: ArrayLike, start: float) -> Array:
    """Return 1 - loss / start, with all explained where there was nothing to explain."""
    losses = np.asarray(losses, dtype=np.float64)
    return 1.0 - losses / start if start > 0 else np.ones_like(losses)


def share_of_components(losses: ArrayLike, spectrum: ArrayLike) -> Array:
    """Say how much of what 1, 2, ..., k principal components explain these columns explain, (k,)."""
    s = np.asarray(spectrum, dtype=np.float64)
    losses = np.asarray(losses, dtype=np.float64)
    reachable = np.cumsum(s)[: len(losses)]
    return np.asarray((s.sum() - losses) / np.where(reachable > 0, reachable, 1.0))


def condition(G: ArrayLike, columns: ArrayLike) -> Condition:
    """Return the condition number of A_S, the square root of that of G_SS, or say that a Gram cannot tell.

    Eigenvalues of a k x k Gram are known to about k eps of the largest one, so condition numbers to 1 / sqrt(k eps).
    """
    S = np.asarray(columns, dtype=np.intp)
    if len(S) == 0:
        raise ValueError("a condition number needs a column or more; none was picked.")
    values = scipy.linalg.eigvalsh(_gram(G)[np.ix_(S, S)])
    # A factor 100 above that noise, the figure has two digits.
    limit = float(min(RESOLVED_CONDITION, 0.1 / np.sqrt(len(S) * EPS)))
    if values[0] * limit**2 <= values[-1] or values[-1] <= 0:
        return Condition(limit, resolved=False)
    return Condition(float(np.sqrt(values[-1] / values[0])), resolved=True)


def _gram(G: ArrayLike) -> Array:
    G = np.asarray(G, dtype=np.float64)
    if G.ndim != 2 or G.shape[0] != G.shape[1]:
        raise ValueError(f"a Gram must be square, one row and column per column of the data; got shape {G.shape}.")
    return G


def checked_lambda(lam: float) -> float:
    """Return lambda, or say what it must be."""
    if not (np.isfinite(lam) and lam >= 0):
        raise ValueError(f"lam must be a finite number, 0 or more; got {lam:g}.")
    return float(lam)

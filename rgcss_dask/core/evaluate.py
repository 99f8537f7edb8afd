"""Evaluating a set of columns: weights, losses on any Gram, lower bounds, condition numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels
from rgcss_dask.core.objective import Bounds, Objective, objective_of
from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

EPS = float(np.finfo(np.float64).eps)
# Rounding in the entries of a Gram, relative to the norms of their columns, including sums over rows. Up to 13 EPS were
# observed for linearly dependent columns, with sums over 100,000 rows at once.
DOUBT = 16 * EPS
# If rounding could hide more than this share of a column, the column is uncertain, but not treated as zero.
_HIDDEN = 1e-3
# A Gram squares the condition number, so beyond this its smallest eigenvalue is rounding.
RESOLVED_CONDITION = 1e8


@dataclass(frozen=True)
class Condition:
    """The condition number of the picked columns, as far as a Gram resolves it."""

    value: float
    resolved: bool  #: False if it is beyond the resolution of a Gram; then ``value`` is a lower limit

    def __str__(self) -> str:
        return f"{self.value:.3g}" if self.resolved else f"over {self.value:.3g} (beyond what a Gram resolves)"


def weights(G: ArrayLike, columns: ArrayLike, lam: ArrayLike) -> Array:
    """Return W = (G_SS + lam I)^-1 G_S, (k, n): the picked columns times W approximate all columns.

    ``lam`` is one number, or one number per pick.

    A pick that a Gram cannot distinguish from a linear combination of earlier picks gets weight 0.
    """
    S = np.asarray(columns, dtype=np.intp)
    return weights_from_rows(_gram(G)[S], S, lam)


def weights_from_rows(GS: Array, S: Index, lam: ArrayLike) -> Array:
    """Return the weights from only the picked rows of the Gram, (k, n)."""
    W = np.zeros(GS.shape)
    with single_threaded_blas():  # the same bits for any number of threads
        L, kept = triangle(GS[:, S], lam)
        if len(kept):
            W[kept] = scipy.linalg.lapack.dpotrs(L, GS[kept], lower=1)[0]
    return W


def triangle(G: Array, lam: ArrayLike) -> tuple[Array, Index]:
    """Return L with L L' = G + lam I for the Gram of the picks, in their order, and the places of its picks.

    A pick whose remainder after the picks before it is at most rounding is left out: it is a linear combination of
    them, and picking it changes nothing. Scales do not matter, because each column is compared with its own norm.
    """
    lams = np.broadcast_to(checked_lambdas(lam), (len(G),))
    L, kept = np.zeros(G.shape), np.empty(len(G), dtype=np.intp)
    count = kernels.factor_picks(np.ascontiguousarray(G), np.ascontiguousarray(lams), DOUBT, _HIDDEN, L, kept)
    return L[:count, :count], kept[:count]


def rounding_left(norm: Array, W: Array, norms: Array) -> Array:
    """Return the squared rounding error of a column that is the combination W of others, given the norms of all."""
    return np.asarray(np.minimum(DOUBT * (norm**2 + (W**2).T @ norms**2), _HIDDEN * norm**2))


def loss(G: ArrayLike, columns: ArrayLike, lam: ArrayLike, objective: Objective | str = "unselected") -> float:
    """Return the loss of a subset on its own Gram."""
    return float(loss_on(G, weights(G, columns, lam), columns, objective))


def loss_on(B: ArrayLike, W: Array, columns: ArrayLike, objective: Objective | str = "unselected") -> float:
    """Return the loss of the weights W on data whose Gram is B: no rows are needed."""
    losses = column_losses(B, W, columns)
    return float(losses @ objective_of(objective).counts(len(losses), columns))


def column_losses(B: ArrayLike, W: Array, columns: ArrayLike) -> Array:
    """Return the squared error of every column on data with Gram B, (n,)."""
    B, S = _gram(B), np.asarray(columns, dtype=np.intp)
    return column_losses_from_rows(np.diagonal(B), B[S], W, S)


def column_losses_from_rows(diagonal: Array, BS: Array, W: Array, S: Index) -> Array:
    """Return the squared errors from only the diagonal and the picked rows of the Gram."""
    losses = diagonal - np.einsum("ij,ij->j", W, 2.0 * BS - BS[:, S] @ W)
    own = np.eye(len(S)) - W[:, S]  # avoids cancellation: the error of a picked column is small
    losses[S] = np.einsum("ij,ij->j", own, BS[:, S] @ own)
    return np.maximum(losses, 0.0)


def prefix_losses(
    G: ArrayLike,
    columns: ArrayLike,
    lam: ArrayLike,
    B: ArrayLike | None = None,
    objective: Objective | str = "unselected",
) -> Array:
    """Return the loss on B (default: on G) of the first 1, 2, ..., k columns with the weights learnt on G, (k,)."""
    return sum_prefixes(prefix_column_losses(G, columns, lam, B), columns, objective)


def prefix_column_losses(G: ArrayLike, columns: ArrayLike, lam: ArrayLike, B: ArrayLike | None = None) -> Array:
    """Return the squared error of every column for every prefix of the picks, (k, n); see `prefix_losses`.

    All prefixes at once in O(k^2 n), by one triangular factor.
    """
    G, S = _gram(G), np.asarray(columns, dtype=np.intp)
    B = G if B is None else _gram(B)
    return prefix_column_losses_from_rows(G[S], S, lam, np.diagonal(B), B[S])


def prefix_column_losses_from_rows(GS: Array, S: Index, lam: ArrayLike, diagonal: Array, BS: Array) -> Array:
    """Return the squared errors from only the picked rows of both Grams and the diagonal of B, (k, n)."""
    steps = np.zeros(GS.shape)
    with single_threaded_blas():
        L, kept = triangle(GS[:, S], lam)
        if len(kept):
            steps[kept] = _changes(L, GS[kept], BS[kept], S[kept])
    return np.maximum(diagonal + np.cumsum(steps, axis=0), 0.0)


def _changes(L: Array, GS: Array, BS: Array, S: Index) -> Array:
    """Return the change of the squared error of every column by each pick, (k, n)."""
    Y, Z, D = (scipy.linalg.solve_triangular(L, M, lower=True) for M in (GS, BS, BS[:, S]))
    D = scipy.linalg.solve_triangular(L, D.T, lower=True)
    return np.asarray(Y * (2.0 * (np.tril(D, -1) @ Y - Z) + np.diagonal(D)[:, None] * Y))


def sum_prefixes(losses: Array, columns: ArrayLike, objective: Objective | str) -> Array:
    """Sum the column losses of each prefix over the columns that count, (k,)."""
    S = np.asarray(columns, dtype=np.intp)
    return np.einsum("tj,tj->t", losses, objective_of(objective).counts_by_prefix(losses.shape[1], S))


def bounds(spectrum: ArrayLike, k: int, lam: float, objective: Objective | str = "unselected") -> Bounds:
    """Bound the loss of any 1, 2, ..., k columns from below, given the eigenvalues of the Gram, largest first.

    ``paper`` is the paper's lemma: lam^2 s/(s + lam)^2 summed over the eigenvalues s beyond the first k (over all of
    them for ``"all"``). ``tight`` is never below it. For ``"unselected"`` the exact picked columns and the approximated
    rest form a matrix of rank k at most, so by Eckart and Young the loss is at least the sum of s beyond the first k.
    For ``"all"`` von Neumann's trace inequality leaves the first k eigenvalues their shrinkage as well.
    """
    s = Spectrum.whole(spectrum)
    checked_lambda(lam)
    if not 0 <= k <= s.n:
        raise ValueError(f"k must be from 0 to {s.n}, the number of columns; got {k}.")
    return objective_of(objective).bounds(s, k, lam)


def explained_share(losses: ArrayLike, start: float) -> Array:
    """Return 1 - loss / start, with 1 if start is 0."""
    losses = np.asarray(losses, dtype=np.float64)
    return 1.0 - losses / start if start > 0 else np.ones_like(losses)


def share_of_components(losses: ArrayLike, spectrum: ArrayLike) -> Array:
    """Return the explained variation as a share of that of 1, 2, ..., k principal components, (k,)."""
    s = np.asarray(spectrum, dtype=np.float64)
    losses = np.asarray(losses, dtype=np.float64)
    reachable = np.cumsum(s)[: len(losses)]
    return np.asarray((s.sum() - losses) / np.where(reachable > 0, reachable, 1.0))


def condition(G: ArrayLike, columns: ArrayLike) -> Condition:
    """Return the condition number of A_S, the square root of that of G_SS; it may be beyond what a Gram resolves.

    Eigenvalues of a k x k Gram are known to about k eps of the largest one, so condition numbers to 1 / sqrt(k eps).
    """
    S = np.asarray(columns, dtype=np.intp)
    if len(S) == 0:
        raise ValueError("a condition number needs at least one column; none was picked.")
    values = scipy.linalg.eigvalsh(_gram(G)[np.ix_(S, S)])
    # At a factor 100 above that noise, the value has two digits.
    limit = float(min(RESOLVED_CONDITION, 0.1 / np.sqrt(len(S) * EPS)))
    if values[0] * limit**2 <= values[-1] or values[-1] <= 0:
        return Condition(limit, resolved=False)
    return Condition(float(np.sqrt(values[-1] / values[0])), resolved=True)


def _gram(G: ArrayLike) -> Array:
    G = np.asarray(G, dtype=np.float64)
    if G.ndim != 2 or G.shape[0] != G.shape[1]:
        raise ValueError(f"a Gram must be square, one row and column per column of the data; got shape {G.shape}.")
    return G


def checked_lambdas(lam: ArrayLike) -> Array:
    """Return one lambda or several as an array; refuse invalid values."""
    lams = np.atleast_1d(np.asarray(lam, dtype=np.float64))
    wrong = ~(np.isfinite(lams) & (lams >= 0))
    if wrong.any():
        checked_lambda(float(lams[wrong][0]))  # raises the error
    return lams


def checked_lambda(lam: float) -> float:
    """Return lambda as a float; refuse invalid values."""
    if not (np.isfinite(lam) and lam >= 0):
        raise ValueError(f"lam must be a finite number, 0 or more; got {lam:g}.")
    return float(lam)

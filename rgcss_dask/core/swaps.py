"""The losses after all swaps of a picked column for another at once, and after single swaps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.objective import Objective
from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.gram import Base, GainTerms
from rgcss_dask.core.solver.pool import Pool

Array = NDArray[np.float64]
Index = NDArray[np.intp]


class _Picks(NamedTuple):
    """Picks S with K = G_S,S + lam: what both ways to score swaps begin with."""

    columns: Index
    rows: Array  # G_S
    own: Array  # lambda of each pick, (k, 1)
    factor: Array  # L with L L' = K
    inverse: Array  # of K
    Y: Array  # L^-1 G_S
    W: Array  # K^-1 G_S

    @classmethod
    def of(cls, rows: Array, columns: Index, lams: Array) -> _Picks:
        own = lams[columns][:, None]
        L = np.asarray(np.linalg.cholesky(rows[:, columns] + np.diagflat(own)), dtype=np.float64)
        Y = scipy.linalg.solve_triangular(L, rows, lower=True)
        W = scipy.linalg.solve_triangular(L, Y, lower=True, trans=1)
        return cls(columns, rows, own, L, scipy.linalg.cho_solve((L, True), np.eye(len(columns))), Y, W)


class Products:
    """The products G_S C G of picks S, with C the weights of columns in the loss, kept from sweep to sweep.

    A sweep changes a few rows of them, so that scoring all swaps again reads G for these rows only. What is computed
    from them loses digits where little of a column is left, so that they serve to find swaps, not to prove that none
    is left.
    """

    def __init__(self, base: Base, columns: Index, lams: Array, objective: Objective, pool: Pool) -> None:
        self._base, self._lams, self._objective, self._pool = base, lams, objective, pool
        self._columns, self._counts = columns, objective.counts(base.n, columns)
        self._rows = np.array([base.column(j) for j in columns])
        self._products = base.multiply(self._rows * self._counts, pool)
        self._squares = base.first_terms(self._counts, pool).eta  # the diagonal of G C G
        # The same after the swaps of an unfinished sweep, of which the products are not known yet.
        self._current, self._current_counts = columns.copy(), self._counts
        self._current_rows, self._inner = self._rows.copy(), self._products[:, columns]  # and G_S C G_S'

    def swap_losses(self) -> Array:
        """Return the loss after every swap, (k, n); see the function `swap_losses`."""
        self._catch_up()
        picks = _Picks.of(self._rows, self._columns, self._lams)
        WG = scipy.linalg.cho_solve((picks.factor, True), self._products)
        Hw = _of_remainder(WG, picks, self._counts)
        eta = self._squares - np.einsum("ij,ij->j", self._rows, WG + Hw)
        diag_h = self._base.diagonal - np.einsum("ij,ij->j", picks.Y, picks.Y)
        diag_r = diag_h - np.einsum("ij,ij->j", picks.W, picks.own * picks.W)
        terms = GainTerms(eta, eta - np.einsum("ij,ij->j", picks.W, picks.own * Hw), diag_h, diag_r)
        return _table(self._base, picks, terms, Hw, self._lams, self._objective)

    def loss_after(self, place: int, column: int) -> tuple[float, Array]:
        """Return the loss after one more swap, from k x k matrices alone, and G_S C G_S' then."""
        columns, rows, row = self._current.copy(), self._current_rows, self._base.column(column)
        columns[place] = column
        counts = self._objective.counts(self._base.n, columns)
        gram, inner = rows[:, columns], self._inner.copy()
        gram[place] = row[columns]
        for j in (self._current[place], column):  # a swap changes the weights of these two columns only
            inner += (counts[j] - self._current_counts[j]) * np.outer(rows[:, j], rows[:, j])
        inner[place] = inner[:, place] = rows @ (counts * row)
        inner[place, place] = row @ (counts * row)
        own = self._lams[columns]
        try:
            L = np.linalg.cholesky(gram + np.diag(own))
        except np.linalg.LinAlgError:  # picks that depend on each other: left to the proof
            return np.inf, inner
        inverse = scipy.linalg.cho_solve((L, True), np.eye(len(columns)))
        # With K = G_SS + lam, what is left of G is R = G - G_S' (K^-1 + K^-1 lam K^-1) G_S.
        left = float(counts @ self._base.diagonal) - float(np.sum((inverse + (inverse * own) @ inverse) * inner))
        return left * self._base.unit, inner

    def swap(self, place: int, column: int, inner: Array) -> None:
        """Make a swap of which the loss was asked."""
        self._current[place] = column
        self._current_rows[place] = self._base.column(column)
        self._current_counts, self._inner = self._objective.counts(self._base.n, self._current), inner

    def _catch_up(self) -> None:
        """Bring the products up to the swaps made."""
        change = self._current_counts - self._counts
        moved, places = np.flatnonzero(change), np.flatnonzero(self._current != self._columns)
        if len(moved):
            rows = np.array([self._base.column(int(j)) for j in moved])
            self._products += (self._rows[:, moved] * change[moved]) @ rows
            self._squares += change[moved] @ rows**2
        self._columns, self._counts = self._current.copy(), self._current_counts
        self._rows[places] = self._current_rows[places]
        if len(places):
            self._products[places] = self._base.multiply(self._rows[places] * self._counts, self._pool)
        self._inner = self._products[:, self._columns]


def swap_losses(base: Base, columns: Index, lam: ArrayLike, objective: Objective, pool: Pool) -> Array:
    """Return the loss after replacing each picked column by each other one, (k, n); infinite for picked columns."""
    lams = lambdas(base, len(columns), lam)
    counts = objective.counts(base.n, columns)
    picks = _Picks.of(np.array([base.column(j) for j in columns]), columns, lams)
    terms = base.gain_terms(columns, picks.Y, picks.W, lams[columns], counts, pool)
    Hw = _of_remainder(base.multiply(picks.W * counts, pool), picks, counts)
    return _table(base, picks, terms, Hw, lams, objective)


def _of_remainder(WG: Array, picks: _Picks, counts: Array) -> Array:
    """Return W C H, given W C G."""
    return WG - (picks.W * counts) @ picks.rows.T @ picks.W


def _table(base: Base, picks: _Picks, terms: GainTerms, Hw: Array, lams: Array, objective: Objective) -> Array:
    """Return the losses, given the terms of the gains with all picks and Hw = W C H.

    With a lambda for each column, Ki = (G_SS + lam)^-1, W = Ki G_S and V = Ki lam W, dropping column a adds w w'/q to H
    and (1/q - p/q^2) w w' + (v w' + w v')/q to R, where w = W_a, v = V_a, q = Ki_aa and p = (Ki lam Ki)_aa. The sums
    behind the gain of adding j, eta' and rho', then follow from those of all picks and H w, H v and R w.
    """
    columns, own, Ki, W = picks.columns, picks.own, picks.inverse, picks.W
    counts = objective.counts(base.n, columns)
    V, Hv = Ki @ (own * W), Ki @ (own * Hw)
    Rw = Hw - ((W * counts) @ W.T) @ (own * W)
    q = np.diagonal(Ki)[:, None]
    # With a dropped, column a of H' is D_a and column a of R' is E_a; they also make up the change of H and R.
    D, E = W / q, (1.0 - np.sum(own.T * Ki**2, axis=1)[:, None] / q) * W / q + V / q
    ww, vw = ((X * W) @ counts[:, None] for X in (W, V))
    eta = terms.eta + 2.0 * D * Hw + D**2 * ww
    rho = terms.rho + E * Hw + W * Hv / q + D * Rw + D * (E * ww + W * vw / q)
    diag_h, diag_r = terms.diag_h + D * W, terms.diag_r + E * W + V * W / q
    dropped = diag_r @ counts[:, None]
    leaving = objective.leaving(objective.counts(base.n))
    again = leaving[columns][:, None]  # the own error that a dropped column brings back
    eta, rho = eta + again * D**2, rho + again * D * E
    dropped += again * np.take_along_axis(E, columns[:, None], axis=1)
    gained = kernels.gains(eta, rho, diag_h, diag_r, lams, leaving)
    # No gain from columns without a remainder.
    gained[diag_h <= evaluate.DOUBT * base.diagonal] = 0.0
    table = (dropped - gained) * base.unit
    table[:, columns] = np.inf
    return table


def lambdas(base: Base, k: int, lam: ArrayLike) -> Array:
    """Return lambda for each column, at least just above rounding, because picks may be linearly dependent."""
    largest = float(base.diagonal.max(initial=0.0))
    return np.maximum(
        np.asarray(lam) / base.unit, k * evaluate.DOUBT * np.where(base.diagonal > 0, base.diagonal, largest)
    )

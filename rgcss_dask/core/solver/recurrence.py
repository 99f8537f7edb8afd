"""What one pick changes: H = A'MA and R = A'M^2A of the picks so far, and the gains of further ones.

With C the picked columns M = I - C (C'C + lam I)^-1 C'. Neither matrix is ever formed. With L L' = G_SS + lam I and
Y = L^-1 G_S, a factor for each pick, H = G - Y'Y and R = G - Y' (I + lam L^-1 L^-T) Y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.gram import Base, GainTerms
from rgcss_dask.core.solver.pool import Pool

Array = NDArray[np.float64]


def gain(terms: GainTerms, lam: Array | float, leaving: Array | float) -> Array:
    """Return by how much the loss falls if a column is picked next, for every column.

    With alpha_i = lam + H_ii that is 2 rho_i / alpha_i - R_ii eta_i / alpha_i^2, and the column's own error after it is
    picked, R_ii (lam / alpha_i)^2, as far as that leaves the loss.
    """
    alpha = lam + terms.diag_h
    share = lam / alpha
    return np.asarray(
        2.0 * terms.rho / alpha - terms.diag_r / alpha * (terms.eta / alpha) + leaving * terms.diag_r * (share * share)
    )


@dataclass
class Candidate:
    """A column w that was looked at, its columns of H and R, and how the picks mix to it."""

    w: int
    h: Array  # (n,) column w of H
    r: Array  # (n,) column w of R
    y: Array  # (t,) column w of the factors
    W: Array  # (t,) the weights that the picks have in it, were lam 0: L^-T y


class Residual:
    """H and R after the picks of one path: their diagonals, eta and rho, and the factors they are known by."""

    def __init__(self, base: Base, k: int, lam: float, counts: Array, terms: GainTerms) -> None:
        self.lam = lam
        self.counts = counts  # (n,) how much each column counts in the loss
        self.terms = terms
        self._base = base
        self._Y = np.zeros((k, base.n))
        self._L = np.eye(k)

    def column(self, w: int, t: int) -> Candidate:
        """Look at column ``w`` after t picks: its columns of H and R, from that of G and the factors."""
        Y, weights = self._Y[:t], np.empty((3, t))
        weights[0] = Y[:, w]
        kernels.mix(self._L, weights[0], self.lam, weights[1], weights[2])
        h, r = self._base.column(w) - weights[:2] @ Y
        return Candidate(w, h, r, weights[0], weights[2])

    def correct(self, seen: Candidate) -> None:
        """Put what the gain of a column is made of right: of one that was looked at it is known exactly."""
        w, counted = seen.w, self.counts * seen.h
        self.terms.diag_h[w], self.terms.diag_r[w] = seen.h[w], seen.r[w]
        self.terms.eta[w], self.terms.rho[w] = counted @ seen.h, counted @ seen.r

    def vectors(self, seen: Candidate) -> Array:
        """Return what must be multiplied by G to pick a column: the entries of h and r that count, (2, n)."""
        return np.stack([self.counts * seen.h, self.counts * seen.r])

    def drop(self, seen: Candidate) -> None:
        """Let a column count no longer."""
        count = self.counts[seen.w]
        self.terms.eta -= count * seen.h * seen.h
        self.terms.rho -= count * seen.h * seen.r
        self.counts[seen.w] = 0.0

    def pick(self, seen: Candidate, t: int, X: Array, GX: Array) -> None:
        """Make the column looked at pick number t, given `vectors` and their products with G.

        H becomes H - h h'/alpha, and R becomes R - (r h' + h r')/alpha + (r_w/alpha^2) h h'. With u = h/alpha and
        v = (r - r_w u)/alpha that takes u h' from H and u r' + v h' from R, and eta and rho follow.
        """
        terms, h, r, Y = self.terms, seen.h, seen.r, self._Y[:t]
        weights = np.empty((3, t))
        weights[:2] = X @ Y.T
        kernels.mix(self._L, weights[0], self.lam, weights[2], np.empty(t))
        Hx, Hy, Rx = GX[[0, 1, 0]] - weights @ Y
        xx, xy = X[0] @ h, X[0] @ r
        alpha = self.lam + h[seen.w]
        u = h / alpha
        v = (r - r[seen.w] * u) / alpha
        terms.eta += u * (u * xx - 2.0 * Hx)
        terms.rho += u * (u * xy + v * xx - Hy - Rx) - v * Hx
        terms.diag_h -= u * h
        terms.diag_r -= u * r + v * h
        self._Y[t] = h / np.sqrt(alpha)
        self._L[t, :t], self._L[t, t] = seen.y, np.sqrt(alpha)

    def refresh(self, picks: NDArray[np.intp], pool: Pool) -> Array:
        """Recompute what gains are made of from G and the factors; return the weights of the picks, were lam 0.

        The recurrences subtract large numbers and lose digits; G does not.
        """
        t = len(picks)
        Y = self._Y[:t]
        W = scipy.linalg.solve_triangular(self._L[:t, :t], Y, lower=True, trans=1) if t else Y
        self.terms = self._base.gain_terms(picks, Y, W, self.lam, self.counts, pool)
        return W

    def mixes(self, columns: NDArray[np.intp], t: int) -> Array:
        """Return the weights that t picks have in these columns, were lam 0: (t, columns)."""
        Y = self._Y[:t, columns]
        return np.asarray(scipy.linalg.lapack.dtrtrs(self._L[:t, :t], Y, lower=1, trans=1)[0])

    def unmixed(self, t: int) -> Array:
        """Return L^-1: row t makes what is left of pick t, at length 1, from the columns picked until then."""
        return np.asarray(scipy.linalg.lapack.dtrtri(self._L[:t, :t], lower=1)[0])

"""The recurrences of a pick, for H = A'MA and R = A'M^2A of the picks so far, without forming them.

With C the picked columns and lam the diagonal matrix of their lambdas, M = I - C (C'C + lam)^-1 C'. With
L L' = G_SS + lam and Y = L^-1 G_S, one factor per pick, H = G - Y'Y and R = G - Y' (I + L^-1 lam L^-T) Y.
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


@dataclass
class Candidate:
    """A column w with its exact columns of H and R, and the weights of the picks for it."""

    w: int
    h: Array  # (n,) column w of H
    r: Array  # (n,) column w of R
    y: Array  # (t,) column w of the factors
    W: Array  # (t,) weights of the picks for w, as if lam were 0: L^-T y


class Residual:
    """H and R after the picks of one path: their diagonals, eta and rho, and the factors of H and R."""

    def __init__(self, base: Base, k: int, lams: Array, counts: Array, terms: GainTerms) -> None:
        self.lams = lams  # (n,)
        self.counts = counts  # (n,) weight of each column in the loss
        self.terms = terms
        self._base = base
        self._Y = np.zeros((k, base.n))
        self._L = np.eye(k)
        self._own = np.zeros(k)  # lambda of each pick

    def column(self, w: int, t: int) -> Candidate:
        """Compute column ``w`` of H and R after t picks, from column w of G and the factors."""
        Y, weights = self._Y[:t], np.empty((3, t))
        weights[0] = Y[:, w]
        kernels.mix(self._L, weights[0], self._own, weights[1], weights[2])
        found = np.empty((2, self._base.n))
        found[:] = self._base.column(w)
        kernels.subtract_factors(weights[:2], Y, found)
        return Candidate(w, found[0], found[1], weights[0], weights[2])

    def correct(self, seen: Candidate) -> None:
        """Replace the tracked terms of a column by its exact ones."""
        w, counted = seen.w, self.counts * seen.h
        self.terms.diag_h[w], self.terms.diag_r[w] = seen.h[w], seen.r[w]
        self.terms.eta[w], self.terms.rho[w] = counted @ seen.h, counted @ seen.r

    def vectors(self, seen: Candidate) -> Array:
        """Return what must be multiplied by G to pick a column: the entries of h and r that count, (2, n)."""
        return np.stack([self.counts * seen.h, self.counts * seen.r])

    def drop(self, seen: Candidate) -> None:
        """Set the weight of a column in the loss to 0."""
        count = self.counts[seen.w]
        self.terms.eta -= count * seen.h * seen.h
        self.terms.rho -= count * seen.h * seen.r
        self.counts[seen.w] = 0.0

    def pick(self, seen: Candidate, t: int, X: Array, GX: Array) -> None:
        """Pick the column as number t, given `vectors` and their products with G."""
        w, Y, weights = seen.w, self._Y[:t], np.empty((3, t))
        lam = self._own[t] = self.lams[w]
        kernels.factor_products(X, Y, weights)
        kernels.mix(self._L, weights[0], self._own, weights[2], np.empty(t))
        products = GX[[0, 1, 0]]
        kernels.subtract_factors(weights, Y, products)  # H x, H y and R x
        xx, xy = X[0] @ seen.h, X[0] @ seen.r
        kernels.take(seen.h, seen.r, w, lam, products, xx, xy, *self.terms, self._Y[t])
        self._L[t, :t], self._L[t, t] = seen.y, np.sqrt(lam + seen.h[w])

    def best(
        self,
        candidates: NDArray[np.bool_],
        leaving: Array,
        floor: Array,
        worth: Array,
        loss: float,
        rounding: float,
        found: Array,
    ) -> int:
        """Write the gain of every candidate to ``found`` and return the best; see `kernels.best_gain`."""
        return int(kernels.best_gain(*self.terms, self.lams, leaving, floor, candidates, worth, loss, rounding, found))

    def gain(self, w: int, leaving: float) -> float:
        """Return the gain of one column."""
        return float(kernels.gain(*(values[w] for values in self.terms), self.lams[w], leaving))

    def refresh(self, picks: NDArray[np.intp], pool: Pool) -> Array:
        """Recompute the terms of the gains from G and the factors; return the weights of the picks, as if lam were 0.

        The recurrences lose digits by cancellation; G does not.
        """
        t = len(picks)
        Y = self._Y[:t]
        W = scipy.linalg.solve_triangular(self._L[:t, :t], Y, lower=True, trans=1) if t else Y
        self.terms = self._base.gain_terms(picks, Y, W, self.lams[picks], self.counts, pool)
        return W

    def mixes(self, columns: NDArray[np.intp], t: int) -> Array:
        """Return the weights of t picks for these columns, as if lam were 0: (t, columns)."""
        Y = self._Y[:t, columns]
        return np.asarray(scipy.linalg.lapack.dtrtrs(self._L[:t, :t], Y, lower=1, trans=1)[0])

    def unmixed(self, t: int) -> Array:
        """Return L^-1: row t gives the normalised remainder of pick t from the columns picked until then."""
        return np.asarray(scipy.linalg.lapack.dtrtri(self._L[:t, :t], lower=1)[0])

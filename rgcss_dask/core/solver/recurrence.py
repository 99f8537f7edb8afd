"""The recurrences of a pick, for H = A'MA and R = A'M^2A of the picks so far, without forming them.

With C the picked columns and lam the diagonal matrix of their lambdas, M = I - C (C'C + lam)^-1 C'. With
L L' = G_SS + lam and Y = L^-1 G_S, one factor per pick, H = G - Y'Y and R = G - Y' (I + L^-1 lam L^-T) Y.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.objective import Objective
from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.gram import Base, GainTerms
from rgcss_dask.core.solver.pool import Pool

Array = NDArray[np.float64]


@dataclass
class Candidate:
    """A column w with its exact columns of H and R, and the weights of the picks for it."""

    w: int
    leaving: float  # how much of its own error leaves the loss when it is picked
    columns: Array  # (4, n): h and r, columns w of H and R; x and y, their entries as they count once it is picked
    xx: float  # x'h
    xy: float  # x'r
    y: Array  # (t,) column w of the factors
    W: Array  # (t,) weights of the picks for w, as if lam were 0: L^-T y


class Residual:
    """H and R after the picks of one path: their diagonals, eta and rho, and the factors of H and R."""

    def __init__(self, base: Base, k: int, lams: Array, objective: Objective, terms: GainTerms) -> None:
        self.lams = lams  # (n,)
        self.counts = objective.counts(base.n)  # (n,) weight of each column in the loss
        self.terms = terms
        self._objective = objective
        self._base = base
        self._Y = np.zeros((k, base.n))
        self._L = np.eye(k)
        self._own = np.zeros(k)  # lambda of each pick

    @property
    def leaving(self) -> Array:
        """How much of its own error leaves the loss when a column is picked, (n,)."""
        return self._objective.leaving(self.counts)

    def column(self, w: int, t: int) -> Candidate:
        """Compute column ``w`` of H and R after t picks, and replace its tracked terms by the exact ones."""
        Y, found, weights = self._Y[:t], np.empty((4, self._base.n)), np.empty((3, t))
        found[0], leaving = self._base.column(w), float(self.leaving[w])
        xx, xy = kernels.residual_column(found, w, leaving, self.counts, self._L, self._own, Y, weights)
        h, r = float(found[0, w]), float(found[1, w])
        self.terms.diag_h[w], self.terms.diag_r[w] = h, r
        self.terms.eta[w], self.terms.rho[w] = xx + leaving * h * h, xy + leaving * h * r
        return Candidate(w, leaving, found, xx, xy, weights[0], weights[2])

    def pick(self, seen: Candidate, t: int, products: Array) -> None:
        """Pick the column as number t, given the products of its x and y with G, which are overwritten."""
        w, lam = seen.w, float(self.lams[seen.w])
        root = np.sqrt(lam + seen.columns[0, w])
        kernels.pick(
            seen.columns,
            w,
            lam,
            seen.leaving,
            seen.xx,
            seen.xy,
            products,
            self._L,
            self._own,
            self._Y[:t],
            *self.terms,
            self._Y[t],
        )
        self._L[t, :t], self._L[t, t], self._own[t] = seen.y, root, lam
        self.leave(w)

    def leave(self, w: int) -> None:
        """Let the error of a picked column leave the loss."""
        self.counts[w] -= self.leaving[w]

    def best(
        self,
        candidates: NDArray[np.bool_],
        floor: Array,
        worth: Array,
        loss: float,
        rounding: float,
        found: Array,
    ) -> int:
        """Write the gain of every candidate to ``found`` and return the best; see `kernels.best_gain`."""
        return int(
            kernels.best_gain(*self.terms, self.lams, self.leaving, floor, candidates, worth, loss, rounding, found)
        )

    def gain(self, w: int) -> float:
        """Return the gain of one column."""
        return float(kernels.gain(*(values[w] for values in self.terms), self.lams[w], self.leaving[w]))

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

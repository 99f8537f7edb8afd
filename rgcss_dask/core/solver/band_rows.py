"""G as the solver needs it where only the rows of some candidates are known."""

from __future__ import annotations

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.solver.checks import checked_range, safe_unit
from rgcss_dask.core.solver.gram import GainTerms
from rgcss_dask.core.solver.pool import PARTS, Pool, split
from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.core.words import listed
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Candidates whose rows of H and R are formed at once in a refresh: two temporaries of so many rows.
_BAND = 32
EPS = float(np.finfo(np.float64).eps)


class BandRows:
    """Rows of G for the candidates, c x n, and its diagonal: all that a selection among them needs.

    Sums behind gains, eta and rho, are known for candidates only, and are 0 for all others, which are never picked.
    What is left of each column is known for all.
    """

    def __init__(self, rows: Array, diagonal: Array, candidates: Index) -> None:
        self.n = len(diagonal)
        self.candidates: Index | None = candidates
        self._index = candidates
        self.unit = safe_unit(float(diagonal.max(initial=0.0)))
        self.matrix = np.ascontiguousarray(rows if self.unit == 1.0 else rows / self.unit)
        self.diagonal = diagonal / self.unit
        self._place = np.full(self.n, -1, dtype=np.intp)
        self._place[candidates] = np.arange(len(candidates))
        checked_range(self.diagonal, np.sqrt(self.unit))

    def column(self, w: int) -> Array:
        return self.matrix[self._places(np.array([w]))[0]]

    def multiply(self, X: Array, pool: Pool) -> Array:
        """Return X G for the rows of X, at the candidates; 0 elsewhere."""
        parts = pool.map(lambda a, b: X @ self.matrix[a:b].T, split(len(self.matrix), PARTS))
        return self._spread(np.concatenate(parts, axis=1))

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        parts = pool.map(lambda a, b: (self.matrix[a:b] ** 2) @ counts, split(len(self.matrix), PARTS))
        squares = self._spread(np.concatenate(parts))
        return GainTerms(squares, squares.copy(), self.diagonal.copy(), self.diagonal.copy())

    def gain_terms(self, picks: Index, Y: Array, W: Array, lams: Array, counts: Array, pool: Pool) -> GainTerms:
        V = np.sqrt(lams)[:, None] * W

        def band(start: int) -> tuple[Array, Array]:
            these = self._index[start : start + _BAND]
            H = self.matrix[start : start + _BAND] - Y[:, these].T @ Y
            R = H - V[:, these].T @ V
            return (H * H) @ counts, (H * R) @ counts

        parts = pool.map(band, ((start,) for start in range(0, len(self.matrix), _BAND)))
        eta, rho = (self._spread(np.concatenate(values)) for values in zip(*parts, strict=True))
        diag_h = self.diagonal - np.einsum("ij,ij->j", Y, Y)
        return GainTerms(eta, rho, diag_h, diag_h - np.einsum("ij,ij->j", V, V))

    def rows(self, picks: Index) -> Array:
        return self.matrix[self._places(picks)] * self.unit

    def core(self) -> Array:
        """Return the Gram of the candidates in the units of the data, (c, c)."""
        return self.matrix[:, self._index] * self.unit

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        """Return the eigenvalues of what the candidates explain together, with the sum of all there is to explain.

        With P the projection on all candidates, no k of them leave less of A than A - PA and the tail of the spectrum
        of PA beyond the first k. So the bounds made of these numbers hold for every choice among the candidates, and
        are never below those for all columns.
        """
        values = self._explained(counts)[: None if k is None else max(k, 1)]
        return Spectrum(values * self.unit, float(self.diagonal @ counts) * self.unit, self.n)

    def _explained(self, counts: Array) -> Array:
        """Return the eigenvalues of the weighted Gram of PA, largest first, (c,)."""
        with single_threaded_blas():  # the same bits for any number of threads
            values, vectors = scipy.linalg.eigh(self.core() / self.unit)
            kept = values > len(values) * EPS * max(values[-1], 0.0)
            roots = vectors[:, kept] / np.sqrt(values[kept])
            inner = roots.T @ ((self.matrix * counts) @ self.matrix.T) @ roots
            found = np.zeros(len(values))
            found[: int(kept.sum())] = np.maximum(scipy.linalg.eigvalsh(inner)[::-1], 0.0)
        return found

    def _spread(self, values: Array) -> Array:
        """Put values of the candidates at their places among all columns."""
        out = np.zeros((*values.shape[:-1], self.n))
        out[..., self._index] = values
        return out

    def _places(self, columns: Index) -> Index:
        places = self._place[columns]
        if np.any(places < 0):
            outside = [int(j) for j in np.asarray(columns)[places < 0]]
            raise ValueError(
                f"columns must be among the {len(self._index):,} candidates whose products were added up; "
                f"{listed(outside)} not. Scan again with these among the candidates, or without candidates=."
            )
        return places

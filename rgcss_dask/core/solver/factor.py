"""G = F'F, represented by its factor F, for when G would be larger than the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.missing import plain
from rgcss_dask.core.solver.checks import checked_range, safe_root
from rgcss_dask.core.solver.gram import GainTerms
from rgcss_dask.core.solver.pool import PARTS, Pool, split
from rgcss_dask.core.spectrum import FEW, Spectrum, least_left
from rgcss_dask.core.words import counted
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Entries of F that fit into a core's cache together with the vectors.
_IN_CACHE = 2**17


class Factor:
    """A block F with F'F = G, for when G is larger: m rows, n columns, m < n.

    No n x n matrix is formed: memory O(m n + n k), time O(m n) for each pick. Any F with F'F = G is valid: the rows
    themselves, a triangular factor, a sketch. A block with more rows than columns is first reduced to its triangular
    factor.

    Parameters
    ----------
    F : array of shape (m, n)
        The block, with finite values.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rows = np.random.default_rng(0).normal(size=(20, 1000))
    >>> picked = rg.select(rg.Factor(rows), 5)
    >>> np.array_equal(picked.columns, rg.select(rows.T @ rows, 5).columns)
    True
    """

    candidates: Index | None = None

    def __init__(self, F: ArrayLike) -> None:
        block = plain(F)
        self._rows = len(block) if block.ndim else 0  # of the given block
        check_real(block.dtype)
        if block.ndim != 2 or 0 in block.shape:
            raise ValueError(f"a factor must have rows and columns; got shape {block.shape}.")
        block = block.astype(np.float64)
        if not np.all(np.isfinite(block)):
            raise ValueError("a factor must be finite; it contains NaN or infinity. Drop or fill those rows first.")
        largest = float(np.abs(block).max())
        root = safe_root(largest)
        block /= root
        if block.shape[0] > block.shape[1]:
            with single_threaded_blas():  # the same bits for any number of threads
                block = np.asarray(np.linalg.qr(block, mode="r"))
        self.n = block.shape[1]
        self.matrix = np.ascontiguousarray(block)
        self.diagonal = np.einsum("ij,ij->j", block, block)
        self.unit = root * root
        checked_range(self.diagonal, root)

    def __repr__(self) -> str:
        return f"<Factor of {counted(self._rows, 'row')} and {counted(self.n, 'column')}>"

    def column(self, w: int) -> Array:
        """Return column w of G, (n,)."""
        return self.matrix[:, w] @ self.matrix

    def multiply(self, X: Array, pool: Pool) -> Array:
        """Return X G in parts of rows that do not depend on the number of threads, a few rows at a time."""
        F, rows = self.matrix, max(8, _IN_CACHE // self.n)

        def part(start: int, stop: int) -> Array:
            total = np.zeros_like(X)
            for first in range(start, stop, rows):
                few = F[first : min(first + rows, stop)]
                total += (X @ few.T) @ few
            return total

        return np.asarray(sum(pool.map(part, split(len(F), PARTS))))

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        """Return the sums behind the gains before the first pick."""
        squares = _quadratic(_product(self.matrix * counts, self.matrix.T, pool), self.matrix, pool)
        return GainTerms(squares, squares.copy(), self.diagonal.copy(), self.diagonal.copy())

    def gain_terms(self, picks: Index, Y: Array, W: Array, lams: Array, counts: Array, pool: Pool) -> GainTerms:
        """Recompute the sums from the residual E = F - F_S W: H = F'E and R = E'E need only m x m matrices."""
        F = self.matrix
        E = F - F[:, picks] @ W
        counted = F * counts
        eta = _quadratic(_product(counted, F.T, pool), E, pool)
        rho = _quadratic(_product(counted, E.T, pool), E, pool)
        return GainTerms(eta, rho, np.einsum("ij,ij->j", F, E), np.einsum("ij,ij->j", E, E))

    def rows(self, picks: Index) -> Array:
        """Return the rows of G that belong to the picks, (k, n)."""
        return (self.matrix[:, picks].T @ self.matrix) * self.unit

    def core(self) -> Array:
        return (self.matrix @ self.matrix.T) * self.unit

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        """Return the eigenvalues of G over the columns that count, largest first."""
        with single_threaded_blas():
            values = np.linalg.svd(self.matrix * np.sqrt(counts), compute_uv=False) ** 2 * self.unit
        left = least_left(self.matrix.T @ self.matrix, counts) if self.n <= FEW else None
        every = np.concatenate([values, np.zeros(self.n - len(values))])
        return Spectrum.whole(every, None if left is None else left * self.unit)


def _product(A: Array, B: Array, pool: Pool) -> Array:
    """Return A B, in bands of rows of A that do not depend on the number of threads."""
    return np.concatenate(pool.map(lambda a, b: A[a:b] @ B, split(len(A), PARTS)))


def _quadratic(S: Array, E: Array, pool: Pool) -> Array:
    """Return e'Se for every column e of E, in bands that do not depend on the number of threads."""

    def band(a: int, b: int) -> Array:
        return np.einsum("ij,ij->j", E[:, a:b], S @ E[:, a:b])

    return np.concatenate(pool.map(band, split(E.shape[1], PARTS)))

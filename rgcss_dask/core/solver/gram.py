"""The Gram G = A'A in the solver: columns, products, and recomputed sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.checks import INDEFINITE, checked_range, fixed, not_a_gram, safe_unit
from rgcss_dask.core.solver.leading import leading
from rgcss_dask.core.solver.pool import PARTS, Pool, split
from rgcss_dask.core.spectrum import SMALL, Spectrum, least_left
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.disk_matrices import empty_like

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Below this size of G, a product takes less time than waking a thread for half of it.
_WORTH_A_THREAD = 1024**2
# From this many vectors on, BLAS, which reads all of G, is faster than reading half of it.
_MANY = 32
# Side of the tiles of G refreshed by one thread: two temporaries of this size fit its cache.
_TILE = 256


@dataclass
class GainTerms:
    """The terms of the gains of all columns, each (n,)."""

    eta: Array  # sum of H_ij^2 over the columns j that count
    rho: Array  # sum of H_ij R_ij over the same columns
    diag_h: Array
    diag_r: Array

    def copy(self) -> GainTerms:
        """Return a copy."""
        return GainTerms(*(values.copy() for values in self))

    def __iter__(self) -> Iterator[Array]:
        return iter((self.eta, self.rho, self.diag_h, self.diag_r))


class Base(Protocol):
    """The matrix G in any representation, divided by the power of two ``unit``."""

    n: int
    unit: float
    diagonal: Array  # (n,)
    matrix: Array  # G, a factor of it, or some of its rows
    candidates: Index | None  # the columns that may be picked; None: all

    def column(self, w: int) -> Array:
        """Return column ``w`` of G."""

    def multiply(self, X: Array, pool: Pool) -> Array:
        """Return X G for the rows of X."""

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        """Return the terms before the first pick, when H = R = G."""

    def gain_terms(self, picks: Index, Y: Array, W: Array, lams: Array, counts: Array, pool: Pool) -> GainTerms:
        """Recompute the sums for H = G - Y'Y and R = H - W' lam W, with the lambdas of the picks."""

    def rows(self, picks: Index) -> Array:
        """Return the picked rows of G in the units of the data, (k, n)."""

    def core(self) -> Array:
        """Return a small matrix, in the units of the data, with the leading eigenvalues of G."""

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        """Return the eigenvalues of G in the units of the data; with many columns only k of them, if k is given.

        Columns are scaled by the root of their weight.
        """


class Gram:
    """G itself, n x n."""

    candidates: Index | None = None

    def __init__(self, G: Array, *, overwrite: bool = False) -> None:
        """Take a Gram as it is; ``overwrite`` it where it has to be divided."""
        self.n = len(G)
        diagonal = np.diagonal(G)
        largest = float(diagonal.max(initial=0.0))
        self.unit = safe_unit(largest)
        divided = G if self.unit == 1.0 else np.divide(G, self.unit, out=G if overwrite else None)
        self.matrix = fixed(np.ascontiguousarray(divided))
        self.diagonal = np.diagonal(self.matrix).copy()
        self._parts = _triangle_parts(self.n)
        checked_range(self.diagonal, np.sqrt(self.unit))

    def column(self, w: int) -> Array:
        return self.matrix[w]

    def multiply(self, X: Array, pool: Pool) -> Array:
        return self._many_products(X, pool) if len(X) > _MANY else self._few_products(X, pool)

    def _few_products(self, X: Array, pool: Pool) -> Array:
        """Return X G by reading half of G once, in parts that do not depend on the number of threads."""
        even = X if len(X) % 2 == 0 else np.concatenate([X, np.zeros((1, self.n))])
        parts = self._parts
        sums = np.empty((len(parts), *even.shape))
        jobs = [(self.matrix, even, out, *part) for out, part in zip(sums, parts, strict=True)]
        pool.map(kernels.multiply_triangle, jobs)
        total = sums[-1]  # the last part covers all entries
        for out, (_, stop) in zip(sums[:-1], parts[:-1], strict=True):
            total[:, :stop] += out[:, :stop]
        return total[: len(X)]

    def _many_products(self, X: Array, pool: Pool) -> Array:
        out = np.empty_like(X)
        bands = split(self.n, PARTS)
        pool.map(lambda a, b: np.matmul(X, self.matrix[a:b].T, out=out[:, a:b]), bands)
        return out

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        squares = np.empty(self.n)
        bands = split(self.n, pool.count) if self.n**2 >= _WORTH_A_THREAD else [(0, self.n)]
        jobs = ((self.matrix, counts, squares, a, b) for a, b in bands)
        pool.map(kernels.row_squares, jobs)
        return GainTerms(squares, squares.copy(), self.diagonal.copy(), self.diagonal.copy())

    def gain_terms(self, picks: Index, Y: Array, W: Array, lams: Array, counts: Array, pool: Pool) -> GainTerms:
        fresh, V = GainTerms(*np.zeros((4, self.n))), np.sqrt(lams)[:, None] * W

        def band(top: int) -> GainTerms:
            part = GainTerms(*np.zeros((4, self.n)))
            room = np.empty((2, _TILE * _TILE))
            bottom = min(top + _TILE, self.n)
            for left in range(top, self.n, _TILE):
                right = min(left + _TILE, self.n)
                C, D = (tile[: (bottom - top) * (right - left)].reshape(bottom - top, -1) for tile in room)
                np.matmul(Y[:, top:bottom].T, Y[:, left:right], out=C)
                np.matmul(V[:, top:bottom].T, V[:, left:right], out=D)
                kernels.tile_sums(self.matrix, C, D, counts, top, left, *part)
            return part

        # Added in a fixed order: the same bits for any number of threads.
        for part in pool.map(band, ((top,) for top in range(0, self.n, _TILE))):
            for total, added in zip(fresh, part, strict=True):
                total += added
        return fresh

    def rows(self, picks: Index) -> Array:
        return self.matrix[picks] * self.unit

    def core(self) -> Array:
        if self.unit == 1.0:
            return self.matrix
        return np.multiply(self.matrix, self.unit, out=empty_like(self.matrix))

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        roots = np.sqrt(counts)
        weighted = self.matrix if np.all(counts == 1.0) else self._weighted(roots)
        if k is not None and SMALL < self.n and 4 * k < self.n and (found := self._leading(weighted, roots, k)):
            return replace(
                found, values=found.values * self.unit, total=found.total * self.unit, doubt=found.doubt * self.unit
            )
        with single_threaded_blas():  # the same bits for any number of threads
            values = scipy.linalg.eigvalsh(weighted)[::-1]
        if values[-1] < -INDEFINITE * float(self.diagonal.max()):
            raise not_a_gram(f"eigenvalue {values[-1] * self.unit:g}, with {values[0] * self.unit:g} the largest")
        left = least_left(self.matrix, counts)
        return Spectrum.whole(values * self.unit, None if left is None else left * self.unit)

    def _weighted(self, roots: Array) -> Array:
        weighted = np.multiply(self.matrix, roots, out=empty_like(self.matrix))
        return np.multiply(weighted, roots[:, None], out=weighted)

    def _leading(self, weighted: Array, roots: Array, k: int) -> Spectrum | None:
        with Pool() as pool, single_threaded_blas():
            return leading(weighted, lambda X: self.multiply(X * roots, pool) * roots, max(k, 1))


def _triangle_parts(n: int) -> list[tuple[int, int]]:
    """Divide the rows of a lower triangle into parts of equal area; a small triangle into few parts."""
    parts = max(1, min(PARTS, n * n // _WORTH_A_THREAD))
    edges = [int(n * math.sqrt(part / parts)) // kernels.ROWS * kernels.ROWS for part in range(parts)]
    return list(pairwise([*edges, n]))

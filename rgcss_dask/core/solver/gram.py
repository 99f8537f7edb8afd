"""G = A'A as the solver needs it: columns of it, products with it, and fresh sums, whole or as a factor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.accumulate import check_real
from rgcss_dask.core.missing import plain
from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.leading import leading
from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.spectrum import SMALL, Spectrum
from rgcss_dask.core.words import counted
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Squares of entries must neither overflow nor vanish; within this range nothing needs scaling.
_SAFE = 2.0**200
# An entry beyond the norms of its columns by less than this share of the diagonal is rounding, as in single precision.
_EXCESS = 1e-3
# An eigenvalue below minus this share, with columns at length 1, is not rounding, not even that of single precision.
INDEFINITE = 1e-4
_MEANS = 1e-12
# Columns so few that all eigenvalues can be judged in a few milliseconds.
_SMALL = 512
# What the norm of the data can be for its square to be a number of full precision.
_NORMS = float(np.sqrt(np.finfo(np.float64).tiny)), float(np.sqrt(np.finfo(np.float64).max))
# Into how many parts work is cut, whatever the number of threads, so that the bits do not depend on it.
_PARTS = 8
# Entries of G below which a product takes less time than waking a thread for half of it.
_WORTH_A_THREAD = 512**2
# Vectors from which BLAS, which reads all of G, is faster than reading half of it.
_MANY = 32
# Entries of F that a core's cache holds beside the vectors.
_IN_CACHE = 2**17
# Rows and columns of G refreshed by one thread at a time: two temporaries of this size fit its cache.
_TILE = 256


@dataclass
class GainTerms:
    """What the gains of all columns are made of: each (n,)."""

    eta: Array  # sum of H_ij^2 over the columns j that count
    rho: Array  # sum of H_ij R_ij over them
    diag_h: Array
    diag_r: Array

    def copy(self) -> GainTerms:
        """Return terms that can be changed alone."""
        return GainTerms(*(values.copy() for values in self))

    def __iter__(self) -> Iterator[Array]:
        return iter((self.eta, self.rho, self.diag_h, self.diag_r))


class Base(Protocol):
    """The matrix G, in whatever form it is kept, divided by the power of two ``unit``."""

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
        """Recompute the sums over the columns that count for H = G - Y'Y and R = H - W' lam W, lam of the picks."""

    def rows(self, picks: Index) -> Array:
        """Return the picked rows of G in the units of the data, (k, n)."""

    def core(self) -> Array:
        """Return a small matrix in the units of the data whose leading eigenvalues are those that picks can use."""

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        """Return the eigenvalues of G in the units of the data; of many columns k are enough, if k is given.

        With every column as long as it counts: what counts twice is as good as there twice.
        """


class Gram:
    """G itself, n x n."""

    candidates: Index | None = None

    def __init__(self, G: Array) -> None:
        self.n = len(G)
        diagonal = np.diagonal(G)
        largest = float(diagonal.max(initial=0.0))
        self.unit = safe_unit(largest)
        self.matrix = _fixed(np.ascontiguousarray(G if self.unit == 1.0 else G / self.unit))
        self.diagonal = np.diagonal(self.matrix).copy()
        self._parts = _triangle_parts(self.n)
        checked_range(self.diagonal, np.sqrt(self.unit))

    def column(self, w: int) -> Array:
        return self.matrix[w]

    def multiply(self, X: Array, pool: Pool) -> Array:
        return self._many_products(X, pool) if len(X) > _MANY else self._few_products(X, pool)

    def _few_products(self, X: Array, pool: Pool) -> Array:
        """Multiply by reading half of G once, in parts that do not depend on the number of threads."""
        even = X if len(X) % 2 == 0 else np.concatenate([X, np.zeros((1, self.n))])
        parts = self._parts
        sums = np.empty((len(parts), *even.shape))
        jobs = [(self.matrix, even, out, *part) for out, part in zip(sums, parts, strict=True)]
        pool.map(kernels.multiply_triangle, jobs)
        total = sums[-1]  # the last part ends with the last row: it has all entries
        for out, (_, stop) in zip(sums[:-1], parts[:-1], strict=True):
            total[:, :stop] += out[:, :stop]
        return total[: len(X)]

    def _many_products(self, X: Array, pool: Pool) -> Array:
        out = np.empty_like(X)
        bands = split(self.n, _PARTS)
        pool.map(lambda a, b: np.matmul(X, self.matrix[a:b].T, out=out[:, a:b]), bands)
        return out

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        squares = np.empty(self.n)
        jobs = ((self.matrix, counts, squares, a, b) for a, b in split(self.n, pool.count))
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

        # Added in order: the same bits for any number of threads.
        for part in pool.map(band, ((top,) for top in range(0, self.n, _TILE))):
            for total, added in zip(fresh, part, strict=True):
                total += added
        return fresh

    def rows(self, picks: Index) -> Array:
        return self.matrix[picks] * self.unit

    def core(self) -> Array:
        return self.matrix if self.unit == 1.0 else self.matrix * self.unit

    def spectrum(self, counts: Array, k: int | None = None) -> Spectrum:
        roots = np.sqrt(counts)
        weighted = self.matrix if np.all(counts == 1.0) else self.matrix * roots * roots[:, None]
        if k is not None and SMALL < self.n and 4 * k < self.n and (found := self._leading(weighted, roots, k)):
            return replace(
                found, values=found.values * self.unit, total=found.total * self.unit, doubt=found.doubt * self.unit
            )
        with single_threaded_blas():  # the same bits for any number of threads
            values = scipy.linalg.eigvalsh(weighted)[::-1]
        if values[-1] < -INDEFINITE * float(self.diagonal.max()):
            raise not_a_gram(f"eigenvalue {values[-1] * self.unit:g}, with {values[0] * self.unit:g} the largest")
        return Spectrum.whole(values * self.unit)

    def _leading(self, weighted: Array, roots: Array, k: int) -> Spectrum | None:
        with Pool() as pool, single_threaded_blas():
            return leading(weighted, lambda X: self.multiply(X * roots, pool) * roots, max(k, 1))


class Factor:
    """A block F with F'F = G, for when G is larger: m rows, n columns, m < n.

    Nothing n x n is ever formed: memory O(m n + n k), time O(m n) for each pick. Any F with F'F = G will do: the
    rows themselves, a triangular factor, a sketch. A block with more rows than columns is first reduced to its
    triangular factor.

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
        self._rows = len(block) if block.ndim else 0  # that were given
        check_real(block.dtype)
        if block.ndim != 2 or 0 in block.shape:
            raise ValueError(f"a factor must have rows and columns; got shape {block.shape}.")
        block = block.astype(np.float64)
        if not np.all(np.isfinite(block)):
            raise ValueError("a factor must be finite; it holds NaN or infinity. Drop or fill those rows first.")
        largest = float(np.abs(block).max())
        root = 1.0 if _SAFE**-0.5 < largest < _SAFE**0.5 else _power_of_two(largest)
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
        """Multiply in parts of rows that do not depend on the number of threads, a few rows at a time in cache."""
        F, rows = self.matrix, max(8, _IN_CACHE // self.n)

        def part(start: int, stop: int) -> Array:
            total = np.zeros_like(X)
            for first in range(start, stop, rows):
                few = F[first : min(first + rows, stop)]
                total += (X @ few.T) @ few
            return total

        return np.asarray(sum(pool.map(part, split(len(F), _PARTS))))

    def first_terms(self, counts: Array, pool: Pool) -> GainTerms:
        """Return the sums behind the gains before the first pick."""
        squares = _quadratic(_product(self.matrix * counts, self.matrix.T, pool), self.matrix, pool)
        return GainTerms(squares, squares.copy(), self.diagonal.copy(), self.diagonal.copy())

    def gain_terms(self, picks: Index, Y: Array, W: Array, lams: Array, counts: Array, pool: Pool) -> GainTerms:
        """Recompute from the residual E = F - F_S W itself: H = F'E and R = E'E, so the sums need m x m only."""
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
        return Spectrum.whole(np.concatenate([values, np.zeros(self.n - len(values))]))


def checked_gram(source: ArrayLike) -> Array:
    """Return a Gram as a float64 array, or say why it cannot be one."""
    G = plain(source)
    check_real(G.dtype)
    if G.ndim != 2 or G.shape[0] != G.shape[1] or len(G) == 0:
        raise ValueError(
            f"a Gram must be square, one row and column per column of the data; got shape {G.shape}. "
            "For rows use Moments.of(rows) or, when there are fewer rows than columns, Factor(rows)."
        )
    G = _fixed(np.ascontiguousarray(G, dtype=np.float64))
    diagonal = np.diagonal(G)
    roots = np.sqrt(np.maximum(diagonal, 0.0))
    with Pool() as pool:
        bands = split(len(G), 4 * pool.count)
        asymmetry, excess = np.max(pool.map(kernels.flaws, ((G, roots, a, b) for a, b in bands)), axis=0).tolist()
    if not np.isfinite(asymmetry) and not np.all(np.isfinite(G)):
        i, j = (int(x) for x in np.argwhere(~np.isfinite(G))[0])
        raise ValueError(f"a Gram must be finite; entry ({i}, {j}) is {G[i, j]}. Leave out or fill such rows first.")
    if np.any(diagonal < 0):
        i = int(np.argmin(diagonal))
        raise ValueError(
            f"a Gram cannot have a negative diagonal; entry ({i}, {i}) is {diagonal[i]:g}. Is it A'A of real data?"
        )
    if asymmetry > 1e-10 * float(diagonal.max()):
        gap = np.abs(G - G.T)
        i, j = (int(x) for x in np.unravel_index(gap.argmax(), gap.shape))
        raise ValueError(
            f"a Gram must be symmetric; entries ({i}, {j}) and ({j}, {i}) differ by {gap[i, j]:g}. "
            "Use (G + G.T) / 2 if that is meant."
        )
    if excess > _EXCESS * float(diagonal.max()):
        over = np.abs(G) - np.outer(roots, roots)
        i, j = (int(x) for x in np.unravel_index(over.argmax(), over.shape))
        raise ValueError(
            f"no entry of a Gram exceeds the norms of its two columns; ({i}, {j}) is {G[i, j]:g}, with {diagonal[i]:g} "
            f"and {diagonal[j]:g} on the diagonal. Is it A'A, and not a matrix of distances or similarities?"
        )
    if len(G) <= _SMALL:
        _check_definite(G)
    return G


def _fixed(G: Array) -> Array:
    """Return a view that cannot be written: of matrices that can be and those that cannot, one kind is compiled."""
    view = G.view(np.ndarray)
    view.flags.writeable = False
    return view


def judged_by(diagonal: Array) -> Array:
    """Return the squared norms to judge signs by: where means were taken off, a small column may be their rounding."""
    return np.maximum(diagonal, _MEANS * float(diagonal.max(initial=0.0)))


def _check_definite(G: Array) -> None:
    """Refuse a small matrix with a negative eigenvalue, with columns at length 1. Large ones show it while picking."""
    lengths = np.sqrt(judged_by(np.diagonal(G)))
    lengths[lengths == 0.0] = 1.0
    scaled = G / lengths / lengths[:, None]
    with single_threaded_blas():
        try:
            np.linalg.cholesky(scaled + INDEFINITE * np.eye(len(G)))
        except np.linalg.LinAlgError:
            smallest = scipy.linalg.eigvalsh(scaled)[0]
            raise not_a_gram(f"eigenvalue {smallest:g} with all columns at length 1") from None


def not_a_gram(how: str) -> ValueError:
    """Say that a matrix is indefinite."""
    return ValueError(
        f"a Gram must be positive semi-definite; this one has {how}. Is it A'A of rows without gaps? Correlations that "
        'leave out other rows for each pair of columns are not: fill the gaps first, as nan="mean" does in `scan`, or '
        "set the negative eigenvalues to zero."
    )


def checked_range(diagonal: Array, root: float) -> None:
    """Refuse columns, ``root`` times those with this diagonal, whose losses would leave the range of float64."""
    with np.errstate(over="ignore"):
        norm = root * np.sqrt(diagonal.sum())
    if norm > 0 and not _NORMS[0] <= norm <= _NORMS[1]:
        raise ValueError(
            f"the norm of all columns together must be from {_NORMS[0]:.3g} to {_NORMS[1]:.3g}, so that its square is "
            f"in the range of float64; it is {norm:.3g}. Divide the data by a number near that, and lam by its square."
        )


def safe_unit(largest: float) -> float:
    """Return what a Gram with this largest entry must be divided by: mostly 1."""
    return 1.0 if 1.0 / _SAFE < largest < _SAFE else _power_of_two(largest)


def _power_of_two(number: float) -> float:
    """Return the largest power of two that is not above a number; 1 for 0."""
    return math.ldexp(1.0, math.frexp(number)[1] - 1) if number > 0 else 1.0


def _product(A: Array, B: Array, pool: Pool) -> Array:
    """Return A B, in bands of rows of A that do not depend on the number of threads."""
    return np.concatenate(pool.map(lambda a, b: A[a:b] @ B, split(len(A), _PARTS)))


def _quadratic(S: Array, E: Array, pool: Pool) -> Array:
    """Return e'Se for every column e of E, in bands that do not depend on the number of threads."""

    def band(a: int, b: int) -> Array:
        return np.einsum("ij,ij->j", E[:, a:b], S @ E[:, a:b])

    return np.concatenate(pool.map(band, split(E.shape[1], _PARTS)))


def _triangle_parts(n: int) -> list[tuple[int, int]]:
    """Cut the rows of a lower triangle into parts of equal area; a small one into few."""
    parts = max(1, min(_PARTS, n * n // _WORTH_A_THREAD))
    edges = [int(n * math.sqrt(part / parts)) // kernels.ROWS * kernels.ROWS for part in range(parts)]
    return list(pairwise([*edges, n]))


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """Cut n rows into parts, none too small to be worth a thread."""
    parts = min(parts, max(1, n // 128))
    edges = [n * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]

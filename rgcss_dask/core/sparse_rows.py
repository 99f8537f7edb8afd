"""A block of sparse rows that is multiplied without making it dense, where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.core import kernels, sketch_kernels

Array = NDArray[np.float64]

# Sparse products are used up to this number of multiplications, as a share of those of a dense block; measured on one
# core, n = 1,000 to 12,000: both take the same time at a share of 0.02 to 0.03.
SHARE = 0.015
# Columns of a strip: a tile of STRIP x STRIP fits in the second-level cache. With fewer than FULL_STRIP values of a row
# in a strip, finding them would take most of the time.
STRIP, FULL_STRIP = 512, 8


class SparseRows:
    """Rows of a SciPy CSR matrix that can be sliced like an array."""

    def __init__(self, csr: Any) -> None:
        if not csr.has_canonical_format:  # duplicate entries would give wrong products
            csr = csr.copy()
            csr.sum_duplicates()
        self._csr = csr
        self.shape, self.dtype, self.ndim = csr.shape, np.dtype(csr.dtype), 2

    @classmethod
    def stacked(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """Stack blocks of rows."""
        return cls(scipy.sparse.vstack([part._csr for part in parts], format="csr"))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice | NDArray[Any]) -> SparseRows:
        return SparseRows(self._csr[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._csr.toarray(), dtype=dtype)

    @property
    def values(self) -> NDArray[Any]:
        """The stored values; all others are 0."""
        found: NDArray[Any] = self._csr.data
        return found

    def take(self, columns: NDArray[np.intp]) -> SparseRows:
        """Return some columns, in the given order."""
        taken = self._csr[:, columns]
        taken.sort_indices()
        return SparseRows(taken)

    def with_values(self, values: NDArray[Any]) -> SparseRows:
        """Return rows with other values at the same positions."""
        return SparseRows(type(self._csr)((values, self._csr.indices, self._csr.indptr), shape=self.shape))

    def without_zeros(self) -> SparseRows:
        """Return the same rows without stored zeros."""
        csr = self._csr.copy()
        csr.eliminate_zeros()
        return SparseRows(csr)

    def filled(self, values: Array, dtype: DTypeLike) -> SparseRows:
        """Return rows with stored NaN replaced by the value of their column."""
        data = self._csr.data
        return self.with_values(np.where(np.isnan(data), values[self._csr.indices], data).astype(dtype))

    def pays(self, faster: float = 1.0) -> bool:
        """Tell whether sparse products beat dense products that are ``faster`` times as fast as those of doubles."""
        rows, n = self.shape
        share = SHARE / faster
        return float(np.sum(np.diff(self._csr.indptr).astype(np.float64) ** 2)) <= share * rows * float(n) ** 2

    def beside(self, columns: NDArray[Any], dtype: np.dtype[Any]) -> SparseRows:
        """Return the same rows with ``columns`` appended."""
        return SparseRows(scipy.sparse.hstack([self._csr, scipy.sparse.csr_matrix(columns)], "csr", dtype))

    def sums(self, weights: Array) -> tuple[Array, Array]:
        """Return the weighted sums of the values and of their squares, each (n,)."""
        data, n = self._csr.data.astype(np.float64), self.shape[1]
        w = np.repeat(weights, np.diff(self._csr.indptr))
        columns = self._csr.indices
        first, second = (np.bincount(columns, w * power, n) for power in (data, data * data))
        return first.astype(np.float64), second.astype(np.float64)

    def add_products(self, weights: Array, product: Array, pool: Executor | None = None) -> None:
        """Add the weighted products of the rows with themselves, about zero, to the lower triangle.

        If rows have enough values in each strip, tile by tile, so that a tile of the matrix stays in the cache; threads
        of the pool share the tiles. Every entry is summed in the order of the rows, so that the bits are the same.
        """
        csr, data, n = self._csr, self._csr.data.astype(np.float64), self.shape[1]
        strips = -(-n // STRIP)
        if csr.nnz < FULL_STRIP * strips * len(self) or strips == 1:
            kernels.add_sparse_products(csr.indptr, csr.indices, data, weights, product)
            return
        starts = np.empty((len(self), strips + 1), np.int64)
        kernels.strip_starts(csr.indptr, csr.indices, STRIP, starts)

        def add_tile(tile: tuple[int, int]) -> None:
            kernels.add_sparse_tile(starts, *tile, csr.indices, data, weights, product)

        tiles = [(i, j) for i in range(strips) for j in range(i + 1)]
        list(map(add_tile, tiles) if pool is None else pool.map(add_tile, tiles))

    def add_rows_of_products(self, weights: Array, place: NDArray[np.int64], product: Array) -> None:
        """Add the weighted products of some columns with all columns to the rows of a matrix; see the kernel."""
        csr = self._csr
        kernels.add_rows_of_sparse_products(
            csr.indptr, csr.indices, csr.data.astype(np.float64), weights, place, product
        )

    def add_signed(
        self,
        order: NDArray[np.int64],
        places: NDArray[np.int64],
        roots: Array,
        weights: Array,
        product: Array,
        total: Array,
        squares: Array,
    ) -> None:
        """Add the rows to the rows of a sketch; see the kernel."""
        csr, sums = self._csr, np.zeros((self.shape[1], 2))
        sketch_kernels.add_signed_sparse(
            csr.indptr, csr.indices, csr.data, order, places, roots, weights, product, sums
        )
        total += sums[:, 0]
        squares += sums[:, 1]

    def finite_rows(self) -> NDArray[np.bool_]:
        """Return a mask of the rows whose values are all finite."""
        bad = np.flatnonzero(~np.isfinite(self._csr.data))
        good = np.ones(len(self), dtype=bool)
        good[np.searchsorted(self._csr.indptr, bad, side="right") - 1] = False
        return good

"""Accumulation in the lower triangle of an n x n matrix, in place, without the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.linalg import cython_blas

from rgcss_dask.runtime.page_pool import empty_sums

Array = NDArray[np.float64]

# Side of the tiles of the lower triangle, so that no second n x n matrix is needed if n is large.
TILE = 2048
# Rows of a triangle processed at once, so that they stay in cache.
BAND = 64


def lower_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of the tiles on and left of the diagonal."""
    strips = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    for i, rows in enumerate(strips):
        for columns in strips[: i + 1]:
            yield rows, columns


def add_outer(G: Array, terms: list[tuple[Array, Array]]) -> None:
    """Add the outer products u v' to the lower triangle, a band of rows at a time."""
    U = np.stack([u for u, _ in terms], axis=1)
    V = np.stack([v for _, v in terms])
    for start in range(0, len(G), BAND):
        stop = min(start + BAND, len(G))
        G[start:stop, :stop] += U[start:stop] @ V[:, :stop]


def add_moved(A: Array, B: Array, moves: list[tuple[Array, Array]], out: Array, *, sign: float) -> None:
    """Write A + B, or A - B, to the lower triangle of ``out``, with the outer products u v' added to B first.

    It works on a band of rows at a time, so that B can move to another shift without a copy of the whole matrix.
    """
    combine = np.add if sign > 0 else np.subtract
    for start in range(0, len(A), BAND):
        rows = slice(start, min(start + BAND, len(A))), slice(min(start + BAND, len(A)))
        band = B[rows]
        if moves:
            U = np.stack([u[rows[0]] for u, _ in moves], axis=1)
            band = band + U @ np.stack([v[rows[1]] for _, v in moves])
        combine(A[rows], band, out=out[rows])


def add_products(X: Array, G: Array, rows: slice, columns: slice, *, weighted: Array | None = None) -> None:
    """Add X'X to one tile of G, on the diagonal to the lower triangle only; or X'Y, with Y the rows times weights.

    NumPy's product needs a temporary and one more read of G; SciPy's wrappers hold the GIL.
    """
    A, B, corner = X[:, columns], (X if weighted is None else weighted)[:, rows], G[rows, columns]
    m, lda, ldc = len(X), X.strides[0] // X.itemsize, G.strides[0] // G.itemsize
    # In Fortran order the matrix is its transpose, and the lower triangle the upper one.
    if rows == columns and weighted is None:
        _dsyrk(b"U", b"N", corner.shape[0], m, 1.0, A, lda, 1.0, corner, ldc)
    else:
        _dgemm(b"N", b"T", corner.shape[1], corner.shape[0], m, 1.0, A, lda, B, lda, 1.0, corner, ldc)


class Tiles:
    """The tiles of a lower triangle, divided among threads; tiles and bits do not depend on the number of threads."""

    def __init__(self, n: int, threads: int) -> None:
        self._tiles = list(lower_tiles(n))
        self._pool = ThreadPoolExecutor(threads, "rgcss-tile") if threads > 1 and len(self._tiles) > 1 else None
        self._spare = Spare()

    def add(self, X: NDArray[Any], matrices: Sequence[Array]) -> None:
        """Add X'X to the lower triangles of all matrices."""

        def add_tile(rows: slice, columns: slice) -> None:
            if X.dtype == np.float64 and len(matrices) == 1:
                add_products(X, matrices[0], rows, columns)
            else:
                self._add_product(X, matrices, rows, columns)

        if self._pool is None:
            for rows, columns in self._tiles:
                add_tile(rows, columns)
        else:
            list(self._pool.map(add_tile, *zip(*self._tiles, strict=True)))

    def _add_product(self, X: NDArray[Any], matrices: Sequence[Array], rows: slice, columns: slice) -> None:
        side = min(X.shape[1], TILE)
        tile = self._spare.take((side, side), X.dtype)
        product = tile[: rows.stop - rows.start, : columns.stop - columns.start]
        np.matmul(X[:, rows].T, X[:, columns], out=product)
        for matrix in matrices:
            corner = matrix[rows, columns]
            np.add(corner, product, out=corner)
        self._spare.give(tile)


class Spare:
    """A pool of temporary arrays that no thread is using."""

    def __init__(self, make: Callable[..., NDArray[Any]] = empty_sums) -> None:
        self._make, self._arrays = make, list[NDArray[Any]]()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialised array for exclusive use by this thread."""
        with suppress(IndexError):  # no check first: another thread may take the last one in between
            array = self._arrays.pop()
            if array.shape == shape and array.dtype == dtype:
                return array
        return self._make(shape, dtype)

    def give(self, array: NDArray[Any]) -> None:
        """Return an array to the pool."""
        self._arrays.append(array)


class _Routine:
    """A routine of SciPy's BLAS; ctypes releases the GIL during the call."""

    def __init__(self, name: str) -> None:
        capsule, python = cython_blas.__pyx_capi__[name], ctypes.pythonapi
        name_of, address_of = python.PyCapsule_GetName, python.PyCapsule_GetPointer
        name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
        address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        signature: bytes = name_of(capsule)
        arguments = [ctypes.c_void_p] * (signature.count(b",") + 1)
        self._routine = ctypes.CFUNCTYPE(None, *arguments)(address_of(capsule, signature))

    def __call__(self, *arguments: Any) -> None:
        """Call the routine; every argument is passed by its address."""
        self._routine(*(_address(argument) for argument in arguments))


def _address(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data
    if isinstance(argument, bytes):
        return ctypes.byref(ctypes.c_char(argument))
    # 64 bits, even if BLAS reads only the lower 32.
    return ctypes.byref(ctypes.c_int64(argument) if isinstance(argument, int) else ctypes.c_double(argument))


_dsyrk, _dgemm = _Routine("dsyrk"), _Routine("dgemm")

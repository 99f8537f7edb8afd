"""The leading eigenvalues of a Gram, with a numerical proof that none was missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.runtime.disk_matrices import copied

Array = NDArray[np.float64]
Multiply = Callable[[Array], Array]  # X, one vector in each row, times the matrix

EPS = float(np.finfo(np.float64).eps)
# Vectors multiplied at once: one reading of the matrix serves them all.
_BLOCK = 16
# Maximum directions, as a share of the columns; beyond that, computing all eigenvalues is faster.
_MOST = 1 / 4
# Tolerance of the residual of all k, as a share of the rest of the trace. Each may be too low by three residuals.
_CLOSE = 1e-6
# Margin above the last leading eigenvalue below which the others are proved to lie, as a share of it.
_MARGIN = 1e-8


def leading(matrix: Array, multiply: Multiply, k: int) -> Spectrum | None:
    """Return the k leading eigenvalues, or None if they cannot be distinguished from the others.

    With U'U = I (n x k), let H = U'GU be diagonal, R = GU - UH, and V complete U to a basis. In that basis G is
    diag(H, V'GV) and, beside it, V'R and its transpose, whose norm is that of R. So by Weyl no eigenvalue of G lies
    more than |R| above its place in the union of the diagonal of H and the eigenvalues of V'GV. If none of the latter
    exceeds a number s at or above the last of H, the first k of that union exceed the diagonal of H by no more than s
    less its last. And V'GV = V'(G - UHU')V, so a Cholesky factor of sI - (G - UHU') shows that none does, but for its
    rounding, which is below n (n + 1) eps s (Demmel 1989), as the diagonal of that matrix is s at most. What is rounded
    in H, R, the trace and G - UHU' is below n eps times the trace.
    """
    n, total = len(matrix), float(np.trace(matrix))
    U = _directions(multiply, n, k, total)
    if U is None:
        return None
    U = np.linalg.qr(U)[0]
    GU = multiply(np.ascontiguousarray(U.T)).T
    values, turn = scipy.linalg.eigh(_even(U.T @ GU))
    U, values = (U @ turn)[:, ::-1], values[::-1]
    residual = float(np.linalg.norm((GU @ turn)[:, ::-1] - U * values))
    rounding = n * EPS * total
    limit = float(values[-1] * (1 + _MARGIN) + 2 * residual + 2 * rounding)
    if not _all_below(matrix, U * np.sqrt(np.maximum(values, 0.0)), limit):
        return None
    above = limit - float(values[-1]) + n * (n + 1) * EPS * limit
    return Spectrum(np.maximum(values, 0.0), total, n, above + residual + rounding)


def _all_below(matrix: Array, W: Array, limit: float) -> bool:
    """Tell whether all eigenvalues of the matrix minus W W' are below a limit."""
    rest = copied(matrix).T  # in Fortran order, where the factor overwrites it
    np.negative(rest, out=rest)
    rest[np.diag_indices_from(rest)] += limit
    rest = scipy.linalg.blas.dsyrk(1.0, np.asfortranarray(W), beta=1.0, c=rest, lower=1, overwrite_c=1)
    return bool(scipy.linalg.lapack.dpotrf(rest, lower=1, clean=0, overwrite_a=1)[1] == 0)


def _directions(multiply: Multiply, n: int, k: int, total: float) -> Array | None:
    """Return directions near the k leading eigenvectors, (n, k): from a block Krylov space with a fixed start."""
    looked = 2 * k + _BLOCK
    for V, H, B in _krylov(multiply, n):
        if len(V) >= looked:
            values, S = scipy.linalg.eigh(_even(H))
            best = S[:, ::-1][:, :k]
            left = total - float(values[::-1][:k].sum())
            if k * float(np.linalg.norm(B @ best[-_BLOCK:])) <= max(_CLOSE * left, n * EPS * total):
                return np.asarray(V.T @ best)
            looked = len(V) + max(_BLOCK, len(V) // 4)
    return None


def _krylov(multiply: Multiply, n: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield V, H and B with G V' = V'H + X B, where X are the next directions, and B belongs to the last block of V."""
    most = int(_MOST * n) // _BLOCK * _BLOCK
    V, H = np.empty((most, n)), np.zeros((most, most))
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((n, _BLOCK)))[0]
    for start in range(0, most, _BLOCK):
        stop = start + _BLOCK
        V[start:stop] = X.T
        Y = multiply(V[start:stop]).T
        H[:stop, start:stop] = V[:stop] @ Y
        H[start:stop, :start] = H[:start, start:stop].T
        B = np.eye(_BLOCK)
        for _ in range(3):  # once would leave rounding, in particular in exhausted directions
            Y = Y - V[:stop].T @ (V[:stop] @ Y)
            Y, step = np.linalg.qr(Y)
            B = step @ B
        X = Y
        yield V[:stop], H[:stop, :stop], B


def _even(H: Array) -> Array:
    return (H + H.T) / 2

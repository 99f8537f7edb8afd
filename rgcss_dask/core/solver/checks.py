"""Checks that a matrix is a Gram, with errors for users."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.missing import plain
from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.pool import Pool, split
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

# Squares of entries must neither overflow nor underflow; within this range no scaling is needed.
_SAFE = 2.0**200

# An entry may exceed the norms of its columns by this share of the diagonal, for rounding in single precision.
_EXCESS = 1e-3

# An eigenvalue below minus this, with columns scaled to length 1, is not rounding, even in single precision.
INDEFINITE = 1e-4

_MEANS = 1e-12

# Up to this many columns, checking all eigenvalues takes a few milliseconds.
_SMALL = 512

# Range of the norm of the data for which its square has full precision.
_NORMS = float(np.sqrt(np.finfo(np.float64).tiny)), float(np.sqrt(np.finfo(np.float64).max))


def checked_gram(source: ArrayLike) -> Array:
    """Return a Gram as a float64 array; refuse a matrix that is not a Gram."""
    G = plain(source)
    check_real(G.dtype)
    if G.ndim != 2 or G.shape[0] != G.shape[1] or len(G) == 0:
        raise ValueError(
            f"a Gram must be square, one row and column per column of the data; got shape {G.shape}. "
            "For rows use Moments.of(rows) or, when there are fewer rows than columns, Factor(rows)."
        )
    G = fixed(np.ascontiguousarray(G, dtype=np.float64))
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
            f"a Gram must have a diagonal of 0 or more; entry ({i}, {i}) is {diagonal[i]:g}. Check that it is A'A."
        )
    if asymmetry > 1e-10 * float(diagonal.max()):
        gap = np.abs(G - G.T)
        i, j = (int(x) for x in np.unravel_index(gap.argmax(), gap.shape))
        raise ValueError(
            f"a Gram must be symmetric; entries ({i}, {j}) and ({j}, {i}) differ by {gap[i, j]:g}. "
            "Use (G + G.T) / 2 if that is intended."
        )
    if excess > _EXCESS * float(diagonal.max()):
        over = np.abs(G) - np.outer(roots, roots)
        i, j = (int(x) for x in np.unravel_index(over.argmax(), over.shape))
        raise ValueError(
            f"no entry of a Gram may exceed the norms of its two columns; ({i}, {j}) is {G[i, j]:g}, with "
            f"{diagonal[i]:g} and {diagonal[j]:g} on the diagonal. Check that it is A'A, and not a matrix of "
            "distances or similarities."
        )
    if len(G) <= _SMALL:
        _check_definite(G)
    return G


def fixed(G: Array) -> Array:
    """Return a read-only view, so that kernels are compiled for one kind of array only."""
    view = G.view(np.ndarray)
    view.flags.writeable = False
    return view


def judged_by(diagonal: Array) -> Array:
    """Return squared norms for sign checks; after centring, a small column may be rounding of its mean."""
    return np.maximum(diagonal, _MEANS * float(diagonal.max(initial=0.0)))


def _check_definite(G: Array) -> None:
    """Refuse a small indefinite matrix, with columns at length 1. Large ones are detected during the selection."""
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
    """Return the error for an indefinite matrix."""
    return ValueError(
        f"a Gram must be positive semi-definite; this one has {how}. Check that it is A'A of rows without gaps. "
        'Correlations over different rows for each pair of columns are not: fill the gaps first, as nan="mean" does in '
        "`scan`, or set the negative eigenvalues to zero."
    )


def checked_range(diagonal: Array, root: float) -> None:
    """Refuse losses beyond the range of float64; the columns are ``root`` times those with this diagonal."""
    with np.errstate(over="ignore"):
        norm = root * np.sqrt(diagonal.sum())
    if norm > 0 and not _NORMS[0] <= norm <= _NORMS[1]:
        raise ValueError(
            f"the norm of all columns together must be from {_NORMS[0]:.3g} to {_NORMS[1]:.3g}, so that its square is "
            f"in the range of float64; it is {norm:.3g}. Divide the data by a number near that, and lam by its square."
        )


def safe_unit(largest: float) -> float:
    """Return the divisor of a Gram with this largest entry: usually 1."""
    return 1.0 if 1.0 / _SAFE < largest < _SAFE else _power_of_two(largest)


def safe_root(largest: float) -> float:
    """Return the divisor of rows with this largest entry, so that their Gram is in a safe range: usually 1."""
    return 1.0 if _SAFE**-0.5 < largest < _SAFE**0.5 else _power_of_two(largest)


def _power_of_two(number: float) -> float:
    """Return the largest power of two that is at most a number; 1 for 0."""
    return math.ldexp(1.0, math.frexp(number)[1] - 1) if number > 0 else 1.0

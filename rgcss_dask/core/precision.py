"""Effects of rounding on sums of squares, and exact subtraction of shifts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
# Error of a sum of squares, in units in the last place of the largest intermediate sum.
ULPS = 256
ROUNDING = ULPS * EPS
# A column of floats whose spread is below this share of its mean is constant up to rounding.
CONSTANT = 16 * EPS
# float64 holds all integers up to here.
_WHOLE = 2**53


def resolution(dtype: np.dtype[Any]) -> float:
    """Return the share of the mean below which a spread is rounding of the values; 0 for integers."""
    return CONSTANT * min(1.0, float(np.finfo(dtype).eps) / EPS) if dtype.kind == "f" else 0.0


def doubt_of_values(weight: float, mean: Array, share: float = CONSTANT) -> Array:
    """Return the part of each sum of squares about the mean that may be rounding of the values."""
    return weight * (share * mean) ** 2


@cache
def faint(dtype: DTypeLike) -> float:
    """Return the sum of squares below which some squares may underflow."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


def difference(rows: NDArray[Any], shift: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Write the rows minus the shift to ``out``, without losing digits of 64-bit values before the subtraction."""
    if rows.dtype.kind in "iu" and rows.dtype.itemsize == 8 and _exceed_float64(rows):
        low = (rows & 0x7FF).astype(np.float64)
        high = (rows - (rows & 0x7FF)).astype(np.float64)  # 53 bits: exact, as is the rounding error of their sum
        nearest = high + low
        low -= nearest - high
        np.subtract(nearest, shift, out=out)
        return np.add(out, low, out=out)
    work = np.longdouble if rows.dtype.kind == "f" and rows.dtype.itemsize > 8 else out.dtype
    return np.subtract(rows, shift, out=out, dtype=work, casting="unsafe")


def _exceed_float64(integers: NDArray[Any]) -> bool:
    return integers.size > 0 and (int(integers.max()) > _WHOLE or int(integers.min()) < -_WHOLE)

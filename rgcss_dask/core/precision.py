"""What rounding does to sums of squares, and how to subtract before it does anything."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).tiny)
# A sum of squares is known but for so many units in the last place of the largest sum on the way to it.
ULPS = 256
ROUNDING = ULPS * EPS
# A column of floats whose spread is below this share of its mean holds one value and rounding.
CONSTANT = 16 * EPS
# Integers up to here are float64 numbers.
_WHOLE = 2**53


def resolution(dtype: np.dtype[Any]) -> float:
    """Return the share of a mean below which a spread is rounding of the values; integers have none."""
    return CONSTANT * min(1.0, float(np.finfo(dtype).eps) / EPS) if dtype.kind == "f" else 0.0


def doubt_of_values(weight: float, mean: Array, share: float = CONSTANT) -> Array:
    """Return how much of each sum of squares about the mean may be rounding of the values themselves."""
    return weight * (share * mean) ** 2


@cache
def faint(dtype: DTypeLike) -> float:
    """Return the sum of squares below which some of the squares may be below the range of the type."""
    return float(np.finfo(dtype).tiny / np.finfo(dtype).eps)


def difference(rows: NDArray[Any], shift: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    """Put the rows less the shift into ``out``; what 64 bits tell apart must not be lost before they are subtracted."""
    if rows.dtype.kind in "iu" and rows.dtype.itemsize == 8 and _exceed_float64(rows):
        low = (rows & 0x7FF).astype(np.float64)
        high = (rows - (rows & 0x7FF)).astype(np.float64)  # 53 bits: exact, as is what the sum of both rounds away
        nearest = high + low
        low -= nearest - high
        np.subtract(nearest, shift, out=out)
        return np.add(out, low, out=out)
    work = np.longdouble if rows.dtype.kind == "f" and rows.dtype.itemsize > 8 else out.dtype
    return np.subtract(rows, shift, out=out, dtype=work, casting="unsafe")


def _exceed_float64(integers: NDArray[Any]) -> bool:
    return integers.size > 0 and (int(integers.max()) > _WHOLE or int(integers.min()) < -_WHOLE)

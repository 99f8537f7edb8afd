"""Plain arrays from user input: masked entries become NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MASKED = np.ma.MaskedArray


def plain(values: ArrayLike) -> NDArray[Any]:
    """Return an array without a mask, in the byte order of this machine; what was masked is NaN.

    Most NumPy functions ignore a mask and use the numbers behind it; those of netCDF4, for example, are fill values. So
    all arrays given by users pass through this function first.
    """
    if isinstance(values, list | tuple) and any(isinstance(one, MASKED) for one in values):
        values = np.ma.array(values)
    if isinstance(values, MASKED):
        dtype = plain_dtype(values)
        # A dtype without NaN is not real, and is refused later.
        values = np.ma.filled(values.astype(dtype), np.nan) if dtype.kind == "f" else values.data
    array = np.asarray(values)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def plain_dtype(values: Any, *, lazy: bool = False) -> np.dtype[Any]:
    """Return the dtype of the result of `plain`: masked integers become floats, to hold NaN.

    With ``lazy``, all masked integers count as having gaps, because a Dask array is not computed yet.
    """
    dtype = np.dtype(values.dtype).newbyteorder("=")
    masked = isinstance(getattr(values, "_meta", values), MASKED)
    gaps = masked and dtype.kind in "biu" and (lazy or bool(np.ma.is_masked(values)))
    return np.dtype(np.float64) if gaps else dtype


def flawed_weight(weights: NDArray[Any], start: int = 0) -> str | None:
    """Describe the first invalid weight, with rows counted from ``start``; None if all are valid."""
    bad = ~((weights >= 0) & np.isfinite(weights))
    if not bad.any():
        return None
    i = int(np.argmax(bad))
    flaw = f"weights must be finite and not negative; row {start + i:,} has {weights[i]}"
    if np.isnan(weights[i]):
        return f"{flaw}, or is masked: a weight cannot be missing. Give 0 to leave a row out."
    return f"{flaw}."

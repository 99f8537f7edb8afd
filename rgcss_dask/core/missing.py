"""What users hand over as arrays, made plain: an entry that is masked is missing, and what is missing is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MASKED = np.ma.MaskedArray


def plain(values: ArrayLike) -> NDArray[Any]:
    """Return an array without a mask, in the byte order of this machine; what was masked is NaN.

    NumPy forgets a mask in most of what it does, and goes on with the numbers behind it: those of netCDF4, for one,
    are its fill values. So whatever a user gives as an array comes through here first.
    """
    if isinstance(values, list | tuple) and any(isinstance(one, MASKED) for one in values):
        values = np.ma.array(values)
    if isinstance(values, MASKED):
        dtype = plain_dtype(values)
        # What can hold no NaN holds no real numbers either, and is refused by dtype.
        values = np.ma.filled(values.astype(dtype), np.nan) if dtype.kind == "f" else values.data
    array = np.asarray(values)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def plain_dtype(values: Any, *, lazy: bool = False) -> np.dtype[Any]:
    """Return the dtype that `plain` gives: integers of which some are masked become floats, to hold NaN.

    ``lazy`` takes any masked integers to have gaps: those of a Dask array cannot be seen before they are computed.
    """
    dtype = np.dtype(values.dtype).newbyteorder("=")
    masked = isinstance(getattr(values, "_meta", values), MASKED)
    gaps = masked and dtype.kind in "biu" and (lazy or bool(np.ma.is_masked(values)))
    return np.dtype(np.float64) if gaps else dtype


def flawed_weight(weights: NDArray[Any], start: int = 0) -> str | None:
    """Say what is wrong with the first invalid weight, with rows counted from ``start``; None if all are valid."""
    bad = ~((weights >= 0) & np.isfinite(weights))
    if not bad.any():
        return None
    i = int(np.argmax(bad))
    flaw = f"weights must be finite and not negative; row {start + i:,} has {weights[i]}"
    if np.isnan(weights[i]):
        return f"{flaw}, or is masked: a weight cannot be missing. Give 0 to leave a row out."
    return f"{flaw}."

"""What a DataArray tells before it is read: whether it is one, its rows, its gaps, and the file behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.dask import plain_blocks
from rgcss_dask.sources.zarr import ZarrSource, file_state


def is_labelled(thing: Any) -> bool:
    """Recognise objects of Xarray without importing it."""
    return type(thing).__module__.split(".")[0] == "xarray"


def origin_of(array: Any) -> Any:
    """Describe the file and the indexing of values that are not read yet; None if unknown."""
    from xarray.backends import BackendArray  # noqa: PLC0415 (an extra; it was imported to make the array)

    layer, taken = array.variable._data, []
    while hasattr(layer, "array") and not isinstance(layer, BackendArray):  # layers that index, decode and cache
        taken.append(getattr(getattr(layer, "key", None), "tuple", None))
        layer = layer.array
    if not isinstance(layer, BackendArray):  # in memory
        return None
    stored, path = getattr(layer, "_array", None), array.encoding.get("source")
    if isinstance(stored, zarr.Array):
        state = ZarrSource.of(stored, Reading("fill")).stamps(np.array([0, stored.shape[0]]))
        return None if state is None else (str(stored.store_path), state, taken)
    if path is None or not Path(path).is_file():
        return None
    return str(path), file_state(path), taken


def checked_array(array: Any, rows: str | None) -> tuple[Any, str]:
    """Return a DataArray and the dimension of its rows, or raise an error that says what is missing."""
    if not hasattr(array, "dims") or hasattr(array, "data_vars"):
        variables = ", ".join(repr(name) for name in getattr(array, "data_vars", {}))
        raise WrongKindError(
            f"a matrix must be one variable (a DataArray); got a Dataset. Give one of {variables}: dataset[name]."
        )
    if array.ndim < 2:
        raise ValueError(
            f"a matrix must have a dimension besides its rows; {array.name} has {array.dims}. Use expand_dims."
        )
    rows = str(array.dims[0]) if rows is None else rows
    if rows not in array.dims:
        raise ValueError(f"rows must name a dimension; {array.name} has {list(array.dims)}, not {rows!r}.")
    return array if array.chunks is None else array.copy(data=plain_blocks(array.data)), rows


def without_value(array: Any, rows: str, land: str) -> NDArray[np.bool_]:
    """Return the columns without a value, as a mask over the other dimensions."""
    if np.dtype(array.dtype).kind != "f":
        return np.zeros(array.shape[1:], dtype=bool)
    if land == "all":
        return np.asarray(array.isnull().all(rows).to_numpy())
    m = array.sizes[rows]
    if m == 0:
        raise ValueError(f"a matrix must have rows; {array.name} has none along {rows!r}. Give other data.")
    looked_at = array.isel({rows: sorted({0, m // 2, m - 1})}).to_numpy()
    return np.asarray(np.isnan(looked_at).all(axis=0))

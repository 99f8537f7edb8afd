"""DataArrays as input and output of an estimator: picked columns with coordinates, and rebuilt fields."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.estimator.columns import picked_places
from rgcss_dask.sources import lazy_columns as lazy
from rgcss_dask.sources.base import dense
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.xarray import PLACE, RANK, Field

Index = NDArray[np.intp]


def labelled(taken: Any, X: Any, field: Field | None, columns: Index, ranks: NDArray[Any]) -> Any:
    """Return picked columns as a DataArray with their ranks, if they were taken from a DataArray."""
    if field is None or not (is_labelled(X) or hasattr(X, "field")):
        return taken
    return field.reduced(taken, columns, X if is_labelled(X) else None).assign_coords({RANK: (PLACE, ranks)})


def rebuilt_field(X: Any, field: Field | None, model: Rebuild) -> Any:
    """Return the field rebuilt from a DataArray of picked columns."""
    if field is None:
        raise WrongKindError(
            "a DataArray can be rebuilt only after a fit on a DataArray; this fit was on a matrix. Give array.values."
        )
    values = X.transpose(field.rows, ...).data
    known = [field.names[j] for j in model.columns]
    places = picked_places(values.shape, len(known), known, field.labels(X))
    lazily = lazy.is_stored(values)
    rebuilt = lazy.rebuild(values, model, (), places) if lazily else model(dense(values)[:, places])
    return field.full(rebuilt, X)

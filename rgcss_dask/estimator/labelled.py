"""DataArrays in and out of an estimator: picked columns with their coordinates, and fields rebuilt from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.estimator.columns import picked_places
from rgcss_dask.sources import lazy_columns as lazy
from rgcss_dask.sources.base import dense
from rgcss_dask.sources.xarray import PLACE, RANK, Field, is_labelled

Index = NDArray[np.intp]


def labelled(taken: Any, X: Any, field: Field | None, columns: Index, ranks: NDArray[Any]) -> Any:
    """Return picked columns as a DataArray with their ranks, if that is what they were taken from."""
    if field is None or not (is_labelled(X) or hasattr(X, "field")):
        return taken
    return field.reduced(taken, columns, X if is_labelled(X) else None).assign_coords({RANK: (PLACE, ranks)})


def rebuilt_field(X: Any, field: Field | None, model: Rebuild) -> Any:
    """Return the field rebuilt from a DataArray of picked columns."""
    if field is None:
        raise WrongKindError(
            "a DataArray can be rebuilt after a fit on one; this fit was on a matrix. Give its values."
        )
    values = X.transpose(field.rows, ...).data
    known = [field.names[j] for j in model.columns]
    places = picked_places(values.shape, len(known), known, field.labels(X))
    lazily = lazy.is_stored(values)
    rebuilt = lazy.rebuild(values, model, (), places) if lazily else model(dense(values)[:, places])
    return field.full(rebuilt, X)

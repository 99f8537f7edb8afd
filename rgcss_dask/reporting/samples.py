"""A few sample rows and their reconstruction from the picked columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.names import matching
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.result import Result
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.in_memory import FrameSource
from rgcss_dask.sources.registry import open_source

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows, and their reconstruction from the picked columns."""

    rows: NDArray[np.intp]  # (s,) row numbers
    labels: list[str] | None  # row labels, such as dates
    original: Array  # (s, n)
    rebuilt: Array  # (s, n)


def sample(result: Result, rows: Any, count: int, labelled: Any = None) -> Samples:
    """Read a few distant rows, and rebuild them; a gap in a picked column is replaced by its mean.

    Columns are in the order of the result. Row labels come from ``labelled``, if it has labels.
    """
    source = rows if isinstance(rows, Source) else open_source(rows)
    index = matching(result.names, source.names, source.address)
    m, n = source.shape
    if n != result.n:
        raise ValueError(f"rows must have the {result.n} columns of the result; {source.address} has {n}.")
    # The middles of equal parts, because the first and the last row of a matrix are often not typical.
    which = np.unique((np.arange(min(m, count)) + 0.5) * m / min(m, count)).astype(np.intp)
    original = np.vstack([source.read(int(i), int(i) + 1) for i in which]).astype(np.float64)
    original = original if index is None else original[:, index]
    rebuild = Rebuild.of(result.selection, result.weights)
    known = np.where(np.isfinite(original), original, result.mean)[:, rebuild.columns]
    return Samples(which, row_labels(labelled, which), original, np.asarray(rebuild(known)))


def row_labels(given: Any, which: NDArray[np.intp]) -> list[str] | None:
    """Return the labels of rows of a frame or DataArray, if any; a time of midnight is left out of dates."""
    if FrameSource.takes(given):
        if type(given.index).__name__ == "RangeIndex":
            return None
        found = [str(given.index[int(i)]) for i in which]
    elif is_labelled(given) and hasattr(given, "dims") and given.dims[0] in given.coords:
        values = given[given.dims[0]].to_numpy()[which]
        found = (np.datetime_as_string(values, unit="s") if values.dtype.kind == "M" else values.astype(str)).tolist()
    else:
        return None
    return [label.replace("T", " ").removesuffix(" 00:00:00") if label[:4].isdigit() else label for label in found]

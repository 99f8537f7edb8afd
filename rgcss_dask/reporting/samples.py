"""A few rows of the data beside what the picked columns make of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.names import matching
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.result import Result
from rgcss_dask.sources.registry import open_source

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows, and the same rows rebuilt from their picked columns."""

    rows: NDArray[np.intp]  # (s,) which rows
    original: Array  # (s, n)
    rebuilt: Array  # (s, n)


def sample(result: Result, rows: Any, count: int) -> Samples:
    """Read a few rows, far apart, and rebuild them; a gap in a picked column counts as its mean.

    Columns are in the order of the result.
    """
    source = open_source(rows)
    index = matching(result.names, source.names, source.address)
    m, n = source.shape
    if n != result.n:
        raise ValueError(f"rows must have the {result.n} columns of the result; {source.address} has {n}.")
    # In the middle of equal parts, because the first and the last row of an archive are seldom typical.
    which = np.unique((np.arange(min(m, count)) + 0.5) * m / min(m, count)).astype(np.intp)
    original = np.vstack([source.read(int(i), int(i) + 1) for i in which]).astype(np.float64)
    original = original if index is None else original[:, index]
    rebuild = Rebuild.of(result.selection, result.weights)
    known = np.where(np.isfinite(original), original, result.mean)[:, rebuild.columns]
    return Samples(which, original, np.asarray(rebuild(known)))

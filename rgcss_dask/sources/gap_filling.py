"""A matrix with its gaps filled as it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.sources.base import Source
from rgcss_dask.sources.views import SourceView


class FilledSource(SourceView):
    """Another source, with a given number in the place of NaN in each column: the mean of other rows, mostly."""

    def __init__(self, source: Source, values: NDArray[np.float64]) -> None:
        super().__init__(source)
        self._values = values

    def over(self, source: Source) -> Source:
        """Return the same view of another source."""
        return FilledSource(source, self._values)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows and fill their gaps."""
        rows = self._source.read(start, stop)
        gap = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(1, dtype=bool)
        return np.where(gap, self._values, rows).astype(rows.dtype) if gap.any() else rows

"""A source that fills gaps as rows are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.views import Block, SourceView


class FilledSource(SourceView):
    """A view of a source that replaces NaN by a given number for each column, usually a mean.

    The numbers are rounded to the dtype of the rows, unless another dtype is given.
    """

    def __init__(self, source: Source, values: NDArray[np.float64], dtype: DTypeLike | None = None) -> None:
        super().__init__(source)
        self._values, self._wider = values, dtype if source.dtype.kind == "f" else None
        self.dtype = source.dtype if self._wider is None else np.dtype(self._wider)

    def over(self, source: Source) -> Source:
        """Return the same view of another source."""
        return FilledSource(source, self._values, self._wider)

    def changed(self, rows: Block) -> Block:
        """Fill gaps."""
        if rows.dtype.kind != "f":
            return rows
        if isinstance(rows, SparseRows):
            return rows.filled(self._values, self.dtype)
        gap = np.isnan(rows)
        return (
            np.where(gap, self._values, rows).astype(self.dtype) if gap.any() else rows.astype(self.dtype, copy=False)
        )

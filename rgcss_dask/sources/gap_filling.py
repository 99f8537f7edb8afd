"""A matrix with its gaps filled as it is read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.plan import Cuts, Geometry
from rgcss_dask.sources.base import Reading, Source


class FilledSource(Source):
    """Another source, with a given number in the place of NaN in each column: the mean of other rows, mostly."""

    def __init__(self, source: Source, values: NDArray[np.float64]) -> None:
        self._source, self._values = source, values
        self.shape, self.dtype, self.names = source.shape, source.dtype, source.names
        self.address, self.waits = source.address, source.waits

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Nothing a user has."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Never called."""
        raise NotImplementedError

    @property
    def processes(self) -> bool:
        """Whether other processes can read the source."""
        return self._source.processes

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the source is on this machine."""
        return self._source.paths

    @property
    def cuts(self) -> Cuts:
        """Where the source may be cut."""
        return self._source.cuts

    @property
    def geometry(self) -> Geometry:
        """What the plan needs to know: the same as of the source."""
        return self._source.geometry

    def blocks(self, edges: Cuts) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Return the graph of the source."""
        return self._source.blocks(edges)

    def with_blocks(self, start: int, blocks: list[Any]) -> Source:
        """Read from computed blocks, and fill them."""
        return FilledSource(self._source.with_blocks(start, blocks), self._values)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows and fill their gaps."""
        rows = self._source.read(start, stop)
        gap = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(1, dtype=bool)
        return np.where(gap, self._values, rows).astype(rows.dtype) if gap.any() else rows

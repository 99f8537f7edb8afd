"""Views of a source: the same rows, changed as they are read."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.pass_options import Cuts, Geometry
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import Reading, Source, checksums

Block = NDArray[Any] | SparseRows


class SourceView(Source):
    """A view of a source; subclasses define how rows are changed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape, self.dtype, self.names = source.shape, source.dtype, source.names
        self.address, self.waits, self.unguarded = source.address, source.waits, source.unguarded

    @abstractmethod
    def over(self, source: Source) -> Source:
        """Return the same view of another source."""

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: users have no objects of this kind."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Raise: `takes` is always False."""
        raise NotImplementedError

    @property
    def processes(self) -> bool:
        """Whether other processes can read the source."""
        return self._source.processes

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the source on this machine."""
        return self._source.paths

    @property
    def places(self) -> tuple[str, ...]:
        """The places of the source."""
        return self._source.places

    @property
    def cuts(self) -> Cuts:
        """The cuts of the source."""
        return self._source.cuts

    @property
    def geometry(self) -> Geometry:
        """The geometry of the source, with the dtype of the view."""
        return replace(self._source.geometry, dtype=self.dtype)

    def read_block(self, start: int, stop: int) -> Block:
        """Return changed rows, sparse if the source returns sparse rows."""
        return self.changed(self._source.read_block(start, stop))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return changed rows as a dense array."""
        return np.asarray(self.changed(self._source.read(start, stop)))

    @abstractmethod
    def changed(self, rows: Block) -> Block:
        """Return rows of the source as the view changes them."""

    def blocks(self, edges: Cuts) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Return the graph of the source."""
        return self._source.blocks(edges)

    def with_blocks(self, start: int, blocks: list[Any]) -> Source:
        """Return a view of the source that reads from computed blocks."""
        return self.over(self._source.with_blocks(start, blocks))


class ColumnsSource(SourceView):
    """A view of a source with some of its columns, or all in another order."""

    def __init__(self, source: Source, index: NDArray[np.intp]) -> None:
        super().__init__(source)
        self._index = index
        self.shape = (source.shape[0], len(index))
        self.names = None if source.names is None else tuple(source.names[i] for i in index)

    def over(self, source: Source) -> Source:
        """Return the same view of another source."""
        return ColumnsSource(source, self._index)

    def changed(self, rows: Block) -> Block:
        """Return the columns of rows."""
        return rows.take(self._index) if isinstance(rows, SparseRows) else rows[:, self._index]

    @property
    def geometry(self) -> Geometry:
        """The geometry of the source, with these columns."""
        return replace(self._source.geometry, columns=len(self._index))

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Return checksums of rows in memory; add the order of columns to the stamps of stored rows."""
        if self._source.in_memory:
            return checksums(self, edges)
        stamps = self._source.stamps(edges)
        return (
            None
            if stamps is None
            else [f"{stamp} in order {zlib.crc32(self._index.tobytes()):08x}" for stamp in stamps]
        )

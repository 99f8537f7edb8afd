"""A source seen through another: the same rows, changed as they are read."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.plan import Cuts, Geometry
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import Reading, Source, checksums

Block = NDArray[Any] | SparseRows


class SourceView(Source):
    """Another source, whose rows are changed as they are read; a subclass says how."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.shape, self.dtype, self.names = source.shape, source.dtype, source.names
        self.address, self.waits, self.unguarded = source.address, source.waits, source.unguarded

    @abstractmethod
    def over(self, source: Source) -> Source:
        """Return the same view of another source."""

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
    def places(self) -> tuple[str, ...]:
        """Where the source is."""
        return self._source.places

    @property
    def cuts(self) -> Cuts:
        """Where the source may be cut."""
        return self._source.cuts

    @property
    def geometry(self) -> Geometry:
        """What the plan needs to know: the same as of the source, of these values."""
        return replace(self._source.geometry, dtype=self.dtype)

    def read_block(self, start: int, stop: int) -> Block:
        """Read rows as the source has them, and change them."""
        return self.changed(self._source.read_block(start, stop))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows and change them."""
        return np.asarray(self.changed(self._source.read(start, stop)))

    @abstractmethod
    def changed(self, rows: Block) -> Block:
        """Return rows as they are seen here."""

    def blocks(self, edges: Cuts) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Return the graph of the source."""
        return self._source.blocks(edges)

    def with_blocks(self, start: int, blocks: list[Any]) -> Source:
        """Read from computed blocks, and change them."""
        return self.over(self._source.with_blocks(start, blocks))


class ColumnsSource(SourceView):
    """Columns of another source: all of them in another order, or some."""

    def __init__(self, source: Source, index: NDArray[np.intp]) -> None:
        super().__init__(source)
        self._index = index
        self.shape = (source.shape[0], len(index))
        self.names = None if source.names is None else tuple(source.names[i] for i in index)

    def over(self, source: Source) -> Source:
        """Return the same view of another source."""
        return ColumnsSource(source, self._index)

    def changed(self, rows: Block) -> Block:
        """Take the columns."""
        return rows.take(self._index) if isinstance(rows, SparseRows) else rows[:, self._index]

    @property
    def geometry(self) -> Geometry:
        """What the plan needs to know: that of the source, of these columns."""
        return replace(self._source.geometry, columns=len(self._index))

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Checksum rows in memory as they are read here; what is stored is as it was only in the same order."""
        if self._source.in_memory:
            return checksums(self, edges)
        stamps = self._source.stamps(edges)
        return (
            None
            if stamps is None
            else [f"{stamp} in order {zlib.crc32(self._index.tobytes()):08x}" for stamp in stamps]
        )

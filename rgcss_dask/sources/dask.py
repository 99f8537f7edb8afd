"""Rows of Dask arrays and data frames: each block is computed once, by Dask, where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse
from dask.base import is_dask_collection, optimize
from numpy.typing import NDArray

from rgcss_dask.core.missing import plain, plain_dtype
from rgcss_dask.core.pass_options import Cuts, Geometry
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import Reading, Source, dense, frame_dtype, is_sparse


class DaskSource(Source):
    """A Dask array of dense or sparse blocks, chunked in any way."""

    def __init__(self, array: da.Array, names: tuple[str, ...] | None = None, name: str = "") -> None:
        self._array = array
        self.shape, self.dtype, self.names = array.shape, np.dtype(array.dtype), names
        self.address = f"Dask array {name or array.name}"

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take Dask arrays."""
        return isinstance(thing, da.Array)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Count rows that Dask does not know, and merge column chunks."""
        if thing.ndim != 2:
            return cls(thing)
        if np.isnan(thing.shape[1]):
            raise ValueError("the number of columns must be known; call compute_chunk_sizes() on the array.")
        if np.isnan(thing.shape[0]):
            thing = thing.compute_chunk_sizes()
        blocks = plain_blocks(thing)
        blocks = blocks.rechunk({1: -1}) if blocks.numblocks[1] > 1 else blocks  # type: ignore[no-untyped-call]
        return cls(blocks, name=thing.name)

    @property
    def array(self) -> da.Array:
        """The matrix as a Dask array."""
        return self._array

    @property
    def cuts(self) -> Cuts:
        """The rows where blocks begin, without empty blocks."""
        return np.unique(np.cumsum([0, *self._array.chunks[0]])).astype(np.int64)

    @property
    def geometry(self) -> Geometry:
        """The geometry, marked as read in whole blocks."""
        return Geometry(self.shape[0], self.shape[1], self.dtype, self.cuts, whole=True)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Compute the blocks of a row range."""
        return dense(self._array[start:stop].compute())

    def blocks(self, edges: Cuts) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Return the graph of the array, and the keys of the blocks of each range."""
        (array,) = optimize(self._array)  # type: ignore[no-untyped-call]
        keys = [row[0] for row in array.__dask_keys__()]
        first, last = self._touched(edges[:-1], edges[1:])
        return dict(array.__dask_graph__()), [keys[a:b] for a, b in zip(first, last, strict=True)]

    def with_blocks(self, start: int, blocks: list[Any]) -> Source:
        """Return a source that reads from computed blocks."""
        (first,), _ = self._touched(np.array([start]), np.array([start + 1]))
        return _Computed(self, int(self._edges[first]), blocks)

    @property
    def _edges(self) -> Cuts:
        return np.cumsum([0, *self._array.chunks[0]]).astype(np.int64)

    def _touched(self, starts: Cuts, stops: Cuts) -> tuple[Cuts, Cuts]:
        """Return, for each range, the first block and the end of the blocks that hold its rows."""
        return np.searchsorted(self._edges, starts, "right") - 1, np.searchsorted(self._edges, stops, "left")

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive the blocks; the graph is not sent to them.
        return {**self.__dict__, "_array": _Chunks(self._array.chunks)}


class DaskFrameSource(DaskSource):
    """A Dask data frame, with its column names."""

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take Dask data frames."""
        return is_dask_collection(thing) and hasattr(thing, "to_dask_array") and hasattr(thing, "columns")

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Count the rows of each partition, and wrap the values."""
        # Convert the frame, not the array: its gaps become NaN, while gaps in an array of objects cannot be converted.
        array = thing.astype(frame_dtype(thing)).to_dask_array(lengths=True)
        return cls(array, tuple(str(name) for name in thing.columns))


def plain_blocks(array: da.Array) -> da.Array:
    """Return the array with `plain_block` applied to each block, lazily."""
    meta = plain_block(array._meta)
    dtype = plain_dtype(array, lazy=True)
    if type(meta) is type(array._meta) and dtype == array.dtype and array.dtype.isnative:
        return array
    meta = meta.astype(dtype)
    return array.map_blocks(_plain_block_of, dtype, dtype=dtype, meta=meta)  # type: ignore[arg-type]


def _plain_block_of(block: Any, dtype: np.dtype[Any]) -> Any:
    return plain_block(block).astype(dtype, copy=False)


def plain_block(block: Any) -> Any:
    """Return a block that can be sliced by rows and columns: an array without a mask, or a CSR matrix."""
    if scipy.sparse.issparse(block):
        return block.tocsr()
    return block if is_sparse(block) else plain(block)


def check_promise(rows: NDArray[Any], columns: int, dtype: np.dtype[Any], address: str) -> None:
    """Refuse a block that differs from the metadata of its Dask array: its sums could not be added to the others."""
    if rows.shape[1] != columns or rows.dtype != dtype:
        raise ValueError(
            f"blocks must agree with the metadata of their Dask array; {address} has {columns} columns of {dtype}, "
            f"a block has {rows.shape[1]} of {rows.dtype}. Give "
            "map_blocks the right dtype and chunks."
        )


def stacked(arrays: Sequence[da.Array]) -> da.Array:
    """Concatenate arrays by rows; blocks of different types become dense, because Dask needs one type."""
    if len({type(array._meta) for array in arrays}) > 1:
        meta = np.empty((0, 0), arrays[0].dtype)
        arrays = [da.map_blocks(dense, array, dtype=array.dtype, meta=meta) for array in arrays]  # type: ignore[no-untyped-call]
    return da.concatenate(arrays)  # type: ignore[no-untyped-call]


class _Chunks:
    """The chunks of an array, which are all of it that is sent to a task."""

    def __init__(self, chunks: tuple[tuple[int, ...], ...]) -> None:
        self.chunks = chunks


class _Computed(Source):
    """A source of computed blocks, stacked by rows."""

    def __init__(self, whole: DaskSource, start: int, blocks: list[Any]) -> None:
        self.shape, self.dtype, self.address = whole.shape, whole.dtype, whole.address
        self._blocks = [plain_block(block) for block in blocks]
        self._starts = np.cumsum([start] + [block.shape[0] for block in blocks])

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: users have no objects of this kind."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Raise: `takes` is always False."""
        raise NotImplementedError

    @property
    def cuts(self) -> Cuts:
        """The rows where blocks begin."""
        return self._starts

    def read_block(self, start: int, stop: int) -> NDArray[Any] | SparseRows:
        """Return rows of the blocks; as sparse rows if there is one CSR block."""
        if len(self._blocks) != 1 or getattr(self._blocks[0], "format", "") != "csr":
            return self.read(start, stop)
        first = int(self._starts[0])
        rows = SparseRows(self._blocks[0][start - first : stop - first])
        return rows if rows.dtype == self.dtype and rows.shape[1] == self.shape[1] else self.read(start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows of the blocks."""
        found = [
            dense(block[max(0, start - a) : stop - a])
            for block, a in zip(self._blocks, self._starts, strict=False)
            if a < stop and a + block.shape[0] > start
        ]
        for rows in found:
            check_promise(rows, self.shape[1], self.dtype, self.address)
        return found[0] if len(found) == 1 else np.concatenate(found)

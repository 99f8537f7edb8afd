"""Lazy transforms of Dask collections and stored matrices, block by block: taking and rebuilding columns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed
from numpy.typing import NDArray

from rgcss_dask.core.rebuild import Rebuild, Take
from rgcss_dask.core.spans import READ_BYTES, thinned
from rgcss_dask.sources.base import Source, dense, frame_dtype
from rgcss_dask.sources.dask import DaskSource, plain_block, plain_blocks, stacked
from rgcss_dask.sources.in_memory import ArraySource, FrameSource, SparseSource
from rgcss_dask.sources.registry import StackedSource, kind_of, open_source
from rgcss_dask.sources.xarray import XarraySource

AT_HAND = (ArraySource, FrameSource, SparseSource, StackedSource, None)  # None: scikit-learn validates it


def is_stored(thing: Any) -> bool:
    """Tell whether data are lazy or stored, and are read by `scan`, rather than in memory."""
    if isinstance(thing, list | tuple):
        return len(thing) > 0 and is_stored(thing[0])
    if isinstance(thing, str | Path | Source):
        return True
    return kind_of(thing) not in AT_HAND


def is_dask_frame(thing: Any) -> bool:
    """Recognise a Dask data frame."""
    return is_dask_collection(thing) and hasattr(thing, "map_partitions") and hasattr(thing, "columns")


def columns_of(thing: Any) -> tuple[Any, int, tuple[str, ...] | None]:
    """Return the data, opened unless they are a Dask collection, with the number and the names of the columns."""
    if is_dask_frame(thing):
        return thing, len(thing.columns), tuple(str(name) for name in thing.columns)
    if not isinstance(thing, da.Array):
        thing = open_source(thing)
        return thing, thing.shape[1], thing.names
    if thing.ndim != 2 or np.isnan(thing.shape[1]):
        raise ValueError(f"a matrix must have two dimensions and a known number of columns; got shape {thing.shape}.")
    return thing, int(thing.shape[1]), None


def dask_rows(thing: Any) -> da.Array:
    """Return a stored matrix as a lazy Dask array of whole rows."""
    if isinstance(thing, da.Array):
        return plain_blocks(thing)
    source = open_source(thing)
    if isinstance(source, DaskSource):
        return source.array
    if isinstance(source, StackedSource) and any(isinstance(part, DaskSource) for part in source.parts):
        return stacked([dask_rows(part) for part in source.parts])
    edges = thinned(source.cuts, max(1, READ_BYTES // source.geometry.row_bytes))
    rows = tuple(int(b - a) for a, b in pairwise(edges))
    held = delayed(source, pure=True, traverse=False)
    return da.map_blocks(  # type: ignore[no-untyped-call]
        _read_block,
        held,
        chunks=(rows, (source.shape[1],)),
        dtype=source.dtype,
        meta=np.empty((0, 0), source.dtype),
    )


def _read_block(source: Source, block_info: Any = None) -> NDArray[Any]:
    (start, stop), _ = block_info[None]["array-location"]
    return source.read(start, stop)


def take(thing: Any, taker: Take) -> Any:
    """Take columns of a Dask array or data frame, or of a stored matrix, lazily.

    A DataArray without Dask blocks is read at once, block by block.
    """
    if isinstance(thing, XarraySource):
        return taker.settle(dask_rows(thing)[:, taker.columns].compute())
    if is_dask_frame(thing):
        return thing.map_partitions(taker.from_frame, meta=taker.from_frame(thing._meta))
    array = dask_rows(thing)
    if array.numblocks[1] > 1:  # only the blocks that hold picked columns are needed
        array = array[:, taker.columns].rechunk({1: -1})
        return array.map_blocks(taker.settle, dtype=array.dtype, meta=array._meta)
    chunks = (array.chunks[0], (len(taker.columns),))
    return array.map_blocks(_take_block, taker, chunks=chunks, dtype=array.dtype, meta=array._meta)  # type: ignore[arg-type]


def _take_block(block: Any, taker: Take) -> Any:
    return taker(plain_block(block))


def rebuild(thing: Any, model: Rebuild, names: tuple[str, ...], places: NDArray[np.intp]) -> Any:
    """Rebuild all columns, lazily, from a Dask array or data frame that holds the picked columns at ``places``.

    The model is a task of its own, sent once: its weights are too large to be part of every task.
    """
    held = delayed(model, pure=True, traverse=False)
    if is_dask_frame(thing):
        given = frame_dtype(thing)
        meta = type(thing._meta)(np.empty((0, model.n), model.dtype(given)), columns=list(names))
        return thing.map_partitions(_rebuild_frame, held, places, given, list(names), meta=meta)
    array = dask_rows(thing)
    if array.numblocks[1] > 1:
        array = array.rechunk({1: -1})  # type: ignore[no-untyped-call]
    dtype = model.dtype(array.dtype)
    return array.map_blocks(
        _rebuild_block,  # type: ignore[arg-type]
        held,
        places,
        dtype=dtype,
        chunks=(array.chunks[0], (model.n,)),
        meta=np.empty((0, 0), dtype),
    )


def _rebuild_block(block: Any, model: Rebuild, places: NDArray[np.intp]) -> NDArray[Any]:
    return model(dense(block)[:, places])


def _rebuild_frame(frame: Any, model: Rebuild, places: NDArray[np.intp], dtype: np.dtype[Any], names: list[str]) -> Any:
    return type(frame)(model(frame.to_numpy(dtype=dtype)[:, places]), index=frame.index, columns=names)

"""Rows for downstream tasks: Dask arrays with blocks of float32 that are read when they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from rgcss_dask.conversion.apply_selection import columns_in
from rgcss_dask.core.hashing import fold_of
from rgcss_dask.core.names import in_order_of
from rgcss_dask.core.plan import OVERHEAD, READ_COPIES
from rgcss_dask.core.precision import difference
from rgcss_dask.core.result import Result
from rgcss_dask.core.spans import thinned
from rgcss_dask.io.matrix_writer import write_matrix
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.gap_filling import FilledSource
from rgcss_dask.sources.in_memory import ArraySource
from rgcss_dask.sources.registry import open_source

Array = NDArray[np.float64]

BLOCK_BYTES = (
    2**24
)  # of float32 in a block: for any memory and number of threads, so that the figures depend on neither
BLOCK_ROWS = 2**15  # rows of a block, at most, because the distances of each row to all centres are computed
SLICE_BYTES = 2**21  # bytes of float64 rows that are converted to float32 at once
FOLDS = 5  # one of these folds is held out
BLOCKS_ALIVE = 4  # blocks in memory for each thread: read, in use, mask of finite values, a copy
SHORT = [np.dtype(kind) for kind in ("?", "u1", "i1", "u2", "i2", "f2", "f4")]  # types whose values all fit float32
ROW_BYTES = 40  # bytes kept for each row: its label, its cluster, its distance, its random numbers


@dataclass(frozen=True, eq=False)
class Rows:
    """Columns of a matrix, centred and scaled as for the selection.

    All are also divided by one constant, so that the mean squared norm of a row is 1. A step of stochastic gradients
    then means the same for any number of columns; clusters do not change.
    """

    source: Source
    columns: NDArray[np.intp]  # (n,) indices in the source
    mean: Array  # (n,)
    divisor: Array  # (n,)
    labels: tuple[str, ...]  # (n,) names of the columns in the selection, for errors

    @classmethod
    def all_of(cls, result: Result, source: Source, *, nan: str) -> Rows:
        """Take all columns of a result, by name if they have names."""
        columns = columns_in(result.selection, source)
        if nan == "mean":
            source = FilledSource(source, in_order_of(result.mean, columns))
        sizes = result.selection.preparation.sigma[: result.n]
        labels = tuple(f"column {result.label(column)}" for column in range(result.n))
        return cls(source, columns, result.mean, sizes * _norm(result, sizes, slice(None)), labels)

    def picked(self, result: Result, folder: Path) -> Rows:
        """Write the picked columns, ascending, to a temporary archive; keep them in memory if the source is there."""
        which = np.sort(result.selection.columns)
        sizes = result.selection.preparation.sigma[: result.n]
        taken, blocks = self.columns[which], self.edges
        if self.source.in_memory:
            reduced: Source = ArraySource(self.source.read(0, self.source.shape[0])[:, taken])
        else:
            path = folder / "picked.zarr"
            write_matrix(
                path,
                lambda start: (self.source.read(a, b)[:, taken] for a, b in pairwise(blocks.tolist()) if a >= start),
                len(taken),
                self.source.dtype,
                made_from=lambda: None,
                chunk=_rows_of_block(len(taken)),
            )
            reduced = open_source(path)
        divisor = sizes[which] * _norm(result, sizes, which)
        labels = tuple(self.labels[column] for column in which)
        return Rows(reduced, np.arange(len(taken)), result.mean[which], divisor, labels)

    @property
    def edges(self) -> NDArray[np.int64]:
        """Rows at which blocks begin and end: whole chunks, of some megabytes."""
        return thinned(self.source.cuts, _rows_of_block(len(self.columns)))

    def memory(self, threads: int, points: int) -> int:
        """Return the bytes that ``threads`` threads need, each computing distances to ``points`` points."""
        rows, n = int(np.diff(self.edges).max()), len(self.columns)
        reading = READ_COPIES * rows * self.source.geometry.row_bytes
        working = rows * (BLOCKS_ALIVE * 4 * n + 2 * 8 * points)
        return OVERHEAD + threads * (reading + working) + ROW_BYTES * self.source.shape[0]

    def blocks(self, keep: Keep | None = None) -> tuple[da.Array, NDArray[np.intp]]:
        """Return the rows, or the rows selected by ``keep``, as a Dask array, and their numbers."""
        spans, kept = [], []
        for start, stop in pairwise(self.edges.tolist()):
            rows = np.arange(start, stop) if keep is None else keep.rows(start, stop)
            if len(rows):
                spans.append((start, stop))
                kept.append(rows)
        held = delayed(_Spans(self, spans, keep), pure=False, traverse=False)
        array = da.map_blocks(  # type: ignore[no-untyped-call]
            _read_block,
            held,
            chunks=(tuple(map(len, kept)), (len(self.columns),)),
            dtype=np.float32,
            meta=np.empty((0, 0), np.float32),
        )
        return array, np.concatenate(kept)

    def read(self, start: int, stop: int, rows: slice | NDArray[np.bool_]) -> NDArray[np.float32]:
        """Read a block and prepare it; a gap is an error that gives its place."""
        block = self.source.read(start, stop)[rows]
        found = np.empty((len(block), len(self.columns)), dtype=np.float32)
        if not np.array_equal(self.columns, np.arange(block.shape[1])):
            block = block[:, self.columns]
        if block.dtype in SHORT:  # rounding of the means shifts all rows alike
            np.subtract(block, self.mean.astype(np.float32), out=found, casting="unsafe")
            found *= (1.0 / self.divisor).astype(np.float32)
        else:
            step = max(1, SLICE_BYTES // (8 * len(self.columns)))
            for a in range(0, len(block), step):
                part = block[a : a + step]
                found[a : a + step] = difference(part, self.mean, np.empty(part.shape)) / self.divisor
        if not np.isfinite(found.sum()) and not np.isfinite(found).all():
            place, column = (int(i) for i in np.argwhere(~np.isfinite(found))[0])
            row = start + int(np.arange(stop - start)[rows][place])
            raise ValueError(
                f"values must be finite; row {row:,}, {self.labels[column]} holds {float(block[place, column])}. Gaps "
                "(NaN) are filled with the means of columns by nan='mean' (--nan mean); rows with labels are not left "
                "out."
            )
        return found


@dataclass(frozen=True)
class Keep:
    """Selects the held-out rows, or all others, by a hash of the row number."""

    held_out: bool
    seed: int

    def mask(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return a mask of the selected rows of a block."""
        numbers = np.arange(start, stop, dtype=np.uint64)
        return (fold_of(numbers, FOLDS, self.seed) == 0) == self.held_out

    def rows(self, start: int, stop: int) -> NDArray[np.intp]:
        """Return the numbers of the selected rows."""
        return start + np.flatnonzero(self.mask(start, stop))


def _rows_of_block(n: int) -> int:
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // (4 * n)))


@dataclass(frozen=True, eq=False)
class _Spans:
    """The input that all tasks of an array share; each task finds its rows by its block index."""

    rows: Rows
    spans: list[tuple[int, int]]
    keep: Keep | None


def _read_block(held: _Spans, block_id: Any = None) -> NDArray[np.float32]:
    start, stop = held.spans[block_id[0]]
    return held.rows.read(start, stop, slice(None) if held.keep is None else held.keep.mask(start, stop))


def _norm(result: Result, sizes: Array, which: Any) -> float:
    """Return the root of the mean squared norm of rows with these columns, centred and scaled."""
    squares = float(np.sum((result.spread / sizes)[which] ** 2))
    if squares == 0:
        raise ValueError("there must be something to learn from; the columns are constant in the rows of the result.")
    return squares**0.5

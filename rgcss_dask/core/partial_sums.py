"""The sums of a span of rows, for each fold and group, as a value that can be merged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.accumulate import Accumulator
from rgcss_dask.core.band import BandSums
from rgcss_dask.core.gappy_sketch import GappySketch, GappySums
from rgcss_dask.core.gaps import Gaps
from rgcss_dask.core.hashing import fold_of, hashed, runs
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.noise import Differences
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.sketch import Sketch, SketchSums
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.runtime.page_pool import empty_rows

# Bytes of sparse rows that are made dense at once to compute a checksum.
_DENSE_BYTES = 2**24
Key = tuple[str, int]  # ("rows", 0), ("fold", k), ("group", g) or ("noise", 0)
PartSums = Moments | Gaps | Differences
NOISE: Key = ("noise", 0)


class Read(NamedTuple):
    """A span that was read: CRC-32 of its rows and weights (0 if not requested), methods of its products."""

    start: int
    stop: int
    crc: int
    weights_crc: int = 0
    products: tuple[str, ...] = ()  # names of the methods


@dataclass(frozen=True, eq=False)
class PartialSums:
    """The sums of some rows for each fold and group, and the spans from which they were computed."""

    sums: dict[Key, PartSums]
    reads: tuple[Read, ...]

    def merge(self, other: PartialSums, *, overwrite: bool = False) -> PartialSums:
        """Merge the sums that both have, and keep the sums that only one has."""
        sums = dict(self.sums)
        for key, value in other.sums.items():
            # mypy cannot know that all sums of a pass are of one kind.
            sums[key] = sums[key].merge(value, overwrite=overwrite) if key in sums else value  # type: ignore[arg-type]
        return PartialSums(sums, tuple(sorted(self.reads + other.reads)))

    def moments(self, options: Options, names: tuple[str, ...] | None) -> Moments:
        """Fill gaps if requested, and assemble the moments with their folds and groups."""
        apart = "fold" if options.folds else "group" if options.groups else "rows"
        filled = self._filled(apart)
        folds = tuple(filled["fold", k] for k in range(options.folds) if ("fold", k) in filled)
        groups = tuple(filled["group", g] for g in range(options.groups) if ("group", g) in filled)
        _check_all_there(folds, options.folds, "fold")
        _check_all_there(groups, options.groups, "group")
        whole = reduce(Moments.merge, [value for key, value in filled.items() if key[0] == apart])
        if isinstance(whole, Sketch):
            whole = whole.of_rows((read.start, read.stop) for read in self.reads)
        if whole.weight <= 0:
            raise ValueError(f"no row is left to add up; {whole.dropped:,} were dropped because of gaps.")
        return replace(whole, names=names, folds=folds, groups=groups, differences=self.sums.get(NOISE))  # type: ignore[arg-type]

    def _filled(self, apart: str) -> dict[Key, Moments]:
        ordered = dict(sorted(self.sums.items()))
        gaps: list[Any] = [v for k, v in ordered.items() if isinstance(v, Gaps | GappySketch) and k[0] == apart]
        if not gaps:
            return {k: v for k, v in ordered.items() if isinstance(v, Moments)}
        mean = reduce(lambda one, other: one.merge(other), gaps).mean
        return {k: v.fill(mean) for k, v in ordered.items() if isinstance(v, Gaps | GappySketch)}


def _check_all_there(parts: tuple[Moments, ...], count: int, what: str) -> None:
    if len(parts) < count or any(part.weight <= 0 for part in parts):
        raise ValueError(
            f"every {what} must get rows; {count} {what}s are too many for the rows there are. "
            f"Ask for fewer {what}s, or another seed."
        )


@dataclass
class Collector:
    """Adds the blocks of one span to the sums of their folds and groups."""

    options: Options
    dtype: np.dtype[Any]
    rows: tuple[int, int]  # start and stop of the rows that the groups divide, mostly those of the pass
    threads: int = 1  # threads of one product
    _sums: dict[Key, Any] = field(default_factory=dict)
    _dropped: dict[Key, int] = field(default_factory=dict)
    _crc: int = 0
    _weights_crc: int = 0
    _last: NDArray[Any] | None = None  # the last two rows, which belong to differences with the next rows

    def add(
        self, block: NDArray[Any] | SparseRows, start: int, weights: NDArray[Any] | None, mask: NDArray[np.bool_] | None
    ) -> None:
        """Add a block whose first row has the number ``start``; with a mask, only its rows."""
        if self.options.checksum:
            step = max(1, _DENSE_BYTES // (block.shape[1] * self.dtype.itemsize))
            for top in range(0, len(block), step):  # the checksum of sparse rows is that of the dense rows
                self._crc = zlib.crc32(np.ascontiguousarray(block[top : top + step]).data.cast("B"), self._crc)
            if weights is not None:
                self._weights_crc = weights_checksum(weights, self._weights_crc)
        if self.options.noise:
            self._look_at_neighbours(np.asarray(block))
        keep = self._kept(len(block), start, mask)
        for index, keys in self._cells(keep, start, len(block)):
            w = None if weights is None else weights[index]
            try:
                if self.options.sketch is not None:
                    self._add_to_sketches(_of_cell(block, index), start + np.arange(len(block))[index], w, keys)
                else:
                    self._add_cell(_of_cell(block, index), w, keys)
            except NotFiniteError as error:
                row = start + int(np.arange(len(block))[index][error.row])
                raise NotFiniteError(row, error.column, error.value) from None

    def _look_at_neighbours(self, block: NDArray[Any]) -> None:
        pieces = [block] if self._last is None else [np.concatenate([self._last, block[:2]]), block]
        for found in map(Differences.of, pieces):
            self._sums[NOISE] = self._sums[NOISE].merge(found) if NOISE in self._sums else found
        self._last = block[-2:].copy() if self._last is None else np.concatenate([self._last, block])[-2:].copy()

    def parts(self, start: int, stop: int) -> PartialSums:
        """Return the sums of the rows from start to stop."""
        sums: dict[Key, PartSums] = {}
        products: set[str] = set()
        for key, value in self._sums.items():
            if not isinstance(value, Gaps | Differences):
                if isinstance(value, Accumulator):
                    products |= value.kernels
                made = Moments(*value.numbers()) if isinstance(value, Accumulator) else value.finished()
                value = replace(made, dropped=self._dropped.get(key, 0))
            sums[key] = value
        return PartialSums(sums, (Read(start, stop, self._crc, self._weights_crc, tuple(sorted(products))),))

    def _kept(self, count: int, start: int, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if self.options.fraction is None:
            return mask
        rows = np.arange(start, start + count, dtype=np.uint64)
        chosen = hashed(rows, self.options.seed, stream=1) < np.uint64(
            min(self.options.fraction * 2.0**64, 2.0**64 - 2048)
        )
        return chosen if mask is None else chosen & mask

    def _cells(
        self, keep: NDArray[np.bool_] | None, start: int, count: int
    ) -> Iterator[tuple[slice | NDArray[np.intp], list[Key]]]:
        """Yield the rows of each cell, a fold and a group, of the block, and the keys of its sums."""
        if self.options.folds == 0 and self.options.groups == 0:
            yield slice(None) if keep is None else np.flatnonzero(keep), [("rows", 0)]
            return
        rows = np.arange(start, start + count, dtype=np.uint64)
        cell = np.zeros(count, dtype=np.int64)
        if self.options.blocks:
            cell += self._runs(rows, self.options.folds)
        elif self.options.folds:
            cell += fold_of(rows, self.options.folds, self.options.seed)
        if self.options.groups:
            cell += self._runs(rows, self.options.groups) * max(1, self.options.folds)
        if keep is not None:
            cell[~keep] = -1
        for c in np.unique(cell[cell >= 0]):
            index = np.flatnonzero(cell == c)
            run = slice(int(index[0]), int(index[-1]) + 1)  # a slice makes no copy
            yield run if run.stop - run.start == len(index) else index, self._keys(int(c))

    def _runs(self, rows: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
        """Return for each row which of ``count`` runs of neighbouring rows, of about equal length, it is in."""
        first, last = self.rows
        return runs(rows.astype(np.int64) - first, last - first, count)

    def _keys(self, cell: int) -> list[Key]:
        group, fold = divmod(cell, max(1, self.options.folds))
        keys: list[Key] = [("fold", fold)] if self.options.folds else []
        return keys + ([("group", group)] if self.options.groups else [])

    def _add_cell(self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None, keys: list[Key]) -> None:
        if self.dtype.kind == "f" and self.options.nan == "mean":
            sums = Gaps.of(np.asarray(block), weights)
            for key in keys:
                self._sums[key] = self._sums[key].merge(sums) if key in self._sums else sums
            return
        if self.dtype.kind == "f" and self.options.nan == "drop":
            block, weights = self._without_gaps(np.asarray(block), weights, keys)
        first, *others = [self._in_the_making(key, block.shape[1]) for key in keys]
        first.add(block, weights, also=others)

    def _add_to_sketches(
        self,
        block: NDArray[Any] | SparseRows,
        numbers: NDArray[np.int64],
        weights: NDArray[Any] | None,
        keys: list[Key],
    ) -> None:
        if self.options.nan == "drop" and self.dtype.kind == "f":
            good = block.finite_rows() if isinstance(block, SparseRows) else np.isfinite(block).all(axis=1)
            for key in keys:
                self._dropped[key] = self._dropped.get(key, 0) + int(np.sum(~good))
            if not good.all():
                keep = np.flatnonzero(good)
                block, numbers = block[keep], numbers[keep]
                weights = None if weights is None else weights[keep]
        for key in keys:
            self._in_the_making(key, block.shape[1]).add(block, numbers.astype(np.uint64), weights)

    def _without_gaps(
        self, block: NDArray[Any], weights: NDArray[Any] | None, keys: list[Key]
    ) -> tuple[NDArray[Any], NDArray[Any] | None]:
        # If the sum of a row is finite, all its values are; a sum may also overflow although all values are finite.
        with np.errstate(invalid="ignore", over="ignore"):
            suspect = np.flatnonzero(~np.isfinite(block @ np.ones(block.shape[1], block.dtype)))
        bad = suspect[~np.isfinite(block[suspect]).all(axis=1)]
        for key in keys:
            self._dropped[key] = self._dropped.get(key, 0) + len(bad)
        if len(bad) == 0:
            return block, weights
        good = np.ones(len(block), dtype=bool)
        good[bad] = False
        return block[good], None if weights is None else weights[good]

    def _in_the_making(self, key: Key, n: int) -> Any:
        if key not in self._sums:
            self._sums[key] = self._begun(n)
        return self._sums[key]

    def _begun(self, n: int) -> Any:
        """Return empty sums of the requested kind."""
        options = self.options
        if options.sketch is not None:
            fills = options.nan == "mean" and self.dtype.kind == "f"
            return (GappySums if fills else SketchSums)(n, self.dtype, options.sketch, options.seed)
        if options.candidates is not None:
            return BandSums(n, self.dtype, np.array(options.candidates, dtype=np.intp), options.precision)
        beside = next((sums for sums in self._sums.values() if isinstance(sums, Accumulator)), None)
        return Accumulator(n, self.dtype, precision=options.precision, threads=self.threads, beside=beside)


def _of_cell(block: NDArray[Any] | SparseRows, index: slice | NDArray[np.intp]) -> NDArray[Any] | SparseRows:
    """Return the rows of a cell; the memory of copies of dense rows is used again."""
    if isinstance(block, SparseRows) or isinstance(index, slice):
        return block[index]
    rows = empty_rows((len(index), block.shape[1]), block.dtype)
    return np.take(block, index, axis=0, out=rows, mode="clip")  # the default mode would make one more copy


def weights_checksum(weights: NDArray[Any], crc: int = 0) -> int:
    """Continue a checksum of weights; equal numbers give the same checksum for any dtype."""
    return zlib.crc32(np.ascontiguousarray(weights, dtype=np.float64).data, crc)

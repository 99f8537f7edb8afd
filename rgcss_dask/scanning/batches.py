"""Moments of rows that arrive in batches, or in folds that the caller defines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import Collector, PartialSums, Read
from rgcss_dask.core.pass_options import Options

Index = NDArray[np.intp]


def with_batch(
    seen: PartialSums | None, batch: NDArray[Any], weights: NDArray[Any] | None, options: Options
) -> PartialSums:
    """Add a batch to the rows seen so far; its rows belong to the same folds as in one scan of all rows."""
    start = 0 if seen is None else seen.reads[-1].stop
    stop = start + len(batch)
    if options.nan == "mean":
        batch = batch.astype(np.float64)  # all batches must have one kind of sums, even if this one holds integers
    collector = Collector(options, batch.dtype, (start, stop))
    try:
        collector.add(batch, start, weights, None)
    except NotFiniteError as error:
        raise NotFiniteError(error.row - start, error.column, error.value, "the batch") from None
    added = collector.parts(start, stop)
    return added if seen is None else seen.merge(added)


def parts_of(moments: Moments, options: Options) -> PartialSums:
    """Return sums to which batches can be added, from the moments of the rows so far."""
    if options.nan == "mean":
        raise ValueError(
            "cannot add rows after fit with nan='mean': its gaps were filled with the means of its own rows, and the "
            "mean of more rows is another. Give the first rows to partial_fit too."
        )
    if len(moments.folds) != options.folds:
        left = "" if moments.folds else " A pickle leaves folds behind, unless the estimator has pickle_parts=True."
        raise ValueError(f"the rows so far must be in {options.folds} folds; they are in {len(moments.folds)}.{left}")
    sums = {("fold", i): fold for i, fold in enumerate(moments.folds)} or {("rows", 0): moments}
    return PartialSums(dict(sums), (Read(0, moments.rows + moments.dropped, 0),))


def moments_in_folds(
    rows: NDArray[Any],
    weights: NDArray[Any] | None,
    held_out: Sequence[Index],
    *,
    nan: str,
    names: tuple[str, ...] | None,
) -> Moments:
    """Compute the moments of rows in memory, apart for the rows that each fold holds out."""
    parts = []
    for i, index in enumerate(held_out):
        w = None if weights is None else weights[index]
        part = with_batch(None, rows[index], w, Options(nan=nan))
        parts.append(PartialSums({("fold", i): part.sums["rows", 0]}, part.reads))
    return reduce(PartialSums.merge, parts).moments(Options(folds=len(parts), nan=nan), names)


def held_out_rows(splits: Iterable[Any], rows: int) -> list[Index]:
    """Return the rows that each (train, test) pair holds out; each row must be held out exactly once."""
    tests = [np.asarray(test, dtype=np.intp) for _, test in splits]
    counts = np.bincount(np.concatenate(tests), minlength=rows) if tests else np.zeros(rows)
    if len(tests) < 2 or len(counts) != rows or np.any(counts != 1):
        raise ValueError(
            f"cv must hold out each of the {rows:,} rows exactly once, in 2 folds or more, because the moments of the "
            f"folds are added up; got {len(tests)} folds of {sum(map(len, tests)):,} rows. Use a number, or a splitter "
            "such as KFold."
        )
    return tests

"""One pass over Dask blocks of unknown length: counting their rows first would take another pass."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed

from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import PartialSums
from rgcss_dask.core.pass_options import Options
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.memory_limit import default_budget
from rgcss_dask.scanning.batches import with_batch
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import dense, frame_dtype
from rgcss_dask.sources.dask import check_promise, plain_blocks
from rgcss_dask.sources.lazy_columns import is_dask_frame


def is_uncounted(thing: Any) -> bool:
    """Recognise Dask data frames, and Dask arrays that were filtered."""
    return is_dask_frame(thing) or (isinstance(thing, da.Array) and thing.ndim == 2 and math.isnan(thing.shape[0]))


def scan_uncounted(thing: Any, *, nan: str) -> Moments:
    """Compute the moments of blocks in one Dask compute; `scan` would have to count their rows first.

    Without row numbers there are no folds and no weights, and errors give the place of a gap in its block only. If the
    results that wait to be merged might not fit in memory, the rows are counted after all, so that `scan` can plan.
    """
    names = tuple(str(name) for name in thing.columns) if is_dask_frame(thing) else None
    array = thing.astype(frame_dtype(thing)).to_dask_array() if is_dask_frame(thing) else plain_blocks(thing)
    if array.numblocks[1] > 1:
        array = array.rechunk({1: -1})
    options = Options(nan=nan)
    alive = 3 * available_cpus() + math.ceil(math.log2(array.numblocks[0] + 1)) + 1
    if 8 * array.shape[1] ** 2 * options.matrices * alive > default_budget():
        return scan(thing, nan=nan)
    promise = (int(array.shape[1]), array.dtype, f"Dask array {array.name}")
    sums = [delayed(_add_up)(block, options, *promise) for block in array.to_delayed()[:, 0]]
    while len(sums) > 1:
        sums = [delayed(_merge)(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    with single_threaded_blas():
        (whole,) = compute(sums[0])  # type: ignore[no-untyped-call]
    if whole is None:
        raise ValueError("a matrix must have rows; every block of this one is empty.")
    return whole.moments(options, names)


def _add_up(block: Any, options: Options, columns: int, dtype: np.dtype[Any], address: str) -> PartialSums | None:
    rows = dense(block)
    check_promise(rows, columns, dtype, address)
    return None if len(rows) == 0 else with_batch(None, rows, None, options)


def _merge(first: PartialSums | None, second: PartialSums | None) -> PartialSums | None:
    if first is None or second is None:
        return second if first is None else first
    return first.merge(second)

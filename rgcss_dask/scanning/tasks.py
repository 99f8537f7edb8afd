"""What a worker does in a pass: read a span, merge two results, finish; with checkpoints on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rgcss_dask.core.moments import Moments, NotFiniteError
from rgcss_dask.core.parts import Collector, Parts, Read
from rgcss_dask.core.plan import Plan
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.threads import single_threaded_blas
from rgcss_dask.scanning.checkpoint import Checkpoints
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.vectors import checked_entries

Report = Callable[[int, int], None]  # rows read, spans finished


@dataclass(frozen=True)
class Job:
    """A pass, as every task of it knows it."""

    token: str
    plan: Plan
    source: Source
    checkpoints: Checkpoints | None
    worker_threads: int  # of a Dask worker; 0 where the caller's process does the work
    report: Report

    def rows(self) -> tuple[int, int]:
        """First row of the pass, and the one past the last."""
        root = self.plan.nodes[-1]
        return root.start, root.stop


@dataclass(frozen=True)
class Elsewhere:
    """Stands for a result that is part of a checkpoint further up the tree."""


def run_span(job: Job, index: int, blocks: list[Any], weights: Any, mask: Any) -> Parts | Elsewhere:
    """Read a span and add it up, unless a checkpoint has it."""
    node = job.plan.nodes[index]
    found = find_saved(job, index)
    if found is not None:
        return found
    source = job.source.with_blocks(node.start, blocks) if blocks else job.source
    collector = Collector(job.plan.options, job.source.dtype, job.rows(), job.plan.tile_threads)
    with _slot(job), nullcontext() if job.worker_threads == 0 else single_threaded_blas():
        for start, block in _ahead(source, list(job.plan.reads(node))):
            w = _entries("weights", weights, node.start, start, len(block))
            m = _entries("rows", mask, node.start, start, len(block))
            try:
                collector.add(block, start, w, m)
            except NotFiniteError as error:
                raise NotFiniteError(error.row, error.column, error.value, job.source.address) from None
            job.report(len(block), 0)
        parts = collector.parts(node.start, node.stop)
    job.report(0, 1)
    return _keep(job, index, parts)


def run_merge(job: Job, index: int, left: Parts | Elsewhere, right: Parts | Elsewhere) -> Parts | Elsewhere:
    """Merge two results, unless a checkpoint has them merged."""
    if isinstance(left, Elsewhere) or isinstance(right, Elsewhere):
        found = find_saved(job, index)
        if found is None:
            raise RuntimeError("a checkpoint vanished while the pass was running; run it again.")
        return found
    # Only where a task runs once: a Dask worker may be asked for the same inputs again.
    merged = left.merge(right, overwrite=job.worker_threads == 0)
    return _keep(job, index, merged)


def run_finish(job: Job, parts: Parts) -> tuple[Moments, tuple[Read, ...]]:
    """Make moments of the sums of all rows."""
    return parts.moments(job.plan.options, job.source.names), parts.reads


def find_saved(job: Job, index: int) -> Parts | Elsewhere | None:
    """Look for a checkpoint of the node, or of one above it."""
    if job.checkpoints is None:
        return None
    for up in job.plan.path_up(index):
        node = job.plan.nodes[up]
        if node.saved and job.checkpoints.has(node.name):
            if up != index:
                return Elsewhere()
            found = job.checkpoints.load(node.name)
            if found is not None:  # else one above has just replaced it
                return found
    return None


def _keep(job: Job, index: int, parts: Parts) -> Parts:
    """Save the result if it is worth it, then drop the checkpoints it stands for."""
    if job.checkpoints is not None and job.plan.nodes[index].saved:
        job.checkpoints.save(job.plan.nodes[index].name, parts)
        job.checkpoints.drop(job.plan.saved_below(index))
    return parts


def _ahead(source: Source, reads: list[tuple[int, int]]) -> Iterator[tuple[int, NDArray[Any] | SparseRows]]:
    """Yield the blocks; where reading waits for a network, the next one is under way meanwhile."""
    if not source.waits:
        for start, stop in reads:
            yield start, source.read_block(start, stop)
        return
    with ThreadPoolExecutor(1, "rgcss-read") as pool:
        coming = pool.submit(source.read_block, *reads[0])
        for (start, _), after in zip(reads, [*reads[1:], None], strict=True):
            block = coming.result()
            if after is not None:
                coming = pool.submit(source.read_block, *after)
            yield start, block


def _entries(what: str, given: Any, span_start: int, start: int, count: int) -> NDArray[Any] | None:
    """Return the weights or mask of a block, from what the task was given: a Zarr array, or those of the span."""
    if given is None:
        return None
    first = start if isinstance(given, zarr.Array) else start - span_start
    return checked_entries(what, np.asarray(given[first : first + count]), start)


_slots: dict[str, threading.Semaphore] = {}
_slots_lock = threading.Lock()


@contextmanager
def _slot(job: Job) -> Iterator[None]:
    """Wait until one more span fits in the memory of this worker."""
    if job.worker_threads <= job.plan.concurrency:
        yield
        return
    with _slots_lock:
        slots = _slots.setdefault(job.token, threading.Semaphore(job.plan.concurrency))
    with slots:
        yield

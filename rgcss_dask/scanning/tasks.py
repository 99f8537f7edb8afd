"""What a worker does in a pass: read a span, merge two results, finish; with checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.cluster.admission import memory_for_span
from rgcss_dask.cluster.versions import VERSION
from rgcss_dask.cluster.visibility import SeenPaths, Stored, check_here, check_seal
from rgcss_dask.core.accumulate import NotFiniteError
from rgcss_dask.core.errors import HinderedError
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import Collector, PartialSums, Read
from rgcss_dask.core.plan import Options, Plan
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.page_pool import freed_memory_kept, keep_memory_only_for, tidy_memory
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.row_vectors import StoredVector, checked_entries

Report = Callable[[int, int], None]  # rows read, spans finished
Finish = Callable[[Options, tuple[str, ...] | None, PartialSums], Any]  # makes the result of a pass of its sums
TELL_EVERY = 0.5  # seconds
NEXT_SPAN = 1.0  # seconds within which a worker mostly has another; paging memory in anew is some 4 % of a short one


@dataclass(frozen=True)
class PassJob:
    """A pass, as every task of it knows it."""

    token: str
    plan: Plan
    source: Source
    checkpoints: Checkpoints | None
    worker_threads: int  # of a Dask worker; 0 where the caller's process does the work
    report: Report
    budget: int = 0  # bytes that a worker may use
    budget_asked: bool = False  # by the caller; else a worker goes by its own memory
    sights: SeenPaths = field(default_factory=dict)  # what workers must see as the caller does
    stored: tuple[Stored, ...] = ()  # in files that workers may have copies of
    seals: dict[int, str | None] = field(default_factory=dict)  # of each span, as the caller sees it
    version: str = VERSION  # of the package, where the pass was begun

    def grouped_rows(self) -> tuple[int, int]:
        """First of the rows that the groups divide, and the one past the last: those of this pass, or of the first."""
        root, first = self.plan.nodes[-1], self.plan.options.group_rows
        return (root.start, root.stop) if first is None else (0, first)


@dataclass(frozen=True)
class Elsewhere:
    """Stands for a result that is part of a checkpoint further up the tree."""


def run_span(job: PassJob, index: int, blocks: list[Any], weights: Any, mask: Any) -> PartialSums | Elsewhere:
    """Read a span and add it up, unless a checkpoint has it."""
    node = job.plan.nodes[index]
    place = TaskNode.of(job, index)
    found = place.find()
    if found is not None:
        return found
    if job.worker_threads > 0:
        check_here(job.token, job.version, job.sights)
        check_seal(job.seals.get(index), job.stored, (node.start, node.stop), job.source.address)
    source = job.source.with_blocks(node.start, blocks) if blocks else job.source
    collector = Collector(job.plan.options, job.source.dtype, job.grouped_rows(), job.plan.tile_threads)
    told = _Telling(job.report)
    with _memory_of(job), _own_process(job):
        for start, block in _ahead(source, list(job.plan.reads(node))):
            w = _entries("weights", weights, node.start, start, len(block))
            m = _entries("rows", mask, node.start, start, len(block))
            try:
                collector.add(block, start, w, m)
            except NotFiniteError as error:
                raise error.at(job.source.address, job.source.names) from None
            rows = len(block)
            del block  # or it would live on while the next one is read
            told.add(rows)
            tidy_memory(rows * job.plan.geometry.row_bytes)
        parts = collector.parts(node.start, node.stop)
    told.finish()
    return place.keep(parts)


class _Telling:
    """Reports rows now and then: each report costs the one scheduler as much as a seventh of a span."""

    def __init__(self, report: Report) -> None:
        self._report, self._rows, self._last = report, 0, time.monotonic()

    def add(self, rows: int) -> None:
        """Count rows that were read."""
        self._rows += rows
        if time.monotonic() - self._last >= TELL_EVERY:
            self._report(self._rows, 0)
            self._rows, self._last = 0, time.monotonic()

    def finish(self) -> None:
        """Report the rest, and the span."""
        self._report(self._rows, 1)


def run_merge(
    place: TaskNode, left: PartialSums | Elsewhere, right: PartialSums | Elsewhere
) -> PartialSums | Elsewhere:
    """Merge two results, unless a checkpoint has them merged."""
    if isinstance(left, Elsewhere) or isinstance(right, Elsewhere):
        return run_saved(place)
    return place.keep(left.merge(right, overwrite=place.overwrite))


def run_saved(place: TaskNode) -> PartialSums | Elsewhere:
    """Take the result of a checkpoint that was there when the pass began."""
    found = place.find()
    if found is None:
        raise HinderedError("a checkpoint vanished while the pass was running; run it again.")
    return found


def run_finish(options: Options, names: tuple[str, ...] | None, parts: PartialSums) -> tuple[Moments, tuple[Read, ...]]:
    """Make moments of the sums of all rows."""
    return parts.moments(options, names), parts.reads


def run_together(
    options: Options, names: tuple[str, ...] | None, parts: PartialSums
) -> tuple[PartialSums, tuple[Read, ...]]:
    """Leave the sums of all rows as they are: they are to be added to others."""
    return parts, parts.reads


@dataclass(frozen=True)
class TaskNode:
    """A node of the tree as its task knows it: so little that it travels with the task.

    A merge that depended on the whole job would count every worker that has the job as near to its inputs.
    """

    checkpoints: Checkpoints | None
    name: str | None  # of its own checkpoint, if it is worth one
    above: tuple[str, ...]  # checkpoints that would hold it too
    below: tuple[str, ...]  # checkpoints that its own stands for
    overwrite: bool  # inputs; only where a task runs once: a Dask worker may be asked for the same inputs again

    @classmethod
    def of(cls, job: PassJob, index: int) -> TaskNode:
        """Look up a node."""
        plan, overwrite = job.plan, job.worker_threads == 0
        if job.checkpoints is None:
            return cls(None, None, (), (), overwrite)
        mine, *up = plan.path_up(index)
        above = tuple(plan.nodes[i].name for i in up if plan.nodes[i].saved)
        if not plan.nodes[mine].saved:
            return cls(job.checkpoints, None, above, (), overwrite)
        return cls(job.checkpoints, plan.nodes[mine].name, above, tuple(plan.saved_below(index)), overwrite)

    def find(self) -> PartialSums | Elsewhere | None:
        """Look for a checkpoint of the node, or of one above it."""
        if self.checkpoints is None:
            return None
        found = None
        if self.name is not None and self.checkpoints.has(self.name):
            found = self.checkpoints.load(self.name)  # None if one above has just replaced it
        if found is None and any(self.checkpoints.has(name) for name in self.above):
            return Elsewhere()
        return found

    def keep(self, parts: PartialSums) -> PartialSums:
        """Save the result if it is worth it, then drop the checkpoints it stands for."""
        if self.checkpoints is not None and self.name is not None:
            self.checkpoints.save(self.name, parts)
            self.checkpoints.drop(list(self.below))
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
            ready = [coming.result()]
            if after is not None:
                coming = pool.submit(source.read_block, *after)
            yield start, ready.pop()


def _entries(what: str, given: Any, span_start: int, start: int, count: int) -> NDArray[Any] | None:
    """Return the weights or mask of a block, from what the task was given: a Zarr array, or those of the span."""
    if given is None:
        return None
    first = start if isinstance(given, StoredVector) else start - span_start
    return checked_entries(what, plain(given[first : first + count]), start)


@contextmanager
def _own_process(job: PassJob) -> Iterator[None]:
    """Set up the process of a Dask worker while a span is read; the caller's process was set up for the whole pass."""
    if job.worker_threads == 0:
        yield
    else:
        keep_memory_only_for(job.token)
        with single_threaded_blas(), freed_memory_kept().and_after(NEXT_SPAN):
            yield


def _memory_of(job: PassJob) -> AbstractContextManager[None]:
    """Wait until one more span fits in the memory of this worker; threads of the caller's process were counted."""
    if job.worker_threads == 0:
        return nullcontext()
    return memory_for_span(job.plan.memory // job.plan.concurrency, job.budget, asked=job.budget_asked)

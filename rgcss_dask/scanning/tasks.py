"""The tasks of a pass: read a span, merge two results, make the moments; with checkpoints."""

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
from rgcss_dask.core.errors import HinderedError
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import Collector, PartialSums, Read
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.plan import Plan
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.page_pool import freed_memory_kept, keep_memory_only_for, tidy_memory
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.row_vectors import StoredVector, checked_entries

Report = Callable[[int, int], None]  # called with the number of rows read and of spans finished
Finish = Callable[[Options, tuple[str, ...] | None, PartialSums], Any]  # makes the result of a pass from its sums
TELL_EVERY = 0.5  # seconds
# Seconds within which a worker mostly starts another span. Paging memory in again takes some 4 % of a short span.
NEXT_SPAN = 1.0


@dataclass(frozen=True)
class PassJob:
    """The description of a pass that all its tasks share."""

    token: str
    plan: Plan
    source: Source
    checkpoints: Checkpoints | None
    worker_threads: int  # threads of a Dask worker; 0 where the caller's process does the work
    report: Report
    budget: int = 0  # bytes that a worker may use
    budget_asked: bool = False  # whether the caller gave the budget; if not, a worker uses its own memory limit
    sights: SeenPaths = field(default_factory=dict)  # what the caller found at each path; a worker must find the same
    stored: tuple[Stored, ...] = ()  # stored data of which workers may have copies of their own
    seals: dict[int, str | None] = field(default_factory=dict)  # of each span, as the caller computed them
    version: str = VERSION  # version of the package in the caller's process

    def grouped_rows(self) -> tuple[int, int]:
        """Return start and stop of the rows that the groups divide: those of this pass, or of the first pass."""
        root, first = self.plan.nodes[-1], self.plan.options.group_rows
        return (root.start, root.stop) if first is None else (0, first)


@dataclass(frozen=True)
class Elsewhere:
    """Stands for a result that a checkpoint further up the tree contains."""


def run_span(job: PassJob, index: int, blocks: list[Any], weights: Any, mask: Any) -> PartialSums | Elsewhere:
    """Read a span and return its sums, or load them from a checkpoint."""
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
            del block  # frees the block before the next one is read
            told.add(rows)
            tidy_memory(rows * job.plan.geometry.row_bytes)
        parts = collector.parts(node.start, node.stop)
    told.finish()
    return place.keep(parts)


class _Telling:
    """Reports the rows read at most every half second: a report costs the scheduler a seventh of the time of a span."""

    def __init__(self, report: Report) -> None:
        self._report, self._rows, self._last = report, 0, time.monotonic()

    def add(self, rows: int) -> None:
        """Count rows that were read and report them if the last report is old enough."""
        self._rows += rows
        if time.monotonic() - self._last >= TELL_EVERY:
            self._report(self._rows, 0)
            self._rows, self._last = 0, time.monotonic()

    def finish(self) -> None:
        """Report the remaining rows and the finished span."""
        self._report(self._rows, 1)


def run_merge(
    place: TaskNode, left: PartialSums | Elsewhere, right: PartialSums | Elsewhere
) -> PartialSums | Elsewhere:
    """Merge two results, or load the merged result from a checkpoint."""
    if isinstance(left, Elsewhere) or isinstance(right, Elsewhere):
        return run_saved(place)
    return place.keep(left.merge(right, overwrite=place.overwrite))


def run_saved(place: TaskNode) -> PartialSums | Elsewhere:
    """Load the result from a checkpoint that existed when the pass began."""
    found = place.find()
    if found is None:
        raise HinderedError("a checkpoint vanished while the pass was running; run it again.")
    return found


def run_finish(options: Options, names: tuple[str, ...] | None, parts: PartialSums) -> tuple[Moments, tuple[Read, ...]]:
    """Make moments from the sums of all rows."""
    return parts.moments(options, names), parts.reads


def run_together(
    options: Options, names: tuple[str, ...] | None, parts: PartialSums
) -> tuple[PartialSums, tuple[Read, ...]]:
    """Return the sums of all rows unchanged, to be merged into other sums."""
    return parts, parts.reads


@dataclass(frozen=True)
class TaskNode:
    """The part of the plan that the task of a node needs; it is small and is sent with the task.

    If a merge depended on the whole job, the scheduler would treat every worker that has the job as close to its data.
    """

    checkpoints: Checkpoints | None
    name: str | None  # of its own checkpoint, if the plan has one for it
    above: tuple[str, ...]  # names of checkpoints that would contain this result
    below: tuple[str, ...]  # names of checkpoints that this node's checkpoint replaces
    overwrite: bool  # merge in place; only where a task runs once, because a Dask worker may need the same inputs again

    @classmethod
    def of(cls, job: PassJob, index: int) -> TaskNode:
        """Return the description of a node."""
        plan, overwrite = job.plan, job.worker_threads == 0
        if job.checkpoints is None:
            return cls(None, None, (), (), overwrite)
        mine, *up = plan.path_up(index)
        above = tuple(plan.nodes[i].name for i in up if plan.nodes[i].saved)
        if not plan.nodes[mine].saved:
            return cls(job.checkpoints, None, above, (), overwrite)
        return cls(job.checkpoints, plan.nodes[mine].name, above, tuple(plan.saved_below(index)), overwrite)

    def find(self) -> PartialSums | Elsewhere | None:
        """Load the checkpoint of the node; return `Elsewhere` if a checkpoint further up contains it."""
        if self.checkpoints is None:
            return None
        found = None
        if self.name is not None and self.checkpoints.has(self.name):
            found = self.checkpoints.load(self.name)  # None if a checkpoint further up has just replaced it
        if found is None and any(self.checkpoints.has(name) for name in self.above):
            return Elsewhere()
        return found

    def keep(self, parts: PartialSums) -> PartialSums:
        """Save the result if the plan has a checkpoint for it, then delete the checkpoints it replaces."""
        if self.checkpoints is not None and self.name is not None:
            self.checkpoints.save(self.name, parts)
            self.checkpoints.drop(list(self.below))
        return parts


def _ahead(source: Source, reads: list[tuple[int, int]]) -> Iterator[tuple[int, NDArray[Any] | SparseRows]]:
    """Yield the blocks; where reads wait for a network, a thread reads the next block in the meantime."""
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
    """Return the weights or mask of a block, taken from a Zarr array of all rows or from the entries of the span."""
    if given is None:
        return None
    first = start if isinstance(given, StoredVector) else start - span_start
    return checked_entries(what, plain(given[first : first + count]), start)


@contextmanager
def _own_process(job: PassJob) -> Iterator[None]:
    """Set up the process of a Dask worker while it reads a span; the caller's process is set up for the whole pass."""
    if job.worker_threads == 0:
        yield
    else:
        keep_memory_only_for(job.token)
        with single_threaded_blas(), freed_memory_kept().and_after(NEXT_SPAN):
            yield


def _memory_of(job: PassJob) -> AbstractContextManager[None]:
    """Wait until a further span fits in this worker's memory; in the caller's process the plan limits the threads."""
    if job.worker_threads == 0:
        return nullcontext()
    return memory_for_span(job.plan.memory // job.plan.concurrency, job.budget, asked=job.budget_asked)

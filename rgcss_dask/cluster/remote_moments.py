"""Moments that stay on a Dask worker, and their handles (proxies) in other processes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from distributed import Client, Future, Worker
from numpy.typing import NDArray

from rgcss_dask.archive import archive as archives
from rgcss_dask.cluster.execution import ClusterReport, Graph, run_on_cluster
from rgcss_dask.cluster.progress import Reporter
from rgcss_dask.cluster.waiting import await_done, patience, settled
from rgcss_dask.compat import CommClosedError
from rgcss_dask.core.band import Band
from rgcss_dask.core.kinds import KINDS
from rgcss_dask.core.moments import Moments, shape_of
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.io.files import Folder

Array = NDArray[np.float64]
PartPath = tuple[tuple[str, int], ...]  # () for all rows, (("folds", 2),) for a fold

# Bytes of a matrix per message, so that no message stalls an event loop.
BLOCK_BYTES = 2**24
# How often the moments are recomputed after their worker was lost.
TRIES = 5


@dataclass(frozen=True)
class MomentsSummary:
    """The numbers and shapes of moments, without their arrays."""

    kind: str
    numbers: dict[str, Any]
    n: int
    height: int  # rows of the matrix
    folds: tuple[MomentsSummary, ...]
    groups: tuple[MomentsSummary, ...]

    @classmethod
    def of(cls, moments: Moments) -> MomentsSummary:
        """Summarise moments and their folds and groups."""
        numbers = {name: getattr(moments, name) for name in (*moments.NUMBERS, "differences")}
        parts = {kind: tuple(cls.of(part) for part in getattr(moments, kind)) for kind in ("folds", "groups")}
        return cls(moments.KIND, numbers, moments.n, len(moments.product), **parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        return shape_of(name, self.height, self.n)

    def build(self, arrays: dict[tuple[PartPath, str], Array], path: PartPath = ()) -> Moments:
        """Build moments from arrays that were sent; parts without arrays are left out."""
        parts = {
            kind: tuple(
                head.build(arrays, (*path, (kind, i)))
                for i, head in enumerate(getattr(self, kind))
                if ((*path, (kind, i)), "product") in arrays
            )
            for kind in ("folds", "groups")
        }
        kind = KINDS[self.kind]
        return kind(**self.numbers | {name: arrays[path, name] for name in kind.ARRAYS} | parts)


def describe(result: tuple[Moments, Any]) -> tuple[MomentsSummary, Any]:
    """Return what is sent to the client after a pass; the moments stay on the worker."""
    return MomentsSummary.of(result[0]), result[1]


@dataclass(frozen=True)
class HeldOnCluster:
    """Moments on a cluster, kept there as long as this process refers to them."""

    client: Client
    future: Future[Any]  # of (Moments, spans that were read)
    archive: tuple[Folder, archives.Record] | None = None  # a copy in an archive

    def holders(self) -> list[str]:
        """Return the workers that hold the moments; if there are none, recompute the moments first."""
        self.check_open()
        for _ in range(TRIES):
            found = list(self.client.who_has([self.future])[self.future.key])  # type: ignore[no-untyped-call]
            if found:
                return found
            await_done(self.client, self.future)
            if self.future.status == "error":
                self.future.result()
        raise _lost()

    def check_open(self) -> None:
        """Raise an error if the cluster is gone."""
        if not self.is_open:
            raise _lost()

    @property
    def is_open(self) -> bool:
        """Whether the cluster can be reached."""
        return self.client.status == "running" and self.future.status != "cancelled"

    @property
    def is_archive(self) -> bool:
        """Whether the cluster is gone, but there is an archive."""
        return not self.is_open and self.archive is not None

    @cached_property
    def archived(self) -> Moments | None:
        """The moments of the archive, for use when the cluster is gone."""
        return None if self.archive is None else _read(*self.archive)[0]

    def fetch(self, path: PartPath, name: str, shape: tuple[int, ...]) -> Array:
        """Fetch an array of the moments, or of a fold or group."""
        if self.is_archive and self.archived is not None:
            return getattr(part_of(self.archived, path), name)
        try:
            arrays = [self._block(path, name, start, stop) for start, stop in blocks(shape)]
        except ConnectionError:
            if self.archived is None:
                raise
            return getattr(part_of(self.archived, path), name)
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _block(self, path: PartPath, name: str, start: int, stop: int) -> Array:
        return self.call(rows_of, self.future.key, path, name, start, stop)[1]

    def call(self, function: Callable[..., Any], *args: Any) -> tuple[str, Any]:
        """Run a function on a worker that holds the moments; return the worker and the result. None is retried.

        The function is not a task: a task would wait behind the other tasks of the worker.
        """
        began = time.monotonic()
        while time.monotonic() - began < patience():  # a stopped worker accepts no connection until it is given up
            try:
                worker = self.holders()[0]
                found = self.client.run(function, *args, workers=[worker], on_error="return")
            except CommClosedError as error:
                raise _lost() from error
            answer = found.get(worker)
            if isinstance(answer, Exception) and not isinstance(answer, OSError):
                raise answer  # raised by the function
            if not isinstance(answer, Exception | None):
                return worker, answer
            time.sleep(0.5)  # lost; the scheduler will notice soon
        raise _lost()


def _lost() -> ConnectionError:
    return ConnectionError(
        "the moments were left on a Dask cluster that no longer answers. Use them while its client is open, fetch them "
        "with moments.fetch() before it is closed, or scan with archive=... and load() them."
    )


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the row ranges in which an array is sent."""
    count = shape[0]
    step = count if len(shape) == 1 else max(1, BLOCK_BYTES // (8 * shape[1]))
    for start in range(0, count, step):
        yield start, min(start + step, count)


def rows_of(key: str, path: PartPath, name: str, start: int, stop: int, dask_worker: Worker) -> Array | None:
    """Return rows of an array on a worker, or None if the worker does not hold it."""
    found: Any = dask_worker.data.get(key)
    return None if found is None else np.asarray(getattr(part_of(found[0], path), name)[start:stop])


def part_of(moments: Moments, path: PartPath) -> Moments:
    """Return the fold or group at a path."""
    for kind, index in path:
        moments = getattr(moments, kind)[index]
    return moments


class RemoteMoments(Moments):
    """A handle of moments on a worker: arrays are fetched at their first use, numbers are here.

    All attributes and methods of `Moments` work; they return ordinary values of this process. The cluster releases the
    moments when the last handle is gone.
    """

    def __init__(self, held: HeldOnCluster, head: MomentsSummary, path: PartPath = ()) -> None:
        self.__dict__.update(head.numbers, held=held, head=head, path=path)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the moments, as proxies report it; `dataclasses.replace` then returns plain moments."""
        return KINDS[self.head.kind]

    held: HeldOnCluster
    head: MomentsSummary
    path: PartPath

    def fetch(self) -> Moments:
        """Return plain moments with all folds and groups, in the memory of this process."""
        kind = KINDS[self.head.kind]
        values = {field.name: getattr(self, field.name) for field in fields(kind)}
        values |= {parts: tuple(part.fetch() for part in values[parts]) for parts in ("folds", "groups")}
        return kind(**values)

    @property
    def n(self) -> int:
        """Number of columns."""
        return self.head.n

    @cached_property
    def shift(self) -> Array:
        """The shift subtracted before summing, (n,)."""
        return self._fetched("shift")

    @cached_property
    def total(self) -> Array:
        """Sums about the shift, (n,)."""
        return self._fetched("total")

    @cached_property
    def product(self) -> Array:
        """The matrix of sums about the shift."""
        return self._fetched("product")

    @cached_property
    def rounding(self) -> Array:
        """Bounds for the rounding error of each sum of squares, (n,)."""
        return self._fetched("rounding")

    def _fetched(self, name: str) -> Array:
        return self.held.fetch(self.path, name, self.head.shape(name))

    @property
    def folds(self) -> tuple[Moments, ...]:
        """Handles of the folds."""
        return self._parts("folds")

    @property
    def groups(self) -> tuple[Moments, ...]:
        """Handles of the row groups."""
        return self._parts("groups")

    def _parts(self, kind: str) -> tuple[Moments, ...]:
        if kind not in self.__dict__.setdefault("parts", {}):
            heads = enumerate(getattr(self.head, kind))
            parts = tuple(handle(self.held, head, (*self.path, (kind, i))) for i, head in heads)
            self.__dict__["parts"][kind] = parts
        return self.__dict__["parts"][kind]

    def __repr__(self) -> str:
        return f"<{self._in_words()}, left on {self.held.client}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain moments, because a copy may outlive the cluster."""
        whole = self.fetch()
        return _made, (type(whole), {field.name: getattr(whole, field.name) for field in fields(whole)})


class RemoteBand(RemoteMoments, Band):
    """A handle of a band on a worker."""

    @cached_property
    def column_squares(self) -> Array:
        """Sums of squares about the shift, (n,)."""
        return self._fetched("column_squares")


class RemoteSketch(RemoteMoments, Sketch):
    """A handle of a sketch on a worker."""

    @cached_property
    def column_squares(self) -> Array:
        """Sums of squares about the shift, (n,)."""
        return self._fetched("column_squares")

    @cached_property
    def ones(self) -> Array:
        """The sketch of a column of ones, (d,)."""
        return self._fetched("ones")

    @property
    def height(self) -> int:
        """Rows of the sketch."""
        return self.head.height


HANDLES: dict[str, type[RemoteMoments]] = {
    Moments.KIND: RemoteMoments,
    Band.KIND: RemoteBand,
    Sketch.KIND: RemoteSketch,
}


def handle(held: HeldOnCluster, head: MomentsSummary, path: PartPath = ()) -> RemoteMoments:
    """Return a handle of moments of any kind."""
    return HANDLES[head.kind](held, head, path)


def _made(kind: type[Moments], values: dict[str, Any]) -> Moments:
    return kind(**values)


def left_on_cluster(
    client: Client, graph: Graph, key: str, report: ClusterReport, reporter: Reporter
) -> tuple[RemoteMoments, Any]:
    """Run a pass on the cluster; return a handle of its moments, and the spans read."""
    head_key = key.replace("moments", "head")
    (head, reads), (future,) = run_on_cluster(
        client, {**graph, head_key: (describe, key)}, head_key, report, reporter, keep=(key,)
    )
    return handle(HeldOnCluster(client, future), head), reads


def archived(moments: RemoteMoments, folder: Folder, record: archives.Record) -> Moments:
    """Have the worker write its moments to an archive, and return a handle of the archived moments.

    A handle of the pass itself would repeat the whole pass if its worker were lost.
    """
    client, token = moments.held.client, uuid.uuid4().hex[:12]
    made = moments.held.future
    archives.begin(folder)
    draft = settled(client, client.submit(_write, made, folder, key=f"rgcss-archive-{token}"), made)
    if not archives.is_whole(folder, draft):  # written by a new worker to a place that this process cannot see
        archives.write(folder, moments, record)
        return moments
    archives.publish(folder, draft, record)
    return loaded(client, folder)


def loaded(client: Client, folder: Folder) -> Moments:
    """Load an archive on a worker and return a handle; load it here if no worker can see it."""
    token = uuid.uuid4().hex[:12]
    record = archives.require(folder)
    future = client.submit(_read, folder, record, key=f"rgcss-moments-{token}")
    head = client.submit(describe, future, key=f"rgcss-head-{token}")
    try:
        return handle(HeldOnCluster(client, future, (folder, record)), settled(client, head, future)[0])
    except FileNotFoundError:
        return archives.read(folder)[0]


def _write(result: tuple[Moments, Any], folder: Folder) -> archives.Draft:
    return archives.write_draft(folder, result[0])


def _read(folder: Folder, record: archives.Record) -> tuple[Moments, Any]:
    moments, found = archives.read(folder)
    if found.fingerprint != record.fingerprint:
        raise ValueError(f"the archive {folder.address} was changed since these moments were scanned. Load it again.")
    return moments, ()

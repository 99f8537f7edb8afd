"""Where a selection is computed: on the scheduler, on the worker that holds the moments, or in this process."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from distributed import Scheduler

from rgcss_dask.cluster.remote_moments import MomentsSummary, PartPath, RemoteMoments, blocks, part_of, rows_of
from rgcss_dask.cluster.versions import VERSION, check_version, make_probe
from rgcss_dask.cluster.waiting import WAIT, NoWorkersError, address, no_workers, patience, run_on_scheduler, settled
from rgcss_dask.compat import ConnectionPool, clean_exception, dumps
from rgcss_dask.core.kinds import KINDS
from rgcss_dask.core.memory_needs import Need
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.words import size
from rgcss_dask.runtime.memory_limit import default_budget

PLACES = ("scheduler", "worker", "client")
LOOK = 1.0  # seconds between checks of whether a silent worker is still known
# A worker stops taking tasks when this share of its memory is in use.
PAUSE = 0.8


@dataclass(frozen=True)
class Order:
    """A computation to be run elsewhere: ``function(moments, *args, **options)``."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    need: Need
    key: str = ""  # of the moments on the cluster
    path: PartPath = ()
    head: MomentsSummary | None = None
    patience: float = WAIT  # seconds to wait for a worker with the moments

    def answer(self, moments: Moments) -> Answer:
        """Run the computation; keep errors and warnings for the calling process."""
        with recorded_warnings() as heard:
            try:
                return Answer(self.function(moments, *self.args, **self.options), None, heard)
            except Exception as error:
                return Answer(None, error, heard)


@dataclass(frozen=True)
class Answer:
    """A result or an error, with the warnings."""

    result: Any
    error: Exception | None
    warnings: list[tuple[type[Warning], str]] = field(default_factory=list)

    def open(self) -> Any:
        """Return, raise and warn as if the computation had run here."""
        for category, message in self.warnings:
            warnings.warn(message, category, stacklevel=4)
        if self.error is not None:
            raise self.error
        return self.result


def ask(
    function: Callable[..., Any], moments: Moments, *args: Any, need: Need, where: str | None, **options: Any
) -> Any:
    """Return ``function(moments, *args, **options)``, computed at the place asked for.

    Moments of this process are used here. For a handle, the default is the scheduler, or the worker that holds the
    moments if the scheduler has too little memory.
    """
    check_where(where, moments)
    if not isinstance(moments, RemoteMoments) or where == "client" or (where is None and moments.held.is_archive):
        return function(moments, *args, **options)
    key = str(moments.held.future.key)
    order = Order(function, args, options, need, key, moments.path, moments.head, patience())
    if where == "worker" or not _fits_scheduler(moments, order):
        return _ask_worker(moments, order).open()
    client = moments.held.client
    answer: Answer = run_on_scheduler(client, on_scheduler, order)
    return answer.open()


def check_where(where: str | None, moments: Any) -> None:
    """Refuse an unknown or unsuitable place."""
    if where is not None and where not in PLACES:
        raise ValueError(f"where must be None or one of {PLACES}; got {where!r}.")
    if where not in (None, "client") and not isinstance(moments, RemoteMoments):
        raise ValueError(
            f"where={where!r} needs moments that scan left on a cluster; these are in this process. Leave out where, "
            "or scan with an active Dask client."
        )


def _fits_scheduler(moments: RemoteMoments, order: Order) -> bool:
    """Check version and memory of the scheduler; warn and return False if it has too little memory."""
    client, need = moments.held.client, order.need
    moments.held.check_open()
    found = run_on_scheduler(client, make_probe(), VERSION, order.function.__module__)
    check_version(found["version"], f"the scheduler {address(client)}")
    asked = need.work + need.moments(moments.n)
    if asked <= found["free"]:
        return True
    warnings.warn(
        f"the scheduler may use {size(found['free'])} and this takes {size(asked)}: it runs on the worker that holds "
        "the moments instead. where='worker' does so without this message.",
        stacklevel=4,
    )
    return False


def _ask_worker(moments: RemoteMoments, order: Order) -> Answer:
    client, held = moments.held.client, moments.held
    worker, found = held.call(make_probe(), VERSION, order.function.__module__)
    check_version(found["version"], f"the worker {worker}")
    if order.need.work > found["free"]:
        raise MemoryError(
            f"a question must fit into memory; the worker {worker} may use {size(found['free'])} besides the moments, "
            f"and this takes {size(order.need.work)}. Give workers more memory, ask for less at once, or use "
            "where='client'."
        )
    task = client.submit(
        on_worker,
        held.future,
        order,
        key=f"rgcss-greedy-{uuid.uuid4().hex[:12]}",
        workers=[worker],
        allow_other_workers=True,  # the worker with the moments may be lost
    )
    return settled(client, task)


def on_worker(result: tuple[Moments, Any], order: Order) -> Answer:
    """Run a computation on the worker that holds the moments."""
    return order.answer(part_of(result[0], order.path))


_promised: dict[str, int] = {}  # bytes reserved by running computations on this scheduler


def free_memory(limit: int | None = None) -> int:
    """Return the bytes that another computation may use in this process; ``limit`` is the limit of a worker."""
    free = default_budget() if limit is None else min(default_budget(), int(PAUSE * limit) - process_bytes())
    return max(0, free - sum(_promised.values()))


def process_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


async def on_scheduler(order: Order, dask_scheduler: Scheduler) -> Answer:
    """Fetch the moments from their worker, and run a computation in a thread beside the event loop."""
    assert order.head is not None
    token = uuid.uuid4().hex
    _promised[token] = order.need.work + order.need.moments(order.head.n)
    # A separate thread, because the event loop resolves addresses in its shared threads.
    thread = ThreadPoolExecutor(1, "rgcss-greedy")
    pool = ConnectionPool(deserialize=True, connection_args=dask_scheduler.connection_args, server=dask_scheduler)
    try:
        await pool.start()
        moments = await _brought(order, order.head, dask_scheduler, pool)
        return await asyncio.get_running_loop().run_in_executor(thread, order.answer, moments)
    finally:
        del _promised[token]
        thread.shutdown(wait=False)
        await pool.close()


async def _brought(order: Order, head: MomentsSummary, scheduler: Scheduler, pool: ConnectionPool) -> Moments:
    """Fetch the needed arrays in blocks."""
    paths: list[PartPath] = [()]
    paths += [((order.need.kind, i),) for i in range(order.need.parts)]
    arrays: dict[tuple[PartPath, str], Any] = {}
    for path in paths:
        for name in KINDS[head.kind].ARRAYS:
            array = np.empty(head.shape(name))
            for start, stop in blocks(array.shape):
                asked = (order.key, order.path + path, name, start, stop)
                array[start:stop] = await _block(asked, scheduler, pool, order.patience)
            arrays[path, name] = array
    return head.build(arrays)


async def _block(asked: tuple[Any, ...], scheduler: Scheduler, pool: ConnectionPool, patience: float) -> Any:
    """Fetch a block from a worker that holds it; if the worker is lost, from where the moments are recomputed."""
    parts: tuple[Any, ...] = (rows_of, asked, {})
    function, args, options = (dumps(part) for part in parts)  # type: ignore[no-untyped-call]
    began = time.monotonic()
    while time.monotonic() - began < patience:  # a stopped worker accepts no connection until it is given up
        worker = await _holder(asked[0], scheduler, patience)
        try:
            asked_worker = pool(worker).run(function=function, args=args, kwargs=options)
            answer = await _while_known(worker, asked_worker, scheduler)
        except OSError:
            answer = {}
        if answer.get("status") == "error":
            raise clean_exception(**answer)[1] or RuntimeError(f"the worker {worker} failed. See its log.")
        if isinstance(answer.get("result"), np.ndarray):
            return answer["result"]
        await asyncio.sleep(LOOK)  # lost; the scheduler will notice soon
    raise ConnectionError(f"the moments could not be fetched from the worker {worker} for {patience:g} s. See its log.")


async def _while_known(worker: str, asked: Awaitable[Any], scheduler: Scheduler) -> Any:
    """Wait for an answer while the scheduler knows the worker: a stopped worker keeps its connections open."""
    answering = asyncio.ensure_future(asked)
    while not (await asyncio.wait({answering}, timeout=LOOK))[0]:
        if worker not in scheduler.workers:
            answering.cancel()
            raise ConnectionError(f"the worker {worker} was given up.")
    return answering.result()


async def _holder(key: str, scheduler: Scheduler, patience: float) -> str:
    """Wait until a worker holds the moments; they are recomputed if their worker was lost."""
    seen = time.monotonic()
    while True:
        task = scheduler.tasks.get(key)
        if task is None or task.state in ("erred", "forgotten"):
            raise ConnectionError("the moments are no longer on the cluster and could not be recomputed. Scan again.")
        if task.who_has:
            return str(next(iter(task.who_has)).address)
        if scheduler.workers:
            seen = time.monotonic()
        elif time.monotonic() - seen > patience:
            raise NoWorkersError(no_workers(scheduler.address, patience))
        await asyncio.sleep(0.1)


_lock = threading.Lock()
_heard: dict[int, list[tuple[type[Warning], str]]] = {}  # thread: its warnings
_restore: Any = None


@contextmanager
def recorded_warnings() -> Iterator[list[tuple[type[Warning], str]]]:
    """Collect the warnings of this thread.

    Warning filters are global: of overlapping callers, the first sets them and the last restores them.
    """
    global _restore
    thread = threading.get_ident()
    mine: list[tuple[type[Warning], str]] = []
    with _lock:
        if not _heard:
            _restore = warnings.catch_warnings()
            _restore.__enter__()
            warnings.simplefilter("always")
            warnings.showwarning = _hear(warnings.showwarning)
        outer = _heard.get(thread)
        _heard[thread] = mine
    try:
        yield mine
    finally:
        with _lock:
            if outer is None:
                del _heard[thread]
            else:
                _heard[thread] = outer
            if not _heard:
                _restore.__exit__(None, None, None)


def _hear(others: Callable[..., None]) -> Callable[..., None]:
    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        mine = _heard.get(threading.get_ident())
        if mine is None:
            others(message, category, *place, **more)
        else:
            mine.append((category, str(message)))

    return show

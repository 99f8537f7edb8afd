"""Where tasks run: on the active Dask cluster, or on threads of this process."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dask
from dask import local, threaded
from distributed import Client, Future, get_worker

from rgcss_dask.cluster.progress import Reporter
from rgcss_dask.cluster.waiting import await_worker, settled, warn_if_open
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.memory_limit import SHARE, default_budget
from rgcss_dask.runtime.page_pool import freed_memory_kept

Graph = dict[Any, Any]


@dataclass(frozen=True)
class Capacity:
    """What a process that works on spans has."""

    threads: int
    memory: int  # bytes
    client: Client | None = None  # of the cluster the process belongs to


def capacity(*, cluster: bool) -> Capacity:
    """Return what the smallest worker of the active cluster has, or else this process."""
    client = active_client() if cluster else None
    if client is None:
        return Capacity(_thread_count(), default_budget())
    warn_if_open(client)
    await_worker(client)
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [int(SHARE * worker["memory_limit"]) for worker in workers if worker["memory_limit"]]
    threads = max((worker["nthreads"] for worker in workers), default=1)
    return Capacity(threads, min(limits, default=default_budget()), client)


def active_client() -> Client | None:
    """Return the Dask client in use, if there is one; none is ever started."""
    try:
        client = Client.current()  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    if client.asynchronous:
        raise WrongKindError("scan needs a Dask client that is not asynchronous; make one with Client(address).")
    return client


@dataclass(frozen=True)
class ClusterReport:
    """Sends what a task has read from its worker to the client."""

    topic: str

    def __call__(self, rows: int, spans: int) -> None:
        """Report rows read and spans finished."""
        get_worker().log_event(self.topic, {"rows": rows, "spans": spans})


class ThreadReport:
    """Counts what a task has read, and ends the task when the pass was given up."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.given_up = threading.Event()

    def __call__(self, rows: int, spans: int) -> None:
        """Report rows read and spans finished."""
        if self.given_up.is_set():
            raise CancelledError("the pass was given up.")
        self._reporter.add(rows, spans=spans)


def run_on_threads(graph: Graph, key: str, report: ThreadReport, threads: int) -> Any:
    """Compute a key of the graph in this process; no thread is left behind."""
    with single_threaded_blas(), freed_memory_kept(), ThreadPoolExecutor(threads, "rgcss") as pool:
        try:
            return threaded.get(graph, key, pool=pool)
        except BaseException:
            report.given_up.set()
            raise


def run_here(graph: Graph, key: str) -> Any:
    """Compute a key of the graph in the calling thread."""
    with single_threaded_blas(), freed_memory_kept():
        return local.get_sync(graph, key)


def run_on_cluster(
    client: Client, graph: Graph, key: str, report: ClusterReport, reporter: Reporter, *, keep: tuple[str, ...] = ()
) -> tuple[Any, list[Future[Any]]]:
    """Compute a key of the graph on the cluster, and fetch it; return with it the futures of keys that are to stay."""

    def hear(event: tuple[Any, dict[str, int]]) -> None:
        reporter.add(event[1]["rows"], spans=event[1]["spans"])

    client.subscribe_topic(report.topic, hear)  # type: ignore[no-untyped-call]
    try:
        future, *kept = submit(client, graph, [key, *keep])
        return settled(client, future, *kept), kept
    finally:
        if client.status == "running":
            client.unsubscribe_topic(report.topic)  # type: ignore[no-untyped-call]


def submit(client: Client, graph: Graph, keys: list[str]) -> list[Future[Any]]:
    """Send the graph and return the futures of the keys; their results stay where they were made until asked for."""
    with warnings.catch_warnings():
        # Weights and masks that are in memory here travel with the graph: 8 bytes a row.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return client.get(graph, keys, sync=False)  # type: ignore[no-untyped-call]


def _thread_count() -> int:
    asked = dask.config.get("num_workers", None)
    if dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(asked) if asked else available_cpus()

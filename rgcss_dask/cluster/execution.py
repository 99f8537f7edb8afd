"""Execution of task graphs: on the active Dask cluster, or on threads of this process."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import dask
from dask import threaded
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
    """Threads and memory of a process that works on spans."""

    threads: int
    memory: int  # bytes
    client: Client | None = None  # of the cluster, if there is one


def capacity(*, cluster: bool) -> Capacity:
    """Return the capacity of the smallest worker of the active cluster, or else of this process."""
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
    """Return the active Dask client, or None; a client is never started."""
    try:
        client = Client.current()  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    if client.asynchronous:
        raise WrongKindError(
            "scan needs a synchronous Dask client; the active one is asynchronous. Make another with Client(address)."
        )
    return client


@dataclass(frozen=True)
class ClusterReport:
    """Sends the progress of a task from its worker to the client."""

    topic: str

    def __call__(self, rows: int, spans: int) -> None:
        """Report rows read and spans finished."""
        get_worker().log_event(self.topic, {"rows": rows, "spans": spans})


class ThreadReport:
    """Counts the progress of a task, and ends the task when the pass was cancelled."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.given_up = threading.Event()

    def __call__(self, rows: int, spans: int) -> None:
        """Report rows read and spans finished."""
        if self.given_up.is_set():
            raise CancelledError("the pass was cancelled.")
        self._reporter.add(rows, spans=spans)


def run_on_threads(graph: Graph, key: str, report: ThreadReport, threads: int) -> Any:
    """Compute a key of the graph on threads of this process, which end with the call."""
    with single_threaded_blas(), freed_memory_kept(), ThreadPoolExecutor(threads, "rgcss") as pool:
        try:
            return threaded.get(graph, key, pool=pool)
        except BaseException:
            report.given_up.set()
            raise


def run_on_cluster(
    client: Client, graph: Graph, key: str, report: ClusterReport, reporter: Reporter, *, keep: tuple[str, ...] = ()
) -> tuple[Any, list[Future[Any]]]:
    """Compute and fetch a key of the graph on the cluster; return it with the futures of keys to keep there."""

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
    """Submit the graph and return the futures of the keys; results stay on their workers until fetched."""
    with warnings.catch_warnings():
        # Weights and masks in memory are part of the graph: 8 bytes per row.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return client.get(graph, keys, sync=False)  # type: ignore[no-untyped-call]


def _thread_count() -> int:
    asked = dask.config.get("num_workers", None)
    if dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(asked) if asked else available_cpus()

"""Checks that every process of a cluster has the same version of the package, before work begins."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

from distributed import Client

from rgcss_dask import __version__
from rgcss_dask.cluster.waiting import address, run_on_scheduler
from rgcss_dask.compat import ConnectionPool, dumps
from rgcss_dask.core.errors import HinderedError

VERSION = __version__
# Seconds to wait for the version of a worker; a stopped or unreachable worker must not block a pass.
ANSWER_WITHIN = 10.0


def make_probe() -> Callable[..., Any]:
    """Return a function that reports the version of the package in the process that runs it.

    If the name of a module is given, the function imports that module and reports the free memory too. It is a nested
    function, and so pickled by value: it also runs where the package is not installed. Imports run in a thread, because
    they would block the event loop.
    """
    load = importlib.import_module
    package = "rgcss_dask"

    async def probe(version: str, work: str | None = None, dask_worker: Any = None) -> dict[str, Any]:
        try:
            found = getattr(load(package), "__version__", "of unknown version")
        except ImportError:
            return {"version": None, "free": 0}
        if found != version or work is None:
            return {"version": found, "free": 0}
        placement = f"{package}.cluster.placement"
        for module in (work, placement):
            await load("asyncio").to_thread(load, module)
        manager = getattr(dask_worker, "memory_manager", None)  # Dask passes a scheduler under this name too
        limit = None if manager is None else manager.memory_limit
        return {"version": found, "free": load(placement).free_memory(limit)}

    return probe


def check_version(found: str | None, place: str, wanted: str = VERSION) -> None:
    """Refuse a process with another version."""
    if found != wanted:
        there = "not installed" if found is None else found
        raise HinderedError(
            f"every process of a cluster must have the same version of rgcss_dask; this process has {wanted}, on "
            f"{place} it is {there}. Install rgcss-dask=={wanted} there and restart it."
        )


def check_cluster(client: Client) -> None:
    """Refuse a cluster in which the scheduler or a worker has another version."""
    probe = make_probe()
    found = run_on_scheduler(client, probe, VERSION)
    check_version(found["version"], f"the scheduler {address(client)}")
    for worker, answer in ask_workers(client, probe, VERSION).items():
        check_version(answer["version"], f"the worker {worker}")


def ask_workers(client: Client, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return the results of a function on every worker that answers in time."""
    parts: tuple[Any, ...] = (function, args, {})
    asked = [dumps(part) for part in parts]  # type: ignore[no-untyped-call]
    answers = run_on_scheduler(client, survey, *asked, ANSWER_WITHIN)
    return {worker: answer for worker, answer in answers.items() if answer is not None}


async def survey(probe: bytes, args: bytes, options: bytes, patience: float, dask_scheduler: Any) -> dict[str, Any]:
    """Run a function on every worker; None for workers that do not answer in time."""
    pool = ConnectionPool(deserialize=True, connection_args=dask_scheduler.connection_args, server=dask_scheduler)
    await pool.start()

    async def ask(address: str) -> Any:
        asked = pool(address).run(function=probe, args=args, kwargs=options)
        try:
            return (await asyncio.wait_for(asked, patience)).get("result")
        except (OSError, TimeoutError):
            return None

    try:
        workers = list(dask_scheduler.workers)
        return dict(zip(workers, await asyncio.gather(*[ask(worker) for worker in workers]), strict=True))
    finally:
        await pool.close()

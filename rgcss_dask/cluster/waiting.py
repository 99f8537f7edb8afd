"""Waiting for a cluster with time limits, and a warning about clusters without encryption."""

from __future__ import annotations

import ipaddress
import logging
import time
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, wait

from rgcss_dask.compat import CommClosedError, parse_timedelta
from rgcss_dask.core.errors import HinderedError

SETTING = "rgcss.timeout"  # in Dask's configuration: seconds to wait for a worker
WAIT = 300.0
LOOK = 5.0  # seconds between checks for workers, while waiting for a result
LOST = (
    "the Dask scheduler was lost before the work was done. Start it again, connect a client, and make the same call: "
    "with archive=... a pass resumes from its checkpoints."
)
ENCRYPTED = ("tls", "wss", "inproc")

logger = logging.getLogger("rgcss_dask")
_warned: set[str] = set()  # schedulers that were warned about


class NoWorkersError(TimeoutError):
    """The cluster has had no worker for too long."""


def patience() -> float:
    """Return the seconds to wait for a worker."""
    given = dask.config.get(SETTING, WAIT)
    try:
        seconds = float(parse_timedelta(given, default="seconds"))
    except (ValueError, TypeError, LookupError):
        seconds = 0.0
    if seconds <= 0:
        raise ValueError(f"{SETTING} in Dask's configuration must be a time such as 300 or '5 minutes'; got {given!r}.")
    return seconds


def await_worker(client: Client) -> None:
    """Wait until the cluster has a worker; a small task makes an adaptive cluster start one."""
    if count_workers(client) == 0:
        wake = client.submit(int, key=f"rgcss-wake-{uuid.uuid4().hex[:12]}")
        settled(client, wake)


def settled(client: Client, future: Future[Any], *others: Future[Any]) -> Any:
    """Return the result of a future; give up when there has been no worker for too long.

    If the wait ends with an error or Ctrl-C, the future and the others are cancelled. Otherwise the traceback, which
    refers to them, would keep the cluster working.
    """
    try:
        return _result(client, future)
    except BaseException:
        if client.status == "running":
            client.cancel([future, *others])  # type: ignore[no-untyped-call]
        raise


def _result(client: Client, future: Future[Any]) -> Any:
    try:
        await_done(client, future)
        return future.result()
    except CancelledError as error:
        raise ConnectionError(LOST) from error
    except KilledWorker as error:
        raise HinderedError(
            f"a task must not kill the worker process that runs it; {error.task} was tried "
            f"{error.allowed_failures + 1} times, and its worker died each time (the last one: "
            f"{error.last_worker.address}). See the log of that worker; if it ran out of memory, give workers more "
            "memory or fewer threads. With archive=... the same call resumes from its checkpoints."
        ) from error


def await_done(client: Client, future: Future[Any]) -> None:
    """Wait for a future, as long as there are workers."""
    limit, absent = patience(), None
    while True:
        if count_workers(client):
            absent = None
        elif absent is None:
            absent = time.monotonic()
            logger.warning("the cluster at %s has no workers; waiting at most %g s for one", address(client), limit)
        elif time.monotonic() - absent >= limit:
            raise NoWorkersError(no_workers(address(client), limit))
        try:
            wait(future, timeout=min(LOOK, limit))  # type: ignore[no-untyped-call]
            return
        except TimeoutError:
            pass


def run_on_scheduler(client: Client, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a function on the scheduler; a lost scheduler raises a clear error."""
    try:
        return client.run_on_scheduler(function, *args, **options)  # type: ignore[no-untyped-call]
    except OSError as error:
        if isinstance(error, CommClosedError) or type(error) is OSError:  # otherwise the function raised it
            raise ConnectionError(LOST) from error
        raise


def count_workers(client: Client) -> int:
    """Return the number of workers of the cluster."""
    return int(_told(client)["n_workers"])


def _told(client: Client) -> dict[str, Any]:
    """Return the scheduler's information, or raise an error if the scheduler is lost."""
    told = client.scheduler_info(n_workers=0)
    if "address" not in told:
        raise ConnectionError(LOST)
    return told


def no_workers(where: str, limit: float) -> str:
    """Return the message for a cluster without workers."""
    return (
        f"the work needs at least one worker; the cluster at {where} has had none for {limit:g} s. Start workers with "
        f"`dask worker {where}`, or wait longer: --timeout, or {SETTING} in Dask's configuration. With an archive "
        "the same call resumes from its checkpoints."
    )


def warn_if_open(client: Client) -> None:
    """Warn once about a scheduler that is not encrypted and reachable from other machines."""
    where = address(client)
    protocol, _, rest = where.partition("://")
    if protocol in ENCRYPTED or where in _warned or _is_loopback(rest.rpartition(":")[0].strip("[]")):
        return
    _warned.add(where)
    warnings.warn(
        f"the Dask scheduler at {where} is not encrypted: anyone who can reach it can run code on its workers with "
        "their rights, and read the traffic. Start the cluster with TLS certificates (deploy/security.md), or bind it "
        "to 127.0.0.1.",
        stacklevel=2,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(client: Client) -> str:
    """Return the address of the scheduler."""
    return str(_told(client)["address"])

"""Waiting for a cluster, but not for ever, and a word about one that is open to everybody."""

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
LOOK = 5.0  # seconds between looks at whether there are workers, while a result is waited for
LOST = (
    "the Dask scheduler was lost before the work was done. Start it again, connect a client, and make the same call: "
    "with archive=... a pass goes on from its checkpoints."
)
ENCRYPTED = ("tls", "wss", "inproc")

logger = logging.getLogger("rgcss_dask")
_warned: set[str] = set()  # schedulers of which it was said that they are open


class NoWorkersError(TimeoutError):
    """There has been nobody to do the work for too long."""


def patience() -> float:
    """Return how many seconds a worker is waited for."""
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

    Whatever ends the wait, Ctrl-C too, ends the work for it and for others that would be of no use then: a traceback
    refers to futures for as long as somebody may look at it, and the cluster would go on.
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
            f"a task must not end the worker process that runs it; {error.task} was tried "
            f"{error.allowed_failures + 1} times, and each time its worker died (the last one: "
            f"{error.last_worker.address}). See that worker's log; when it is out of memory, give workers more of it "
            "or fewer threads. With archive=... the same call goes on from its checkpoints."
        ) from error


def await_done(client: Client, future: Future[Any]) -> None:
    """Wait for a future, wherever its result is, for as long as there are workers."""
    limit, absent = patience(), None
    while True:
        if count_workers(client):
            absent = None
        elif absent is None:
            absent = time.monotonic()
            logger.warning("the cluster at %s has no workers; waiting for one, %g s at most", address(client), limit)
        elif time.monotonic() - absent >= limit:
            raise NoWorkersError(no_workers(address(client), limit))
        try:
            wait(future, timeout=min(LOOK, limit))  # type: ignore[no-untyped-call]
            return
        except TimeoutError:
            pass


def run_on_scheduler(client: Client, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a function returns on the scheduler; a scheduler that is gone is an error in words."""
    try:
        return client.run_on_scheduler(function, *args, **options)  # type: ignore[no-untyped-call]
    except OSError as error:
        if isinstance(error, CommClosedError) or type(error) is OSError:  # else the function itself raised it
            raise ConnectionError(LOST) from error
        raise


def count_workers(client: Client) -> int:
    """Ask the scheduler how many workers it has."""
    return int(_told(client)["n_workers"])


def _told(client: Client) -> dict[str, Any]:
    """Return what the scheduler says of itself; a client that has lost it knows nothing."""
    told = client.scheduler_info(n_workers=0)
    if "address" not in told:
        raise ConnectionError(LOST)
    return told


def no_workers(where: str, limit: float) -> str:
    """Say that there has been nobody to do the work, and what to do about it."""
    return (
        f"the work needs at least one worker; the cluster at {where} has had none for {limit:g} s. Start some with "
        f"`dask worker {where}`, or wait longer: --timeout, or {SETTING} in Dask's configuration. With an archive "
        "the same call goes on from its checkpoints."
    )


def warn_if_open(client: Client) -> None:
    """Say once of a scheduler that it is neither encrypted nor out of reach for other machines."""
    where = address(client)
    protocol, _, rest = where.partition("://")
    if protocol in ENCRYPTED or where in _warned or _is_loopback(rest.rpartition(":")[0].strip("[]")):
        return
    _warned.add(where)
    warnings.warn(
        f"the Dask scheduler at {where} is not encrypted: whoever can reach it can run code on its workers with their "
        "rights, and read what is sent. Start the cluster with TLS certificates (deploy/security.md), or bind it to "
        "127.0.0.1.",
        stacklevel=2,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(client: Client) -> str:
    """Return where the scheduler can be reached, as it says itself."""
    return str(_told(client)["address"])

"""One writer at a time: a claim on an archive that a dead process cannot keep."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psutil

from rgcss_dask.storage.files import Folder
from rgcss_dask.storage.retrying import Retry, StoreError

NAME = "writer.json"
BEAT = 15.0  # seconds between signs of life
DEAD = 120.0  # seconds without one, after which another machine's claim no longer counts

_held: set[str] = set()  # claims of this process: one that is not here was left by a call that could not give it up


class ArchiveBusyError(RuntimeError):
    """Another process is writing the archive."""


@contextmanager
def claimed(folder: Folder) -> Iterator[None]:
    """Hold the archive for writing; refuse if a living process holds it."""
    mine = {
        "id": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "born": psutil.Process().create_time(),
    }
    try:
        _refuse_if_held(folder)
        _write(folder, mine)
    except StoreError:
        raise
    except (OSError, NotImplementedError) as error:
        raise PermissionError(
            f"the archive must be writable; {folder.address} is not: {error}. Give another path."
        ) from error
    if (_holder(folder) or {}).get("id") != mine["id"]:  # two began in the same instant; the later write won
        raise _busy(folder, _holder(folder) or {})
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(folder, mine, stop), daemon=True, name="rgcss-claim")
    _held.add(str(mine["id"]))
    beating.start()
    patience = folder
    try:
        yield
    except BaseException:
        patience = _asked_once(folder)  # if the store failed, it need not be waited for again to say so
        raise
    finally:
        stop.set()
        beating.join()
        _held.discard(str(mine["id"]))
        with suppress(OSError):  # a claim that stays counts for nothing once it is not in `_held`, or not refreshed
            if (_holder(patience) or {}).get("id") == mine["id"]:
                patience.remove(NAME)


def _asked_once(folder: Folder) -> Folder:
    return replace(folder, retry=Retry(tries=1))


def _beat(folder: Folder, mine: dict[str, Any], stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with suppress(OSError):  # the store does not answer now; there is time for other beats
            _write(_asked_once(folder), mine)


def _write(folder: Folder, mine: dict[str, Any]) -> None:
    folder.write(NAME, json.dumps({**mine, "beat": time.time()}).encode())


def _holder(folder: Folder) -> dict[str, Any] | None:
    data = folder.read(NAME)
    return None if data is None else dict(json.loads(data))


def _refuse_if_held(folder: Folder) -> None:
    if folder.address.startswith(("http://", "https://")):
        raise NotImplementedError("what a web server shows can only be read")
    holder = _holder(folder)
    if holder is not None and _is_alive(holder):
        raise _busy(folder, holder)


def _busy(folder: Folder, holder: dict[str, Any]) -> ArchiveBusyError:
    since = datetime.fromtimestamp(holder.get("beat", 0), UTC).isoformat(timespec="seconds")
    return ArchiveBusyError(
        f"an archive has one writer at a time; {folder.address} is being written by process "
        f"{holder.get('pid')} on {holder.get('host')} (last seen {since}). Wait for it, or give another path."
    )


def _is_alive(holder: dict[str, Any]) -> bool:
    if holder["host"] != socket.gethostname():
        return time.time() - float(holder["beat"]) < DEAD
    if holder["pid"] == os.getpid() and holder["id"] not in _held:
        return False
    try:  # the same number may meanwhile belong to another process
        return bool(abs(psutil.Process(holder["pid"]).create_time() - float(holder["born"])) < 1.0)
    except psutil.Error:
        return False

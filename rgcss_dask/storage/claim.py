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

_held: dict[str, str] = {}  # claims of this process, and where: one that is not here was left by a call that failed


class ArchiveBusyError(RuntimeError):
    """Another process is writing the archive."""


@contextmanager
def claimed(folder: Folder) -> Iterator[None]:
    """Hold the archive for writing; refuse if a living process holds it."""
    mine = {**_me(), "id": uuid.uuid4().hex}
    _held[mine["id"]] = folder.root  # before it is written: another thread would take it for one that was left
    try:
        _begin(folder, mine)
        with _beating(folder, mine):
            yield
    finally:
        del _held[mine["id"]]


def refuse_lost(folder: Folder) -> None:
    """Refuse to write what this process claimed if the claim is no longer its own; look before a write that counts."""
    mine = [key for key, place in list(_held.items()) if place == folder.root]
    holder = _holder(folder) if mine else None
    if mine and (holder is None or holder["id"] not in mine):
        by = "removed" if holder is None else f"taken over by process {holder.get('pid')} on {holder.get('host')}"
        raise ArchiveBusyError(
            f"an archive has one writer at a time; the claim of this process on {folder.address} was {by}, as happens "
            f"after {DEAD:.0f} seconds without a sign of life. Nothing was written over what is there. Make the same "
            "call again when nobody else writes it, or give another path."
        )


def _me() -> dict[str, Any]:
    """Identify this process on its machine."""
    return {
        "host": socket.gethostname(),
        "namespace": _namespace(),
        "pid": os.getpid(),
        "born": psutil.Process().create_time(),
    }


def _namespace() -> int | None:
    """Return where a PID is a number: containers that share a host name may not see each other's processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _begin(folder: Folder, mine: dict[str, Any]) -> None:
    try:
        if folder.is_web:
            raise NotImplementedError("what a web server shows can only be read")
        _take(folder, mine, NAME)
    except StoreError:
        raise
    except (OSError, NotImplementedError) as error:
        raise PermissionError(
            f"the archive must be writable; {folder.address} is not: {error}. Give another path."
        ) from error
    if not _is_mine(folder, mine):  # two began in the same instant, in a store where the later write won
        raise _busy(folder, _holder(folder) or {})


def _take(folder: Folder, mine: dict[str, Any], name: str) -> None:
    """Write a claim under a name, in the place of one whose holder is dead; of several that try, one succeeds."""
    while not folder.create(name, _signed(mine)):
        holder = _holder(folder, name)
        if holder is None:  # given up in this instant
            continue
        if holder["id"] == mine["id"]:  # it was written, and only the answer was lost
            return
        if _is_alive(holder):
            raise _busy(folder, holder)
        _bury(folder, mine, name, holder["id"])


def _bury(folder: Folder, mine: dict[str, Any], name: str, dead: str) -> None:
    """Remove the claim of a dead process, with a claim on that one in hand.

    Of two that found it dead, the slower one would otherwise remove the claim that the faster one has written since.
    """
    spade = f"{name}.{dead}"
    _take(folder, mine, spade)
    try:
        if (_holder(folder, name) or {}).get("id") == dead:
            folder.remove(name)
    finally:
        folder.remove(spade)


@contextmanager
def _beating(folder: Folder, mine: dict[str, Any]) -> Iterator[None]:
    """Show signs of life, and give up the claim at the end."""
    stop, patience = threading.Event(), folder
    beating = threading.Thread(target=_beat, args=(folder, mine, stop), daemon=True, name="rgcss-claim")
    beating.start()
    try:
        yield
    except BaseException:
        patience = _asked_once(folder)  # if the store failed, it need not be waited for again to say so
        raise
    finally:
        stop.set()
        beating.join()
        with suppress(OSError):  # a claim that stays counts for nothing once it is not in `_held`, or not refreshed
            if _is_mine(patience, mine):
                patience.remove(NAME)


def _asked_once(folder: Folder) -> Folder:
    return replace(folder, retry=Retry(tries=1))


def _beat(folder: Folder, mine: dict[str, Any], stop: threading.Event) -> None:
    folder = _asked_once(folder)
    while not stop.wait(BEAT):
        with suppress(OSError):  # the store does not answer now; there is time for other beats
            if not _is_mine(folder, mine):  # another took it over, and is not to be disturbed; see `refuse_lost`
                return
            folder.write(NAME, _signed(mine))


def _signed(mine: dict[str, Any]) -> bytes:
    return json.dumps({**mine, "beat": time.time()}).encode()


def _holder(folder: Folder, name: str = NAME) -> dict[str, Any] | None:
    data = folder.read(name)
    try:
        return None if data is None else dict(json.loads(data))
    except ValueError:  # cut off when the machine went down
        return {"id": "unreadable", "beat": 0.0}


def _is_mine(folder: Folder, mine: dict[str, Any]) -> bool:
    return (_holder(folder) or {}).get("id") == mine["id"]


def _busy(folder: Folder, holder: dict[str, Any]) -> ArchiveBusyError:
    since = datetime.fromtimestamp(holder.get("beat", 0), UTC).isoformat(timespec="seconds")
    return ArchiveBusyError(
        f"an archive has one writer at a time; {folder.address} is being written by process "
        f"{holder.get('pid')} on {holder.get('host')} (last seen {since}). Wait for it, or give another path."
    )


def _is_alive(holder: dict[str, Any]) -> bool:
    if (holder.get("host"), holder.get("namespace")) != (socket.gethostname(), _namespace()):
        return time.time() - float(holder["beat"]) < DEAD
    if holder["pid"] == os.getpid() and holder["id"] not in _held:
        return False
    try:  # the same number may meanwhile belong to another process
        return bool(abs(psutil.Process(holder["pid"]).create_time() - float(holder["born"])) < 1.0)
    except psutil.Error:
        return False

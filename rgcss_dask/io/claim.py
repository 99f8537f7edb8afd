"""One writer at a time: a claim is a lease file that expires when its process is dead."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rgcss_dask.io.files import Folder, drop_drafts
from rgcss_dask.io.retry import Retry, StoreError
from rgcss_dask.runtime.process_identity import born, machine, namespace

NAME = "writer.json"
BEAT = 5.0  # seconds between heartbeats
DEAD = 60.0  # seconds without a heartbeat, by the waiting process's clock, until a remote claim expires
LOOK = 1.0  # seconds between checks for a heartbeat
TRIES = 100  # of writing a claim
PAUSE = 0.02  # seconds between tries
ID = re.compile("[0-9a-f]{32}")
KINDS = {"id": str, "machine": str, "host": str, "seen": str, "namespace": int, "pid": int, "beat": int, "born": float}
BEGINS = b'{"id": "'  # beginning of every claim, by which a truncated claim is recognised

# Whether a claim whose holder runs on another machine is taken over at once, as the user asked. A holder that is alive
# notices this, and stops writing; see `refuse_lost`.
force_unlock: ContextVar[bool] = ContextVar("force_unlock", default=False)

_held: dict[str, tuple[str, str]] = {}  # the claims of running calls of this process, with their places


class ArchiveBusyError(RuntimeError):
    """Another process is writing the archive."""


@dataclass(frozen=True)
class Claim:
    """The process that writes. ``id`` has only hexadecimal digits, because it becomes part of a file name."""

    id: str
    machine: str
    namespace: int
    host: str
    pid: int
    born: float
    beat: int = 0  # grows with each heartbeat
    seen: str = ""  # date of the last heartbeat, for people only: clocks of machines differ

    @classmethod
    def of(cls, data: bytes) -> Claim | None:
        """Read a claim, or return None if the file is no claim or is incomplete."""
        try:
            found = cls(**json.loads(data))
        except (ValueError, TypeError, RecursionError):
            return None
        if not all(isinstance(getattr(found, name), kind) for name, kind in KINDS.items()):
            return None
        return found if ID.fullmatch(found.id) else None

    @classmethod
    def mine(cls) -> Claim:
        """Return a new claim of this process."""
        here = born(os.getpid())
        return cls(uuid.uuid4().hex, machine(), namespace(), socket.gethostname(), os.getpid(), here or 0.0)

    def signed(self, beat: int) -> bytes:
        """Return the content of the claim file."""
        return json.dumps(
            asdict(replace(self, beat=beat, seen=datetime.now(UTC).isoformat(timespec="seconds")))
        ).encode()

    @property
    def lives(self) -> bool | None:
        """Whether the process that made the claim is alive; None if that cannot be seen from this machine."""
        if (self.machine, self.namespace) != (machine(), namespace()):
            return None
        if self.pid == os.getpid():
            return self.id in _held
        return born(self.pid) == self.born


@contextmanager
def claimed(folder: Folder, name: str = NAME) -> Iterator[None]:
    """Hold a claim in a folder while writing; refuse if a living process holds it."""
    mine, was_there = Claim.mine(), not folder.is_local or os.path.isdir(folder.root)
    _held[mine.id] = folder.root, name  # first: other threads would treat an unknown claim as abandoned
    try:
        _begin(folder, mine, name)
        with _beating(folder, mine, name):
            yield
    finally:
        del _held[mine.id]
        if not was_there:
            folder.remove_empty()  # if nothing else was written


def refuse_lost(folder: Folder, name: str = NAME) -> None:
    """Refuse to write if the claim of this process was lost; called before each decisive write."""
    mine = [key for key, place in list(_held.items()) if place == (folder.root, name)]
    holder = Claim.of(folder.read(name) or b"") if mine else None
    if mine and (holder is None or holder.id not in mine):
        by = "removed" if holder is None else f"taken over by process {holder.pid} on {holder.host}"
        raise ArchiveBusyError(
            f"an archive has one writer at a time; the claim of this process, {folder.address}/{name}, was {by}, as "
            f"happens after {DEAD:.0f} seconds without a heartbeat. Nothing was overwritten. Make the same call again "
            "when no other process writes it, or give another path."
        )


def _begin(folder: Folder, mine: Claim, name: str) -> None:
    try:
        if folder.is_web:
            raise NotImplementedError("a web server can only be read")
        _take(folder, mine, name)
    except (StoreError, FileExistsError):
        raise
    except (OSError, NotImplementedError) as error:
        raise PermissionError(
            f"the archive must be writable; {folder.address} is not: {error}. Give another path."
        ) from error
    holder = Claim.of(folder.read(name) or b"")
    if holder is None or holder.id != mine.id:  # two processes began at once, and the other one wrote last
        raise _busy(folder, name, holder)
    if folder.is_local:
        _tidy(folder, name)


def _tidy(folder: Folder, name: str) -> None:
    """Remove claims on the claims of dead processes that a killed process has left behind."""
    left = re.compile(rf"{re.escape(name)}(\.{ID.pattern})+")
    drop_drafts(Path(folder.root), left)
    for found in os.listdir(folder.root):
        if left.fullmatch(found):
            folder.remove(found)


def _take(folder: Folder, mine: Claim, name: str) -> None:
    """Write a claim under a name, replacing that of a dead process; of several concurrent calls one succeeds."""
    for _ in range(TRIES):
        if folder.create(name, mine.signed(0)):
            return
        data = folder.read(name)
        if data is None:  # removed just now, or a dangling link
            time.sleep(PAUSE)
            continue
        holder = Claim.of(data)
        if holder is None and data.strip(b"\0") and not data.startswith(BEGINS):
            raise FileExistsError(
                f"{folder.address}/{name} must be the claim of the writing process; it is something else. Move it "
                "away, or give another path."
            )
        if holder is not None and holder.id == mine.id:  # it was written, but the response was lost
            return
        if _is_dead(folder, name, data, holder):
            _bury(folder, mine, name, data, holder)
    raise FileExistsError(
        f"{folder.address}/{name} can be neither read nor written: it may be a dangling link, or other processes "
        "may be claiming the archive at the same time. Remove this file if no process writes the archive."
    )


def _is_dead(folder: Folder, name: str, data: bytes, holder: Claim | None) -> bool:
    """Tell whether a claim has expired; refuse if its holder is alive. False: the claim has changed, so look again."""
    lives = None if holder is None else holder.lives
    if lives is None and not _watched(folder, name, data, holder):
        later = Claim.of(folder.read(name) or b"")
        if later is None or holder is None or later.id != holder.id:
            return False
        lives = True
    if lives:
        raise _busy(folder, name, holder)
    return True


def _watched(folder: Folder, name: str, data: bytes, holder: Claim | None) -> bool:
    """Wait, by the clock of this machine, for a heartbeat; return whether the claim expired."""
    who = "A truncated file" if holder is None else f"Process {holder.pid} on {holder.host}"
    if force_unlock.get():
        warnings.warn(f"{who} claims {folder.address}/{name}; the claim is taken over, as requested.", stacklevel=2)
        return True
    warnings.warn(
        f"{who} claims {folder.address}/{name}, and this machine cannot tell whether it is alive. Waiting up to "
        f"{DEAD:.0f} seconds for a heartbeat. If you know that the process is dead, remove this file, or give "
        "--force-unlock to the command.",
        stacklevel=2,
    )
    for _ in range(max(1, round(DEAD / LOOK))):  # count checks, not seconds: this process may be suspended
        time.sleep(LOOK)
        if folder.read(name) != data:
            return False
    return True


def _bury(folder: Folder, mine: Claim, name: str, data: bytes, holder: Claim | None) -> None:
    """Remove the claim of a dead process, while holding a claim on that claim.

    Otherwise, of two processes that found it dead, the slower could remove the new claim of the faster.
    """
    spade = f"{name}.{'0' * 32 if holder is None else holder.id}"
    _take(folder, mine, spade)
    try:
        there = folder.read(name)
        now = None if there is None else Claim.of(there)
        if there == data or (now is not None and holder is not None and now.id == holder.id):
            folder.remove(name)
    finally:
        folder.remove(spade)


@contextmanager
def _beating(folder: Folder, mine: Claim, name: str) -> Iterator[None]:
    """Write heartbeats, and release the claim at the end."""
    stop, patience = threading.Event(), folder
    beating = threading.Thread(target=_beat, args=(folder, mine, name, stop), daemon=True, name="rgcss-claim")
    beating.start()
    try:
        yield
    except BaseException:
        patience = _asked_once(folder)  # if the store failed, do not wait for its retries again
        raise
    finally:
        stop.set()
        beating.join()
        with suppress(OSError):  # a claim that stays expires, because it is not in `_held` or not refreshed
            if _is_mine(patience, mine, name):
                patience.remove(name)


def _asked_once(folder: Folder) -> Folder:
    return replace(folder, retry=Retry(tries=1))


def _beat(folder: Folder, mine: Claim, name: str, stop: threading.Event) -> None:
    folder, beat = _asked_once(folder), 0
    while not stop.wait(BEAT):
        with suppress(OSError):  # the store does not answer now; later heartbeats may succeed
            if not _is_mine(folder, mine, name):  # another process took it over; see `refuse_lost`
                return
            beat += 1
            folder.write(name, mine.signed(beat))


def _is_mine(folder: Folder, mine: Claim, name: str) -> bool:
    holder = Claim.of(folder.read(name) or b"")
    return holder is not None and holder.id == mine.id


def _busy(folder: Folder, name: str, holder: Claim | None) -> ArchiveBusyError:
    who = "another process" if holder is None else f"process {holder.pid} on {holder.host} (last seen {holder.seen})"
    place = folder.address if name == NAME else f"{folder.address}/{name.partition(f'.{NAME}')[0]}"
    return ArchiveBusyError(
        f"an archive has one writer at a time; {place} is being written by {who}, as {folder.address}/{name} "
        "says. Wait until it is done, or give another path."
    )

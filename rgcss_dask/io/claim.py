"""One writer at a time: a claim on what is being written that a dead process cannot keep."""

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
DEAD = 60.0  # seconds without a heartbeat, by the clock of who waits, after which a claim of another machine expires
LOOK = 1.0  # seconds between looks for one
TRIES = 100  # to write a claim that others give up, or that cannot be written
PAUSE = 0.02  # seconds between them
ID = re.compile("[0-9a-f]{32}")
KINDS = {"id": str, "machine": str, "host": str, "seen": str, "namespace": int, "pid": int, "beat": int, "born": float}
BEGINS = b'{"id": "'  # every claim: one that was cut off when the machine went down is known by it

# Whether a claim whose holder cannot be seen from here counts as that of a dead process at once: the user says so. A
# holder that lives after all notices, and writes nothing more; see `refuse_lost`.
force_unlock: ContextVar[bool] = ContextVar("force_unlock", default=False)

_held: dict[str, tuple[str, str]] = {}  # claims of this process, and where: one that is not here was left by a call


class ArchiveBusyError(RuntimeError):
    """Another process is writing the archive."""


@dataclass(frozen=True)
class Claim:
    """Who writes. An ``id`` becomes part of a file's name, and so is nothing but hexadecimal digits."""

    id: str
    machine: str
    namespace: int
    host: str
    pid: int
    born: float
    beat: int = 0  # grows with each sign of life
    seen: str = ""  # date of the last one, for people: clocks of machines differ, and are set

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
        """Return what is written."""
        return json.dumps(
            asdict(replace(self, beat=beat, seen=datetime.now(UTC).isoformat(timespec="seconds")))
        ).encode()

    @property
    def lives(self) -> bool | None:
        """Whether the process that made it lives, as far as that can be seen from here."""
        if (self.machine, self.namespace) != (machine(), namespace()):
            return None
        if self.pid == os.getpid():
            return self.id in _held
        return born(self.pid) == self.born


@contextmanager
def claimed(folder: Folder, name: str = NAME) -> Iterator[None]:
    """Hold what is in a folder, or beside a claim of another name, for writing; refuse if a living process holds it."""
    mine, was_there = Claim.mine(), not folder.is_local or os.path.isdir(folder.root)
    _held[mine.id] = folder.root, name  # before it is written: another thread would take it for one that was left
    try:
        _begin(folder, mine, name)
        with _beating(folder, mine, name):
            yield
    finally:
        del _held[mine.id]
        if not was_there:
            folder.remove_empty()  # made for the claim alone, if what was to be written was refused


def refuse_lost(folder: Folder, name: str = NAME) -> None:
    """Refuse to write what this process claimed if the claim is no longer its own; look before a write that counts."""
    mine = [key for key, place in list(_held.items()) if place == (folder.root, name)]
    holder = Claim.of(folder.read(name) or b"") if mine else None
    if mine and (holder is None or holder.id not in mine):
        by = "removed" if holder is None else f"taken over by process {holder.pid} on {holder.host}"
        raise ArchiveBusyError(
            f"an archive has one writer at a time; the claim of this process, {folder.address}/{name}, was {by}, as "
            f"happens after {DEAD:.0f} seconds without a sign of life. Nothing was written over what is there. Make "
            "the same call again when nobody else writes it, or give another path."
        )


def _begin(folder: Folder, mine: Claim, name: str) -> None:
    try:
        if folder.is_web:
            raise NotImplementedError("what a web server shows can only be read")
        _take(folder, mine, name)
    except (StoreError, FileExistsError):
        raise
    except (OSError, NotImplementedError) as error:
        raise PermissionError(
            f"the archive must be writable; {folder.address} is not: {error}. Give another path."
        ) from error
    holder = Claim.of(folder.read(name) or b"")
    if holder is None or holder.id != mine.id:  # two began at once, in a store where the later write won
        raise _busy(folder, name, holder)
    if folder.is_local:
        _tidy(folder, name)


def _tidy(folder: Folder, name: str) -> None:
    """Remove the claims on claims of the dead that a process killed meanwhile has left: nobody needs them now."""
    left = re.compile(rf"{re.escape(name)}(\.{ID.pattern})+")
    drop_drafts(Path(folder.root), left)
    for found in os.listdir(folder.root):
        if left.fullmatch(found):
            folder.remove(found)


def _take(folder: Folder, mine: Claim, name: str) -> None:
    """Write a claim under a name, in the place of one whose holder is dead; of several that try, one succeeds."""
    for _ in range(TRIES):
        if folder.create(name, mine.signed(0)):
            return
        data = folder.read(name)
        if data is None:  # given up in this instant, or a link that leads nowhere
            time.sleep(PAUSE)
            continue
        holder = Claim.of(data)
        if holder is None and data.strip(b"\0") and not data.startswith(BEGINS):
            raise FileExistsError(
                f"{folder.address}/{name} is where the process that writes is noted, and is something else. Move it "
                "away, or give another path."
            )
        if holder is not None and holder.id == mine.id:  # it was written, and only the answer was lost
            return
        if _is_dead(folder, name, data, holder):
            _bury(folder, mine, name, data, holder)
    raise FileExistsError(
        f"{folder.address}/{name} can be neither read nor written: it may be a link that leads nowhere, or others "
        "claim the archive at the same moment. Remove this file if nobody writes the archive."
    )


def _is_dead(folder: Folder, name: str, data: bytes, holder: Claim | None) -> bool:
    """Tell whether a claim no longer counts; refuse if its holder lives. False: it has changed, so look again."""
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
    """Wait, by the clock of this machine, for a sign of life; return whether there was none for long enough."""
    who = "A file that was cut off" if holder is None else f"Process {holder.pid} on {holder.host}"
    if force_unlock.get():
        warnings.warn(f"{who} claims {folder.address}/{name}; the claim is taken over, as was asked for.", stacklevel=2)
        return True
    warnings.warn(
        f"{who} claims {folder.address}/{name}, and whether it is alive cannot be seen from here. Waiting up to "
        f"{DEAD:.0f} seconds for a sign of life. If you know that it is dead, remove this file, or give "
        "--force-unlock to the command.",
        stacklevel=2,
    )
    for _ in range(max(1, round(DEAD / LOOK))):  # looks, not seconds: this process may itself be stopped for a while
        time.sleep(LOOK)
        if folder.read(name) != data:
            return False
    return True


def _bury(folder: Folder, mine: Claim, name: str, data: bytes, holder: Claim | None) -> None:
    """Remove the claim of a dead process, with a claim on that one in hand.

    Of two that found it dead, the slower one would otherwise remove the claim that the faster one has written since.
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
    """Show signs of life, and give up the claim at the end."""
    stop, patience = threading.Event(), folder
    beating = threading.Thread(target=_beat, args=(folder, mine, name, stop), daemon=True, name="rgcss-claim")
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
            if _is_mine(patience, mine, name):
                patience.remove(name)


def _asked_once(folder: Folder) -> Folder:
    return replace(folder, retry=Retry(tries=1))


def _beat(folder: Folder, mine: Claim, name: str, stop: threading.Event) -> None:
    folder, beat = _asked_once(folder), 0
    while not stop.wait(BEAT):
        with suppress(OSError):  # the store does not answer now; there is time for other beats
            if not _is_mine(folder, mine, name):  # another took it over, and is not to be disturbed; see `refuse_lost`
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
        "says. Wait for it, or give another path."
    )

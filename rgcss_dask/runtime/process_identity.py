"""Which process of which machine this is, and whether another still lives, by clocks that nobody sets."""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from functools import cache
from pathlib import Path

import psutil


@cache
def machine() -> str:
    """Name this machine since it was started; host names may be equal on two, and process numbers always are."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


def namespace() -> int:
    """Return where a PID is a number: containers of one machine may not see each other's processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def token() -> str:
    """Return 32 hexadecimal digits that nobody else has, and by which `is_left` knows this process."""
    return f"{_here()}{os.getpid():08x}{_count(os.getpid()):010x}{uuid.uuid4().hex[:8]}"


def is_left(given: str) -> bool:
    """Tell whether a token is that of a process of this machine that has ended."""
    place, pid, began = given[:6], int(given[6:14], 16), int(given[14:24], 16)
    return place == _here() and _count(pid) != began


def _here() -> str:
    return hashlib.blake2b(f"{machine()} {namespace()}".encode(), digest_size=3).hexdigest()


def _count(pid: int) -> int:
    """Return when a process began, in hundredths of a second; 0 if it has ended."""
    return int(100 * (born(pid) or 0)) % 16**10


def born(pid: int) -> float | None:
    """Return when a living process of this machine began, as a value that does not change; None if there is none.

    Linux counts from the start of the machine. What psutil makes of that moves when the clock is set.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else float(fields[18])  # a zombie has ended, and nobody has asked how
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None

"""Identities of machines and processes, and checks whether a process is alive, independent of the system clock."""

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
    """Return an id of this boot of this machine; host names and PIDs are not unique across machines."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


def namespace() -> int:
    """Return the PID namespace: containers of one machine may not see each other's processes."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def token() -> str:
    """Return 32 unique hexadecimal digits, which identify this process for `is_left`."""
    return f"{_here()}{os.getpid():08x}{_count(os.getpid()):010x}{uuid.uuid4().hex[:8]}"


def is_left(given: str) -> bool:
    """Tell whether a token belongs to a dead process of this machine."""
    place, pid, began = given[:6], int(given[6:14], 16), int(given[14:24], 16)
    return place == _here() and _count(pid) != began


def _here() -> str:
    return hashlib.blake2b(f"{machine()} {namespace()}".encode(), digest_size=3).hexdigest()


def _count(pid: int) -> int:
    """Return the start time of a process, in hundredths of a second; 0 if it has ended."""
    return int(100 * (born(pid) or 0)) % 16**10


def born(pid: int) -> float | None:
    """Return the start time of a living process of this machine, as a constant value; None if it does not exist.

    Linux counts from boot. The start time of psutil changes when the clock is set.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else float(fields[18])  # a zombie has ended
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None

"""Which process of which machine this is, and whether another still lives, by clocks that nobody sets."""

from __future__ import annotations

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


def born(pid: int) -> float | None:
    """Return when a living process of this machine began, as it was and will be said; None if there is none.

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

"""How many threads do the work, with BLAS kept from adding its own on top of them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

_M_ARENA_MAX = -8  # malloc.h of glibc

_lock = threading.Lock()
_holders = 0
_limiter: Any = None


def available_cpus() -> int:
    """Count the CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def few_malloc_arenas() -> None:
    """Ask glibc to keep what was freed in a few places instead of one for every thread.

    A chunk is decoded by whichever thread of a pool is free, and each would keep its own largest one: over a long pass
    that doubles the memory. A C library without this knob is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, available_cpus())


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS at one thread while any caller is inside, and give back what was there after the last one.

    The limit belongs to the process, not to the caller: two overlapping plain limits that end in the order
    they began would leave BLAS at one thread for good, so the callers are counted.
    """
    global _holders, _limiter
    with _lock:
        if _holders == 0:
            _limiter = ThreadpoolController().limit(limits=1, user_api="blas")
            _limiter.__enter__()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                _limiter.__exit__(None, None, None)
                _limiter = None

"""What the threads of a process share: BLAS, kept from adding its own threads, and the memory that was freed."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from threadpoolctl import ThreadpoolController

# Parameters of mallopt, from malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# The largest that glibc takes: what is larger is paged in anew for every use.
_LARGEST_REUSED = 32 * 2**20
# More than a pass ever frees at once.
_KEEP = 2**30


def available_cpus() -> int:
    """Count the CPUs this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _WhileAny:
    """A context that begins with the first caller inside and ends with the last.

    Its state belongs to the process, not to the caller: of two plain contexts that overlap, the one that ends last
    would restore what the other had set.
    """

    def __init__(self, begin: Callable[[ExitStack], None]) -> None:
        self._begin, self._lock, self._callers, self._end = begin, threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._callers == 0:
                self._begin(self._end)
            self._callers += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._callers -= 1
            if self._callers == 0:
                self._end.close()


def _limit_blas(end: ExitStack) -> None:
    end.enter_context(ThreadpoolController().limit(limits=1, user_api="blas"))


def _keep_freed_memory(end: ExitStack) -> None:
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):
        return  # a C library without these knobs is left as it is
    # A chunk is decoded by whichever thread of a pool is free; with an arena each, each would keep its own largest.
    library.mallopt(_ARENA_MAX, available_cpus())
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED)
    library.mallopt(_TRIM_THRESHOLD, _KEEP)

    def give_back() -> None:
        # As it was asked for by the environment, or else where glibc ends up by itself after one large block.
        asked = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
        library.mallopt(_TRIM_THRESHOLD, int(asked) if asked.isdigit() else 2 * _LARGEST_REUSED)
        library.malloc_trim(0)

    end.callback(give_back)


_blas_limited, _freed_memory_kept = _WhileAny(_limit_blas), _WhileAny(_keep_freed_memory)


def single_threaded_blas() -> _WhileAny:
    """Hold BLAS at one thread while any caller is inside, and give back what was there after the last one."""
    return _blas_limited


def freed_memory_kept() -> _WhileAny:
    """Let the process keep memory that was freed while any caller is inside, and give it back after the last one.

    The chunks of a pass come and go, all of one size; paging each in anew took an eighth of the time.
    """
    return _freed_memory_kept

"""What the threads of a process share: BLAS, kept from adding its own threads, and the memory that was freed."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

# Parameters of mallopt, from malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# The largest that glibc takes: what is larger is paged in anew for every use.
_LARGEST_REUSED = 32 * 2**20
# More than a pass ever frees at once.
_KEEP = 2**30
# Smaller arrays are left to the allocator.
_OWN_PAGES = 2**20
# Seconds: often enough that holes stay few.
_TIDY_EVERY = 0.5
# Bytes a second: what is given back is paged in anew, some 5 % of the time of large chunks, so that they wait longer.
_TIDY_RATE = 12 * 2**20


def available_cpus() -> int:
    """Count the CPUs this process may run on, or those whose time it may have if a container has fewer."""
    # Not `dask.system.cpu_count`: the core knows no Dask, which also rounds a quota of 2.5 CPUs up to 3 threads.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, cpu_quota()))


@functools.cache
def cpu_quota(control: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many CPUs' time the control group may have, as Docker and Kubernetes limit it.

    Threads beyond it make all of them wait.
    """
    quota, period = -1, 1
    with suppress(OSError, ValueError):  # where there is no limit it says "max"
        quota, period = map(int, (control / "cpu.max").read_text().split())
    with suppress(OSError, ValueError):  # version 1 of control groups
        quota, period = (int((control / "cpu" / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period"))
    return sys.maxsize if quota < 0 or period < 1 else quota // period


class _WhileAny:
    """A context that begins with the first caller inside and ends with the last.

    Its state belongs to the process, not to the caller: of two plain contexts that overlap, the one that ends last
    would restore what the other had set.
    """

    def __init__(self, begin: Callable[[ExitStack], None]) -> None:
        self._begin, self._lock, self._callers, self._end = begin, threading.Lock(), 0, ExitStack()
        self._leaving, self._leave_at = False, 0.0

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

    @contextmanager
    def and_after(self, seconds: float) -> Iterator[None]:
        """Be inside, and stay for some time after, so that one who comes soon finds everything as it was left."""
        self.__enter__()
        try:
            yield
        finally:
            self._leave_after(seconds)

    def _leave_after(self, seconds: float) -> None:
        with self._lock:
            self._leave_at = max(self._leave_at, time.monotonic() + seconds)
            if self._leaving:  # a thread is inside for all who have left
                self._callers -= 1
                return
            self._leaving = True
        try:
            threading.Thread(target=self._leave, daemon=True, name="rgcss-leave").start()
        except RuntimeError:  # there can be no more threads
            self._leaving = False
            self.__exit__()

    def _leave(self) -> None:
        while True:
            with self._lock:
                wait = self._leave_at - time.monotonic()
                if wait <= 0:
                    self._leaving = False  # from here on another thread may be the one
                    break
            time.sleep(wait)
        self.__exit__()


@functools.cache  # looking for them takes a millisecond; those of NumPy and SciPy have long been loaded
def _blas_libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def _limit_blas(end: ExitStack) -> None:
    end.enter_context(_blas_libraries().limit(limits=1))


class _Heap:
    """The allocator of the C library, where it is glibc's; another one is left as it is."""

    def __init__(self) -> None:
        library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._library: Any = library if hasattr(library, "mallopt") else None
        self._tidied = time.monotonic()

    def keep(self, end: ExitStack) -> None:
        """Keep what is freed."""
        if self._library is None:
            return
        # A chunk is decoded by whichever thread of a pool is free; with an arena each, each would keep its own largest.
        self._library.mallopt(_ARENA_MAX, available_cpus())
        self._library.mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED)
        self._library.mallopt(_TRIM_THRESHOLD, _KEEP)
        end.callback(self._let_go)

    def tidy(self, read: int) -> None:
        """Give back what lies in holes, now and then: they become more with time."""
        wait = max(_TIDY_EVERY, read / _TIDY_RATE)
        if self._library is not None and time.monotonic() - self._tidied > wait:
            self._tidied = time.monotonic()
            self._library.malloc_trim(0)

    def _let_go(self) -> None:
        # As it was asked for by the environment, or else where glibc ends up by itself after one large block.
        asked = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
        self._library.mallopt(_TRIM_THRESHOLD, int(asked) if asked.isdigit() else 2 * _LARGEST_REUSED)
        self._library.malloc_trim(0)


class _Pages:
    """Blocks of pages for the large arrays of a pass: sums, the buffers they are made in, and rows that were read.

    Among the pieces that a store and its codecs make of a chunk they would leave holes into which no other of their
    size fits, so that the heap would grow with the length of a pass.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact  # an array has a block of its own size, not a larger one
        self._free: list[mmap.mmap] | None = None
        self._lock = threading.Lock()

    def keep(self, end: ExitStack) -> None:
        """Keep blocks that are free, for the next array that fits."""
        if hasattr(mmap, "MAP_PRIVATE"):  # elsewhere arrays are left to the allocator
            self._free = []
            end.callback(self._let_go)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an array in a block of its own."""
        size, free = math.prod(shape) * np.dtype(dtype).itemsize, self._free
        if free is None or size < _OWN_PAGES:
            return np.empty(shape, dtype)
        block = self._smallest(free, size)
        if block is None:
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = (ctypes.c_char * size).from_buffer(block)  # the array refers to it, and so do its views
        weakref.finalize(memory, self._take_back, block).atexit = False
        return np.frombuffer(memoryview(memory), dtype).reshape(shape)

    def _smallest(self, free: list[mmap.mmap], size: int) -> mmap.mmap | None:
        """Take out the smallest block that is large enough."""
        with self._lock:
            fitting = (b for b in free if len(b) == size or (len(b) > size and not self._exact))
            block = min(fitting, key=len, default=None)
            if block is not None:
                free.remove(block)
        return block

    def forget(self) -> None:
        """Give back the blocks that are free."""
        if self._free is not None:
            self._free.clear()

    def _take_back(self, block: mmap.mmap) -> None:
        free = self._free
        if free is not None:
            free.append(block)  # without the lock: this may be called anywhere, as garbage is collected

    def _let_go(self) -> None:
        self._free = None


# Sums are of few sizes and wait for others. Rows come and go, and the last ones of a span are fewer than those before;
# sums in their blocks would have them take more.
_heap, _sums, _rows = _Heap(), _Pages(exact=True), _Pages(exact=False)
_kept_for = ""


def _keep_memory(end: ExitStack) -> None:
    for memory in (_heap, _sums, _rows):
        memory.keep(end)


_blas_limited, _freed_memory_kept = _WhileAny(_limit_blas), _WhileAny(_keep_memory)


def single_threaded_blas() -> _WhileAny:
    """Hold BLAS at one thread while any caller is inside, and give back what was there after the last one."""
    return _blas_limited


def freed_memory_kept() -> _WhileAny:
    """Let the process keep memory that was freed while any caller is inside, and give it back after the last one.

    The chunks of a pass come and go, all of one size; paging each in anew took an eighth of the time.
    """
    return _freed_memory_kept


def keep_memory_only_for(work: str) -> None:
    """Give back what was kept for other work, whose arrays had other sizes."""
    global _kept_for
    if work != _kept_for:
        _kept_for = work
        _sums.forget()
        _rows.forget()


def tidy_memory(read: int) -> None:
    """Call this after a read of so many bytes, where the next can wait: memory that none fits into is given back."""
    _heap.tidy(read)


def lasting(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an array that is not filled; in a pass, if it is large, in pages that are used again after it."""
    return _sums.empty(shape, dtype)


def passing(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array as `lasting` does, for rows: in a pass they may lie in the pages of others that were more."""
    return _rows.empty(shape, dtype)

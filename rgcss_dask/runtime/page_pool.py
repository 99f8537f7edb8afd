"""Memory that is freed in a pass and kept for the next array: pages of our own, and the heap of the C library."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.shared_context import SharedContext

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


_freed_memory_kept = SharedContext(_keep_memory)


def freed_memory_kept() -> SharedContext:
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


def empty_sums(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an array for sums, not filled; in a pass, if it is large, in pages that are used again after it."""
    return _sums.empty(shape, dtype)


def empty_rows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array as `empty_sums` does, for rows: in a pass it may reuse the memory of a larger, freed array."""
    return _rows.empty(shape, dtype)

"""Reuse of freed memory during a pass: a pool of pages, and settings of the heap of the C library."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.shared_context import SharedContext

# Parameters of mallopt, from malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# The largest value that glibc accepts: larger blocks are mapped again at every use.
_LARGEST_REUSED = 32 * 2**20
# More than a pass frees at once.
_KEEP = 2**30
# Smaller arrays are left to the allocator.
_OWN_PAGES = 2**20
# Seconds: often enough to limit fragmentation.
_TIDY_EVERY = 0.5
# Bytes per second: returned memory must be paged in again, so with large chunks trimming is rarer, to cost at most 5 %.
_TIDY_RATE = 12 * 2**20


class _Heap:
    """The allocator of glibc; other allocators are not changed."""

    def __init__(self) -> None:
        library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._library: Any = library if hasattr(library, "mallopt") else None
        self._tidied = time.monotonic()

    def keep(self, end: ExitStack) -> None:
        """Keep freed memory."""
        if self._library is None:
            return
        # Any thread of a pool may decode a chunk; with one arena per thread, each would keep its own largest block.
        self._library.mallopt(_ARENA_MAX, available_cpus())
        self._library.mallopt(_MMAP_THRESHOLD, _LARGEST_REUSED)
        self._library.mallopt(_TRIM_THRESHOLD, _KEEP)
        end.callback(self._let_go)

    def tidy(self, read: int) -> None:
        """Return fragmented memory to the system from time to time."""
        wait = max(_TIDY_EVERY, read / _TIDY_RATE)
        if self._library is not None and time.monotonic() - self._tidied > wait:
            self._tidied = time.monotonic()
            self._library.malloc_trim(0)

    def _let_go(self) -> None:
        # The value of the environment, or else the value that glibc adapts to after a large block.
        asked = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
        self._library.mallopt(_TRIM_THRESHOLD, int(asked) if asked.isdigit() else 2 * _LARGEST_REUSED)
        self._library.malloc_trim(0)


class _Pages:
    """Blocks of pages for the large arrays of a pass: sums, their work buffers, and rows.

    On the heap, between the small blocks of stores and codecs, these arrays would leave holes that no other array fits,
    so the heap would grow with the length of a pass.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact  # an array gets a block of exactly its size
        self._free: list[mmap.mmap] | None = None
        self._lock = threading.Lock()

    def keep(self, end: ExitStack) -> None:
        """Keep free blocks for the next array that fits."""
        if hasattr(mmap, "MAP_PRIVATE"):  # otherwise the allocator makes the arrays
            self._free = []
            end.callback(self._let_go)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialised array in its own block."""
        size, free = math.prod(shape) * np.dtype(dtype).itemsize, self._free
        if free is None or size < _OWN_PAGES:
            return np.empty(shape, dtype)
        block = self._smallest(free, size)
        if block is None:
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):  # few page faults, as NumPy has them for its own large arrays
                with suppress(OSError):  # a kernel without them
                    block.madvise(mmap.MADV_HUGEPAGE)
        memory = (ctypes.c_char * size).from_buffer(block)  # the array and its views refer to it
        weakref.finalize(memory, self._take_back, block).atexit = False
        return np.frombuffer(memoryview(memory), dtype).reshape(shape)

    def _smallest(self, free: list[mmap.mmap], size: int) -> mmap.mmap | None:
        """Remove and return the smallest block that is large enough."""
        with self._lock:
            fitting = (b for b in free if len(b) == size or (len(b) > size and not self._exact))
            block = min(fitting, key=len, default=None)
            if block is not None:
                free.remove(block)
            elif not self._exact:  # all free blocks are smaller, and the block for this array takes their place
                free.clear()
        return block

    def forget(self) -> None:
        """Release the free blocks."""
        if self._free is not None:
            self._free.clear()

    def _take_back(self, block: mmap.mmap) -> None:
        free = self._free
        if free is not None:
            free.append(block)  # without the lock: garbage collection may call this anywhere

    def _let_go(self) -> None:
        self._free = None


# Sums have few sizes and live long, so each gets a block of its own size. Rows live shortly and have varying sizes, so
# they may use larger blocks.
_heap, _sums, _rows = _Heap(), _Pages(exact=True), _Pages(exact=False)
_kept_for = ""


def _keep_memory(end: ExitStack) -> None:
    for memory in (_heap, _sums, _rows):
        memory.keep(end)


_freed_memory_kept = SharedContext(_keep_memory)


def freed_memory_kept() -> SharedContext:
    """Let the process keep freed memory while any caller is inside; the last one releases it.

    The chunks of a pass all have the same size; mapping memory for each again took an eighth of the time.
    """
    return _freed_memory_kept


def keep_memory_only_for(work: str) -> None:
    """Release memory kept for other work, whose arrays had other sizes."""
    global _kept_for
    if work != _kept_for:
        _kept_for = work
        _sums.forget()
        _rows.forget()


def tidy_memory(read: int) -> None:
    """Return fragmented memory; called after a read of ``read`` bytes, when the next read can wait."""
    _heap.tidy(read)


def empty_sums(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an uninitialised array for sums; large arrays of a pass use the page pool."""
    return _sums.empty(shape, dtype)


def empty_rows(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array for rows; in a pass it may reuse the memory of a larger, freed array."""
    return _rows.empty(shape, dtype)

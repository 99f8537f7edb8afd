"""How much memory this process takes while something runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

INTERVAL = 0.005  # seconds between two looks


@dataclass
class Peak:
    """The most memory above that at some beginning, in bytes."""

    above: int = 0


def memory_now() -> int:
    """Return the bytes that this process takes."""
    return int(psutil.Process().memory_info().rss)


@contextmanager
def peak_memory(before: int) -> Iterator[Peak]:
    """Look every few milliseconds; the kernel's own peak is of the whole life of a process.

    What earlier work leaves in the allocator counts, so ``before`` is `memory_now` at the beginning of all of it.
    """
    process, peak, ended = psutil.Process(), Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.above = max(peak.above, process.memory_info().rss - before)
            if ended.wait(INTERVAL):
                return

    watching = threading.Thread(target=look, name="rgcss-peak-memory", daemon=True)
    watching.start()
    try:
        yield peak
    finally:
        ended.set()
        watching.join()

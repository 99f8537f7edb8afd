"""A small thread pool for work that releases the GIL, including the calling thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

from rgcss_dask.runtime.cpus import available_cpus

# Number of parts of work, independent of the number of threads, so that the bits do not depend on it.
PARTS = 8
# With fewer numbers in G, most of the time is Python's own, and threads wait for each other more than they help.
_WORTH_THREADS = 2**16


class Pool:
    """A thread pool with at most one thread per CPU, including the calling thread; the context ends the threads."""

    def __init__(self, count: int | None = None) -> None:
        self.count = available_cpus() if count is None else count
        # Threads are started with the first work for them.
        self._others = ThreadPoolExecutor(max(1, self.count - 1), "rgcss-select")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._others.shutdown()

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(*job)`` for every job and return the results in order; jobs may call `map` themselves.

        The calling thread takes jobs too until none is left, and waits only for jobs that other threads have begun, so
        it never waits for a thread that could not be started. After an error or Ctrl-C, no further job is taken.
        """
        jobs = list(jobs)
        if len(jobs) == 1 or self.count == 1:
            return [function(*job) for job in jobs]
        waiting = deque(enumerate(jobs))
        results: list[Any] = [None] * len(waiting)

        def work() -> None:
            try:
                while waiting:
                    with suppress(IndexError):  # another thread took the last job
                        place, job = waiting.popleft()
                        results[place] = function(*job)
            except BaseException:
                waiting.clear()
                raise

        helping = self._call(work, min(self.count, len(waiting)) - 1)
        try:
            work()
        finally:
            waiting.clear()
            begun = [future for future in helping if not future.cancel()]
        for future in begun:
            future.result()
        return results

    def _call(self, work: Callable[[], None], times: int) -> list[Future[None]]:
        helping = []
        with suppress(RuntimeError):  # no more threads can be started: the calling thread does all jobs
            for _ in range(times):
                helping.append(self._others.submit(work))
        return helping


def threads_for(numbers: int) -> int | None:
    """Return the number of threads for work on this many numbers of G: one if they are few, else the default."""
    return 1 if numbers < _WORTH_THREADS else None


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """Divide n rows into parts, each large enough for a thread."""
    parts = min(parts, max(1, n // 128))
    edges = [n * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]

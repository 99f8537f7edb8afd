"""A few threads for work that releases the GIL; the calling one is one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

from rgcss_dask.runtime.cpus import available_cpus

# Into how many parts work is cut, whatever the number of threads, so that the bits do not depend on it.
PARTS = 8


class Pool:
    """As many threads as there are CPUs, or fewer, the calling one counted. Use as a context, which lets them go."""

    def __init__(self, count: int | None = None) -> None:
        self.count = available_cpus() if count is None else count
        # It starts threads with the first work for them.
        self._others = ThreadPoolExecutor(max(1, self.count - 1), "rgcss-select")

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._others.shutdown()

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(*job)`` for every job and return the results in order; jobs may call `map` themselves.

        The calling thread works at the jobs until none is left, and waits only for those that others have begun: so
        nothing waits for a thread that is not there. After an error, Ctrl-C too, no further job is taken.
        """
        jobs = list(jobs)
        if len(jobs) == 1 or self.count == 1:
            return [function(*job) for job in jobs]
        waiting = deque(enumerate(jobs))
        results: list[Any] = [None] * len(waiting)

        def work() -> None:
            try:
                while waiting:
                    with suppress(IndexError):  # another thread has taken the last one
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
        with suppress(RuntimeError):  # there can be no more threads: the calling one does it all
            for _ in range(times):
                helping.append(self._others.submit(work))
        return helping


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """Cut n rows into parts, none too small to be worth a thread."""
    parts = min(parts, max(1, n // 128))
    edges = [n * i // parts for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]

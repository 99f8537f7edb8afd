"""A few threads for kernels that release the GIL, kept awake between the many short calls of a selection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from rgcss_dask.core.threads import available_cpus

# Waking a sleeping thread takes as long as a small product, so an idle one looks for work a little while first.
_AWAKE = 5e-4
_PENDING = object()


class _Batch:
    """Jobs that any thread may take, one after the other, until none is left."""

    def __init__(self, function: Callable[..., Any], jobs: list[tuple[Any, ...]]) -> None:
        self._function, self._jobs = function, jobs
        self._turns = iter(range(len(jobs)))
        self.results: list[Any] = [_PENDING] * len(jobs)
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take jobs until there are no more; a late thread finds none and leaves."""
        for turn in self._turns:
            try:
                self.results[turn] = self._function(*self._jobs[turn])
            except BaseException as error:
                self.error, self.results[turn] = error, None

    def wait(self) -> list[Any]:
        """Wait for the jobs that other threads are still at; raise what any of them raised."""
        while any(result is _PENDING for result in self.results):
            time.sleep(0)
        if self.error is not None:
            raise self.error
        return self.results


class Workers:
    """As many threads as there are CPUs, the calling one counted. Use as a context, which lets them go after."""

    def __init__(self) -> None:
        self.count = available_cpus()
        self._inbox: SimpleQueue[_Batch | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self.count - 1)]

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(*job)`` for every job and return the results in order; jobs may call `map` themselves."""
        batch = _Batch(function, list(jobs))
        for _ in range(min(self.count, len(batch.results)) - 1):
            self._inbox.put(batch)
        batch.work()
        return batch.wait()

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            batch.work()

    def _next(self) -> _Batch | None:
        asleep = time.perf_counter() + _AWAKE
        while time.perf_counter() < asleep:
            try:
                return self._inbox.get_nowait()
            except Empty:
                time.sleep(0)
        return self._inbox.get()

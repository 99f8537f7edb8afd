"""A few threads for kernels that release the GIL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import steps
from rgcss_dask.runtime.cpus import available_cpus

# Entries of a matrix: with fewer a pick is made before another thread has come.
_WORTH_A_TEAM = 512**2


class _Batch:
    """Jobs that any thread may take, one after the other, until none is left."""

    def __init__(self, workers: Workers, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> None:
        self._workers, self._function, self.jobs = workers, function, list(jobs)
        self._turns = iter(range(len(self)))
        self._done = threading.Semaphore(0)
        self._results: list[Any] = [None] * len(self)
        self.error: BaseException | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    def work(self) -> None:
        """Take jobs until there are no more, or one has failed; a late thread finds none and leaves."""
        for turn in self._turns:
            try:
                if self.error is None:
                    self._results[turn] = self._function(*self.jobs[turn])
            except BaseException as error:
                self.fail(error)
            self._done.release()

    def fail(self, error: BaseException) -> None:
        """Let no further job be taken, and those under way end early if they can."""
        self.error, self._workers.failed = error, True

    def wait(self) -> list[Any]:
        """Wait for the jobs that other threads are still at; raise what any of them raised."""
        for _ in range(len(self)):
            self._done.acquire()
        if self.error is not None:
            raise self.error
        return self._results


class Workers:
    """As many threads as there are CPUs, the calling one counted. Use as a context, which lets them go after."""

    def __init__(self) -> None:
        self.count = available_cpus()
        self.failed = False  # a long job should look at this now and then, and end
        self._inbox: SimpleQueue[_Batch | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []  # they come with the first work for them
        self._boards: list[NDArray[np.int64]] = []  # of all teams that are at work

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for board in self._boards:
            steps.end(board)
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def map(self, function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Call ``function(*job)`` for every job and return the results in order; jobs may call `map` themselves."""
        batch = _Batch(self, function, jobs)
        if len(batch) == 1:
            return [function(*batch.jobs[0])]
        self._post(batch, min(self.count, len(batch)) - 1)
        try:
            batch.work()
            return batch.wait()
        except BaseException as error:  # Ctrl-C, too, between jobs or while waiting for those of others
            batch.fail(error)
            raise

    def team(self, state: steps.State, *, alone: bool) -> Team:
        """Return the threads to take the steps of a path with: if that is alone and large, all of them."""
        size = min(self.count, steps.PARTS) if alone and state.matrix.size >= _WORTH_A_TEAM else 1
        return Team(self, size, state)

    def assist(self, board: NDArray[np.int64], threads: int, state: steps.State) -> None:
        """Let all but one of so many threads take the steps that the board shows, until its end."""
        if threads == 1:
            return
        self._boards.append(board)
        jobs = ((board, me, threads, steps.NONE, state, False) for me in range(1, threads))
        self._post(_Batch(self, steps.take, jobs), threads - 1)

    def release(self, board: NDArray[np.int64]) -> None:
        """Let the threads go that look at this board."""
        steps.end(board)
        self._boards = [other for other in self._boards if other is not board]

    def _post(self, batch: _Batch, threads: int) -> None:
        """Let so many threads work at the jobs of a batch; it is done without them, too."""
        with suppress(RuntimeError):  # there can be no more threads
            while len(self._threads) < threads:
                thread = threading.Thread(target=self._serve, daemon=True)
                thread.start()
                self._threads.append(thread)
        for _ in range(threads):
            self._inbox.put(batch)

    def _serve(self) -> None:
        while (batch := self._inbox.get()) is not None:
            batch.work()


class Team:
    """Threads that take steps side by side with the calling one.

    They come with the first step and then wait for the next one busily, which keeps others from their CPUs: dismiss
    them before any longer work that is not a step.
    """

    def __init__(self, workers: Workers, size: int, state: steps.State) -> None:
        self._workers, self._size, self._state = workers, size, state
        self._board: NDArray[np.int64] | None = None  # while they are here

    def take(self, step: int, *, scores: bool = False) -> None:
        """Take one of the steps of `steps` together, and on request that for the scores right after."""
        if self._board is None:
            self._board = steps.board()
            self._workers.assist(self._board, self._size, self._state)
        steps.take(self._board, 0, self._size, step, self._state, scores)

    def dismiss(self) -> None:
        """Let the threads go; they come back with the next step."""
        if self._board is not None:
            self._workers.release(self._board)
            self._board = None

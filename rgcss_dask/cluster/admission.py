"""The memory of a Dask worker, shared by the spans of all passes that run on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import get_worker

from rgcss_dask.runtime.memory_limit import SHARE


class MemoryGate:
    """A semaphore for memory: spans wait until their memory is free; at least one always runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0

    @contextmanager
    def hold(self, size: int, limit: int) -> Iterator[None]:
        """Wait until ``size`` bytes of a limit are free, and hold them."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0 or self._taken + size <= limit)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


_gates: dict[str, MemoryGate] = {}  # of the workers in this process


@contextmanager
def memory_for_span(size: int, budget: int, *, asked: bool) -> Iterator[None]:
    """Hold memory of the worker that runs this task.

    The limit is the budget that the user set, or else that of the worker: workers differ, and a worker may have joined
    after the pass was planned.
    """
    worker: Any = get_worker()
    limit = worker.memory_manager.memory_limit
    gate = _gates.setdefault(worker.address, MemoryGate())
    with gate.hold(size, budget if asked or not limit else int(SHARE * limit)):
        yield

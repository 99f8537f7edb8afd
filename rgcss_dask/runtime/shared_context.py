"""A context that threads share: the first one enters it, the last one leaves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


class SharedContext:
    """A context that begins with the first caller inside and ends with the last one.

    Its state is global to the process: with plain contexts that overlap, the one that ends last would restore the
    settings of the other.
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
        """Stay inside for some seconds after the block, so that the next caller finds the context still active."""
        self.__enter__()
        try:
            yield
        finally:
            self._leave_after(seconds)

    def _leave_after(self, seconds: float) -> None:
        with self._lock:
            self._leave_at = max(self._leave_at, time.monotonic() + seconds)
            if self._leaving:  # a thread is already inside for callers that have left
                self._callers -= 1
                return
            self._leaving = True
        try:
            threading.Thread(target=self._leave, daemon=True, name="rgcss-leave").start()
        except RuntimeError:  # no more threads can be started
            self._leaving = False
            self.__exit__()

    def _leave(self) -> None:
        while True:
            with self._lock:
                wait = self._leave_at - time.monotonic()
                if wait <= 0:
                    self._leaving = False  # from here on another thread may take over
                    break
            time.sleep(wait)
        self.__exit__()

"""Progress bars on stderr, or plain lines where nobody looks at a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import Progress as Bars

T = TypeVar("T")


class TimeIsUpError(Exception):
    """The minutes given are over; what was measured until now is kept."""


class Progress:
    """`for x in progress.track(items, "label")` shows how far the loop is; loops may be nested."""

    def __init__(self) -> None:
        self._bars = Bars(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._deadline = math.inf

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def limit(self, minutes: float | None) -> None:
        """Let loops end with `TimeIsUpError`, before an item, once so many minutes from now are over."""
        self._deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def track(self, items: Iterable[T], label: str) -> Iterator[T]:
        """Yield the items and move a bar on, as long as there is time."""
        total = len(items) if isinstance(items, Sized) else None
        task = self._bars.add_task(label, total=total)
        for item in items:
            if time.monotonic() >= self._deadline:
                raise TimeIsUpError
            yield item
            self._bars.advance(task)
        self._bars.remove_task(task)

    def note(self, text: str) -> None:
        """Say something that stays on the screen or in the log."""
        self._bars.console.print(f"{time.strftime('%H:%M:%S')} {text}", highlight=False, markup=False)

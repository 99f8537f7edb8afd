"""Progress of a pass: a bar for people, a callback for programs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from rgcss_dask.core.words import size


@dataclass(frozen=True)
class Progress:
    """The state of a pass, as `scan` passes it to a function given as ``progress``.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> states = []
    >>> moments = rg.scan(np.ones((1000, 3)), progress=states.append)
    >>> states[-1].rows, states[-1].total_rows
    (1000, 1000)
    """

    rows: int  #: read so far, including resumed rows
    total_rows: int
    row_bytes: int
    seconds: float  #: since the pass began
    resumed_rows: int = 0  #: rows of these that came from checkpoints
    spans: int = 0  #: spans finished in this run
    total_spans: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of the rows read so far."""
        return self.rows * self.row_bytes

    @property
    def rate(self) -> float:
        """Rows per second read by this run."""
        return (self.rows - self.resumed_rows) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end at this rate, or None if the rate is not known yet."""
        return (self.total_rows - self.rows) / self.rate if self.rate > 0 else None


Callback = Callable[[Progress], None]


class Reporter:
    """Adds up the reports of tasks, and passes the state to a callback."""

    def __init__(self, tell: Callback, *, rows: int, row_bytes: int, spans: int) -> None:
        self._tell = tell
        self._began = time.perf_counter()
        self._total_rows, self._row_bytes, self._total_spans = rows, row_bytes, spans
        self._rows = self._resumed = self._spans = 0
        self._lock = threading.Lock()

    def add(self, rows: int, *, spans: int = 0, resumed: bool = False) -> None:
        """Count rows read, or found in a checkpoint; called from any thread."""
        with self._lock:
            # A span of a killed worker is read twice.
            self._rows = min(self._rows + rows, self._total_rows)
            self._resumed += rows if resumed else 0
            self._spans += spans
            self._tell(self._state())

    def finish(self) -> None:
        """Report that all rows are read; the last reports of a cluster may arrive after its result."""
        with self._lock:
            self._rows = self._total_rows
            self._tell(self._state())

    def _state(self) -> Progress:
        return Progress(
            rows=self._rows,
            total_rows=self._total_rows,
            row_bytes=self._row_bytes,
            seconds=time.perf_counter() - self._began,
            resumed_rows=self._resumed,
            spans=self._spans,
            total_spans=self._total_spans,
        )


class BarDisplay:
    """A line on the terminal: rows, bytes, rate and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("reading", total=1.0, figures="")

    def __enter__(self) -> BarDisplay:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, state: Progress) -> None:
        """Show a state."""
        self._bar.update(self._task, total=state.total_rows, completed=state.rows, figures=figures(state))


class LineDisplay:
    """One line that is rewritten, for notebooks: their output supports a carriage return but no cursor movement.

    A short pass shows nothing.
    """

    FIRST, EVERY = 1.0, 0.5  # seconds

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._due, self._width = self.FIRST, 0

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            print(file=self._out)

    def __call__(self, state: Progress) -> None:
        """Show a state if the interval has passed, and the last state."""
        if state.seconds < self._due and not (self._width and state.rows == state.total_rows):
            return
        line = f"reading: {figures(state)}"
        print(f"\r{line:<{self._width}}", end="", file=self._out, flush=True)
        self._due, self._width = state.seconds + self.EVERY, len(line)


def figures(state: Progress) -> str:
    """Write rows, bytes, rate and time left in one line."""
    left = state.seconds_left
    parts = [
        f"{state.rows:,} of {state.total_rows:,} rows",
        size(state.bytes),
        f"{size(int(state.rate * state.row_bytes))}/s",
    ]
    return ", ".join(parts) + ("" if left is None else f", {left:.0f} s left")


class _Quiet:
    def __enter__(self) -> Callback:
        return lambda state: None

    def __exit__(self, *error: Any) -> None:
        pass


class _Told(_Quiet):
    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def __enter__(self) -> Callback:
        return self._callback


def display(progress: bool | Callback | None) -> _Quiet | BarDisplay | LineDisplay:
    """Return the display: a callback, a bar if asked for or on a terminal, a line in a notebook, or none."""
    if callable(progress):
        return _Told(progress)
    wanted = sys.stderr.isatty() or in_notebook() if progress is None else progress
    if not wanted:
        return _Quiet()
    return LineDisplay() if in_notebook() else BarDisplay()


def in_notebook() -> bool:
    """Tell whether this process is a Jupyter kernel; the package ipykernel alone may be loaded elsewhere."""
    return type(sys.stderr).__module__.split(".")[0] == "ipykernel"

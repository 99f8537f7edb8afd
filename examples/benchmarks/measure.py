"""Times that can be compared: contenders take turns, each figure is a ratio within its round."""

from __future__ import annotations

import fcntl
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Spread:
    """The middle of some figures, and where their middle half lies."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{figure(self.middle)} ({figure(self.low)} to {figure(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Return quartiles; a single figure has no spread."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def figure(value: float) -> str:
    """Return three digits at most, without exponent."""
    for limit, digits in ((0.1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def ratios(times: Sequence[float], base: Sequence[float]) -> list[float]:
    """Divide round by round; what took fewer turns had them in the first rounds."""
    return [a / b for a, b in zip(times, base, strict=False)]


def seconds(function: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def in_turns(ways: Mapping[str, Callable[[], float]], rounds: int, slow: float) -> dict[str, list[float]]:
    """Let every way measure itself once a round; what took longer than ``slow`` seconds has no second turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if not times[name] or times[name][0] <= slow:
                times[name].append(way())
    return times


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Hold a lock file, if one is given, so that whatever else uses it waits."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.perf_counter()
        yield
    print(f"  (alone for {time.perf_counter() - began:.0f} s)", flush=True)

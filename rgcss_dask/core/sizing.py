"""How long a pass takes on how many machines: a model, from constants measured on one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from rgcss_dask.core.plan import (
    CHAIN_BYTES,
    READ_BYTES,
    SPAN_BYTES,
    SPAN_LIMIT,
    SPAN_ROWS,
    Geometry,
    Options,
    Plan,
    make_plan,
    merges_in_a_row,
)

UNLIMITED = 2**62  # bytes, so that the plan says what it would like


@dataclass(frozen=True)
class Speed:
    """Seconds that one thread takes for a row of n columns: linear n + quadratic n^2."""

    linear: float  # reading, decoding, converting
    quadratic: float  # products

    def seconds(self, columns: int) -> float:
        """Return the time of one row."""
        return self.linear * columns + self.quadratic * columns**2


@dataclass(frozen=True)
class Constants:
    """What was measured: of the workers, then of the scheduler (seconds of its one thread)."""

    speeds: Mapping[str, Speed]  # by dtype, with every core busy
    overhead: float  # time on a cluster / time of the same spans in a plain loop
    start_seconds: float  # of a pass, before and after the work
    merge_rate: float  # bytes of a result added to another in a second
    span_seconds: float
    merge_seconds: float
    report_seconds: float  # for the news of one read
    heartbeat_seconds: float  # for one heartbeat of one worker
    idle_share: float  # of its time, with no worker at all
    span_bytes: float  # of the scheduler's memory, for a span and its merge

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Constants:
        """Take the constants out of a file of measurements, which may hold more."""
        names = [name for name in cls.__dataclass_fields__ if name != "speeds"]
        speeds = {dtype: Speed(**speed) for dtype, speed in measured["speeds"].items()}
        return cls(speeds, **{name: float(measured[name]) for name in names})


@dataclass(frozen=True)
class Matrix:
    """What is to be read."""

    rows: int
    columns: int
    dtype: str
    options: Options = field(default_factory=Options)

    @property
    def bytes(self) -> int:
        """Bytes of all rows, decoded."""
        return self.rows * self.columns * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Machines:
    """What it is read with."""

    workers: int
    threads: int  # of each worker
    network: float = 1.25e9  # bytes a second between two of them: 10 Gbit/s, an assumption


@dataclass(frozen=True)
class Estimate:
    """What the model says of a pass."""

    spans: int
    threads: int  # that have work
    seconds: float
    tail_seconds: float  # of them, for the last merges, when most threads are idle
    scheduler_seconds: float  # of them, in which the scheduler is busy
    memory: int  # bytes planned for each worker
    result_bytes: int  # of one result of a span or a merge: what goes over the network for a merge
    network_bytes: int  # of all merges, at most
    scheduler_bytes: int

    @property
    def scheduler_share(self) -> float:
        """Share of the time in which the scheduler is busy; at 1 it is what the pass waits for."""
        return self.scheduler_seconds / self.seconds


def estimate(matrix: Matrix, machines: Machines, constants: Constants) -> Estimate:
    """Say how long a pass takes, what it is held up by, and what it needs."""
    plan = planned(matrix, machines.threads)
    spans = len(plan.spans)
    busy = min(spans, machines.workers * plan.concurrency)
    row = constants.speeds[matrix.dtype].seconds(matrix.columns) * constants.overhead
    work = math.ceil(spans / busy) * (matrix.rows / spans) * row / plan.tile_threads
    size = result_bytes(matrix)
    merge = size / constants.merge_rate + (size / machines.network if machines.workers > 1 else 0.0)
    # At worst the span that ends last is the first of its run at every level; in a chain, each has its turn.
    chain = 8 * matrix.columns**2 >= CHAIN_BYTES
    tail = merge if chain else merges_in_a_row(spans) * merge
    together = max(constants.start_seconds + work + tail, (spans - 1) * merge if chain else 0.0)
    reports = matrix.rows / plan.read_rows + spans
    fixed = spans * constants.span_seconds + (spans - 1) * constants.merge_seconds + reports * constants.report_seconds
    idle = constants.idle_share + heartbeats(machines.workers) * constants.heartbeat_seconds
    seconds = max(together, fixed / (1 - idle)) if idle < 1 else math.inf
    return Estimate(
        spans,
        busy * plan.tile_threads,
        seconds,
        tail,
        fixed + idle * seconds,
        plan.memory,
        size,
        (spans - 1) * size if machines.workers > 1 else 0,
        int(spans * constants.span_bytes),
    )


def heartbeats(workers: int) -> float:
    """Return how many heartbeats a scheduler gets in a second: Dask slows them down as workers become more."""
    every = 0.5 if workers <= 10 else 1 if workers < 50 else 2 if workers < 200 else workers / 200 + 1
    return workers / every


@lru_cache(maxsize=64)
def planned(matrix: Matrix, threads: int) -> Plan:
    """Plan the pass as the package does, for chunks of the size it asks of a store at once.

    Beyond some number of rows the spans get longer and not more, and nothing else of the plan changes; so the plan of
    that many rows is the plan of any more.
    """
    row_bytes = matrix.columns * np.dtype(matrix.dtype).itemsize
    rows = min(matrix.rows, SPAN_LIMIT * max(SPAN_ROWS, SPAN_BYTES // row_bytes))
    chunk = max(1, min(rows, READ_BYTES // row_bytes))
    cuts = np.append(np.arange(0, rows, chunk, dtype=np.int64), rows)
    geometry = Geometry(rows, matrix.columns, np.dtype(matrix.dtype), cuts)
    return make_plan(geometry, matrix.options, budget=UNLIMITED, threads=threads)


def result_bytes(matrix: Matrix) -> int:
    """Bytes of the sums of a span: an n x n matrix and a vector for each part kept apart."""
    options = matrix.options
    parts = max(1, options.folds) + options.groups
    return 8 * (matrix.columns + 1) * matrix.columns * options.matrices * parts

"""Cluster sizes: a model of the time of a pass, from constants measured on one machine with two cores.

python deploy/sizing.py                                      # the tables of deploy/README.md
python deploy/sizing.py --write                              # ... put in their places there
python deploy/sizing.py 1e9x784:uint8 --folds 5 --workers 20 --threads 8
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.core.merge_tree import is_chain, merges_in_a_row
from rgcss_dask.core.pass_options import Geometry, Options
from rgcss_dask.core.plan import Plan, make_plan
from rgcss_dask.core.spans import READ_BYTES, SPAN_BYTES, SPAN_LIMIT, least_rows, parts_of_span
from rgcss_dask.core.words import size
from rgcss_dask.runtime.memory_limit import SHARE

HERE = Path(__file__).parent
MEASURED, README = HERE / "measured.json", HERE / "README.md"
FOLDS = 5
UNLIMITED = 2**62  # bytes; the plan then takes all the memory that is useful


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
    """Measured constants of the workers, then of the scheduler (seconds of its single thread)."""

    speeds: Mapping[str, Speed]  # by dtype, with every core busy
    overhead: float  # time on a cluster divided by the time of the same spans in a plain loop
    start_seconds: float  # seconds of a pass before and after the work
    merge_rate: float  # bytes of results merged in a second
    span_seconds: float
    merge_seconds: float
    report_seconds: float  # seconds to process the report of one read
    heartbeat_seconds: float  # for one heartbeat of one worker
    idle_share: float  # share of its time in use without workers
    span_bytes: float  # bytes of the scheduler's memory for a span and its merge

    @classmethod
    def of(cls, measured: Mapping[str, Any]) -> Constants:
        """Read the constants from a file of measurements, which may contain more."""
        names = [name for name in cls.__dataclass_fields__ if name != "speeds"]
        speeds = {dtype: Speed(**speed) for dtype, speed in measured["speeds"].items()}
        return cls(speeds, **{name: float(measured[name]) for name in names})


@dataclass(frozen=True)
class Matrix:
    """The matrix to read."""

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
    """The workers and the network."""

    workers: int
    threads: int  # threads of each worker
    network: float = 1.25e9  # bytes a second between two workers: 10 Gbit/s, an assumption


@dataclass(frozen=True)
class Estimate:
    """The model's prediction for a pass."""

    spans: int
    threads: int  # threads that have work
    seconds: float
    tail_seconds: float  # seconds of the last merges, when most threads are idle
    scheduler_seconds: float  # seconds in which the scheduler is busy
    memory: int  # bytes planned for each worker
    result_bytes: int  # bytes of the result of a span or a merge, which a merge sends over the network
    network_bytes: int  # bytes that all merges send, at most
    scheduler_bytes: int

    @property
    def scheduler_share(self) -> float:
        """Share of the time in which the scheduler is busy; at 1 the scheduler limits the pass."""
        return self.scheduler_seconds / self.seconds


def estimate(matrix: Matrix, machines: Machines, constants: Constants) -> Estimate:
    """Estimate the time of a pass, what limits it, and the resources it needs."""
    plan = planned(matrix, machines.threads)
    spans = len(plan.spans)
    busy = min(spans, machines.workers * plan.concurrency)
    row = constants.speeds[matrix.dtype].seconds(matrix.columns) * constants.overhead
    work = math.ceil(spans / busy) * (matrix.rows / spans) * row / plan.tile_threads
    result = result_bytes(matrix)
    merge = result / constants.merge_rate + (result / machines.network if machines.workers > 1 else 0.0)
    # In the worst case the span that ends last is the first of its run at every level.
    chain = is_chain(plan.geometry, plan.options)
    tail = merges_in_a_row(spans, chain=chain) * merge
    together = constants.start_seconds + work + tail
    reports = matrix.rows / plan.read_rows + spans
    fixed = spans * constants.span_seconds + (spans - 1) * constants.merge_seconds + reports * constants.report_seconds
    idle = constants.idle_share + heartbeats(machines.workers) * constants.heartbeat_seconds
    seconds = max(together, fixed / (1 - idle)) if idle < 1 else math.inf
    return Estimate(
        spans=spans,
        threads=busy * plan.tile_threads,
        seconds=seconds,
        tail_seconds=tail,
        scheduler_seconds=fixed + idle * seconds,
        memory=plan.memory,
        result_bytes=result,
        network_bytes=(spans - 1) * result if machines.workers > 1 else 0,
        scheduler_bytes=int(spans * constants.span_bytes),
    )


def heartbeats(workers: int) -> float:
    """Return the heartbeats that a scheduler receives in a second; with more workers, Dask makes them less frequent."""
    every = 0.5 if workers <= 10 else 1 if workers < 50 else 2 if workers < 200 else workers / 200 + 1
    return workers / every


@lru_cache(maxsize=64)
def planned(matrix: Matrix, threads: int) -> Plan:
    """Plan the pass as the package does, with chunks as large as one read.

    Beyond a certain number of rows only the length of the spans grows, and the rest of the plan stays the same. So the
    plan for that number of rows is used for all larger numbers.
    """
    row_bytes = matrix.columns * np.dtype(matrix.dtype).itemsize
    whole = Geometry(matrix.rows, matrix.columns, np.dtype(matrix.dtype), np.array([0, matrix.rows]))
    parts = parts_of_span(whole, matrix.options) if is_chain(whole, matrix.options) else 1
    chunk = max(1, min(matrix.rows, READ_BYTES // row_bytes))
    # One chunk more: otherwise spans could end exactly at chunks, and there would be as few spans as possible.
    rows = min(matrix.rows, SPAN_LIMIT * max(least_rows(whole, parts), SPAN_BYTES // row_bytes) + chunk)
    cuts = np.append(np.arange(0, rows, chunk, dtype=np.int64), rows)
    geometry = Geometry(rows, matrix.columns, np.dtype(matrix.dtype), cuts)
    return make_plan(geometry, matrix.options, budget=UNLIMITED, threads=threads, cluster=True)


def result_bytes(matrix: Matrix) -> int:
    """Return the bytes of the result of a span: an n x n matrix and a vector for each part kept apart."""
    options = matrix.options
    parts = max(1, options.folds) + options.groups
    return 8 * (matrix.columns + 1) * matrix.columns * options.matrices * parts


MATRICES = (
    Matrix(10**8, 784, "uint8", Options(folds=FOLDS)),
    Matrix(10**10, 784, "uint8", Options(folds=FOLDS)),
    Matrix(10**12, 784, "uint8", Options(folds=FOLDS)),
    Matrix(10**9, 4096, "float32", Options(folds=FOLDS)),
    Matrix(10**8, 20_000, "float64"),
)
CLUSTERS = (Machines(1, 8), Machines(10, 8), Machines(100, 8), Machines(1000, 8))


def main() -> None:
    """Print the tables, write them into the README, or print the estimate for one matrix and cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", nargs="?", type=matrix, help="ROWSxCOLUMNS:DTYPE, such as 1e9x784:uint8")
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=8, help="of each worker (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the tables into deploy/README.md")
    given = parser.parse_args()
    measured = json.loads(MEASURED.read_text())
    if given.matrix is not None:
        asked = Matrix(given.matrix.rows, given.matrix.columns, given.matrix.dtype, Options(folds=given.folds))
        print(clusters_table(measured, [asked], [Machines(given.workers, given.threads)]))
    elif given.write:
        README.write_text(filled(README.read_text(), measured))
    else:
        print("\n\n".join(tables(measured).values()))


def matrix(text: str) -> Matrix:
    """Parse a matrix from the command line."""
    found = re.fullmatch(r"([0-9.e+_]+)x([0-9_]+):(\w+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"a matrix is given as ROWSxCOLUMNS:DTYPE, such as 1e9x784:uint8; got {text!r}"
        )
    return Matrix(int(float(found[1])), int(found[2]), found[3])


def tables(measured: dict) -> dict[str, str]:
    """Return all parts of deploy/README.md that come from measurements, by name."""
    return {
        "measured": measured_list(measured),
        "rates": rates_table(measured),
        "memory": memory_table(),
        "clusters": clusters_table(measured, MATRICES, CLUSTERS),
    }


def filled(text: str, measured: dict) -> str:
    """Return the README with each table between its marks."""
    for name, table in tables(measured).items():
        marks = f"<!-- {name}: python deploy/sizing.py --write -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(marks[0])
        _, found, after = rest.partition(marks[1])
        if not found:
            raise ValueError(f"{README} has no place for {name}: {marks[0]} ... {marks[1]}")
        text = f"{before}{marks[0]}\n{table}\n{marks[1]}{after}"
    return text


def measured_list(measured: dict) -> str:
    """Return the list of measurements, with each target beside its figure."""
    m, cores = measured, measured["cores"]
    loads = ", ".join(f"{load:.1f} ({part})" for part, load in m["load"].items())
    long = f"{m['processes_over_threads_seconds']:.0f} s"
    return "\n".join(
        [
            f"- {cores} threads are {m['speedup_threads']:.2f} times as fast as one, {cores} worker processes "
            f"{m['speedup_processes']:.2f} times.",
            f"- Dask's threads take {m['threads_over_bare_loop']:.2f} times a bare loop over the same spans, worker "
            f"processes {m['processes_over_bare_loop']:.2f} times (target: under 1.10); of its processor time "
            f"{m['threads_over_bare_loop_processor']:.2f} and {m['processes_over_bare_loop_processor']:.2f} times.",
            f"- On a pass of {long}, worker processes take {m['processes_over_threads']:.2f} times the threads "
            f"(target: at most 1.15), and {m['processes_over_threads_processor']:.2f} times their processor time.",
            f"- {m['spans_measured']:,} spans on {m['workers_measured']} workers keep the scheduler busy for "
            f"{_us(m['span_seconds'])} a span, {_us(m['merge_seconds'])} a merge and {_us(m['report_seconds'])} for "
            f"the news of one read, and take {m['span_bytes'] / 1e3:.0f} kB of its memory for a span and its merge.",
            f"- A heartbeat costs the scheduler {_us(m['heartbeat_seconds'])}; 1,000 workers send "
            f"{heartbeats(1000):.0f} in a second.",
            f"- The machine's load meanwhile: {loads}; what is above {cores} disturbs the times, be it others' work or "
            "the scheduler beside its workers. The figures of the scheduler and the rows a second are of "
            "processor time.",
        ]
    )


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us"


def rates_table(measured: dict) -> str:
    """Return the rows per second for each core, as measured and as predicted by the model."""
    constants = Constants.of(measured)
    columns = list(next(iter(measured["rows_per_second"].values())))
    lines = [f"| rows/s per core | {' | '.join(f'n = {n}' for n in columns)} |", "|---" * (1 + len(columns)) + "|"]
    for dtype, points in measured["rows_per_second"].items():
        model = [1 / constants.speeds[dtype].seconds(int(n)) for n in columns]
        lines.append(f"| {dtype}, measured | {' | '.join(_two_digits(points[n]) for n in columns)} |")
        lines.append(f"| {dtype}, model | {' | '.join(map(_two_digits, model))} |")
    return "\n".join(lines)


def memory_table() -> str:
    """Return the memory limits of workers, from the package's own plan."""
    threads, folds = (1, 2, 4, 8), (0, FOLDS)
    head = [f"{t} thread{'s' * (t > 1)}{f', {f} folds' * (f > 0)}" for f in folds for t in threads]
    lines = [f"| memory for a worker | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for n, dtype in ((784, "uint8"), (4096, "float32"), (10_000, "float64"), (20_000, "float64")):
        made = [planned(Matrix(10**8, n, dtype, Options(folds=f)), t) for f in folds for t in threads]
        cells = [size(_limit(plan.memory)) for plan in made]
        lines.append(f"| n = {n:,}, {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _limit(memory: int) -> int:
    """Return the memory limit that allows the plan this memory: the package takes a share of the limit."""
    return math.ceil(memory / SHARE)


def clusters_table(measured: dict, matrices: Sequence[Matrix], clusters: Sequence[Machines]) -> str:
    """Return the time of a pass on each cluster, and the load on store, network and scheduler."""
    constants = Constants.of(measured)
    head = "matrix, workers x threads, threads with work, pass, store gives, memory for a worker, one merge sends"
    head = f"| {' | '.join(head.split(', '))} | scheduler busy |"
    lines = [head, "|---" * 8 + "|"]
    for asked in matrices:
        folds = f", {asked.options.folds} folds" if asked.options.folds else ""
        name = f"{asked.rows:.0e} x {asked.columns:,} {asked.dtype}{folds}".replace("e+", "e")
        for machines in clusters:
            made = estimate(asked, machines, constants)
            cells = [
                f"{name}, {size(asked.bytes)}",
                f"{machines.workers:,} x {machines.threads}",
                f"{made.threads:,}",
                duration(made.seconds),
                f"{size(int(asked.bytes / made.seconds))}/s",
                size(_limit(made.memory)),
                size(made.result_bytes) if machines.workers > 1 else "",
                f"{_two_digits(100 * made.scheduler_share)} %",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Format a time for people, with two digits."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{_two_digits(seconds / length)} {unit}"
    return f"{_two_digits(seconds)} s"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.10g}"


if __name__ == "__main__":
    main()

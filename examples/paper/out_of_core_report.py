"""What passes over more and more rows say of time and memory, and what follows for a cluster."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from deploy.sizing import Matrix, planned
from examples.paper.results import Row, Table, markdown
from rgcss_dask.core.integers import EXACT_WEIGHT

NAME = "out_of_core"
COLUMNS = 784
STEADY = 1_000_000  # rows from which on starting up is no part of the time, and every thread is busy
GROWTH = 1.05  # that a row may cost more in a larger archive: doubling the rows takes 2.1 times the time at most
CORES = (2, 64, 1024, 8192)
EXTRAPOLATED = (10**8, 10**9, 10**10, 10**11, 10**12)
mpl.use("Agg")


def report(out: Path) -> str:
    """Return the section of RESULTS.md."""
    rows = Table(out, NAME).rows()
    parts = [_head(rows), _table(rows), f"![Time and memory](results/{NAME}.png)\n", *_findings(rows), "", _model(rows)]
    return "\n".join(parts)


def _head(rows: list[Row]) -> str:
    distinct = max(row["distinct"] for row in rows)
    return (
        "## Out of core\n\n"
        f"Ours, not the paper's: digits like MNIST's, {COLUMNS} columns of 8 bits, in Zarr (chunks of 10,000 rows, "
        f"zstd, checksums). {distinct:,} different rows are made; larger archives repeat their chunks as links to the "
        "same files, so that every chunk is opened, read, checked and decoded, mostly out of the page cache. Each pass "
        "runs on threads in a process of its own. Memory is the kernel's peak (VmHWM) above what the process had after "
        "importing: from the lowest to the highest of the passes, of which the highest counts, since it is what a pass "
        "may take. Seconds are those of the clock and hold whatever else the machine did; processor seconds are what a "
        "pass costs. Both are medians over the passes.\n"
    )


def _sizes(rows: list[Row]) -> dict[int, list[Row]]:
    return {size: [row for row in rows if row["rows"] == size] for size in sorted({row["rows"] for row in rows})}


def median(rows: list[Row], name: str) -> float:
    """Return the median over passes."""
    return float(np.median([row[name] for row in rows]))


def peaks(rows: list[Row]) -> tuple[float, float]:
    """Return the lowest and the highest peak of passes, in MB."""
    found = [row["above_bytes"] / 1e6 for row in rows]
    return min(found), max(found)


def _table(rows: list[Row]) -> str:
    lines = []
    for size, some in _sizes(rows).items():
        cpu, seconds = median(some, "cpu_seconds"), median(some, "seconds")
        sizes = [f"{size:,}", _bytes(size * COLUMNS), _bytes(median(some, "stored_bytes")), len(some)]
        rates = [f"{size / seconds:,.0f}", f"{size / cpu:,.0f}"]
        low, high = peaks(some)
        spread = f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f}"
        memory = f"{spread} (+ {median(some, 'import_bytes') / 1e6:.0f})"
        exact = "yes" if all(str(row["exact"]) == "True" for row in some) else "NO"
        times = [f"{seconds:,.1f}", f"{cpu:,.1f}", *rates, memory, f"{median(some, 'select_seconds'):.2f}", exact]
        lines.append([*sizes, *times])
    head = ["rows", "decoded", "stored", "passes", "seconds", "processor seconds", "rows/s"]
    head += ["rows/s of one processor", "peak memory, MB (+ imported)", f"picking {rows[0]['k']}, s", "A'A exact"]
    return markdown(head, lines)


def _findings(rows: list[Row]) -> list[str]:
    return [_linear(rows), _flat(rows), _exact(rows)]


def _linear(rows: list[Row]) -> str:
    sizes = {size: some for size, some in _sizes(rows).items() if size >= STEADY}
    costs = [(size, median(some, "cpu_seconds") / size * 1e6) for size, some in sizes.items()]
    if len(costs) < 2:
        return f"- *Time grows linearly*: not tested, there are not two sizes of {STEADY:,} rows or more."
    steps = [later / earlier for (_, earlier), (_, later) in pairwise(costs)]
    state = "confirmed" if max(steps) <= GROWTH else "not confirmed"
    each = ", ".join(f"{cost:.2f} at {size:,}" for size, cost in costs)
    return f"- *Time grows linearly*: {state}. Processor seconds for a million rows: {each} rows."


def _flat(rows: list[Row]) -> str:
    found = {size: peaks(some)[1] for size, some in _sizes(rows).items() if size >= STEADY}
    if len(found) < 2:
        return f"- *Memory is flat*: not tested, there are not two sizes of {STEADY:,} rows or more."
    (first, low), (last, high) = min(found.items()), max(found.items())
    state = "confirmed" if high <= 1.1 * low else "not confirmed to 10 %"
    return (
        f"- *Memory is flat*: {state}. {last // first:,} times the rows take {high / low:.2f} times the memory "
        f"({low:.0f} MB at {first:,} rows, {high:.0f} MB at {last:,}), "
        f"{1e8 * high / (last * COLUMNS):.3g} % of the decoded rows."
    )


def _exact(rows: list[Row]) -> str:
    good = all(str(row["exact"]) == "True" for row in rows)
    return (
        f"- *Sums of 8-bit rows are exact*: {'confirmed' if good else 'not confirmed'}, A'A of every pass is compared "
        "with plain NumPy products in float64, number by number."
    )


def modelled(rows: int, cost: float, cores: int) -> float:
    """Return the seconds of a pass when each span is read by one core, and some cores get one span more than others."""
    spans = len(planned(Matrix(rows, COLUMNS, "uint8"), threads=1).spans)
    return math.ceil(spans / cores) * (rows / spans) * cost


def _model(rows: list[Row]) -> str:
    size, some = list(_sizes(rows).items())[-1]
    cost = median(some, "cpu_seconds") / size
    stored = median(some, "stored_bytes") / size
    lines = []
    for count in EXTRAPOLATED:
        times = [_duration(modelled(count, cost, cores)) for cores in CORES]
        lines.append([f"{count:.0e}".replace("e+", "e"), _bytes(count * COLUMNS), _bytes(count * stored), *times])
    spans = len(planned(Matrix(EXTRAPOLATED[-1], COLUMNS, "uint8"), threads=1).spans)
    busy = {cores: min(cores, spans) for cores in CORES}
    rates = ", ".join(f"{_bytes(some / cost * stored)}/s for {cores:,}" for cores, some in busy.items())
    head = ["rows", "decoded", "stored", *(f"{cores:,} cores" for cores in CORES)]
    return (
        f"A model, not a measurement, from {size:,} rows, the largest size above: {1e6 * cost:.1f} processor seconds "
        "for a million rows, cores like these, the package's own plan of spans, and nothing else in the way. "
        "`deploy/README.md` has one with merges, network and scheduler.\n\n"
        + markdown(head, lines)
        + f"\nTo keep the cores busy the store must deliver (compressed) {rates} cores. By the plan, memory for each "
        "process does not depend on the rows; above is what was measured. However many rows, there are no more than "
        f"{spans:,} spans, longer ones instead, so that the scheduler sees no more tasks; more cores than spans are "
        f"idle. Sums of 8-bit data are exact up to {EXACT_WEIGHT:.2g} rows; beyond, they are float64 sums.\n"
    )


def _bytes(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def draw(out: Path) -> None:
    """Draw processor seconds and memory over the rows."""
    sizes = _sizes(Table(out, NAME).rows())
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = list(sizes)
    left.plot(x, [median(some, "cpu_seconds") for some in sizes.values()], marker=".", label="processor seconds")
    left.plot(x, [median(some, "seconds") for some in sizes.values()], marker=".", label="seconds")
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds")
    left.legend(fontsize=7)
    right.plot(x, [peaks(some)[1] for some in sizes.values()], marker=".", label="peak of the pass")
    right.plot(x, [size * COLUMNS / 1e6 for size in x], ls=":", label="the rows, decoded")
    right.set(xscale="log", yscale="log", xlabel="rows", ylabel="MB")
    right.legend(fontsize=7)
    figure.savefig(out / f"{NAME}.png", dpi=90)

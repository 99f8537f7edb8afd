"""Columns that carry class labels: the same picks as fastcan's, in the same order, for less time, and out of core.

    python -m examples.benchmarks.supervised [--data FOLDER] [--rounds 5] [--gigabytes 1] [--quick] [--output FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds isolet.npz and mnist.npz; without it only scikit-learn's own
data sets are used. The targets are the indicators of the classes, each divided by the root of its number of rows. An
archive of made-up rows is picked from out of core, in a process of its own; ``--gigabytes 10`` makes it large.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from threadpoolctl import threadpool_limits

import rgcss_dask as rg
from examples.benchmarks.machine import versions
from examples.benchmarks.measure import figure, ratios, spread
from examples.benchmarks.tables import markdown
from rgcss_dask.runtime import integer_products

Array = NDArray[np.float64]

KS = (10, 30)
WIDE = 600  # columns from which on times are compared
COLUMNS, CLASSES, CHUNK = 600, 10, 8192  # of the archive
AIM = 5  # times less CPU time than fastcan
SMALL = 0.05  # GB: an archive that fastcan takes too
MEMORY = "600 MB"  # that the pass may use, beside what the process has


@dataclass(frozen=True)
class Labelled:
    name: str
    X: Array  # (m, n)
    indicators: Array  # (m, classes)

    @classmethod
    def of(cls, name: str, X: Array, y: NDArray[Any]) -> Labelled:
        return cls(name, X, (y[:, None] == np.unique(y)).astype(np.float64))


def cases(folder: Path | None) -> Iterator[Labelled]:
    """Yield scikit-learn's data sets, then those of the folder."""
    yield Labelled.of("digits", *load_digits(return_X_y=True))
    yield Labelled.of("breast cancer", *load_breast_cancer(return_X_y=True))
    if folder is not None:
        isolet, mnist = (np.load(folder / name) for name in ("isolet.npz", "mnist.npz"))
        for name, rows, scale, y in (
            ("Isolet", isolet["train"], isolet["scale"], isolet["train_labels"]),
            ("MNIST, test rows", mnist["test"], mnist["scale"], mnist["test_labels"]),
        ):
            yield Labelled.of(f"{name}, {rows.dtype} as stored", rows, y)
            yield Labelled.of(f"{name}, fractions in float64", rows / scale, y)


def ours(data: Labelled, k: int) -> list[int]:
    indicators = data.indicators.astype(data.X.dtype)
    return carrying(np.hstack([data.X, indicators]), k, data.indicators.sum(axis=0))


def carrying(rows: Any, k: int, counts: Array, **options: Any) -> list[int]:
    """Pick columns that carry the last ones of these rows, which are indicators of so many rows each."""
    n = rows.shape[1] - len(counts)
    aims: dict[str, Any] = {"targets": range(n, n + len(counts))}
    aims["column_weights"] = np.concatenate([np.zeros(n), 1.0 / counts])
    moments = rg.scan(rows, progress=False, **options)
    return rg.select(moments, k, lam=0.0, center=True, **aims).columns.tolist()


def fastcan(data: Labelled, k: int, eta: bool = False) -> list[int]:
    return import_module("fastcan").FastCan(k, eta=eta, verbose=0).fit(data.X, data.indicators).indices_.tolist()


def cpu_seconds_of_each(data: Labelled, k: int) -> dict[str, float]:
    """Let each pick once."""
    ways = {"ours": lambda: ours(data, k), "default": lambda: fastcan(data, k)}
    ways["eta"] = lambda: fastcan(data, k, eta=True)
    rows = data.X.astype(np.float64)
    ways["product"] = lambda: [rows.T @ rows]  # all that a pass over rows of float64 cannot do without
    found = {}
    for name, way in ways.items():
        began = time.process_time()
        way()
        found[name] = time.process_time() - began
    return found


def compare(data: Labelled, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield, for each k, how many picks are the same before the first difference; times too where n is large."""
    for k in (k for k in KS if k < data.X.shape[1]):
        mine, other = ours(data, k), fastcan(data, k)
        same = next((i for i in range(k) if mine[i] != other[i]), k)
        row: dict[str, Any] = {"data": data.name, "rows": data.X.shape[0], "columns": data.X.shape[1], "k": k}
        row |= {"same": same, "ours": mine, "fastcan": other}
        if data.X.shape[1] >= WIDE:
            times = [cpu_seconds_of_each(data, k) for _ in range(rounds)]
            row["seconds"] = {name: [one[name] for one in times] for name in times[0]}
        print(f"  {row}", flush=True)
        yield row


def make_archive(path: Path, gigabytes: float) -> Array:
    """Write rows of ten classes with their indicators as the last columns; return how many rows each class has."""
    width = COLUMNS + CLASSES
    rows = int(gigabytes * 1e9 / (4 * width))
    stored = zarr.create_array(path, shape=(rows, width), chunks=(CHUNK, width), dtype="f4", compressors=None)
    means = np.random.default_rng(0).standard_normal((CLASSES, 8))
    mix = np.random.default_rng(1).standard_normal((8, COLUMNS)) * np.linspace(0.1, 1.0, COLUMNS)
    counts = np.zeros(CLASSES)
    for start in range(0, rows, CHUNK):
        rng = np.random.default_rng([2, start])
        y = rng.integers(0, CLASSES, min(CHUNK, rows - start))
        hidden = means[y] + 0.5 * rng.standard_normal((len(y), 8))
        X = hidden @ mix + rng.standard_normal((len(y), COLUMNS))
        stored[start : start + len(y)] = np.hstack([X, np.eye(CLASSES)[y]]).astype("f4")
        counts += np.bincount(y, minlength=CLASSES)
    return counts


def peak() -> float:
    """Return the peak memory of this process, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def pick_alone(archive: Path, counts: Array) -> dict[str, Any]:
    """Pick from an archive, and say what that took; called in a process that does nothing else."""
    carrying(np.random.default_rng(0).random((2000, COLUMNS + CLASSES)), 2, np.ones(CLASSES))  # compiled, imported
    before, began = peak(), time.process_time()
    picks = carrying(zarr.open_array(archive, mode="r"), max(KS), counts, memory=MEMORY)
    return {"picks": picks, "before": before, "above": peak() - before, "seconds": time.process_time() - began}


def out_of_core(gigabytes: float) -> dict[str, Any]:
    """Make an archive and pick from it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "labelled.zarr")
        counts = make_archive(path, gigabytes)
        command = [sys.executable, "-m", "examples.benchmarks.supervised", "--archive", str(path)]
        command += ["--counts", json.dumps(counts.tolist())]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
        found = json.loads(done.stdout) | {"gigabytes": gigabytes}
        if gigabytes <= SMALL:
            rows = zarr.open_array(path, mode="r")[:].astype(np.float64)
            found["fastcan"] = fastcan(Labelled("made up", rows[:, :COLUMNS], rows[:, COLUMNS:]), max(KS))
    print(f"  {found}", flush=True)
    return found


def document(found: Sequence[dict[str, Any]], archives: Sequence[dict[str, Any]], rounds: int) -> str:
    """Return the page."""
    picks = [
        [row["data"], f"{row['rows']:,} x {row['columns']}", str(row["k"]), f"{row['same']} of {row['k']}"]
        for row in found
    ]
    timed = [row for row in found if "seconds" in row]
    times = [
        [
            row["data"],
            str(row["k"]),
            figure(spread(row["seconds"]["ours"]).middle),
            *(
                str(spread(ratios(row["seconds"][way], row["seconds"]["ours"])))
                for way in ("default", "eta", "product")
            ),
        ]
        for row in timed
    ]
    large = [
        [
            f"{one['gigabytes']:g}",
            f"{one['before']:,.0f}",
            f"{one['above']:,.0f}",
            figure(one["seconds"]),
            ("yes" if one["picks"] == one["fastcan"] else "no") if "fastcan" in one else "not tried",
        ]
        for one in archives
    ]
    parts = [
        "# Columns that carry labels\n",
        "`python -m examples.benchmarks.supervised` wrote this page. Targets are the indicators of the classes, "
        "whitened and centred, lambda is 0. fastcan gets the same rows and indicators, and turns them to float64. "
        f"Integer products of this machine: {integer_products.in_words()}.\n",
        "## Picks\n",
        markdown(["data", "size", "k", "the same as fastcan's, in order"], picks),
        *(f"- {sentence}" for sentence in differences(found)),
        "## Time\n",
        f"CPU seconds of one thread, from rows to picks, our pass included; data of {WIDE} columns or more, {rounds} "
        "rounds in turns; median (and middle half) of the ratios within rounds.\n",
        markdown(["data", "k", "ours, seconds", "fastcan / ours", "fastcan with eta / ours", "X'X alone / ours"], times)
        if timed
        else "No data of that size in this run.\n",
        *(f"- {sentence}" for sentence in short_of(timed)),
        "Our time hardly depends on k: it is that of one pass, which adds up the products of all columns for every "
        "question to come; fastcan forms those of k columns with all others.\n",
        "## Out of core\n",
        f"{COLUMNS} columns and {CLASSES} indicators in float32, k = {max(KS)}, memory={MEMORY!r}; peak resident "
        "memory of a process of its own.\n",
        markdown(["GB", "MB before the pass", "MB above that at the peak", "CPU seconds", "same as fastcan"], large),
        versions("fastcan", "numpy", "scikit-learn") + "\n",
    ]
    return "\n".join(parts)


def short_of(timed: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say where fastcan takes less than so many times our CPU time as is aimed at."""
    for row in timed:
        middle = spread(ratios(row["seconds"]["default"], row["seconds"]["ours"])).middle
        if middle < AIM:
            yield f"{row['data']}, k = {row['k']}: fastcan takes {middle:.2f} times our CPU time, {AIM} are aimed at.\n"


def differences(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say where the picks part, if they do."""
    for row in found:
        if row["same"] < row["k"]:
            at = row["same"]
            yield (
                f"{row['data']}, k = {row['k']}: pick {at + 1} is column {row['ours'][at]}, fastcan's is "
                f"{row['fastcan'][at]}; {len(set(row['ours']) & set(row['fastcan']))} columns are in both."
            )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if options.archive:
        print(json.dumps(pick_alone(options.archive, np.array(json.loads(options.counts)))))
        return
    folder = None if options.data is None or options.quick else Path(options.data)
    rounds = 1 if options.quick else options.rounds
    with threadpool_limits(1):
        found = [row for data in cases(folder) for row in compare(data, rounds)]
    archives = [out_of_core(size) for size in ([SMALL] if options.quick else [SMALL, options.gigabytes])]
    text = document(found, archives, rounds)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the archive")
    parser.add_argument("--quick", action="store_true", help="small data only: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    parser.add_argument("--archive", type=Path, help=argparse.SUPPRESS)  # only pick from it, see pick_alone
    parser.add_argument("--counts", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

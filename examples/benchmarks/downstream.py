"""Clusters and classes learnt by dask-ml from all columns, from the picked ones and from random ones.

    python -m examples.benchmarks.downstream [--data FOLDER] [--repeats 5] [--gigabytes 0.4] [--quick] [--output FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds mnist.npz, isolet.npz and coil20_32.npz. In each repeat the
rows are split in two at random: columns are picked from one half without labels, and the work is done on the other,
with the seed of the repeat. Besides, an archive larger than the memory that is given is learnt from, in a process of
its own whose peak is the kernel's. Nothing was settled by looking at the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import rgcss_dask as rg
from examples.benchmarks.machine import describe
from examples.benchmarks.measure import figure
from examples.benchmarks.supervised import peak
from examples.benchmarks.tables import markdown
from rgcss_dask.core.downstream import MEASURES, in_words

Array = NDArray[np.float64]

ROWS = 3_000  # at most, drawn once: half to pick by, half to work on
COLUMNS, CLASSES, CHUNK = 600, 10, 4096  # of the archive that is made up
MEMORY, LARGE_K = "300 MB", 30
OURS, RANDOM = "picked", "random"
VERSIONS = ("rgcss-dask", "dask-ml", "dask", "scikit-learn")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows with a class each, and how many columns are asked for."""

    name: str
    X: NDArray[Any]
    y: NDArray[Any]
    ks: tuple[int, ...]


def cases(folder: Path | None) -> Iterator[Labelled]:
    """Yield scikit-learn's digits, then the data sets whose files are in the folder."""
    yield Labelled("digits", *load_digits(return_X_y=True), (8, 16))
    for file, name, ks in FILES:
        if folder is not None and (folder / file).exists():
            with np.load(folder / file) as stored:
                X, y = (stored[key] for key in (("train", "train_labels") if "train" in stored else ("X", "y")))
            rows = np.sort(np.random.default_rng(0).permutation(len(X))[:ROWS])
            yield Labelled(name, X[rows] / np.float32(_scale(folder / file)), y[rows], ks)


FILES = (("isolet.npz", "Isolet", (16, 64)), ("mnist.npz", "MNIST", (16, 64)), ("coil20_32.npz", "COIL-20", (16, 64)))


def _scale(path: Path) -> float:
    with np.load(path) as stored:
        return float(stored["scale"])


def compared(data: Labelled, k: int, repeats: int) -> dict[str, Any]:
    """Pick from one half of the rows, work on the other; return the scores of each repeat."""
    found: dict[str, Any] = {"data": data.name, "rows": len(data.X), "columns": data.X.shape[1], "k": k}
    scores: dict[tuple[str, str], list[float]] = {}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        one, other = np.array_split(rng.permutation(len(data.X)), 2)
        drawn = rng.choice(data.X.shape[1], k, replace=False)
        picked = rg.select(rg.scan(data.X[one], progress=False), k, center=True)
        by_chance = rg.select(rg.scan(data.X[one][:, drawn], progress=False), k, center=True)  # all of them, so
        done = rg.downstream(picked, data.X[other], data.y[other], repeats=1, seed=seed)
        beside = rg.downstream(by_chance, data.X[other][:, drawn], data.y[other], repeats=1, seed=seed)
        for task in MEASURES:
            works = {"all": done[task].everything, OURS: done[task].picked, RANDOM: beside[task].everything}
            for way, work in works.items():
                scores.setdefault((task, way), []).append(work.score)
    found["scores"] = {task: {way: scores[task, way] for way in ("all", OURS, RANDOM)} for task in MEASURES}
    print(f"  {found}", flush=True)
    return found


def make_archive(path: Path, gigabytes: float) -> NDArray[np.int64]:
    """Write rows of ten classes that lie in eight dimensions, seen through many noisy columns; return the classes."""
    rows = int(gigabytes * 1e9 / (4 * COLUMNS))
    stored = zarr.create_array(path, shape=(rows, COLUMNS), chunks=(CHUNK, COLUMNS), dtype="f4", compressors=None)
    rng = np.random.default_rng(0)
    means, mix = 1.2 * rng.standard_normal((CLASSES, 8)), rng.standard_normal((8, COLUMNS))
    y = rng.integers(0, CLASSES, rows)
    for start in range(0, rows, CHUNK):
        few = y[start : start + CHUNK]
        hidden = means[few] + 0.5 * rng.standard_normal((len(few), 8))
        stored[start : start + len(few)] = hidden @ mix + rng.standard_normal((len(few), COLUMNS))
    return y


def learn_alone(folder: Path) -> dict[str, Any]:
    """Pick and learn from an archive, and say what that took; called in a process that does nothing else."""
    digits = load_digits()
    rg.downstream(rg.select(digits.data, 4), digits.data, digits.target, repeats=1)  # compiled, imported
    before = peak()
    moments = rg.scan(folder / "rows.zarr", memory=MEMORY, progress=False)
    picked = rg.select(moments, LARGE_K, center=True)
    done = rg.downstream(picked, folder / "rows.zarr", folder / "labels.npy", repeats=1, memory=MEMORY)
    return {**done.said, "before": before, "above": peak() - before}


def out_of_core(gigabytes: float) -> dict[str, Any]:
    """Make an archive and learn from it in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "labels.npy"), make_archive(Path(folder, "rows.zarr"), gigabytes))
        command = [sys.executable, "-m", "examples.benchmarks.downstream", "--alone", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found = json.loads(done.stdout) | {"gigabytes": gigabytes}
    print(f"  {found}", flush=True)
    return found


def document(found: Sequence[dict[str, Any]], large: dict[str, Any], repeats: int) -> str:
    """Return the page."""
    versions = describe()["versions"]
    parts = [
        "# What a reduction costs the work behind it\n",
        "`python -m examples.benchmarks.downstream` wrote this page. "
        + ", ".join(f"{name} {versions[name]}" for name in VERSIONS)
        + ". Columns are picked without labels from one half of the rows (centred, lambda = 1), and the work is done "
        f"on the other; {repeats} random splits, means and standard errors. *Random* columns are as many, drawn anew "
        f"for each split. At most {ROWS:,} rows of each data set.\n",
        *(_section(task, found) for task in MEASURES),
        "## Larger than the memory given\n",
        f"{large['gigabytes']:g} GB of float32, {large['rows']:,} rows and {large['columns']:,} columns of "
        f"{large['classes']} classes, made up; k = {large['k']}, memory={MEMORY!r}, one seed. Peak of the process, "
        f"which had {large['before']:,.0f} MB before: {large['above']:,.0f} MB above that, the selection counted.\n",
        markdown(["", "columns", "score", "seconds", "MB above the beginning"], _lines(large)),
        f"To read the rows and write the picked columns: {figure(large['reduction_seconds'])} s, once.\n",
        "## What was left out\n",
        "- Rows of the data sets beyond those named, and labels in the choice of columns "
        "(see [columns that carry labels](SUPERVISED.md)).",
        "- Other clusterings and classifiers than k-means and a linear one, which may lose more, or less.",
        "- Times are of one run on a machine that did other things too.\n",
    ]
    return "\n".join(parts)


def _section(task: str, found: Sequence[dict[str, Any]]) -> str:
    rows = []
    for one in found:
        scores = {way: np.array(values) for way, values in one["scores"][task].items()}
        rows.append(
            [
                one["data"],
                f"{one['rows']:,} x {one['columns']:,}",
                str(one["k"]),
                *(in_words(scores[way]) for way in ("all", OURS, RANDOM)),
                in_words(scores["all"] - scores[OURS]),
                in_words(scores[OURS] - scores[RANDOM]),
            ]
        )
    heads = ["data", "size", "k", "all columns", OURS, RANDOM, "lost by picking", "gained over random"]
    return f"## {MEASURES[task][0].upper()}{MEASURES[task][1:]}\n\n{markdown(heads, rows)}"


def _lines(large: dict[str, Any]) -> list[list[str]]:
    return [
        [
            MEASURES[task],
            f"{name} {large['columns' if name == 'all' else 'k']:,}",
            f"{work['scores'][0]:.3f}",
            figure(work["seconds"][0]),
            f"{work['memory'] / 1e6:,.0f}",
        ]
        for task, works in large["tasks"].items()
        for name, work in works.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=0.4, help="size of the archive")
    parser.add_argument("--quick", action="store_true", help="small data only: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)  # only learn from it, see learn_alone
    options = parser.parse_args(arguments)
    if options.alone:
        print(json.dumps(learn_alone(options.alone)))
        return
    folder, repeats = (None, 2) if options.quick else (options.data and Path(options.data), options.repeats)
    found = [compared(data, k, repeats) for data in cases(folder) for k in data.ks]
    text = document(found, out_of_core(0.02 if options.quick else options.gigabytes), repeats)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()

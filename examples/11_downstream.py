"""What a reduction costs the work behind it
=========================================

Cluster and classify rows of an archive with dask-ml, with all columns and with the picked columns, and compare the
scores, time and memory.

Run: python examples/11_downstream.py [rows]

On real data sets, with repeated splits, compared with random columns, and on an archive larger than the memory given:
``python -m examples.benchmarks.downstream``, whose figures are in ``examples/benchmarks/DOWNSTREAM.md``.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import zarr

import rgcss_dask as rg

CLASSES, COLUMNS = 6, 200


def make_archive(path: Path, rows: int) -> np.ndarray:
    """Write rows of six classes, with many columns that depend on a few dimensions; return the classes."""
    rng = np.random.default_rng(0)
    means, mix = 1.5 * rng.standard_normal((CLASSES, 6)), rng.standard_normal((6, COLUMNS))
    y = rng.integers(0, CLASSES, rows)
    stored = zarr.create_array(path, shape=(rows, COLUMNS), chunks=(2000, COLUMNS), dtype="f4")
    for start in range(0, rows, 2000):
        few = y[start : start + 2000]
        hidden = means[few] + 0.5 * rng.standard_normal((len(few), 6))
        stored[start : start + len(few)] = hidden @ mix + rng.standard_normal((len(few), COLUMNS))
    return y


def main(rows: int = 50_000) -> dict[int, rg.Downstream]:
    """Compare several numbers of columns, and plot the scores."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        labels = make_archive(Path(folder, "rows.zarr"), rows)
        moments = rg.scan(Path(folder, "rows.zarr"), progress=False)
        for k in (4, 8, 16):
            picked = rg.select(moments, k, center=True)
            found[k] = rg.downstream(picked, Path(folder, "rows.zarr"), labels, repeats=2)
            print(f"{picked.sentence}\n{found[k]}\n")
    _, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for ax, task in zip(axes, ("cluster", "classify"), strict=True):
        works = [one[task].picked for one in found.values()]
        ax.errorbar(list(found), [one.score for one in works], [one.error for one in works], marker="o", label="picked")
        ax.axhline(found[16][task].everything.score, linestyle="--", color="grey", label=f"all {COLUMNS}")
        ax.set(
            xlabel="columns", title=found[16][task].measure, xscale="log", xticks=list(found), xticklabels=list(found)
        )
        ax.legend()
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    plt.show()

"""Make what the README of the Slurm recipe works on, in the current folder: data.zarr, archives/*.zarr, jobs.toml."""

import shutil
import sys
from pathlib import Path

import numpy as np
import zarr

RECIPE = Path(__file__).parents[2] / "deploy" / "slurm"


def make(rows=200_000, columns=64):
    """Write 8-bit rows of rank 12 and noise, and five small archives of the same kind."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(12, columns))

    def block(count):
        data = rng.normal(size=(count, 12)) @ factors + rng.normal(size=(count, columns))
        return np.clip(128 + 12 * data, 0, 255).astype(np.uint8)

    big = zarr.create_array("data.zarr", shape=(rows, columns), chunks=(2_500, columns), dtype="uint8")
    for start in range(0, rows, 50_000):
        big[start : start + 50_000] = block(len(range(rows)[start : start + 50_000]))
    Path("archives").mkdir()
    for i in range(5):
        zarr.create_array(f"archives/day-{i}.zarr", data=block(4_000), chunks=(1_000, columns))
    shutil.copy(RECIPE / "jobs.toml", "jobs.toml")


if __name__ == "__main__":
    make(*map(int, sys.argv[1:]))

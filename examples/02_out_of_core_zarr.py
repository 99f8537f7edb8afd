"""An archive larger than memory
=============================

One pass over a Zarr archive computes moments, which are kept; all further results are computed from the moments.

Run: python examples/02_out_of_core_zarr.py [rows] [folder]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import rgcss_dask as rg
from rgcss_dask import plots

COLUMNS, FACTORS, CHUNK = 120, 12, 20_000


def make_archive(path: Path, rows: int) -> None:
    """Write a tall matrix chunk by chunk: many columns that depend on a few hidden factors, and noise."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((FACTORS, COLUMNS)) * np.geomspace(3, 0.3, FACTORS)[:, None]
    array = zarr.create_array(path, shape=(rows, COLUMNS), chunks=(CHUNK, COLUMNS), dtype="f4")
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        block = rng.standard_normal((count, FACTORS)) @ loadings + 0.5 * rng.standard_normal((count, COLUMNS)) + 10
        array[start : start + count] = block.astype("f4")


def main(rows: int = 1_000_000, folder: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        where = Path(folder or temporary)
        make_archive(where / "data.zarr", rows)
        moments = rg.scan(where / "data.zarr", folds=5, archive=where / "moments.zarr")
        print(f"Read {moments.rows:,} rows once; {moments.product.nbytes:,} bytes remain of them.")
        tuned = rg.cross_validate(moments, 20, center=True, one_se=True)
        print(tuned)
        plots.cross_validation(tuned)
        for k in (4, 8, tuned.k):
            print(rg.select(moments, k, lam=tuned.lam, center=True, bound=True))
        count = rg.write_reduced(tuned.selection, where / "data.zarr", where / "reduced.zarr")
        reduced = zarr.open_array(where / "reduced.zarr", mode="r")
        print(f"Wrote {count:,} rows of the {reduced.shape[1]} picked columns.")
        rg.write_reconstruction(
            tuned.selection, tuned.selection.weights(moments), where / "reduced.zarr", where / "rebuilt.zarr"
        )
        rebuilt, data = (zarr.open_array(where / name, mode="r") for name in ("rebuilt.zarr", "data.zarr"))
        error = np.mean((rebuilt[:CHUNK] - data[:CHUNK]) ** 2) ** 0.5
        print(f"Rebuilt all {rebuilt.shape[1]} columns from them; root mean square error {error:.3f}, noise 0.5.")


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))  # type: ignore[arg-type]

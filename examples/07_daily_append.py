"""An archive that grows every day
===============================

Each day only the new rows are read, and the selection follows the data.

Run: python examples/07_daily_append.py [rows a day] [days]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import rgcss_dask as rg

COLUMNS = 40


def a_day(day: int, rows: int) -> np.ndarray:
    """Return a day's rows; one hidden factor fades while another grows."""
    rng = np.random.default_rng(day)
    old, new = np.random.default_rng(100).standard_normal((2, 3, COLUMNS))
    hidden = rng.standard_normal((rows, 3))
    return np.exp(-day / 3) * hidden @ old + (day / 3) * hidden @ new + 0.1 * rng.standard_normal((rows, COLUMNS))


def main(rows: int = 50_000, days: int = 6) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, archive = Path(folder, "data.zarr"), Path(folder, "moments.zarr")
        stored = zarr.create_array(data, shape=(0, COLUMNS), chunks=(rows, COLUMNS), dtype="f8")
        for day in range(days):
            stored.append(a_day(day, rows))
            read: list[int] = []

            def note(progress: rg.Progress, read: list[int] = read) -> None:
                read.append(progress.rows)

            if day == 0:
                moments = rg.scan(data, archive=archive, progress=note)
            else:
                moments = rg.append(archive, data, progress=note)
            picked = rg.select(moments, 3, center=True)
            columns = picked.columns.tolist()
            print(f"day {day}: {moments.rows:>8,} rows, {max(read):>7,} read; columns {columns}; {picked.sentence}")
        picked.plot().set_title("the last day")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

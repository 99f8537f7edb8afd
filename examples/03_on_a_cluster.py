"""On a Dask cluster
=================

The same calls on a cluster: the active Dask client is used automatically, and the result has the same bits.

Run: python examples/03_on_a_cluster.py [rows] [scheduler address]
Without an address two worker processes are started on this machine.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr
from distributed import Client

import rgcss_dask as rg


def make_archive(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((8, 64))
    array = zarr.create_array(path, shape=(rows, 64), chunks=(10_000, 64), dtype="f8")
    for start in range(0, rows, 10_000):
        count = min(10_000, rows - start)
        array[start : start + count] = rng.standard_normal((count, 8)) @ mixing + rng.standard_normal((count, 64))


def main(rows: int = 400_000, address: str | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.zarr")  # on a real cluster: a shared folder, or s3://...
        make_archive(data, rows)
        here = rg.scan(data)
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        with Client(address) if address else Client(**options) as client:  # type: ignore[no-untyped-call]
            workers = len(client.scheduler_info()["workers"])
            there = rg.scan(data)  # the workers read the archive; the moments stay on one of them
            picked = rg.select(there, 8)  # on the scheduler by default; where="worker" or "client" elsewhere
            same = np.array_equal(here.product, there.product)  # fetched here at its first use
        print(f"{workers} workers and this process: same bits {same}")
        print(picked)
        picked.plot()


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))  # type: ignore[arg-type]

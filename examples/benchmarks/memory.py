"""How much memory a pass takes beside what its plan says: the table of docs/decisions/tree-of-merges.md.

    python examples/benchmarks/memory.py [--columns 784 4096] [--types uint8 float64] [--most 10GB]

Each pass runs in a process of its own, over an array of which a part is written: the rest is read as its fill value.
Used is the most that the kernel counted (VmHWM) above what the process had when all modules were loaded. Passes whose
plan is over --most are named and not made. Linux only.
"""

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

import rgcss_dask
from rgcss_dask.core.merge_tree import is_chain
from rgcss_dask.core.pass_options import Geometry, Options
from rgcss_dask.core.spans import least_rows, parts_of_span
from rgcss_dask.core.words import size
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.scanning.request import make_request
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source

PARTS = {"none": {}, "5 folds": {"folds": 5}, "5 folds, 20 groups": {"folds": 5, "groups": 20}}
CHUNK_BYTES = 2**22
WRITTEN = 2**28  # bytes, at most; the rest is read as its fill value
SPANS = {784: 36.0}  # of few columns; of many there are two or three
PLENTY = 10**12  # bytes that no plan is refused for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--columns", type=int, nargs="+", default=[784, 4096])
    parser.add_argument("--types", nargs="+", default=["uint8", "float64"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--most", default="10GB", help="plans above this are not tried (default: %(default)s)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.child[0], json.loads(options.child[1]))))
        return
    print("| columns | values | kept apart | rows | planned | used | planned / used |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n in options.columns:
        for dtype in options.types:
            for name in options.parts:
                print(f"| {n:,} | {dtype} | {name} | {row(n, dtype, name, parse_memory(options.most))} |", flush=True)


def row(n: int, dtype: str, name: str, most: int) -> str:
    """Make a pass and return what it took, as cells of a table."""
    with tempfile.TemporaryDirectory(prefix="rgcss-benchmark-") as folder:
        path = made(Path(folder) / "a.zarr", n, np.dtype(dtype), Options(**PARTS[name]))
        plan = planned(path, Options(**PARTS[name]), PLENTY)
        rows = f"{zarr.open_array(path, mode='r').shape[0]:,}"
        if plan > most:
            return f"{rows} | {size(plan)} | not tried | "
        asked = [sys.executable, __file__, "--child", path, json.dumps(PARTS[name])]
        used = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
        return f"{rows} | {size(plan)} | {size(used)} | {plan / used:.2f}"


def made(path: Path, n: int, dtype: np.dtype, options: Options) -> str:
    """Write an array of so many spans that results wait for each other."""
    geometry = Geometry(1, n, dtype, np.array([0, 1]))
    parts = parts_of_span(geometry, options) if is_chain(geometry, options) else 1
    chunk = max(1, CHUNK_BYTES // geometry.row_bytes)
    rows = int(SPANS.get(n, 2.2 if parts == 1 else 1.2) * least_rows(geometry, parts)) // chunk * chunk
    array = zarr.create_array(path, shape=(rows, n), chunks=(chunk, n), dtype=dtype, fill_value=1)
    block = np.random.default_rng(0).integers(0, 200, (chunk, n)).astype(dtype)
    for start in range(0, min(rows, max(chunk, WRITTEN // geometry.row_bytes)), chunk):
        array[start : start + chunk] = block + (0.5 if dtype.kind == "f" else 0)
    return str(path)


def planned(path: str, options: Options, memory: int | None) -> int:
    source = open_source(path, missing="fill")
    return make_request(source, options, weights=None, rows=None, reading=Reading("fill"), memory=memory).plan.memory


def measured(path: str, given: dict) -> int:
    """Return what a pass took, as the kernel counts it, above what the process had with all modules loaded."""
    importlib.import_module("rgcss_dask.archive.archive")
    importlib.import_module("dask.array")
    importlib.import_module("distributed")
    before = peak()
    rgcss_dask.scan(path, missing="fill", memory=PLENTY, **given)
    return peak() - before


def peak() -> int:  # ru_maxrss would be the parent's
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


if __name__ == "__main__":
    main()

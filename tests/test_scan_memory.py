"""The memory a pass takes, as the kernel counts it, against what the plan said."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

SCRIPT = """
import json, re, sys
from pathlib import Path
import rgcss_dask.scanning.scan, rgcss_dask.archive.archive, dask.array, zarr, distributed
from rgcss_dask import scan
from rgcss_dask.scanning.request import make_request
from rgcss_dask.core.pass_options import Options
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source

def peak():  # ru_maxrss would be the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

path, memory, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
before = peak()
request = make_request(
    open_source(path, missing="fill"), Options(**options), weights=None, rows=None, reading=Reading(), memory=memory
)
moments = scan(path, missing="fill", memory=memory, **options)
print(json.dumps({"above": peak() - before, "plan": request.plan.memory, "rows": moments.rows}))
"""


def measure(path, memory=2 * 10**9, **options):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(memory), json.dumps(options)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def make(path, rows, columns, dtype, chunk, written=0):
    """An array in which most chunks are not written: they are read, decoded as the fill value, and added up."""
    array = zarr.create_array(
        path, shape=(rows, columns), chunks=(chunk, columns), dtype=dtype, fill_value=1, compressors=ZstdCodec()
    )
    block = np.random.default_rng(0).integers(0, 200, (chunk, columns)).astype(dtype)
    for start in range(0, written, chunk):
        array[start : start + chunk] = block
    return path


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("u1", {}), ("f8", {"folds": 5}), ("f8", {"groups": 10, "folds": 2}), ("f8", {"nan": "mean"})],
)
def test_the_plan_holds(tmp_path, dtype, options):
    got = measure(make(tmp_path / "a.zarr", 60_000, 500, dtype, 1_000, written=60_000), **options)
    assert got["above"] <= got["plan"]


@pytest.mark.parametrize("options", [{"sketch": 60}, {"sketch": 40, "nan": "mean"}, {"candidates": [*range(90)]}])
def test_the_plan_holds_for_wide_rows(tmp_path, options):
    dtype = "f4" if "nan" in options else "u1"
    got = measure(make(tmp_path / "a.zarr", 1_000, 60_000, dtype, 10, written=100), **options)
    assert got["above"] <= got["plan"]


@pytest.fixture(scope="module")
def twenty_gigabytes(tmp_path_factory):
    """Peaks of a pass over 20 GB, and over a hundredth of its rows."""
    folder, rows = tmp_path_factory.mktemp("rows"), 20 * 10**9 // 784
    large = measure(make(folder / "large.zarr", rows, 784, "u1", 2_000, written=rows // 20))
    few = make(folder / "small.zarr", rows // 100, 784, "u1", 2_000, written=rows // 100)
    small = max(measure(few)["above"] for _ in range(5))  # of a second each, which seldom shows what it may take
    assert large["rows"] == rows
    print(f"peak above import {large['above']:,} of {large['plan']:,} planned; {small:,} with 1 % of the rows")
    return large, small


@pytest.mark.integration
def test_twenty_gigabytes_in_less_than_one(twenty_gigabytes):
    large, _ = twenty_gigabytes
    assert large["above"] <= large["plan"]
    assert large["above"] <= 10**9


@pytest.mark.integration
def test_a_hundred_times_the_rows_take_the_same_memory(twenty_gigabytes):
    large, small = twenty_gigabytes
    assert abs(large["above"] - small) <= 0.1 * large["above"]


@pytest.mark.integration
def test_many_columns_stay_within_the_plan(tmp_path):
    """Matrices of a gigabyte: one accumulator, tiles shared by the threads, two matrices alive."""
    got = measure(make(tmp_path / "wide.zarr", 20_000, 12_000, "f4", 500, written=1_000), memory=5 * 10**9)
    assert got["above"] <= got["plan"]

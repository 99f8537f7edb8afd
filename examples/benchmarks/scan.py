"""How fast the pass is: ratios against the bare work and against other ways, all in one run.

    python examples/benchmarks/scan.py [--rows 1200000] [--columns 784] [--repeats 3] [--peers] [--cluster]

Every figure is a ratio of two times measured one after the other on this machine, so that a busy or slow one shifts
both. The bare work is the time to read every chunk with Zarr plus the time of X'X on blocks already in memory, on the
same number of threads with BLAS at one thread each: the least with Zarr's reader and the same BLAS. A pass may take
less, because it decodes chunks straight into memory that it uses again.
Passes take some seconds with the default rows, half of them for float64; in much shorter ones their begin and end
count. Some of the other ways hold all rows in memory: with --peers fewer rows are wise.
"""

import argparse
import importlib
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster

import rgcss_dask as rg
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus

CHUNK = 4_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peers", action="store_true", help="also the slow ways: da.cov, dask-ml, scikit-learn, scanpy"
    )
    parser.add_argument("--cluster", action="store_true", help="also a local cluster of two workers")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rgcss-benchmark-"))
    try:
        for dtype in ("uint8", "float64"):
            rows = options.rows if dtype == "uint8" else options.rows // 2
            run(make_array(folder / f"{dtype}.zarr", rows, options.columns, dtype), options)
    finally:
        shutil.rmtree(folder)


def make_array(path: Path, rows: int, columns: int, dtype: str) -> str:
    rng = np.random.default_rng(0)
    array = zarr.create_array(path, shape=(rows, columns), chunks=(CHUNK, columns), dtype=dtype)
    for start in range(0, rows, CHUNK):
        block = rng.integers(0, 256, (min(CHUNK, rows - start), columns), dtype=np.uint8)
        block[rng.random(block.shape) < 0.7] = 0  # most of a picture of a digit is empty
        array[start : start + CHUNK] = block if dtype == "uint8" else block + rng.random(block.shape)
    return str(path)


def run(path: str, options: argparse.Namespace) -> None:
    array = zarr.open_array(path, mode="r")
    print(f"\n{array.dtype}, {array.shape[0]:,} x {array.shape[1]}, {available_cpus()} threads")
    double = array.dtype != np.uint8
    ways = {
        "bare read + SYRK": lambda: bare(array, np.float64 if double else np.float32),
        "our pass": lambda: rg.scan(path),
        "our pass, half the rows": lambda: rg.scan(path, rows=slice(0, array.shape[0] // 2)),
        "five-line loop": lambda: loop(array),
        "Dask X.T @ X": lambda: dask_product(path),
        "our pass, 5 folds": lambda: rg.scan(path, folds=5),
        "our pass with archive": lambda: with_archive(path),
    }
    if not double:
        wide = da.from_zarr(path).astype("f8")
        ways["our pass in float64"] = lambda: rg.scan(wide)
    if options.peers:
        ways |= peers(path)
    rg.scan(path, rows=slice(0, CHUNK))  # imports, and kernels compiled at their first use
    times = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            taken = way()
            times[name].append(taken if isinstance(taken, float) else time.perf_counter() - began)
    report(times)
    if options.cluster:
        on_cluster(path, options.repeats)


def report(times: dict[str, list[float]]) -> None:
    ours = times["our pass"]
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, ours, strict=True))
        against = f"{ratio:6.2f} times our pass"
        if name == "bare read + SYRK":
            against = f"our pass takes {1 / ratio:.2f} times this"
        print(f"  {name:24s} {statistics.median(taken):8.2f} s   {against}")


def bare(array: zarr.Array, dtype: type) -> float:
    """Time to read all chunks plus time of the products, each spread over the threads."""
    starts = range(0, array.shape[0], CHUNK)
    with single_threaded_blas(), ThreadPoolExecutor(available_cpus()) as pool:
        began = time.perf_counter()
        list(pool.map(lambda start: array[start : start + CHUNK].shape, starts))
        reading = time.perf_counter() - began
        blocks = [array[start : start + CHUNK].astype(dtype) for start in starts[:8]]
        outs = [np.empty((array.shape[1], array.shape[1]), dtype) for _ in blocks]

        def product(i: int) -> None:
            np.matmul(blocks[i % 8].T, blocks[i % 8], out=outs[i % 8])

        began = time.perf_counter()
        list(pool.map(product, range(len(starts))))
        return reading + time.perf_counter() - began


def loop(array: zarr.Array) -> np.ndarray:
    G = np.zeros((array.shape[1], array.shape[1]))
    for start in range(0, array.shape[0], CHUNK):
        block = array[start : start + CHUNK].astype(np.float64)
        G += block.T @ block
    return G


def dask_product(path: str) -> np.ndarray:
    X = da.from_zarr(path).astype("f8")
    with dask.config.set(scheduler="threads"):
        return (X.T @ X).compute()


def with_archive(path: str) -> None:
    folder = tempfile.mkdtemp(prefix="rgcss-benchmark-")
    rg.scan(path, archive=f"{folder}/moments.zarr")
    shutil.rmtree(folder)


def peers(path: str) -> dict:
    ways = {"da.cov": lambda: da.cov(da.from_zarr(path).astype("f8"), rowvar=False).compute()}
    X = da.from_zarr(path).astype("f8")
    ml = optional("dask_ml.decomposition")
    if ml is not None:
        ways["dask-ml PCA"] = lambda: ml.PCA(30, svd_solver="full").fit(X)
        ways["dask-ml IncrementalPCA"] = lambda: ml.IncrementalPCA(30).fit(X)
    scanpy = optional("scanpy.preprocessing._pca._dask")
    if scanpy is not None:
        ways["scanpy covariance"] = lambda: scanpy._cov_sparse_dask(X, return_gram=True)
    return ways


def optional(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"  ({name.split('.')[0]} is not installed)")
        return None


def on_cluster(path: str, repeats: int) -> None:
    ratios = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        for _ in range(repeats):
            began = time.perf_counter()
            rg.scan(path)
            threads = time.perf_counter() - began
            with Client(cluster):
                began = time.perf_counter()
                rg.scan(path)
                ratios.append((time.perf_counter() - began) / threads)
    print(f"  two workers take {statistics.median(ratios):.2f} times the threads ({threads:.1f} s)")


if __name__ == "__main__":
    main()

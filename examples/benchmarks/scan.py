"""How fast the pass is: ratios against the bare work and against other ways, all in one run.

    python examples/benchmarks/scan.py [--rows 1200000] [--columns 784] [--repeats 3] [--peers] [--cluster]
    python examples/benchmarks/scan.py --bare --rows 60000 --columns 4096
    python examples/benchmarks/scan.py --integers [--columns 784 2048 4096] [--repeats 5]

Every figure is a ratio of two times measured one after the other on this machine, so that a busy or slow one shifts
both. The bare work is the time to read every chunk with Zarr plus the time of X'X on blocks already in memory, on the
same number of threads with BLAS at one thread each: the least with Zarr's reader and the same BLAS. A pass may take
less, because it decodes chunks straight into memory that it uses again.
Passes take some seconds with the default rows, half of them for float64; in much shorter ones their begin and end
count. Some of the other ways hold all rows in memory: with --peers fewer rows are wise.

With --integers it is what the extra `integer` brings: time of the processors, which other work disturbs less, with
oneDNN and without, of one pass each, one after the other; beside the bare read and the bare integer product.
"""

import argparse
import importlib
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster

import rgcss_dask as rg
from rgcss_dask.core import integers
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.integer_products import byte_products, in_words

CHUNK = 4_000
INTEGERS = ("uint8", "int16", "uint16")
INTEGER_WORK = 5 * 10**11  # products of numbers in a pass of --integers, about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--columns", type=int, nargs="+", default=[784])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peers", action="store_true", help="also the slow ways: da.cov, dask-ml, scikit-learn, scanpy"
    )
    parser.add_argument("--bare", action="store_true", help="our pass beside the bare work, and no other way")
    parser.add_argument("--cluster", action="store_true", help="also a local cluster of two workers")
    parser.add_argument("--integers", action="store_true", help="passes over integers with oneDNN and without")
    options = parser.parse_args()
    if options.integers and byte_products() is None:
        parser.error(f"there is nothing to compare; integer products: {in_words()}")
    folder = Path(tempfile.mkdtemp(prefix="rgcss-benchmark-"))
    try:
        for n in options.columns:
            for dtype in INTEGERS if options.integers else ("uint8", "float64"):
                rows = options.rows // (1 if dtype == "uint8" else 2)
                if options.integers:
                    rows = min(rows, max(8 * CHUNK, INTEGER_WORK // n**2 // CHUNK * CHUNK))
                path = make_array(folder / f"{dtype}-{n}.zarr", rows, n, dtype)
                (compare_integers if options.integers else run)(path, options)
                shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)


def make_array(path: Path, rows: int, columns: int, dtype: str) -> str:
    rng = np.random.default_rng(0)
    array = zarr.create_array(path, shape=(rows, columns), chunks=(CHUNK, columns), dtype=dtype)
    for start in range(0, rows, CHUNK):
        block = rng.integers(0, 256, (min(CHUNK, rows - start), columns), dtype=np.uint8)
        block[rng.random(block.shape) < 0.7] = 0  # most of a picture of a digit is empty
        if dtype == "float64":
            block = block + rng.random(block.shape)
        elif dtype in ("int16", "uint16"):  # all 16 bits are used
            block = block.astype(dtype) * 255 - (32_640 if dtype == "int16" else 0)
        array[start : start + CHUNK] = block
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
    if options.bare:
        ways = {name: ways[name] for name in ("bare read + SYRK", "our pass")}
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
    starts, n = range(0, array.shape[0], CHUNK), array.shape[1]
    threads = min(available_cpus(), len(starts))
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(lambda start: array[start : start + CHUNK].shape, starts))
        reading = time.perf_counter() - began
        blocks = [array[start : start + CHUNK].astype(dtype) for start in starts[:threads]]
        outs = [np.ones((n, n), dtype) for _ in blocks]

        def products(i: int) -> None:
            for _ in starts[i::threads]:
                np.matmul(blocks[i].T, blocks[i], out=outs[i])

        began = time.perf_counter()
        list(pool.map(products, range(threads)))
        return reading + time.perf_counter() - began


def compare_integers(path: str, options: argparse.Namespace) -> None:
    """Print ratios of processor time: medians of pairs that were run one after the other."""
    array = zarr.open_array(path, mode="r")
    print(f"\n{array.dtype}, {array.shape[0]:,} x {array.shape[1]}, {available_cpus()} threads, {in_words()}")
    ways = {"our pass": lambda: rg.scan(path), "without oneDNN": lambda: without_onednn(path)}
    if array.dtype == np.uint8:
        ways |= {
            "bare read + integer product": lambda: bare_integers(array),
            "Dask X.T @ X": lambda: dask_product(path),
        }
    else:
        wide = da.from_zarr(path).astype("f8") + 0.5  # as numbers that are no integers
        ways["the same plus 1/2, in float64"] = lambda: rg.scan(wide)
    rg.scan(path, rows=slice(0, CHUNK))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(taken, times["our pass"], strict=True))
        print(f"  {name:30s} {statistics.median(taken):8.2f} s of processors   {ratio:6.2f} times our pass")


def without_onednn(path: str) -> rg.Moments:
    with patch.object(integers, "byte_products", lambda: None):
        return rg.scan(path)


def bare_integers(array: zarr.Array) -> None:
    """Read all chunks with Zarr, and multiply as many blocks that are in memory, by strips of the lower triangle."""
    products, n = byte_products(), array.shape[1]
    starts = range(0, array.shape[0], CHUNK)
    block = np.random.default_rng(0).integers(0, 256, (CHUNK, n), dtype=np.uint8)
    signed = (block ^ 128).view(np.int8)

    def product(_: int) -> None:
        out = np.empty((integers.STRIP, n), np.int32)
        for first in range(0, n, integers.STRIP):
            stop = min(first + integers.STRIP, n)
            products.multiply(block[:, first:stop], signed[:, :stop], out[: stop - first, :stop])

    with ThreadPoolExecutor(available_cpus()) as pool:
        list(pool.map(lambda start: array[start : start + CHUNK].shape, starts))
        list(pool.map(product, starts))


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

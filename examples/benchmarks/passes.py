"""One pass over the rows by ours and by others, each in a process of its own: time, peak memory, agreement.

A child process (``python -m examples.benchmarks.passes NAME PATH SMALL``) imports only what its way needs, warms up on
a small archive, and prints what it measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from examples.benchmarks.measure import alone

Array = NDArray[np.float64]

ROOT = Path(__file__).parents[2]
CHUNK = 4_000
COMPONENTS = 30
SLOW = 15.0  # seconds; what takes longer has fewer turns
SLOW_TURNS = 2


@dataclass(frozen=True)
class Way:
    """One contender: what it makes of a Zarr archive is a Gram, a covariance or the largest variances."""

    name: str
    run: Callable[[str], Any]
    gives: str
    needs: str
    quick: bool = False  # whether a quick run has it: every way costs the start of a process


def ours(path: str) -> Any:
    return import_module("rgcss_dask").scan(path)


def loop(path: str) -> Array:
    array = zarr.open_array(path, mode="r")
    G = np.zeros((array.shape[1], array.shape[1]))
    for start in range(0, array.shape[0], CHUNK):
        block = array[start : start + CHUNK].astype(np.float64)
        G += block.T @ block
    return G


def dask_rows(path: str) -> Any:
    return import_module("dask.array").from_zarr(path).astype("f8")


def dask_product(path: str) -> Array:
    X = dask_rows(path)
    return (X.T @ X).compute(scheduler="threads")


def dask_product_one_thread(path: str) -> Array:
    with import_module("threadpoolctl").threadpool_limits(1):
        return dask_product(path)


def dask_covariance(path: str) -> Array:
    return import_module("dask.array").cov(dask_rows(path), rowvar=False).compute(scheduler="threads")


def dask_ml_pca(path: str) -> Array:
    return (
        import_module("dask_ml.decomposition")
        .PCA(COMPONENTS, svd_solver="full")
        .fit(dask_rows(path))
        .explained_variance_
    )


def incremental_pca(path: str) -> Array:
    array = zarr.open_array(path, mode="r")
    model = import_module("sklearn.decomposition").IncrementalPCA(COMPONENTS)
    for start in range(0, array.shape[0], CHUNK):
        model.partial_fit(array[start : start + CHUNK].astype(np.float64))
    return model.explained_variance_


def cubed_product(path: str) -> Array:
    cubed, xp = import_module("cubed"), import_module("cubed.array_api")
    with tempfile.TemporaryDirectory(prefix="rgcss-benchmark-") as folder:
        X = xp.astype(cubed.from_zarr(path, spec=cubed.Spec(work_dir=folder, allowed_mem="2GB")), xp.float64)
        return np.asarray(xp.tensordot(X, X, axes=((0,), (0,))).compute())


def scanpy_covariance(path: str) -> Array:
    X = dask_rows(path)
    covariance, _ = import_module("scanpy.preprocessing._pca._dask")._cov_sparse_dask(X)
    return covariance * (len(X) / (len(X) - 1))


def onedal_covariance(path: str) -> Array:
    array = zarr.open_array(path, mode="r")
    model = import_module("sklearnex.covariance").IncrementalEmpiricalCovariance()
    for start in range(0, array.shape[0], CHUNK):
        model.partial_fit(array[start : start + CHUNK].astype(np.float64))
    return model.covariance_ * (array.shape[0] / (array.shape[0] - 1))


OURS = "ours"
LOOP = "five-line loop"
PRODUCT = "Dask X.T @ X"
COVARIANCE = "Dask da.cov"
PCA = "dask-ml PCA"
INCREMENTAL = "scikit-learn IncrementalPCA"
WAYS = (
    Way(OURS, ours, "moments", "rgcss_dask", quick=True),
    Way(LOOP, loop, "gram", "zarr", quick=True),
    Way(PRODUCT, dask_product, "gram", "dask", quick=True),
    Way("Dask X.T @ X, BLAS at one thread", dask_product_one_thread, "gram", "dask"),
    Way("cubed tensordot", cubed_product, "gram", "cubed"),
    Way("scanpy covariance", scanpy_covariance, "covariance", "scanpy"),
    Way("scikit-learn-intelex covariance", onedal_covariance, "covariance", "sklearnex"),
    Way(COVARIANCE, dask_covariance, "covariance", "dask"),
    Way(PCA, dask_ml_pca, "variances", "dask_ml"),
    Way(INCREMENTAL, incremental_pca, "variances", "sklearn"),
)


def missing() -> list[dict[str, str]]:
    """Return the contenders that are left out, with reasons."""
    return [{"contender": w.name, "reason": f"{w.needs} is not installed"} for w in WAYS if not find_spec(w.needs)]


def run(
    shapes: dict[str, tuple[int, int]], rounds: int, quick: bool, lock: Path | None, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each dtype that is wanted, and the figures of all contenders, or why one has none."""
    ways = [way for way in WAYS if find_spec(way.needs) and (way.quick or not quick)]
    for dtype, (rows, columns) in shapes.items():
        if wanted(dtype):
            with tempfile.TemporaryDirectory(prefix="rgcss-benchmark-") as folder:
                path, small = Path(folder) / "rows.zarr", Path(folder) / "small.zarr"
                make_archive(small, 2 * CHUNK, columns, dtype)
                make_archive(path, rows, columns, dtype)
                np.save(Path(folder) / "gram.npy", loop(str(path)))  # also brings the archive into the page cache
                print(f"{dtype}, {rows:,} x {columns}", flush=True)
                found, failed = in_turns(ways, path, small, rounds, lock)
            about = {"dtype": dtype, "rows": rows, "columns": columns}
            yield (
                dtype,
                [
                    *(about | {"contender": name} | figures for name, figures in found.items()),
                    *({"contender": name, "dtype": dtype, "reason": reason} for name, reason in failed.items()),
                ],
            )


def make_archive(path: Path, rows: int, columns: int, dtype: str) -> None:
    """Write rows that are mostly empty, as pictures of digits are; with fractions when they are not integers."""
    rng = np.random.default_rng(0)
    array = zarr.create_array(path, shape=(rows, columns), chunks=(CHUNK, columns), dtype=dtype)
    for start in range(0, rows, CHUNK):
        block = rng.integers(0, 256, (min(CHUNK, rows - start), columns), dtype=np.uint8)
        block[rng.random(block.shape) < 0.7] = 0
        array[start : start + CHUNK] = block if dtype == "uint8" else block + rng.random(block.shape)


Figures = dict[str, dict[str, Any]]


def in_turns(
    ways: list[Way], path: Path, small: Path, rounds: int, lock: Path | None
) -> tuple[Figures, dict[str, str]]:
    """Return the figures of every way, a list each with one entry a round, and the reasons of those that failed."""
    found: Figures = {}
    failed: dict[str, str] = {}
    for turn in range(rounds):
        with alone(lock):
            for way in ways:
                figures = found.setdefault(way.name, {"seconds": [], "peak_mb": [], "above_mb": [], "error": []})
                enough = turn >= SLOW_TURNS and figures["seconds"] and figures["seconds"][0] > SLOW
                if way.name in failed or enough:
                    continue
                try:
                    measured = in_child(way, path, small)
                except RuntimeError as error:
                    failed[way.name] = str(error)
                    continue
                for key, value in measured.items():
                    figures[key].append(value)
                print(f"  {way.name:36s} {measured['seconds']:8.2f} s {measured['peak_mb']:8,.0f} MB", flush=True)
    return {name: figures for name, figures in found.items() if name not in failed}, failed


def in_child(way: Way, path: Path, small: Path) -> dict[str, float]:
    """Run one way in a process of its own."""
    command = [sys.executable, "-m", __spec__.name, way.name, str(path), str(small)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"exit code {done.returncode}: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(name: str, path: str, small: str) -> None:
    """Warm up, measure, compare with the Gram of the loop, and print the figures as JSON."""
    way = next(way for way in WAYS if way.name == name)
    way.run(small)
    before = reset_peak()
    began = time.perf_counter()
    made = way.run(path)
    taken = time.perf_counter() - began
    peak = memory("VmHWM")
    error = disagreement(way.gives, made, np.load(Path(path).parent / "gram.npy"), zarr.open_array(path, mode="r"))
    print(json.dumps({"seconds": taken, "peak_mb": peak, "above_mb": peak - before, "error": error}))


def reset_peak() -> float:
    """Forget the peak of the warm-up, and return the memory held now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> float:
    """Return a figure of this process in MB; ru_maxrss would begin with that of the parent."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"memory is read from /proc/self/status, and {field} is not in it; run this on Linux.")
    return int(found[1]) * 1024 / 1e6


def disagreement(gives: str, made: Any, G: Array, array: zarr.Array) -> float:
    """Return the largest difference from the loop's Gram, or what follows from it, relative to its largest value."""
    if gives in ("moments", "gram"):
        made, expected = made.gram() if gives == "moments" else made, G
    else:
        m = array.shape[0]
        sums = sum(array[start : start + CHUNK].sum(axis=0, dtype=np.float64) for start in range(0, m, CHUNK))
        expected = (G - np.outer(sums, sums) / m) / (m - 1)
        if gives == "variances":
            expected = np.linalg.eigvalsh(expected)[: -len(made) - 1 : -1]
    return float(np.abs(made - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    child(*sys.argv[1:])

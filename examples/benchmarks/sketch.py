"""What a sketch costs beside reading, and what picks from one and from two readings lose against the exact ones.

    python -m examples.benchmarks.sketch [--data FOLDER] [--only quality|cost] [--seeds 10] [--features 60000x8192]

Losses are exact, of all rows and columns; each is divided by that of the exact greedy picks, without swaps. Columns are
centred. Times are those of the processor, in turns, so that other work on the machine disturbs them little.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import zarr
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.benchmarks.machine import describe
from examples.benchmarks.tables import markdown
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.scanning.request import make_request
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source

KS = (16, 64)
PER_PICK = 10  # rows of the sketch
WAYS = ("one reading", "two readings", "two readings and swaps")
PREPARED: dict[str, Any] = {"center": True, "scale": 1.0}
LEAST = 600  # columns
COST_BYTES = 16 * 10**8  # of rows that are read: some seconds, in which to begin takes little
WIDTHS = (784, 8_192)
GENES, STORED = 33_000, 0.03
TURNS = 3
PAGE = Path(__file__).parent / "SKETCH.md"
QUALITY = "Loss over that of exact greedy picks, in per cent"
COST = "Time of a pass for a sketch, as times that of reading alone"

Rows = NDArray[Any]


def matrices(folder: Path, features: tuple[int, int]) -> Iterator[tuple[str, Rows]]:
    """Yield the real data sets with many columns, training rows where there are such, and random features of MNIST."""
    for file in sorted(folder.glob("*.npz")):
        arrays = np.load(file, allow_pickle=True)
        rows = next((arrays[key] for key in ("train", "X") if key in arrays), np.empty(0))
        if rows.ndim == 2 and rows.shape[1] >= LEAST:
            yield file.stem, rows
    air = folder / "air_temperature.zarr"
    if air.exists():
        packed = zarr.open_group(air, mode="r")["air"][:]
        yield "air temperature", packed.reshape(len(packed), -1).astype("f4") / 100
    if (folder / "mnist.npz").exists() and features[0]:
        yield "ReLU features of MNIST", relu_features(folder, *features)


def relu_features(folder: Path, rows: int, columns: int) -> Rows:
    pixels = np.load(folder / "mnist.npz")["train"][:rows].astype("f4") / 255
    mixing = np.random.default_rng(0).normal(size=(pixels.shape[1], columns)).astype("f4") / 28
    return np.maximum(pixels @ mixing, 0.0)


def quality(folder: Path, seeds: int, features: tuple[int, int]) -> Iterator[list[str]]:
    """Yield for each data set and k the mean loss of the ways, over that of exact greedy picks, in per cent."""
    for name, rows in matrices(folder, features):
        G = rg.scan(rows, progress=False).gram(center=True)
        for k in KS:
            greedy = left_by(G, rg.select(G, k).columns)
            over: dict[str, list[float]] = {}
            for seed in range(seeds):
                for way, columns in picks(rows, k, seed).items():
                    over.setdefault(way, []).append(100 * (left_by(G, columns) / greedy - 1))
            cells = [f"{np.mean(found):+.2f} ({min(found):+.2f} to {max(found):+.2f})" for found in over.values()]
            row = [f"{name}, {len(rows):,} x {rows.shape[1]:,}", str(k), *cells]
            print(row, flush=True)
            yield row


def left_by(G: NDArray[np.float64], S: NDArray[np.intp]) -> float:
    """Return the loss of picked columns with lambda = 1, over the others."""
    W = np.linalg.solve(G[np.ix_(S, S)] + np.eye(len(S)), G[S])
    left = np.diagonal(G) - np.einsum("ij,ij->j", W, 2.0 * G[S] - G[np.ix_(S, S)] @ W)
    return float(np.delete(left, S).sum())


def picks(rows: Rows, k: int, seed: int) -> dict[str, NDArray[np.intp]]:
    """Return the columns picked in one reading, in two, and in two with swaps among the candidates."""
    sketch = rg.scan(rows, sketch=PER_PICK * k, seed=seed, progress=False)
    (one,) = solve(Factor(sketch.factor(True, None)), k, Problem())  # without the estimate of its loss
    two = rg.select_wide(rows, k, refine=False, seed=seed, sketch=PER_PICK * k, progress=False, **PREPARED)
    return dict(zip(WAYS, (picked.columns for picked in (one, two, rg.refine(two))), strict=True))


def cost(folder: Path) -> Iterator[list[str]]:
    """Yield for each kind of rows how long a pass for a sketch takes, as times the reading alone."""
    for dtype in ("uint8", "float32"):
        for n in WIDTHS:
            path = stored(folder / f"{dtype}-{n}.zarr", dtype, n)
            for k in KS:
                yield row_of(f"{dtype}, {n:,} columns", path, k)
    path = folder / "genes.zarr"
    try:
        stored_sparse(path)
    except ImportError:
        return
    for k in KS:
        yield row_of(f"CSR, {STORED:.0%} of {GENES:,} columns", path, k)


def stored(path: Path, dtype: str, n: int) -> Path:
    """Write rows that compress as pictures do: pixels of digits, or numbers with noise."""
    rng, chunk = np.random.default_rng(0), max(1, 2**22 // (n * np.dtype(dtype).itemsize))
    m = COST_BYTES // (n * np.dtype(dtype).itemsize) // chunk * chunk
    array = zarr.create_array(path, shape=(m, n), dtype=dtype, chunks=(chunk, n))
    rows = rng.normal(size=(chunk, n))
    rows = np.clip(rows * 90 - 60, 0, 255).astype("u1") if dtype == "uint8" else rows.astype(dtype)
    for start in range(0, m, chunk):
        array[start : start + chunk] = rows
    return path


def stored_sparse(path: Path) -> None:
    import anndata  # noqa: PLC0415 (an extra)

    m = 1_000
    rows = scipy.sparse.random(m, GENES, STORED, format="csr", dtype="f4", rng=1)
    times = COST_BYTES // int(8 * GENES * STORED * m)
    anndata.AnnData(scipy.sparse.vstack([rows] * times, format="csr")).write_zarr(path)


def row_of(name: str, path: Path, k: int) -> list[str]:
    found: list[float] = []
    ways: tuple[Callable[[], object], ...] = (
        lambda: read_only(path, PER_PICK * k),
        lambda: rg.scan(path, sketch=PER_PICK * k, progress=False),
    )
    for turn in range(TURNS + 1):
        alone, sketched = (seconds(way) for way in ways)
        if turn:  # the first one compiles
            found.append(sketched / alone)
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    row = [name, str(PER_PICK * k), f"{middle:.2f} ({low:.2f} to {high:.2f})"]
    print(row, flush=True)
    return row


def read_only(path: Path, height: int) -> None:
    """Read what a pass for a sketch reads, block by block, and do nothing with it."""
    source = open_source(path)
    plan = make_request(source, Options(sketch=height), weights=None, rows=None, reading=Reading(), memory=None).plan
    for i in plan.spans:
        for start, stop in plan.reads(plan.nodes[i]):
            source.read_block(start, stop)


def seconds(way: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    way()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shape(text: str) -> tuple[int, int]:
    rows, columns = text.split("x")
    return int(rows), int(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the real data sets")
    parser.add_argument("--only", choices=("quality", "cost"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--features", type=shape, default=(60_000, 8_192), help="of MNIST, rows x columns; 0x0: none")
    parser.add_argument("--write", action="store_true", help="write SKETCH.md, or the part that was measured")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = written() if options.write else {}
    if options.only != "cost" and options.data is not None:
        rows = quality(options.data, options.seeds, options.features)
        header = ["", "k", *WAYS]
        about = f"Means of {options.seeds} seeds, and the least and most. A sketch has {PER_PICK} k rows."
        parts[QUALITY] = f"{about} {machine()}\n\n{markdown(header, list(rows))}\n"
    if options.only != "quality":
        with tempfile.TemporaryDirectory() as folder:
            table = markdown(["", "rows of the sketch", "median, and middle half"], list(cost(Path(folder))))
        parts[COST] = f"{machine()}\n\n{table}\n"
    print(f"\n{page(parts)}")
    if options.write:
        PAGE.write_text(page(parts))


def page(parts: dict[str, str]) -> str:
    """Return the page of the parts that were measured."""
    what, _, how = __doc__.strip().split("\n\n")
    text = f"# Sketches\n\n{what}\n\n{how}\n"
    return text + "".join(f"\n## {title}\n\n{parts[title]}" for title in (QUALITY, COST) if title in parts)


def machine() -> str:
    """Say what was measured on."""
    found = describe()
    return f"Measured on {found['cores']} cores, {found['processor']}."


def written() -> dict[str, str]:
    """Return the parts of the page as it was written before."""
    page = PAGE.read_text() if PAGE.exists() else ""
    parts = (part.split("\n\n", 1) for part in page.split("\n## ")[1:])
    return {title: f"{text.strip()}\n" for title, text in parts}


if __name__ == "__main__":
    main()

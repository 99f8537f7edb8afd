"""Out of core: rows from ten thousand to a hundred million through the pass, with time and peak memory for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from examples.paper.datasets import Datasets
from examples.paper.out_of_core_report import draw, report
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.results import Row, Table

__all__ = ["NAME", "report", "run"]

NAME = "out_of_core"
Array = NDArray[np.float64]
SIDE = 28
CHUNK = 10_000  # rows, 7.8 MB
SHIFT = 2  # pixels a digit is moved at most


@dataclass(frozen=True)
class Plan:
    sizes: tuple[int, ...]
    distinct: int  # rows that are made; an archive of more, a multiple of them, repeats their chunks
    repetitions: tuple[int, ...]  # for each size


PLANS = {
    "quick": Plan((10_000, 100_000), 20_000, (1, 1)),
    "full": Plan((10**4, 10**5, 10**6, 10**7, 10**8), 10**6, (3, 3, 3, 1, 1)),
}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per pass; a pass that is there already is not made again."""
    plan, table = PLANS[size], Table(out, NAME)
    todo = [
        (rows, repetition)
        for rows, times in zip(plan.sizes, plan.repetitions, strict=True)
        for repetition in range(times)
        if not table.rows(rows=rows, repetition=repetition)
    ]
    if todo:
        with tempfile.TemporaryDirectory(prefix="rgcss-rows-") as name:
            folder = Path(name)
            made = make(folder / "made.zarr", data, plan.distinct)
            known = grams(folder / "made.zarr", {rows for rows, _ in todo})
            progress.note(f"{NAME}: {len(made):,} chunks made")
            for rows, repetition in progress.track(todo, "passes"):
                found = one_pass(folder / f"{rows}.zarr", made, rows, known[rows])
                table.add([{"rows": rows, "repetition": repetition, "distinct": min(rows, plan.distinct), **found}])
                progress.note(f"{NAME}: {rows:,} rows, pass {repetition}: {found['seconds']:.1f} s")
    draw(out)


def make(path: Path, data: Datasets, rows: int) -> list[Path]:
    """Write an archive of digits like MNIST's, chunk by chunk, and return the files of its chunks."""
    images = np.rint(data.load("MNIST").train * 255).astype(np.uint8).reshape(-1, SIDE, SIDE)
    array = _create(path, rows)
    for start in range(0, rows, CHUNK):
        array[start : start + CHUNK] = digits(images, generator(NAME, start), min(CHUNK, rows - start))
    return [path / "c" / str(i) / "0" for i in range(array.nchunks)]


def digits(images: NDArray[np.uint8], rng: np.random.Generator, rows: int) -> NDArray[np.uint8]:
    """Return digits drawn from the images, each moved by a few pixels and with ink of its own strength."""
    picked = images[rng.integers(len(images), size=rows)]
    moves = rng.integers(-SHIFT, SHIFT + 1, size=(rows, 2))
    out = np.empty_like(picked)
    for dy, dx in np.unique(moves, axis=0):
        mine = (moves == (dy, dx)).all(axis=1)
        out[mine] = np.roll(picked[mine], (dy, dx), axis=(1, 2))
    ink = rng.integers(150, 257, size=(rows, 1, 1), dtype=np.uint16)
    return (out * ink >> 8).astype(np.uint8).reshape(rows, -1)


def _create(path: Path, rows: int) -> zarr.Array:
    return zarr.create_array(
        path,
        shape=(rows, SIDE * SIDE),
        chunks=(CHUNK, SIDE * SIDE),
        dtype=np.uint8,
        compressors=[ZstdCodec(), Crc32cCodec()],
    )


def archive(path: Path, made: list[Path], rows: int) -> None:
    """Make an archive of so many rows whose chunks are those that were made, over and over.

    The files are linked, so that a hundred million rows take the room of a million. Every one of them is opened, read,
    decompressed and checked in the pass, like any other.
    """
    _create(path, rows)
    for i in range(rows // CHUNK):
        target = path / "c" / str(i) / "0"
        target.parent.mkdir(parents=True)
        os.link(made[i % len(made)], target)


def grams(path: Path, sizes: set[int]) -> dict[int, Array]:
    """Return A'A of the archives of these sizes, by plain NumPy: whole numbers below 2^53, so without rounding."""
    array = zarr.open_array(path, mode="r")
    known, G = {}, np.zeros((array.shape[1],) * 2)
    for start in range(0, array.shape[0], CHUNK):
        block = array[start : start + CHUNK].astype(np.float64)
        G += block.T @ block
        if start + CHUNK in sizes:
            known[start + CHUNK] = G.copy()
    return known | {rows: rows // array.shape[0] * G for rows in sizes if rows > array.shape[0]}


def one_pass(path: Path, made: list[Path], rows: int, known: Array) -> Row:
    """Pass over an archive in a process of its own, so that its peak memory is that of this pass."""
    if not path.exists():
        archive(path, made, rows)
    gram = path.with_suffix(".npy")
    command = [sys.executable, "-m", "examples.paper.out_of_core_pass", str(path), str(gram)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"the pass over {rows:,} rows failed:\n{ran.stderr}")
    same = bool(np.array_equal(np.load(gram), known))
    return {**json.loads(ran.stdout), "stored_bytes": _stored(made, rows), "exact": same}


def _stored(made: list[Path], rows: int) -> int:
    """Bytes of the compressed chunks as they are read."""
    sizes = [path.stat().st_size for path in made]
    whole, rest = divmod(rows // CHUNK, len(sizes))
    return whole * sum(sizes) + sum(sizes[:rest])

"""The demo: a tall matrix of handwritten digits, and every step from there to a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.archive.result_file import save_result
from rgcss_dask.conversion.apply_selection import write_reduced
from rgcss_dask.core.words import size
from rgcss_dask.io.matrix_writer import write_matrix
from rgcss_dask.reporting import write_report
from rgcss_dask.runtime.extras import imported
from rgcss_dask.scanning.scan import scan
from rgcss_dask.workflow import Question, answer, provenance_of

Say = Callable[[str], None]

SIDE = 28
BLOCK = 20_000
SIZES = (18, 20, 22)  # pixels a digit is scaled up to
FOLDS, GROUPS = 5, 20


def run_demo(folder: Path, *, rows: int, k: int, say: Say = print) -> dict[str, Any]:
    """Write the matrix, scan it, cross-validate lambda, select, reduce, report; every step can be resumed."""
    began = time.perf_counter()
    imported("matplotlib", extra="report", by="the report at the end of the demo")  # checked before the minute of work
    folder.mkdir(parents=True, exist_ok=True)
    data = _data(folder, rows, say)
    say(f"Reading it once, out of core, with {FOLDS} folds and {GROUPS} groups of rows ...")
    moments_path = folder / f"moments-{rows}.zarr"
    moments = scan(str(data), folds=FOLDS, groups=GROUPS, archive=moments_path)
    say(f"All further steps need only these {size(moments.product.nbytes)} of moments, not the rows.")
    question = Question(k=k, center=True)
    provenance = provenance_of(str(moments_path))
    result = answer(moments, question, provenance, say)
    save_result(result, folder / "result.json")
    reduced = folder / f"picked-{rows}-{k}.zarr"
    if not reduced.exists():
        write_reduced(result.selection, str(data), reduced)
    write_report(result, folder / "report.html", image_shape=(SIDE, SIDE), rows=str(data))
    words = _words(result.sentence, folder, data, moments_path, reduced, time.perf_counter() - began)
    return {"folder": str(folder), "sentence": result.sentence, "report": str(folder / "report.html"), "words": words}


def _data(folder: Path, rows: int, say: Say) -> Path:
    data = folder / f"digits-{rows}.zarr"
    if data.exists():
        say(f"{data} exists already.")
        return data
    say(f"Writing {rows:,} handwritten digits of {SIDE} x {SIDE} pixels ({size(rows * SIDE * SIDE)}) to {data} ...")
    names = [f"pixel {i // SIDE},{i % SIDE}" for i in range(SIDE * SIDE)]
    write_matrix(
        data,
        lambda start: digits(rows, start),
        SIDE * SIDE,
        np.dtype(np.uint8),
        made_from=lambda: {"demo": 1, "rows": rows},
        names=names,
        chunk=BLOCK,
    )
    return data


def digits(rows: int, start: int = 0) -> Iterator[NDArray[np.uint8]]:
    """Yield blocks of digits, shifted, scaled up and noisy; the content of a row does not depend on ``start``."""
    scaled = _scaled()
    for first in range(start - start % BLOCK, rows, BLOCK):
        block = _block(scaled, first, min(BLOCK, rows - first))
        yield block[max(0, start - first) :]


def _scaled() -> list[NDArray[np.float32]]:
    """Return the digits of scikit-learn in each size, with values from 0 to 1."""
    from scipy.ndimage import zoom  # noqa: PLC0415 (half a second that only the demo needs)
    from sklearn.datasets import load_digits  # noqa: PLC0415

    images = load_digits().images.astype(np.float32) / 16
    return [np.clip(zoom(images, (1, s / 8, s / 8), order=1, grid_mode=True, mode="nearest"), 0, 1) for s in SIZES]


def _block(scaled: list[NDArray[np.float32]], seed: int, rows: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    out = np.zeros((rows, SIDE, SIDE), dtype=np.float32)
    which = rng.integers(len(scaled), size=rows)
    for number, images in enumerate(scaled):
        mine = np.flatnonzero(which == number)
        room = SIDE - images.shape[1]
        shift = rng.integers(room + 1, size=(len(mine), 2))
        picked = images[rng.integers(len(images), size=len(mine))]
        for dy, dx in np.unique(shift, axis=0):
            here = np.flatnonzero((shift == (dy, dx)).all(axis=1))
            out[mine[here], dy : dy + images.shape[1], dx : dx + images.shape[2]] = picked[here]
    ink = rng.uniform(160, 235, size=(rows, 1, 1)).astype(np.float32)
    noise = rng.integers(0, 20, size=out.shape, dtype=np.uint8)
    return ((out * ink).astype(np.uint8) + noise).reshape(rows, -1)


def _words(sentence: str, folder: Path, data: Path, moments: Path, reduced: Path, seconds: float) -> str:
    return f"""
{sentence}

Done in {seconds:.0f} seconds. Look at the report: {folder / "report.html"}

  {data!s:40s} the matrix
  {moments!s:40s} its moments, from which columns are picked
  {folder / "result.json"!s:40s} the picks, weights and bounds
  {reduced!s:40s} the picked columns of the matrix

Next, on the same moments (no row is read again):
  rgcss tune {moments} -k 100 --center --one-se -o {folder / "tuned.json"}
  rgcss select {moments} -k 20 --lam 0 --center"""

"""Columns picked by ours and by others at equal k: what they explain, on the rows used and on others, and the time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from examples.benchmarks.contenders import SELECTORS, Selector
from examples.benchmarks.datasets import Case, absent, cases
from examples.benchmarks.measure import alone, in_turns, seconds

Array = NDArray[np.float64]

SLOW = 5.0  # seconds; what takes longer has one turn only
LINE = "  {contender:36s} k = {k:<3d} explained {train:7.3%}, held out {held_out:7.3%}"


def missing(folder: Path | None, quick: bool) -> list[dict[str, str]]:
    """Return the contenders and data sets that are left out, with reasons."""
    absent_here = [] if quick else absent(folder)
    return [
        *({"contender": s.name, "reason": f"{s.needs} is not installed"} for s in SELECTORS if not find_spec(s.needs)),
        *({"data": file, "reason": "not in the folder of data"} for file in absent_here),
    ]


def run(
    folder: Path | None, rounds: int, quick: bool, lock: Path | None, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each data set that is wanted, and the figures of all contenders on it, or why one has none."""
    for case in cases(folder, quick):
        if wanted(case.name):
            print(f"{case.name}, {case.train.shape[0]:,} x {case.train.shape[1]}", flush=True)
            with alone(lock):
                measured = list(measure(case, rounds))
            for found in measured:
                print(LINE.format(**found) if "k" in found else f"  {found}", flush=True)
            yield case.name, measured


def measure(case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of every contender at every k; the times are of the largest, after that first call."""
    found: dict[Selector, list[dict[str, Any]]] = {}
    for selector in SELECTORS:
        if find_spec(selector.needs):
            try:
                found[selector] = explained(selector, case)
            except Exception as error:  # a contender may fail in any way; it is listed with its reason
                yield {"contender": selector.name, "data": case.name, "reason": f"{type(error).__name__}: {error}"}
    largest = max(case.ks)
    ways = {s.name: lambda s=s: seconds(lambda: quietly(s, case.train, largest)) for s in found}
    times = in_turns(ways, rounds, SLOW)
    for selector, rows in found.items():
        for row in rows:
            yield row | ({"seconds": times[selector.name]} if rounds and row["k"] == largest else {})


def explained(selector: Selector, case: Case) -> list[dict[str, Any]]:
    """Return the shares of the squared norm that the picks explain, for each k."""
    A, B = case.train, case.held_out
    about = {"data": case.name, "rows": len(A), "held_out_rows": len(B), "columns": A.shape[1]}
    first = picks(selector, A, max(case.ks)) if selector.nested else None
    found = []
    for k in case.ks:
        sets = [picks(selector, A, k) if first is None else first[:k] for _ in range(selector.draws)]
        shares = np.array([shares_of(A, B, S) for S in sets])
        row = about | {
            "k": k,
            "contender": selector.name,
            "train": shares[:, 0].mean(),
            "held_out": shares[:, 1].mean(),
        }
        found.append(row | ({"held_out_sd": shares[:, 1].std(ddof=1)} if selector.draws > 1 else {}))
    return found


def picks(selector: Selector, A: Array, k: int) -> NDArray[np.intp]:
    """Return the picked columns, which must be k different ones."""
    S = np.asarray(quietly(selector, A, k), dtype=np.intp)
    if len(S) != k or len(np.unique(S)) != k:
        raise ValueError(f"{k} different columns were asked for; got {len(np.unique(S))} in {len(S)}.")
    return S


def quietly(selector: Selector, A: Array, k: int) -> ArrayLike:
    with warnings.catch_warnings():  # of contenders about versions of their own dependencies
        warnings.simplefilter("ignore")
        return selector.pick(A, k)


def shares_of(A: Array, B: Array, S: NDArray[np.intp]) -> tuple[float, float]:
    """Return the shares of A and B that columns S explain; the weights are least squares on A, for all alike."""
    W = np.linalg.lstsq(A[:, S], A, rcond=None)[0]
    return tuple(1.0 - float(np.sum((M - M[:, S] @ W) ** 2) / np.sum(M**2)) for M in (A, B))

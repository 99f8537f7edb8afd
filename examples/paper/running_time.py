"""Running time: RGCSS beside GCSS as rows, columns and picks grow, measured in turns."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import rgcss_dask as rg
from examples.paper.datasets import Datasets
from examples.paper.picking import generator, source_of
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.running_time_report import draw, report

__all__ = ["NAME", "report", "run"]

NAME = "running_time"
LAMS = {"gcss": 0.0, "rgcss": 1.0}
Array = NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Point:
    """One size of the problem, and which of the paper's sweeps it belongs to."""

    sweep: str
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Plan:
    points: tuple[Point, ...]
    repetitions: int


def _points(ms: tuple[int, ...], ns: tuple[int, ...], ks: tuple[int, ...]) -> tuple[Point, ...]:
    return (
        *(Point("m", m, 1000, 128) for m in ms),
        *(Point("n", 1000, n, 1) for n in ns),
        *(Point("k", 1000, 1024, k) for k in ks),
    )


PLANS = {
    "quick": Plan(_points((1_000, 10_000), (100, 1_000), (10, 128)), 3),
    "full": Plan(
        _points(
            (1_000, 3_000, 10_000, 30_000, 100_000),
            (100, 300, 1_000, 2_000, 5_000),
            (10, 32, 64, 128, 256, 512, 768, 1_000, 1_020),
        ),
        5,
    ),
}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per point and repetition; a point that is there already is not measured again."""
    plan, table = PLANS[size], Table(out, NAME)
    _timed(lambda: _select(source_of(np.eye(20, 10)), 5, 1.0))  # compiles what is compiled at the first call
    for point in progress.track(plan.points, "sizes"):
        if not table.rows(sweep=point.sweep, m=point.m, n=point.n, k=point.k):
            table.add(_measured(point, plan.repetitions))
            progress.note(f"{NAME}: {point}")
    draw(out)


def _measured(point: Point, repetitions: int) -> list[Row]:
    """Time all in turns, forwards and backwards, so that a slow moment strikes none more than the others."""
    A = generator(NAME, point).standard_normal((point.m, point.n))
    for lam in LAMS.values():
        _select(source_of(A[:200]), min(point.k, 5), lam)
    G = None if point.m < point.n else A.T @ A
    return [_once(A, G, point, repetition) for repetition in range(repetitions)]


def _once(A: Array, G: Array | None, point: Point, repetition: int) -> Row:
    made, source = _timed(lambda: source_of(A))
    ways = {name: partial(_select, source, point.k, lam) for name, lam in LAMS.items()}
    ways["plain"] = partial(plain_gcss, A if G is None else None, G, point.k)
    order = list(ways)[:: 1 if repetition % 2 else -1]
    with threadpool_limits(1, "blas"):  # as the package's selection has it; else NumPy's would wait for each other
        found = {name: _timed(ways[name]) for name in order}
    row: Row = {"sweep": point.sweep, "m": point.m, "n": point.n, "k": point.k, "repetition": repetition}
    times = {f"{name}_s": found[name][0] for name in ways}
    return row | {"source_s": made, **times, "gcss_picks": found["gcss"][1].k}


def plain_gcss(F: Array | None, G: Array | None, k: int) -> list[int]:
    """Pick by the recurrences of Farahat et al. (2011) in plain NumPy, which is what the paper timed as GCSS.

    ``G`` is the Gram, or None: then G = F'F is multiplied by through F. No care is taken of rounding.
    """
    product = (lambda v: G @ v) if F is None else (lambda v: F.T @ (F @ v))
    diagonal = np.diagonal(G).copy() if F is None else np.einsum("ij,ij->j", F, F)
    n = len(diagonal)
    squares = np.einsum("ij,ij->j", G, G) if F is None else np.einsum("ij,ij->j", F, (F @ F.T) @ F)
    past, picks = np.empty((k, n)), []
    with np.errstate(all="ignore"):  # past the rank there is nothing but rounding, then overflow
        for t in range(k):
            score = np.where(diagonal > n * EPS * diagonal.max(), squares / np.maximum(diagonal, EPS), -np.inf)
            score[picks] = -np.inf
            w = int(np.argmax(score))
            column = (G[w] if F is None else F[:, w] @ F) - past[:t, w] @ past[:t]
            omega = column / np.sqrt(max(column[w], EPS))
            across = product(omega) - (past[:t] @ omega) @ past[:t]
            squares += omega * (-2.0 * across + (omega @ omega) * omega)
            diagonal -= omega * omega
            past[t] = omega
            picks.append(w)
    return picks


def _select(source: Any, k: int, lam: float) -> rg.Selection:
    with warnings.catch_warnings():  # GCSS has nothing to choose by past the rank, and stops
        warnings.filterwarnings("ignore", message="picked .* columns instead of", category=UserWarning)
        return rg.select(source, k, lam=lam)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result

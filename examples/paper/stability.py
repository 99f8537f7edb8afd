"""Stability: how much selections agree when a little noise is added to the same rows, again and again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.paper.datasets import Datasets
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.stability_report import report

__all__ = ["NAME", "report", "run"]

NAME = "stability"
LAMS = (0.0, 1.0, 10.0)
SD = 1e-3


@dataclass(frozen=True)
class Case:
    """A data set, the name the paper gives it, and how many rows and columns."""

    label: str
    data: str
    rows: int
    k: int


# "Since n < 100, we take k = m = n/2": 29 rows, too, for OnlineNews; with 100 rows beside it.
CASES = (
    Case("MNIST", "MNIST", 100, 100),
    Case("YaleB", "YaleB", 100, 100),
    Case("OnlineNews", "OnlineNews", 29, 29),
    Case("OnlineNews, 100 rows", "OnlineNews", 100, 29),
    Case("Isolet", "Isolet", 100, 100),
    Case("ORL", "ORL64", 100, 100),
)


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...]
    samples: int
    batch: int  # all data sets have this many samples before any has more
    perturbations: int


PLANS = {"quick": Plan(CASES[:-1], 2, 2, 4), "full": Plan(CASES, 10, 2, 100)}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per sample of rows and lambda; what is there already is not done again."""
    plan, table = PLANS[size], Table(out, NAME)
    for first in progress.track(range(0, plan.samples, plan.batch), "samples"):
        batch = range(first, min(first + plan.batch, plan.samples))
        for case in progress.track(plan.cases, f"from {first}"):
            done = {row["sample"] for row in table.rows(data=case.label)}
            for sample in progress.track([number for number in batch if number not in done], case.label):
                table.add(list(_measured(data, case, sample, plan.perturbations)))
            progress.note(f"{NAME}: {case.label}, samples {batch.start} to {batch.stop - 1}")


def _measured(data: Datasets, case: Case, sample: int, perturbations: int) -> Iterator[Row]:
    train = data.load(case.data).train
    rng = generator(NAME, case.label, sample)
    rows = train[rng.choice(len(train), case.rows, replace=False)]
    with warnings.catch_warnings():
        # Noise makes the rows independent, but rounding may still end lambda = 0 one column early.
        warnings.filterwarnings("ignore", message="picked .* columns instead of", category=UserWarning)
        found = rg.stability_under_noise(rows, case.k, lam=LAMS, sd=SD, repeats=perturbations, seed=sample)
    for one in found:
        yield {
            "data": case.label,
            "columns": train.shape[1],
            "rows": case.rows,
            "k": case.k,
            "sample": sample,
            "perturbations": perturbations,
            "lam": one.lam,
            "jaccard": one.jaccard,
            "expected": one.expected,
            "shared_start": shared_start(one.picks),
        }


def shared_start(picks: Sequence[NDArray[np.intp]]) -> float:
    """Return how many picks two selections have in common before they first differ, mean over all pairs."""
    k = min(map(len, picks))
    P = np.array([columns[:k] for columns in picks])
    lengths = [np.argmax(np.append(one != other, True)) for i, one in enumerate(P) for other in P[i + 1 :]]
    return float(np.mean(lengths))

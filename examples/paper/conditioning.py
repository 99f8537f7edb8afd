"""Conditioning: condition numbers of the picked columns, on the rows they were picked from and on test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.paper import printed
from examples.paper.conditioning_report import report
from examples.paper.datasets import WITH_DIGIT, Datasets
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.sampling import Sampler
from examples.paper.textbook import textbook_gcss
from rgcss_dask.core import evaluate

__all__ = ["NAME", "report", "run"]

NAME = "conditioning"
KS = (16, 32)
BATCH = 10  # samplings written at a time
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A data set under a label; ``of`` rows instead of all training rows are what shares are taken of."""

    label: str
    data: str
    of: int | None = None


CASES = (
    Case("ORL", "ORL"),
    Case("YaleB", "YaleB"),
    Case("OnlineNews", "OnlineNews"),
    Case("OnlineNews, scaled on train", "OnlineNews, scaled on train"),
    Case("Isolet", "Isolet"),
    Case("Isolet, of 5200 rows", "Isolet", printed.DATASETS["Isolet"][1]),
    Case("MNIST", "MNIST"),
    Case(WITH_DIGIT, WITH_DIGIT),
)


@dataclass(frozen=True)
class Plan:
    shares: tuple[float, ...]
    repetitions: int


PLANS = {"quick": Plan((0.01, 0.04), 3), "full": Plan((0.01, 0.04, 0.16), 50)}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per sample; what is there already is not done again."""
    plan, table = PLANS[size], Table(out, NAME)
    for case in progress.track(CASES, "data sets"):
        with Sampler(data, case.data) as sampler:
            for share in progress.track(plan.shares, case.label):
                done = {row["repetition"] for row in table.rows(data=case.label, share=share)}
                missing = [number for number in range(plan.repetitions) if number not in done]
                for some in progress.track(
                    [missing[i : i + BATCH] for i in range(0, len(missing), BATCH)], f"{share:.0%}"
                ):
                    table.add(list(_measured(case, sampler, share, some)))
                progress.note(f"{NAME}: {case.label}, {share:.0%} of the rows")


def _measured(case: Case, sampler: Sampler, share: float, repetitions: Sequence[int]) -> Iterator[Row]:
    # Different columns are never worse conditioned than all columns together: their singular values interlace.
    everything = on_test(sampler.test_gram, np.arange(sampler.data.n))
    for repetition in repetitions:
        rng = generator(NAME, case.label, share, repetition)
        sample = sampler.draw(share, rng, of=case.of)
        zero, one = sample.pick(max(KS), (0.0, 1.0), rng)
        found: dict[str, Any] = {"rank": zero.chosen, "test_all": everything}
        found |= {f"largest_{k}": largest(sample.rows[:, zero.columns[:k]]) for k in KS}
        picked = {"gcss": zero.columns, "textbook": textbook_gcss(sample.rows, max(KS)), "rgcss": one.columns}
        for way, columns in picked.items():
            for k in KS:
                found[f"{way}_{k}"] = condition(sample.rows[:, columns[:k]])
                found[f"{way}_test_{k}"] = on_test(sampler.test_gram, columns[:k])
        yield {"data": case.label, "share": share, "rows": sample.m, "repetition": repetition, **found}


def condition(C: Array) -> float:
    """Return the largest over the smallest of the min(m, k) singular values."""
    values = np.linalg.svd(C, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def largest(C: Array) -> float:
    """Return the largest singular value, divided by the root of the number of rows."""
    return float(np.linalg.norm(C, 2) / len(C) ** 0.5)


def on_test(B: Array, columns: NDArray[np.intp]) -> float:
    """Return the condition number on rows with Gram B; infinite when columns are dependent to rounding."""
    found = evaluate.condition(B, columns)
    return found.value if found.resolved else float("inf")

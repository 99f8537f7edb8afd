"""Generalisation: how much better unseen rows are approximated from RGCSS's columns than from GCSS's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.paper.datasets import Datasets
from examples.paper.generalisation_report import report
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.sampling import Sample, Sampler
from rgcss_dask.core import evaluate

__all__ = ["NAME", "report", "run"]

NAME = "generalisation"
LAM = 1.0
WAYS = ("gcss", "filled", "rgcss")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    names: tuple[str, ...]
    shares: tuple[float, ...]
    ks: tuple[int, ...]
    repetitions: int
    batch: int  # all data sets have this many repetitions before any has more


_SETS = ("OnlineNews", "ORL", "YaleB", "Isolet", "MNIST", "COIL20")
PLANS = {
    "quick": Plan(_SETS, (0.01, 0.16), (16, 32, 64), 2, 2),
    "full": Plan(_SETS, (0.01, 0.02, 0.04, 0.08, 0.16), (16, 32, 64, 128, 256, 512), 50, 5),
}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per sample, with the losses for every k; what is there already is not done again."""
    plan, table = PLANS[size], Table(out, NAME)
    for first in progress.track(range(0, plan.repetitions, plan.batch), "repetitions"):
        batch = range(first, min(first + plan.batch, plan.repetitions))
        for name in progress.track(plan.names, f"from {first}"):
            done = {(row["share"], row["repetition"]) for row in table.rows(data=name)}
            missing = {share: [r for r in batch if (share, r) not in done] for share in plan.shares}
            if any(missing.values()):
                with Sampler(data, name) as sampler:
                    for share in progress.track(plan.shares, name):
                        for repetition in progress.track(missing[share], f"{share:.0%}"):
                            table.add([_measured(sampler, share, repetition, plan.ks)])
                progress.note(f"{NAME}: {name}, repetitions {batch.start} to {batch.stop - 1}")


def _measured(sampler: Sampler, share: float, repetition: int, ks: tuple[int, ...]) -> Row:
    name = sampler.data.name
    rng = generator(NAME, name, share, repetition)
    sample = sampler.draw(share, rng)
    found = losses(sample, sampler.test_gram, ks, rng)
    return {"data": name, "share": share, "rows": sample.m, "repetition": repetition, **found}


def losses(sample: Sample, B: Array, ks: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
    """Return the paper's L(S) on test rows with Gram B, as shares of their squared norm, for each k and way to select.

    One run to the largest k has every smaller one as its beginning, and one call evaluates them all. "gcss" stays
    with the columns that span the sample, "filled" goes on with random ones; "rank" is how many the former are.
    """
    zero, one = sample.pick(max(ks), (0.0, LAM), rng)
    start = float(np.trace(B))
    filled, ridge = (evaluate.prefix_losses(sample.gram, picks.columns, LAM, B, "all") / start for picks in (zero, one))
    found: dict[str, Any] = {"rank": zero.chosen}
    for k in ks:
        if k > sample.n:
            found |= {f"{way}_{k}": float("nan") for way in WAYS}
            continue
        at = k - 1
        found |= {f"gcss_{k}": float(filled[min(at, zero.chosen - 1)])}
        found |= {f"filled_{k}": float(filled[at]), f"rgcss_{k}": float(ridge[at])}
    return found

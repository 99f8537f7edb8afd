"""Reconstruction: unseen faces rebuilt from a few of their pixels, with weights learnt on few faces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.paper.clustering import repeated
from examples.paper.datasets import Datasets
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.reconstruction_report import draw_errors, draw_panels, report
from examples.paper.results import Row, Table
from examples.paper.sampling import Sample, Sampler

__all__ = ["NAME", "report", "run"]

NAME = "reconstruction"
LAM = 1.0
Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Plan:
    data: str
    shares: tuple[float, ...]
    ks: tuple[int, ...]
    repetitions: int
    shown: float  # the share whose first sample is drawn


# "A small portion" says the paper, and not how much. With all 300 rows the rank lies between its values of k.
PLANS = {
    "quick": Plan("ORL64", (0.04, 0.16), (128, 256), 1, 0.16),
    "full": Plan("ORL64", (0.04, 0.16, 1.0), (128, 256, 512, 1024, 2048), 3, 0.16),
}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write the mean error for each share, sample, k and way to pick, and draw the figures."""
    plan, table, panels = PLANS[size], Table(out, NAME), Table(out, f"{NAME}_panels")
    with Sampler(data, plan.data) as sampler:
        for repetition in progress.track(range(plan.repetitions), "repetitions"):
            for share in plan.shares:
                if share == 1.0 and repetition:  # there is only one sample of all rows
                    continue
                if not table.rows(share=share, repetition=repetition):
                    table.add(list(_measured(sampler, share, repetition, plan)))
                    progress.note(f"{NAME}: {share:.0%} of the rows, sample {repetition}")
        if not panels.rows():
            panels.add(_panels(sampler, plan, out))
    draw_errors(out)


def _measured(sampler: Sampler, share: float, repetition: int, plan: Plan) -> Iterator[Row]:
    sample, ways, rank = picked(sampler, share, repetition, max(plan.ks))
    for k in plan.ks:
        errors = {way: float(_errors(sample.rows, sampler.data.test, columns[:k]).mean()) for way, columns in ways}
        stays = float(_errors(sample.rows, sampler.data.test, ways[0][1][: min(k, rank)]).mean())
        yield {"share": share, "rows": sample.m, "repetition": repetition, "k": k, "rank": rank, "gcss": stays} | errors


def picked(sampler: Sampler, share: float, repetition: int, k: int) -> tuple[Sample, list[tuple[str, Index]], int]:
    """Return a sample, the columns of each way to pick, and the rank of the sample.

    "filled" and "again" are GCSS which, once the rank is used up, goes on with random columns, or with the first one
    over and over.
    """
    rng = generator(NAME, share, repetition)
    sample = sampler.draw(share, rng)
    zero, one = sample.pick(k, (0.0, LAM), rng)
    again = repeated(zero.columns, zero.chosen, k)
    return sample, [("filled", zero.columns), ("again", again), ("rgcss", one.columns)], zero.chosen


def rebuilt(A: Array, B: Array, columns: Index) -> Array:
    """Return B_S (C'C + lambda I)^-1 C'A for C = A_S: the paper's reconstruction of the rows of B.

    (C'C + lambda I)^-1 C' equals C' (CC' + lambda I)^-1, which is the smaller system when columns outnumber rows.
    """
    C = A[:, columns]
    return B[:, columns] @ (C.T @ np.linalg.solve(C @ C.T + LAM * np.eye(len(C)), A))


def _errors(A: Array, B: Array, columns: Index) -> Array:
    """Return the error of each row of B: root mean square over its pixels, in grey levels from 0 to 1."""
    return np.sqrt(((B - rebuilt(A, B, columns)) ** 2).mean(axis=1))


def _panels(sampler: Sampler, plan: Plan, out: Path) -> list[Row]:
    """Choose the faces as the paper does, those nearest to the average error, and draw them."""
    sample, ways, _ = picked(sampler, plan.shown, 0, max(plan.ks))
    columns, test = dict(ways), sampler.data.test
    rules = [("rgcss", max(plan.ks)), ("again", max(plan.ks)), ("again", min(plan.ks)), ("rgcss", min(plan.ks))]
    rows: list[Row] = []
    for way, k in rules:
        errors = _errors(sample.rows, test, columns[way][:k])
        face = int(np.argmin(np.abs(errors - errors.mean())))
        known = {"share": plan.shown, "rows": sample.m, "test_row": face}
        rows.append({"way": way, "k": k, **known, "error": float(errors[face]), "mean": float(errors.mean())})
    faces = list(dict.fromkeys(int(row["test_row"]) for row in rows))
    pictures = {
        (face, way, k): rebuilt(sample.rows, test[face : face + 1], columns[way][:k])[0]
        for face in faces
        for way in ("rgcss", "again")
        for k in plan.ks
    }
    draw_panels(out, faces, plan.ks, pictures, test, sampler.data.side or 0)
    return rows

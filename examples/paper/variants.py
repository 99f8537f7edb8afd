"""Variants: clustering and stability with one choice made otherwise, to find why figures are not the printed ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.paper import stability
from examples.paper.clustering import TRIES, measured, quality
from examples.paper.datasets import WITH_DIGIT, Datasets
from examples.paper.picking import generator
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.sampling import GREY_LEVELS, Sampler
from examples.paper.variants_report import AS_ABOVE, CHANCE, CLUSTERING, DIGIT, EACH_ROW, STABILITY, report

__all__ = ["NAME", "report", "run"]

NAME = "variants"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Clustering:
    """One choice changed; ``of`` is what shares of rows refer to, when not to the training rows."""

    data: str  # as the paper names it
    label: str
    source: str
    clusters: int
    lam: float = 1.0
    each_row: bool = False  # lambda is so much for each row of the sample
    of: int | None = None
    tries: int = TRIES


# Dividing rows by 255 once more, or not at all, is the same as another lambda; k-means does not mind the scale.
CLUSTERINGS = (
    Clustering("ORL", AS_ABOVE, "ORL", 40),
    Clustering("ORL", "64 x 64 pixels", "ORL64", 40),
    Clustering("ORL", "shares of all 400 rows", "ORL", 40, of=400),
    Clustering("ORL", "pictures of all 40 people in the test rows", "ORL, picture by picture", 40),
    Clustering("ORL", "10 clusters", "ORL", 10),
    Clustering("ORL", "30 clusters", "ORL", 30),
    Clustering("ORL", "grey levels from 0 to 255", "ORL", 40, lam=GREY_LEVELS**-2),
    Clustering("ORL", "one start of k-means", "ORL", 40, tries=1),
    Clustering("COIL20", AS_ABOVE, "COIL20", 20),
    Clustering("COIL20", "32 x 32 pixels", "COIL20, 32 x 32", 20),
    Clustering("COIL20", "shares of all 1440 rows", "COIL20", 20, of=1440),
    Clustering("COIL20", "half a turn for training, half for testing", "COIL20, half a turn", 20),
    Clustering("COIL20", "rows of unit length", "COIL20, unit rows", 20),
    Clustering("COIL20", "grey levels from 0 to 255", "COIL20", 20, lam=GREY_LEVELS**-2),
    Clustering("COIL20", "divided by 255 twice", "COIL20", 20, lam=GREY_LEVELS**2),
    Clustering("COIL20", "40 clusters", "COIL20", 40),
    Clustering("COIL20", "one start of k-means", "COIL20", 20, tries=1),
    Clustering("COIL20", f"lambda = 1 {EACH_ROW}", "COIL20", 20, each_row=True),
    Clustering("COIL20", f"lambda = 3 {EACH_ROW}", "COIL20", 20, lam=3.0, each_row=True),
    Clustering("COIL20", f"lambda = 10 {EACH_ROW}", "COIL20", 20, lam=10.0, each_row=True),
)


@dataclass(frozen=True)
class Noise:
    """MNIST with one choice changed."""

    label: str
    sd: float = stability.SD
    scale: float = 1.0
    objective: Literal["unselected", "all"] = "unselected"
    varying: bool = False  # leave out pixels that are constant in the sample
    source: str = "MNIST"


NOISES = (
    Noise(AS_ABOVE),
    Noise(DIGIT, source=WITH_DIGIT),
    Noise("grey levels from 0 to 255", scale=GREY_LEVELS),
    Noise("noise of 0.001 grey levels", sd=stability.SD / GREY_LEVELS),
    Noise("noise of 0.01", sd=0.01),
    Noise("the error of chosen columns counts", objective="all"),
    Noise("only pixels that vary", varying=True),
)
NOISY_ROWS = NOISY_K = 100
CHANCE_KS = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Plan:
    clusterings: tuple[Clustering, ...]
    shares: tuple[float, ...]
    ks: tuple[int, ...]
    repetitions: int
    noises: tuple[Noise, ...]
    samples: int  # for every noise
    more: int  # for the first two only: how often a sample is as far off as the printed figures
    perturbations: int
    chance: int  # repetitions with columns drawn at random


PLANS = {
    "quick": Plan(CLUSTERINGS[:2], (0.04,), (16, 64), 1, NOISES[:2], 2, 3, 3, 2),
    "full": Plan(CLUSTERINGS, (0.01, 0.02, 0.04, 0.08, 0.16), (16, 64, 256), 4, NOISES, 60, 200, 10, 20),
}


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write a row per sample, repetition by repetition; what is there already is not done again."""
    plan = PLANS[size]
    _noises(data, plan, Table(out, STABILITY), progress)
    _clusterings(data, plan, Table(out, CLUSTERING), progress)
    _chances(data, plan, Table(out, CHANCE), progress)


def _clusterings(data: Datasets, plan: Plan, table: Table, progress: Progress) -> None:
    for repetition in progress.track(range(plan.repetitions), "clusterings"):
        for variant in progress.track(plan.clusterings, f"repetition {repetition}"):
            labels = {"data": variant.data, "variant": variant.label, "repetition": repetition}
            done = {row["share"] for row in table.rows(**labels)}
            for share in progress.track([share for share in plan.shares if share not in done], variant.label):
                found = _clustered(data, variant, share, plan.ks, repetition)
                table.add([{**labels, "share": share, **row} for row in found])
        progress.note(f"{NAME}: clusterings, repetition {repetition}")


def _clustered(
    data: Datasets, variant: Clustering, share: float, ks: tuple[int, ...], repetition: int
) -> Iterator[Row]:
    rng = generator(NAME, variant.data, share, repetition)  # the same for all variants, to compare them in pairs
    with Sampler(data, variant.source) as sampler:
        test, labels = sampler.data.test, sampler.data.test_labels
        whole = quality(test, labels, variant.clusters, rng, tries=variant.tries)
        sample = sampler.draw(share, rng, of=variant.of)
        lam = variant.lam * (sample.m if variant.each_row else 1)
        found = measured(sampler, sample, variant.clusters, ks, rng, lam=lam, tries=variant.tries)
        yield from ({**row, "all": whole} for row in found)


def _chances(data: Datasets, plan: Plan, table: Table, progress: Progress) -> None:
    """Cluster by columns drawn at random: what a selection that tells nothing would give."""
    name, clusters = "COIL20", 20
    for repetition in progress.track(range(plan.chance), "columns at random"):
        if table.rows(repetition=repetition):
            continue
        rng, loaded = generator(NAME, "chance", repetition), data.load(name)
        test, labels = loaded.test, loaded.test_labels
        whole = quality(test, labels, clusters, rng)
        drawn = rng.permutation(test.shape[1])
        found = {k: quality(test[:, drawn[:k]], labels, clusters, rng) for k in CHANCE_KS}
        table.add([{"repetition": repetition, "k": k, "nmi": nmi, "all": whole} for k, nmi in found.items()])
    progress.note(f"{NAME}: columns at random, {plan.chance} repetitions")


def _noises(data: Datasets, plan: Plan, table: Table, progress: Progress) -> None:
    done = {(row["variant"], row["sample"]) for row in table.rows()}
    for sample in progress.track(range(plan.more), "stability"):
        for variant in plan.noises if sample < plan.samples else plan.noises[:2]:
            if (variant.label, sample) not in done:
                found = _perturbed(data, variant, sample, plan.perturbations)
                table.add([{"variant": variant.label, "sample": sample, **row} for row in found])
    progress.note(f"{NAME}: stability, {plan.more} samples")


def _perturbed(data: Datasets, variant: Noise, sample: int, perturbations: int) -> Iterator[Row]:
    train = data.load(variant.source).train
    rng = generator(NAME, "MNIST", sample)
    A: Array = variant.scale * train[rng.choice(len(train), NOISY_ROWS, replace=False)]
    if variant.varying:
        A = A[:, np.ptp(A, axis=0) > 0]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="picked .* columns instead of", category=UserWarning)
        found = rg.stability_under_noise(
            A,
            NOISY_K,
            lam=stability.LAMS,
            sd=variant.sd,
            repeats=perturbations,
            seed=sample,
            objective=variant.objective,
        )
    for one in found:
        yield {"perturbations": perturbations, "lam": one.lam, "jaccard": one.jaccard}

"""Clustering: how well k-means finds the classes of the test rows when it sees the picked columns only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask_ml.cluster import KMeans as DaskKMeans
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score
from threadpoolctl import threadpool_limits

from examples.paper.clustering_report import report
from examples.paper.datasets import DataSet, Datasets
from examples.paper.picking import generator
from examples.paper.printed import CLUSTERING
from examples.paper.progress import Progress
from examples.paper.results import Row, Table
from examples.paper.sampling import GREY_LEVELS, Sample, Sampler

__all__ = ["NAME", "report", "run"]

NAME = "clustering"
LAM = 1.0
TRIES = 10  # k-means from so many starts; the one with the best objective counts, as in the paper
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A data set and the number of clusters asked for."""

    data: str
    clusters: int


@dataclass(frozen=True)
class Plan:
    cases: tuple[Case, ...]
    shares: tuple[float, ...]
    ks: tuple[int, ...]
    repetitions: int
    large: int  # repetitions of MNIST, by dask-ml
    large_rows: int


# The test rows of ORL show 10 of its 40 people. The paper does not say for how many clusters it asked.
_CASES = (Case("ORL", 40), Case("ORL", 10), Case("COIL20", 20), Case("Isolet", 26))
PLANS = {
    "quick": Plan((Case("ORL", 40),), (0.01, 0.16), (16, 64, 128), 2, 1, 1_000),
    "full": Plan(_CASES, (0.01, 0.02, 0.04, 0.08, 0.16), (16, 32, 64, 128, 256, 512), 50, 5, 10_000),
}
LARGE_SHARE, LARGE_K = 0.01, 64


def run(data: Datasets, size: str, out: Path, progress: Progress) -> None:
    """Write one row per sample and k, repetition by repetition; what is there already is not done again."""
    plan = PLANS[size]
    table, whole, large = (Table(out, name) for name in (NAME, f"{NAME}_all_columns", f"{NAME}_large"))
    for repetition in progress.track(range(plan.repetitions), "repetitions"):
        for case in plan.cases:
            labels = {"data": case.data, "clusters": case.clusters, "repetition": repetition}
            done = {row["share"] for row in table.rows(**labels)}
            for share in progress.track([s for s in plan.shares if s not in done], case.data):
                with Sampler(data, case.data) as sampler:
                    rng = generator(NAME, case.data, share, repetition)
                    rows = measured(sampler, sampler.draw(share, rng), case.clusters, _printed(case, plan.ks), rng)
                    table.add([{**labels, "share": share, **row} for row in rows])
            if not whole.rows(**labels):
                loaded, rng = data.load(case.data), generator(NAME, "all", case, repetition)
                whole.add([{**labels, "nmi": quality(loaded.test, loaded.test_labels, case.clusters, rng)}])
        progress.note(f"{NAME}: repetition {repetition}")
        if repetition < plan.large and not large.rows(repetition=repetition):
            large.add(_large(data, plan, repetition))


def _printed(case: Case, ks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(k for k in ks if k in CLUSTERING[case.data])


def measured(
    sampler: Sampler,
    sample: Sample,
    clusters: int,
    ks: tuple[int, ...],
    rng: np.random.Generator,
    *,
    lam: float = LAM,
    tries: int = TRIES,
) -> Iterator[Row]:
    """Yield, for each k, how well the test rows are clustered by the columns that each way picks on the sample."""
    zero, one = sample.pick(max(ks), (0.0, lam), rng)
    for k in ks:
        ways = {"gcss": zero.columns[:k], "again": repeated(zero.columns, zero.chosen, k)}
        found = _qualities(sampler.data, clusters, ways | {"rgcss": one.columns[:k]}, rng, tries)
        yield {"rows": sample.m, "k": k, "rank": zero.chosen, **found}


def repeated(columns: NDArray[np.intp], rank: int, k: int) -> NDArray[np.intp]:
    """Return k columns which, once the rank is used up, are the first column again and again.

    Without a guard the score of every column is then 0/0, and `argmax` gives the first.
    """
    return np.concatenate([columns[: min(k, rank)], np.zeros(max(0, k - rank), np.intp)])


def _qualities(
    data: DataSet, clusters: int, ways: dict[str, NDArray[np.intp]], rng: np.random.Generator, tries: int
) -> dict[str, float]:
    """Measure each way to pick; equal columns are clustered once."""
    known: dict[tuple[int, ...], float] = {}
    for columns in ways.values():
        key = tuple(columns.tolist())
        if key not in known:
            known[key] = quality(data.test[:, columns], data.test_labels, clusters, rng, tries=tries)
    return {way: known[tuple(columns.tolist())] for way, columns in ways.items()}


def quality(rows: Array, labels: Any, clusters: int, rng: np.random.Generator, *, tries: int = TRIES) -> float:
    """Return the normalised mutual information of the labels and the clusters that k-means finds."""
    seed = int(rng.integers(2**31))
    with threadpool_limits(1):  # small matrices: threads would only wait for each other
        found = KMeans(clusters, init="k-means++", n_init=tries, random_state=seed).fit_predict(rows)
    return nmi(labels, found)


def nmi(labels: Any, found: Any) -> float:
    """Mutual information over the geometric mean of the entropies, as printed."""
    return float(normalized_mutual_info_score(labels, found, average_method="geometric"))


def _large(data: Datasets, plan: Plan, repetition: int) -> list[Row]:
    """MNIST: the pass and k-means both out of Zarr, on Dask."""
    rng = generator(NAME, "MNIST", repetition)
    with Sampler(data, "MNIST") as sampler, tempfile.TemporaryDirectory() as folder:
        sample = sampler.draw(LARGE_SHARE, rng)
        zero, one = sample.pick(LARGE_K, (0.0, LAM), rng)
        rows = da.from_zarr(data.mnist_archives(Path(folder))[1])[: plan.large_rows] / GREY_LEVELS
        ways = {"gcss": zero.columns, "rgcss": one.columns, "all": np.arange(sample.n)}
        labels = sampler.data.test_labels[: plan.large_rows]
        seed = int(rng.integers(2**31))
        found = {way: nmi(labels, _cluster(rows[:, columns], seed)) for way, columns in ways.items()}
        settings = {"share": LARGE_SHARE, "rows": sample.m, "test_rows": len(labels), "k": LARGE_K}
    return [{"repetition": repetition, **settings, **found}]


def _cluster(rows: Any, seed: int) -> NDArray[Any]:
    with dask.config.set(scheduler="threads"):
        kept = rows.rechunk({1: -1}).persist()
        return DaskKMeans(n_clusters=10, init="k-means||", random_state=seed).fit(kept).labels_.compute()

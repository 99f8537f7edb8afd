"""`downstream`: clusters and classes from all columns and from the picked ones, out of core, side by side."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import mutual_info_score

from rgcss_dask.conversion.apply_selection import columns_in
from rgcss_dask.core.accumulate import is_whole
from rgcss_dask.core.downstream import MEASURES, Comparison, Downstream, Work
from rgcss_dask.core.plan import size
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.learning.labels import Labels
from rgcss_dask.learning.rows import FOLDS, Keep, Rows
from rgcss_dask.reporting import result_of
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.memory_limit import default_budget
from rgcss_dask.runtime.peak_memory import memory_now, peak_memory
from rgcss_dask.sources.in_memory import ArraySource
from rgcss_dask.sources.registry import open_source

STARTS = 5  # rounds in which centres to begin with are drawn (k-means||), each a reading of the rows
DRAWN = 2  # centres drawn in each round, for each cluster; both as the authors of k-means|| advise
STEPS = 50  # readings at most in which centres move
STILL = 1e-4  # centres that move less than this, as a share of the mean variance of a column, stand still
EPOCHS = 3  # readings of the rows that a classifier learns from
WARM = 20  # rows of a fold of the little that all is tried with first

Estimate = Callable[[int], float]  # from a seed to a score


def downstream(
    answer: Any,
    data: Any,
    labels: Any,
    *,
    tasks: str | Sequence[str] = ("cluster", "classify"),
    clusters: int | None = None,
    classifier: Any = None,
    repeats: int = 3,
    seed: int = 0,
    nan: str = "raise",
    missing: str = "raise",
    memory: int | float | str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Downstream:
    """Learn clusters and classes from all columns and from the picked ones, to see what the reduction costs.

    With dask-ml, out of core: rows are read block by block, as often as the work needs them, in the threads of this
    process. The picked columns are first written to an archive of their own in the folder for temporary files. Columns
    are centred and scaled as they were when they were picked.

    Clusters are those of `dask_ml.cluster.KMeans` on all rows, and the score is the normalised mutual information (NMI)
    with the labels. Classes are learnt by `dask_ml.wrappers.Incremental` from four fifths of the rows, drawn anew for
    each seed, and the score is the accuracy on the rest. The same data, labels and seed give the same scores, whatever
    the memory; times and memory are those of this machine.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What `select`, `refine`, `cross_validate` or `load_result` returned, or a fitted `RGCSS`.
    data : array-like, data frame, path or list of these
        Rows in anything that `scan` reads, with the columns that were selected from, in any order if they have names.
    labels : array-like or path
        The class of each row: numbers or text in memory, a Zarr array, an ``.npy`` file, or a text file (``.txt``,
        ``.csv``) with one label on each line and no heading.
    tasks : {"cluster", "classify"} or a sequence of them
        What to do.
    clusters : int, optional
        How many clusters to find; by default as many as there are classes.
    classifier : estimator, optional
        Any classifier of scikit-learn that has ``partial_fit``; by default a logistic regression that is learnt by
        stochastic gradients in three readings (``SGDClassifier``).
    repeats : int, default=3
        How often each task is done, for standard errors: with ``seed``, ``seed + 1``, and so on.
    seed : int, default=0
        Of the centres that clusters begin from, of the rows that are held out, and of the order of blocks.
    nan : {"raise", "mean"}, default="raise"
        What becomes of gaps (NaN): an error, or the mean that the column had when columns were picked.
    missing : {"raise", "fill"}, default="raise"
        What becomes of chunks that are not in the store, see `scan`.
    memory : int, float or str, optional
        Bytes, or text such as ``"2 GB"``, that the work may use; fewer threads are used to stay below. By default a
        share of what is free.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Downstream
        The scores, times and peaks of memory, for all columns and for the picked ones.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> digits = load_digits()
    >>> picked = rg.select(digits.data, 16, center=True)
    >>> found = rg.downstream(picked, digits.data, digits.target, tasks="classify")
    >>> bool(found["classify"].lost.mean() < 0.1)
    True
    """
    result = result_of(answer)
    source = open_source(data, missing=missing, storage_options=storage_options)
    columns_in(result.selection, source)  # refuses other columns before labels are read
    names = _checked_tasks(tasks)
    _check(result.k, repeats, seed, nan)
    given = Labels.of(labels, source.shape[0], storage_options=storage_options)
    clusters = _checked_clusters(len(given.classes) if clusters is None else clusters, source.shape[0])
    whole = Rows.all_of(result, source, nan=nan)
    budget = default_budget() if memory is None else parse_memory(memory)
    _threads(whole, clusters, budget)  # or it refuses
    with tempfile.TemporaryDirectory(prefix="rgcss-downstream-") as folder, single_threaded_blas():
        began = time.perf_counter()
        picked = whole.picked(result, Path(folder))
        reduction = time.perf_counter() - began
        _warm_up()
        before, done = memory_now(), dict[tuple[str, bool], Work]()
        for rows in (picked, whole):  # what the larger work leaves in the allocator would hide what the smaller takes
            threads = _threads(rows, clusters, budget)
            with dask.config.set(scheduler="threads", num_workers=threads):
                for name in names:
                    task = _tasks(rows, given, clusters, classifier, threads)[name]
                    done[name, rows is picked] = _worked(task, range(seed, seed + repeats), before)
    comparisons = tuple(Comparison(name, done[name, False], done[name, True]) for name in names)
    sizes = {"rows": source.shape[0], "columns": result.n, "k": result.k}
    sizes |= {"classes": len(given.classes), "clusters": clusters}
    return Downstream(comparisons, **sizes, seed=seed, reduction_seconds=reduction)


def _checked_tasks(tasks: str | Sequence[str]) -> tuple[str, ...]:
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    if not names or len(set(names)) < len(names) or not set(names) <= set(MEASURES):
        raise ValueError(f"tasks must be of {', '.join(MEASURES)}, each once; got {tasks!r}.")
    return names


def _check(k: int, repeats: int, seed: int, nan: str) -> None:
    if k == 0:
        raise ValueError("there must be picked columns to learn from; none was picked.")
    if not is_whole(repeats) or repeats < 1:
        raise ValueError(f"repeats must be 1 or more; got {repeats!r}.")
    if not is_whole(seed) or not 0 <= seed < 2**31:
        raise ValueError(f"seed must be a whole number from 0 to 2**31 - 1; got {seed!r}.")
    if nan not in ("raise", "mean"):
        raise ValueError(f"nan must be 'raise' or 'mean', as rows with labels are not left out; got {nan!r}.")


def _checked_clusters(clusters: int, rows: int) -> int:
    if not is_whole(clusters) or not 2 <= clusters <= rows:
        raise ValueError(f"clusters must be from 2 to the {rows:,} rows; got {clusters!r}.")
    return int(clusters)


def _threads(rows: Rows, clusters: int, budget: int) -> int:
    """Return how many threads fit into the memory; refuse before the work where not one does."""
    points = 1 + STARTS * DRAWN * clusters
    fit = [count for count in range(1, available_cpus() + 1) if rows.memory(count, points) <= budget]
    if not fit:
        raise MemoryError(
            f"the work on {len(rows.columns):,} columns needs {size(rows.memory(1, points))} of memory, for blocks of "
            f"{int(np.diff(rows.edges).max()):,} rows; it may use {size(budget)}. Give more memory, or store the rows "
            "in smaller chunks."
        )
    return fit[-1]


def _tasks(rows: Rows, labels: Labels, clusters: int, classifier: Any, threads: int) -> dict[str, Estimate]:
    classifying = _Classifying(rows, labels, _default() if classifier is None else classifier, threads)
    return {"cluster": partial(_clustered, rows, labels, clusters), "classify": classifying.score}


@functools.cache
def _warm_up() -> None:
    """Import and compile what the tasks need, so that neither counts for whoever is first."""
    source = ArraySource(np.random.default_rng(0).random((4 * FOLDS * WARM, 2), dtype=np.float32))
    rows = Rows(source, np.arange(2), np.zeros(2), np.ones(2), ("0", "1"))
    labels = Labels.of(np.arange(source.shape[0]) % 2, source.shape[0])
    with dask.config.set(scheduler="synchronous"):
        for task in _tasks(rows, labels, 2, None, threads=1).values():
            task(0)


def _worked(task: Estimate, seeds: Sequence[int], before: int) -> Work:
    """Do a task with each seed, and measure it."""
    scores, seconds = [], []
    with peak_memory(before) as peak:
        for seed in seeds:
            began = time.perf_counter()
            scores.append(task(seed))
            seconds.append(time.perf_counter() - began)
    return Work(np.array(scores), np.array(seconds), peak.above)


def _clustered(rows: Rows, labels: Labels, clusters: int, seed: int) -> float:
    """Return the mutual information of clusters and labels."""
    from dask_ml.cluster import KMeans  # noqa: PLC0415 (slow to import, and needed by nothing else)

    X, _ = rows.blocks()
    model = KMeans(
        clusters,
        random_state=seed,
        init_max_iter=STARTS,
        oversampling_factor=DRAWN * clusters,
        max_iter=STEPS,
        tol=STILL / len(rows.columns),  # the norm of rows is one, so this is the mean variance of a column
    ).fit(X)
    found = np.asarray(model.labels_.compute())
    table = np.zeros((len(labels.classes), clusters))
    np.add.at(table, (labels.codes, found), 1.0)
    return normalised_information(table)


def normalised_information(table: NDArray[np.float64]) -> float:
    """Return the mutual information of what is counted in a table over the mean of the two entropies.

    Of a table and not of labels: those of scikit-learn take several arrays as long as all rows.
    """
    entropy = sum(_entropy(table.sum(axis=axis) / table.sum()) for axis in (0, 1)) / 2
    return min(1.0, float(mutual_info_score(None, None, contingency=table)) / entropy) if entropy else 0.0


def _entropy(shares: NDArray[np.float64]) -> float:
    known = shares[shares > 0]
    return float(-(known * np.log(known)).sum())


def _default() -> SGDClassifier:
    """Return a logistic regression whose weights are averaged on the way, for rows of norm one."""
    return SGDClassifier(loss="log_loss", alpha=1e-5, average=True)


@dataclass(frozen=True, eq=False)
class _Classifying:
    """A classifier that learns from most rows, a few blocks at a time, and is asked about the others."""

    rows: Rows
    labels: Labels
    classifier: Any
    threads: int

    def score(self, seed: int) -> float:
        """Return the accuracy on held-out rows."""
        from dask_ml.wrappers import Incremental  # noqa: PLC0415 (see above)

        learner = clone(self.classifier)
        if "random_state" in learner.get_params():
            learner.set_params(random_state=seed)
        model = Incremental(learner, shuffle_blocks=False)
        X, y = self._rows(Keep(held_out=False, seed=seed))
        order = np.random.default_rng(seed)
        for _ in range(EPOCHS):
            # One block after the other is learnt from while others are read: of all at once, all would be read ahead.
            for few in np.array_split(order.permutation(X.numblocks[0]), -(-X.numblocks[0] // self.threads)):
                index = few.tolist()
                model.partial_fit(X.blocks[index], y.blocks[index], classes=np.arange(len(self.labels.classes)))
        held_out, truth = self._rows(Keep(held_out=True, seed=seed))
        return float((model.predict(held_out) == truth).mean().compute())

    def _rows(self, keep: Keep) -> tuple[da.Array, da.Array]:
        X, which = self.rows.blocks(keep)
        return X, da.from_array(self.labels.codes[which], chunks=(X.chunks[0],))  # type: ignore[no-untyped-call]

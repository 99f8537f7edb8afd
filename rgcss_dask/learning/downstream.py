"""`downstream`: clustering and classification on all columns and on the picked columns, out of core, compared."""

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
from rgcss_dask.core.downstream import MEASURES, Comparison, Downstream, Work
from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.words import size
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

STARTS = 5  # rounds of k-means||, which draws the initial centres; each reads the rows once
DRAWN = 2  # centres drawn in each round for each cluster; both numbers as recommended by the authors of k-means||
STEPS = 50  # most iterations that move the centres; each reads the rows once
STILL = 1e-4  # centres have converged if they move less than this share of the mean variance of a column
EPOCHS = 3  # epochs of the classifier; each reads the training rows once
WARM = 20  # rows of each fold in the small data set that warms up all tasks

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
    """Cluster and classify with all columns and with the picked columns, to measure what the reduction costs.

    The work uses dask-ml, out of core: rows are read block by block, as often as the tasks need them, in the threads of
    this process. The picked columns are first written to a temporary archive. Columns are centred and scaled as they
    were for the selection.

    Clusters are found by `dask_ml.cluster.KMeans` on all rows; their score is the normalised mutual information (NMI)
    with the labels. Classifiers are trained by `dask_ml.wrappers.Incremental` on four fifths of the rows, drawn for
    each seed; their score is the accuracy on the rest. The same data, labels and seed give the same scores, whatever
    the memory; times and memory depend on the machine.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What `select`, `refine`, `cross_validate` or `load_result` returned, or a fitted `RGCSS`.
    data : array-like, data frame, path or list of these
        Rows of any kind that `scan` reads, with the columns of the selection, in any order if the columns have names.
    labels : array-like or path
        The class of each row: numbers or text in memory, a Zarr array, an ``.npy`` file, or a text file (``.txt``,
        ``.csv``) with one label on each line and no heading.
    tasks : {"cluster", "classify"} or a sequence of them
        The tasks to run.
    clusters : int, optional
        Number of clusters; by default the number of classes.
    classifier : estimator, optional
        Any scikit-learn classifier with ``partial_fit``; by default a logistic regression fitted by stochastic
        gradients in three epochs (``SGDClassifier``).
    repeats : int, default=3
        Number of repetitions of each task, for standard errors: with ``seed``, ``seed + 1``, and so on.
    seed : int, default=0
        Seed of the initial centres, of the held-out rows, and of the order of blocks.
    nan : {"raise", "mean"}, default="raise"
        Policy for gaps (NaN): raise an error, or fill them with the column means of the selection.
    missing : {"raise", "fill"}, default="raise"
        Policy for chunks that are not in the store, see `scan`.
    memory : int, float or str, optional
        Bytes, or text such as ``"2 GB"``, that the work may use; fewer threads are used to stay within them. By default
        a share of the free memory.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Downstream
        The scores, times and peak memory, for all columns and for the picked columns.

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
    columns_in(result.selection, source)  # refuses other columns before the labels are read
    names = _checked_tasks(tasks)
    _check(result.k, repeats, seed, nan)
    given = Labels.of(labels, source.shape[0], storage_options=storage_options)
    clusters = _checked_clusters(len(given.classes) if clusters is None else clusters, source.shape[0])
    whole = Rows.all_of(result, source, nan=nan)
    budget = default_budget() if memory is None else parse_memory(memory)
    _threads(whole, clusters, budget)  # refuses a budget that is too small
    with tempfile.TemporaryDirectory(prefix="rgcss-downstream-") as folder, single_threaded_blas():
        began = time.perf_counter()
        picked = whole.picked(result, Path(folder))
        reduction = time.perf_counter() - began
        _warm_up()
        before, done = memory_now(), dict[tuple[str, bool], Work]()
        # Smaller first: memory that the allocator keeps from the larger task would hide the peak of the smaller one.
        for rows in (picked, whole):
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
    """Return the number of threads that fit into the memory; refuse the work if not even one fits."""
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
    """Import and compile what the tasks need, so that the first measured task is not slower than the others."""
    source = ArraySource(np.random.default_rng(0).random((4 * FOLDS * WARM, 2), dtype=np.float32))
    rows = Rows(source, np.arange(2), np.zeros(2), np.ones(2), ("0", "1"))
    labels = Labels.of(np.arange(source.shape[0]) % 2, source.shape[0])
    with dask.config.set(scheduler="synchronous"):
        for task in _tasks(rows, labels, 2, None, threads=1).values():
            task(0)


def _worked(task: Estimate, seeds: Sequence[int], before: int) -> Work:
    """Run a task with each seed, and measure its time and memory."""
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
        tol=STILL / len(rows.columns),  # a share of the mean variance of a column: the mean squared norm is 1
    ).fit(X)
    found = np.asarray(model.labels_.compute())
    table = np.zeros((len(labels.classes), clusters))
    np.add.at(table, (labels.codes, found), 1.0)
    return normalised_information(table)


def normalised_information(table: NDArray[np.float64]) -> float:
    """Return the mutual information of a contingency table, divided by the mean of the two entropies.

    It is computed from a table because scikit-learn's functions of labels need several arrays with an entry per row.
    """
    entropy = sum(_entropy(table.sum(axis=axis) / table.sum()) for axis in (0, 1)) / 2
    return min(1.0, float(mutual_info_score(None, None, contingency=table)) / entropy) if entropy else 0.0


def _entropy(shares: NDArray[np.float64]) -> float:
    known = shares[shares > 0]
    return float(-(known * np.log(known)).sum())


def _default() -> SGDClassifier:
    """Return a logistic regression with averaged weights, for rows with a mean squared norm of one."""
    return SGDClassifier(loss="log_loss", alpha=1e-5, average=True)


@dataclass(frozen=True, eq=False)
class _Classifying:
    """A classifier that is trained on most rows, a few blocks at a time, and scored on the held-out rows."""

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
            # Blocks are learnt from one after another while the next are read. With all blocks in one graph, Dask
            # would read all of them ahead.
            for few in np.array_split(order.permutation(X.numblocks[0]), -(-X.numblocks[0] // self.threads)):
                index = few.tolist()
                model.partial_fit(X.blocks[index], y.blocks[index], classes=np.arange(len(self.labels.classes)))
        held_out, truth = self._rows(Keep(held_out=True, seed=seed))
        return float((model.predict(held_out) == truth).mean().compute())

    def _rows(self, keep: Keep) -> tuple[da.Array, da.Array]:
        X, which = self.rows.blocks(keep)
        return X, da.from_array(self.labels.codes[which], chunks=(X.chunks[0],))  # type: ignore[no-untyped-call]

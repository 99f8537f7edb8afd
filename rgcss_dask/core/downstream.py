"""Results of downstream tasks on all columns and on the picked columns: scores, time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.words import counted

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Work:
    """One task on some columns, repeated with different seeds."""

    scores: Array  #: (repeats,)
    seconds: Array  #: (repeats,) wall time
    memory: int  #: peak memory of the process in bytes, above that before the task

    @property
    def score(self) -> float:
        """Mean of the scores."""
        return float(self.scores.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean score; NaN for a single score."""
        return standard_error(self.scores)

    @property
    def words(self) -> str:
        """The mean score and its standard error."""
        return in_words(self.scores)

    def __repr__(self) -> str:
        return f"<Work: {self.words}, {self.seconds.mean():.3g} s, {self.memory / 1e6:,.0f} MB>"


@dataclass(frozen=True, eq=False)
class Comparison:
    """The same task on all columns and on the picked columns, with the same seeds."""

    task: str  #: "cluster" or "classify"
    everything: Work
    picked: Work

    @property
    def measure(self) -> str:
        """Description of the score."""
        return MEASURES[self.task]

    @property
    def lost(self) -> Array:
        """Loss of score with the picked columns, for each seed."""
        return self.everything.scores - self.picked.scores

    @property
    def words(self) -> str:
        """Summarise the loss of score."""
        return f"The picked columns lose {in_words(self.lost)} of the {self.measure}."

    def __repr__(self) -> str:
        return f"<Comparison by {self.measure}: all {self.everything!r}, picked {self.picked!r}>"


MEASURES = {"cluster": "mutual information of clusters and labels (NMI)", "classify": "accuracy on held-out rows"}


@dataclass(frozen=True, eq=False)
class Downstream:
    """Downstream scores, time and memory with all columns and with the picked columns.

    Made by `downstream`.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> digits = load_digits()
    >>> picked = rg.select(digits.data, 16, center=True)
    >>> found = rg.downstream(picked, digits.data, digits.target, tasks="cluster")
    >>> found["cluster"].picked.scores.shape
    (3,)
    """

    comparisons: tuple[Comparison, ...]
    rows: int
    columns: int  #: number of all columns
    k: int  #: number of picked columns
    classes: int
    clusters: int
    seed: int
    reduction_seconds: float  #: time to read the rows once and write the picked columns

    def __getitem__(self, task: str) -> Comparison:
        """Return the comparison of a task."""
        found = {one.task: one for one in self.comparisons}
        if task not in found:
            raise ValueError(f"task must be one of those that were done, {', '.join(found)}; got {task!r}.")
        return found[task]

    @property
    def repeats(self) -> int:
        """Number of repetitions of each task."""
        return len(self.comparisons[0].picked.scores)

    @property
    def said(self) -> dict[str, Any]:
        """The figures, for JSON."""
        plain: dict[str, Any] = {"rows": self.rows, "columns": self.columns, "k": self.k, "classes": self.classes}
        plain |= {"clusters": self.clusters, "seed": self.seed, "reduction_seconds": self.reduction_seconds}
        return {**plain, "tasks": {one.task: _said(one) for one in self.comparisons}}

    @property
    def table(self) -> list[tuple[str, ...]]:
        """Rows of text: measure, columns, score, time and memory."""
        return list(self._lines())

    def _lines(self) -> Iterator[tuple[str, ...]]:
        for one in self.comparisons:
            for name, work in ((f"all {self.columns:,}", one.everything), (f"picked {self.k:,}", one.picked)):
                cells = (work.words, f"{work.seconds.mean():.3g} s", f"{work.memory / 1e6:,.0f} MB")
                yield (one.measure, name, *cells)
            yield one.measure, "lost", in_words(one.lost), "", ""

    def __repr__(self) -> str:
        tasks = ", ".join(one.task for one in self.comparisons)
        return f"<Downstream of {self.k:,} of {counted(self.columns, 'column')}: {tasks}>"

    def __str__(self) -> str:
        seeds = counted(self.repeats, "seed")
        head = f"{counted(self.rows, 'row')} of {self.classes:,} classes, {seeds}: means and standard errors"
        body = [f"  {what}, {name}: {', '.join(part for part in cells if part)}" for what, name, *cells in self.table]
        return "\n".join([head, *body, f"  to take the picked columns: {self.reduction_seconds:.3g} s, once"])


def standard_error(values: Array) -> float:
    """Return the standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def in_words(values: Array) -> str:
    """Write a mean and, for several values, its standard error."""
    error = standard_error(values)
    return f"{values.mean():.3f}" + ("" if np.isnan(error) else f" ± {error:.3f}")


def _said(one: Comparison) -> dict[str, Any]:
    works = (("all", one.everything), ("picked", one.picked))
    return {
        name: {"scores": work.scores.tolist(), "seconds": work.seconds.tolist(), "memory": work.memory}
        for name, work in works
    }

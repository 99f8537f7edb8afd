"""The two objectives of the paper, with everything that differs between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.spectrum import Spectrum, tails

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Bounds:
    """No k columns can have a loss below these, for k = 1, 2, ...: each (k,)."""

    tight: Array
    paper: Array | None  # None if not all eigenvalues are known


@dataclass(frozen=True)
class Objective:
    """The columns over which the squared error is summed, and the consequences."""

    name: str
    picks_count: bool  # whether the error of a picked column counts
    columns: str  # which columns count, in words
    weights: Array | None = field(default=None, compare=False)  # (n,) weight of each column; None: all 1

    def weighted(self, weights: ArrayLike | None) -> Objective:
        """Return the objective with weights for the columns."""
        return self if weights is None else replace(self, weights=np.asarray(weights, dtype=np.float64))

    def counts(self, n: int, picks: ArrayLike = ()) -> Array:
        """Return the weight of the error of each of n columns after these picks, (n,)."""
        counts = np.ones(n) if self.weights is None else self.weights.copy()
        if not self.picks_count:
            counts[np.asarray(picks, dtype=np.intp)] = 0.0
        return counts

    def counts_by_prefix(self, n: int, picks: NDArray[np.intp]) -> Array:
        """Return the weights after 1, 2, ..., k of the picks, (k, n)."""
        return np.array([self.counts(n, picks[: t + 1]) for t in range(len(picks))]).reshape(len(picks), n)

    def leaving(self, counts: Array) -> Array:
        """Return how much of its own error leaves the loss when a column is picked, given the weights."""
        return np.zeros_like(counts) if self.picks_count else counts

    def bounds(self, spectrum: Spectrum, k: int, lam: float) -> Bounds:
        """Bound the loss of any 1, 2, ..., k columns from below; see `evaluate.bounds` and `spectrum.least_left`."""
        found = self._bounds(spectrum, k, lam)
        return found if spectrum.left is None else replace(found, tight=np.maximum(found.tight, spectrum.left[:k]))

    def _bounds(self, spectrum: Spectrum, k: int, lam: float) -> Bounds:
        """Bound by the eigenvalues alone.

        With leading eigenvalues only, their largest possible values are used: the tight bounds of both objectives
        decrease in s, as s lam^2 / (s + lam)^2 - s does.
        """
        s, tail = spectrum.values + spectrum.doubt, spectrum.tails[1 : k + 1]
        shrunk = s * (lam / (s + lam)) ** 2 if lam > 0 else np.zeros_like(s)
        if not spectrum.is_whole:
            kept = np.cumsum(shrunk - s)[:k] + spectrum.total
            return Bounds(np.maximum(kept, 0.0) if self.picks_count and self.weights is None else tail, None)
        if self.picks_count and self.weights is None:
            return Bounds(np.cumsum(shrunk)[:k] + tail, np.full(k, shrunk.sum()))
        # Also with weights on columns, because the paper's bound is at most the tail.
        return Bounds(tail, tails(shrunk)[1 : k + 1])


# Picked columns are known exactly and have no error: the paper's problem of feature selection.
UNSELECTED = Objective("unselected", picks_count=False, columns="the columns that were not picked")
# The paper's first regularised problem.
ALL = Objective("all", picks_count=True, columns="all columns")
OBJECTIVES = {objective.name: objective for objective in (UNSELECTED, ALL)}


def objective_of(given: Objective | str) -> Objective:
    """Return an objective, given itself or its name."""
    return given if isinstance(given, Objective) else objective_named(given)


def objective_named(name: str, what: str = "objective") -> Objective:
    """Return the objective with this name; the error for an unknown name lists all."""
    if name not in OBJECTIVES:
        raise ValueError(f"{what} must be {' or '.join(map(repr, OBJECTIVES))}; got {name!r}.")
    return OBJECTIVES[name]

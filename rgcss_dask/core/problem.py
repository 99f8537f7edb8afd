"""What is asked: what counts in the loss, how strongly it is regularised, what may be picked, of which preparation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.accumulate import is_whole
from rgcss_dask.core.evaluate import checked_lambda
from rgcss_dask.core.moments import Moments, column_indices, takes_means
from rgcss_dask.core.objective import Objective, objective_named
from rgcss_dask.core.stop import Stop

Array = NDArray[np.float64]
Columns = Sequence[int] | Sequence[str] | NDArray[Any]
Lambdas = float | Sequence[float] | NDArray[Any]
Center = bool | ArrayLike
Scale = float | str | ArrayLike | None


class Prepares(Protocol):
    """What columns can be centred and scaled by: moments, or rows."""

    @property
    def mean_rest(self) -> Array | None:
        """What float64 rounds off the means, where that counts."""

    def preparation(self, center: Center, scale: Scale) -> tuple[Array, Array]:
        """Resolve what was asked for to vectors."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """What was subtracted from each column, and what it was divided by."""

    mu: Array  # (n,)
    sigma: Array  # (n,)
    mu_rest: Array | None  # (n,) what float64 rounds off mu, where that counts; see `Moments.mean_rest`

    def gram(self, moments: Moments) -> Array:
        """Return the Gram of moments, these or others, that are prepared so."""
        return moments.gram(self.mu, self.sigma, rest=self.mu_rest)


@dataclass(frozen=True, eq=False)
class Problem:
    """One value for what is asked of moments, a Gram or rows, whoever asks; how many columns is said beside it.

    A question adds its own options to it: cross-validation its grid of lambdas, a bootstrap its resamples.
    """

    objective: str = "unselected"
    lam: Lambdas = 1.0
    include: Columns = ()
    exclude: Columns = ()
    center: Center = False
    scale: Scale = None
    stop: Stop = field(default_factory=Stop)

    def __post_init__(self) -> None:
        objective_named(self.objective)

    @property
    def counting(self) -> Objective:
        """What counts in the loss."""
        return objective_named(self.objective)

    @property
    def lams(self) -> list[float]:
        """Every lambda, checked."""
        return [checked_lambda(value) for value in np.atleast_1d(np.asarray(self.lam, dtype=np.float64))]

    @property
    def prepares(self) -> bool:
        """Whether columns are centred or scaled."""
        return not (self.center is False and (self.scale is None or self.scale is False))

    def at(self, lam: Lambdas) -> Problem:
        """Return the same problem with another lambda, or others."""
        return replace(self, lam=lam)

    def without_stop(self) -> Problem:
        """Return the same problem for selections that are compared with each other, of as many columns each."""
        return replace(self, stop=Stop())

    def by_index(self, n: int, names: tuple[str, ...] | None) -> Problem:
        """Return the same problem with columns by their indices instead of names."""
        include, exclude = (column_indices(given, n, names) for given in (self.include, self.exclude))
        return replace(self, include=include, exclude=exclude)

    def prepared(self) -> Problem:
        """Return the same problem for data that are centred and scaled already."""
        return replace(self, center=False, scale=None)

    def preparation(self, source: Prepares) -> Preparation:
        """Learn from moments, or from rows, what is subtracted from each column and what it is divided by."""
        mu, sigma = source.preparation(self.center, self.scale)
        return Preparation(mu, sigma, source.mean_rest if takes_means(self.center) else None)

    def gram(self, moments: Moments) -> Array:
        """Return the Gram of these moments, prepared."""
        return moments.gram(self.center, self.scale)

    def rules(self, k: int, n: int, names: tuple[str, ...] | None = None) -> Rules:
        """Check what is asked for against n columns of these names."""
        include, exclude = (column_indices(given, n, names) for given in (self.include, self.exclude))
        both = np.intersect1d(include, exclude)
        if len(both):
            raise ValueError(f"a column cannot be both included and excluded; got {both[0]} in both.")
        candidates = np.ones(n, dtype=bool)
        candidates[exclude] = False
        free = n - len(exclude)
        if not is_whole(k) or not 1 <= k <= free:
            raise ValueError(f"k must be a whole number from 1 to {free}, the columns that may be picked; got {k!r}.")
        if len(include) > k:
            raise ValueError(f"k must be at least the {len(include)} included columns; got {k}.")
        return Rules(k, self.counting, [int(i) for i in include], candidates, self.stop)


@dataclass(frozen=True, eq=False)
class Rules:
    """What may be picked, how much of it, and what counts: the same for every lambda."""

    k: int
    objective: Objective
    include: list[int]  # taken first, in this order
    candidates: NDArray[np.bool_]  # (n,)
    stop: Stop

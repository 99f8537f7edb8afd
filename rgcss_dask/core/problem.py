"""The problem of a selection: what counts in the loss, its regularisation, the allowed columns, and the preparation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.aims import Aims
from rgcss_dask.core.evaluate import checked_lambda
from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.moments import Moments, takes_means
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.noise import checked_noise
from rgcss_dask.core.objective import ALL, Bounds, Objective, objective_named
from rgcss_dask.core.preparation import Center, Preparation, Prepares, Scale
from rgcss_dask.core.solver.bases import Wide, base_of
from rgcss_dask.core.solver.gram import Base
from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.core.stop import Stop

Array = NDArray[np.float64]
Columns = Sequence[int] | Sequence[str] | NDArray[Any]
Lambdas = float | Sequence[float] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """All options of a problem on moments, a Gram or rows, as one value; the number of columns is separate.

    Functions add their own options: cross-validation its grid of lambdas, a bootstrap its resamples.
    """

    objective: str = "unselected"
    lam: Lambdas = 1.0
    include: Columns = ()
    exclude: Columns = ()
    center: Center = False
    scale: Scale = None
    stop: Stop = field(default_factory=Stop)
    aims: Aims = field(default_factory=Aims)
    is_settled: bool = False  # whether everything that depends on the whole data is known

    def __post_init__(self) -> None:
        objective_named(self.objective)

    @property
    def counting(self) -> Objective:
        """What counts in the loss of a settled problem."""
        return objective_named(self.objective).weighted(self.aims.column_weights)

    @property
    def lams(self) -> list[float]:
        """Every lambda, checked."""
        return [checked_lambda(value) for value in np.atleast_1d(np.asarray(self.lam, dtype=np.float64))]

    @property
    def prepares(self) -> bool:
        """Whether columns are centred or scaled."""
        return not (self.center is False and (self.scale is None or self.scale is False))

    def at(self, lam: Lambdas) -> Problem:
        """Return the same problem with one or several other lambdas."""
        return replace(self, lam=lam)

    def without_stop(self) -> Problem:
        """Return the same problem without stopping rules, for selections of equally many columns that are compared."""
        return replace(self, stop=Stop())

    def by_index(self, n: int, names: tuple[str, ...] | None) -> Problem:
        """Return the same problem with columns by their indices instead of names."""
        include, exclude = (column_indices(given, n, names) for given in (self.include, self.exclude))
        return replace(self, include=include, exclude=exclude, aims=self.aims.by_index(n, names))

    def settled(self, moments: Moments | Wide) -> Problem:
        """Return the same problem with all that depends on these moments: the noise, and the weights of the targets."""
        if self.is_settled:
            return self
        asked = self.by_index(moments.n, moments.names)
        if asked.aims.noise is not None and isinstance(moments, Moments):
            asked = replace(asked, objective=ALL.name, aims=replace(asked.aims, noise=_noise(asked.aims, moments)))
        if len(asked.aims.targets):
            base = base_of(moments, self.center, self.scale)
            asked = replace(asked, aims=asked.aims.weighted(base.diagonal * base.unit))
        return replace(asked, is_settled=True)

    def settled_on(self, diagonal: Array) -> Problem:
        """Return the same problem for a Gram or a factor with this diagonal, without rows."""
        if self.is_settled:
            return self
        asked = self.by_index(len(diagonal), None)
        if asked.aims.noise is not None:
            raise ValueError(
                "noise needs moments or rows: how many rows a Gram sums up is not known. Give scan(rows) or Moments."
            )
        return replace(asked, aims=asked.aims.weighted(diagonal), is_settled=True)

    def prepared(self, n: int) -> Problem:
        """Return the same problem for data that are already centred and scaled, including signals."""
        return replace(self, center=False, scale=None, aims=self.aims.extended(n))

    def preparation(self, source: Prepares) -> Preparation:
        """Compute from moments or rows what is subtracted from each column and what it is divided by."""
        mu, sigma = source.preparation(self.center, self.scale)
        rest = source.mean_rest if takes_means(self.center) else None
        return Preparation(mu, sigma, rest, self.aims.noise)

    def base(self, moments: Moments | Wide) -> Base:
        """Return the prepared Gram of these moments, or rows."""
        if self.aims.noise is not None:
            return self.preparation(moments).base(moments)
        return base_of(moments, self.center, self.scale)

    def may_be_picked(self, n: int) -> NDArray[np.bool_]:
        """Return a mask of the n columns that are candidates and neither excluded nor targets."""
        mask = self.aims.may_be_picked(n)
        mask[np.asarray(self.exclude, dtype=np.intp)] = False
        return mask

    def free(self, n: int, names: tuple[str, ...] | None) -> int:
        """Return how many of n columns with these names may be picked."""
        return int(self.by_index(n, names).may_be_picked(n).sum())

    def rules(
        self, k: int, n: int, names: tuple[str, ...] | None = None, *, among: NDArray[np.intp] | None = None
    ) -> Rules:
        """Check the options against n columns with these names, some of which may not be allowed."""
        include, exclude = (column_indices(given, n, names) for given in (self.include, self.exclude))
        both = np.intersect1d(include, exclude)
        if len(both):
            raise ValueError(f"a column cannot be both included and excluded; got {both[0]} in both.")
        candidates = replace(self, exclude=exclude).may_be_picked(n)
        if among is not None:
            candidates &= np.isin(np.arange(n), among)
        needless = np.intersect1d(exclude, np.asarray(self.aims.targets, dtype=np.intp))
        if len(needless):
            raise ValueError(
                f"a target is never picked, so it cannot be excluded too; got column {needless[0]} in both."
            )
        free = int(candidates.sum())
        if free == 0:
            raise ValueError("no column is left that may be picked: exclude fewer, or name more candidates.")
        if not is_whole(k) or not 1 <= k <= free:
            raise ValueError(f"k must be a whole number from 1 to {free}, the columns that may be picked; got {k!r}.")
        if len(include) > k:
            raise ValueError(f"k must be at least the {len(include)} included columns; got {k}.")
        self._check_included(include, candidates)
        if not self.aims.allowed(np.empty(0, dtype=np.intp), candidates).any():
            raise ValueError(
                f"some column must keep to the {self.aims.constraints}; none of the {free} that may be picked does."
            )
        return Rules(k, self.counting, [int(i) for i in include], candidates, self.stop, self.aims)

    def _check_included(self, include: NDArray[np.intp], candidates: NDArray[np.bool_]) -> None:
        """Refuse included columns that may not be picked, or not together."""
        if not candidates[include].all():
            first = include[~candidates[include]][0]
            raise ValueError(
                f"an included column must be one that may be picked; column {first} is a target, or no candidate."
            )
        aims = replace(self.aims, distance=None, places=None)  # included columns may lie close together
        for t, column in enumerate(include):
            if not aims.allowed(include[:t], candidates)[column]:
                raise ValueError(f"included columns must keep to the {aims.constraints}; column {column} does not.")


@dataclass(frozen=True, eq=False)
class Rules:
    """The allowed columns and constraints, and what counts in the loss; the same for every lambda."""

    k: int
    objective: Objective
    include: list[int]  # picked first, in this order
    candidates: NDArray[np.bool_]  # (n,)
    stop: Stop
    aims: Aims
    looks_at_costs: bool = False

    @cached_property
    def worth(self) -> Array:
        """Return the factor on the gain of each column, (n,): 1 / cost if costs count, otherwise 1."""
        n = len(self.candidates)
        return 1.0 / np.asarray(self.aims.costs) if self.looks_at_costs else np.ones(n)

    def by_cost(self) -> Rules:
        """Return the same rules, with picks by gain per cost."""
        return replace(self, looks_at_costs=True)

    def bounds(self, spectrum: Spectrum, k: int, lam: float) -> Bounds:
        """Bound the loss of any 1, 2, ..., k columns from below."""
        return self.objective.bounds(spectrum, k, self.aims.bounding(lam))

    def allowed(self, picked: Sequence[int]) -> NDArray[np.bool_]:
        """Return which columns may be picked next, (n,)."""
        if not self.aims.constrains:
            mask = self.candidates.copy()
            mask[list(picked)] = False
            return mask
        return self.aims.allowed(np.array(picked, dtype=np.intp), self.candidates)


def _noise(aims: Aims, moments: Moments) -> Array:
    """Return the noise variance of each column: as given, or estimated from neighbouring rows in the pass."""
    variance = moments.spread**2
    if not isinstance(aims.noise, str):
        return checked_noise(np.asarray(aims.noise, dtype=np.float64), variance, moments.names)
    if moments.differences is None:
        raise ValueError("noise='rows' needs a pass that looked at neighbouring rows: scan(source, noise=True).")
    return np.minimum(moments.differences.variance, variance)

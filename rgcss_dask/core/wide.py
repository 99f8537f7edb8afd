"""Selection from rows without an n x n matrix, for fewer rows than columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.input_checks import NotFiniteError, checked_weights
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments, takes_means
from rgcss_dask.core.precision import difference
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.words import counted

Array = NDArray[np.float64]

# Columns whose moments are computed at once, of which only means and spreads are used.
STRIP = 64


@dataclass(frozen=True, eq=False)
class Rows:
    """A block of rows without gaps that is smaller than its Gram matrix."""

    block: NDArray[Any]  # (m, n)
    weights: NDArray[Any] | None = None  # (m,)
    names: tuple[str, ...] | None = None  # (n,)
    dropped: int = 0  # rows left out because of gaps
    apart: NDArray[np.intp] | None = None  # (m,) the fold of each row

    @classmethod
    def of(
        cls,
        block: NDArray[Any],
        weights: ArrayLike | None = None,
        *,
        nan: str = "raise",
        names: tuple[str, ...] | None = None,
        apart: NDArray[np.intp] | None = None,
    ) -> Rows:
        """Copy the rows and handle gaps as a pass does: ``"raise"``, ``"drop"`` or ``"mean"``."""
        X = np.array(plain(block))
        w = None if weights is None else checked_weights(weights, len(X))
        good = np.isfinite(X)
        if good.all():
            return cls(X, w, names, apart=apart)
        if nan == "drop":
            keep = good.all(axis=1)
            if not keep.any():
                raise ValueError(f"no row is left to add up; {len(X):,} were dropped because of gaps.")
            return cls(X, w, names, int(np.sum(~keep)), apart)._taken(keep)
        if nan == "raise" or np.isinf(X).any():
            row, column = (int(i) for i in np.argwhere(~good if nan == "raise" else np.isinf(X))[0])
            raise NotFiniteError(row, column, float(X[row, column]), name=None if names is None else names[column])
        return cls(_filled(X, w), w, names, apart=apart)

    def __repr__(self) -> str:
        return f"<{counted(self.rows, 'row')} of {counted(self.n, 'column')}>"

    @property
    def n(self) -> int:
        """Number of columns."""
        return int(self.block.shape[1])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.block)

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows."""
        return float(self.rows if self.weights is None else self.weights.sum())

    @property
    def mean(self) -> Array:
        """Column means, (n,)."""
        return np.concatenate([part.mean for part in self._strips])

    @property
    def spread(self) -> Array:
        """Standard deviation of each column, (n,)."""
        return np.concatenate([part.spread for part in self._strips])

    @property
    def mean_rest(self) -> Array | None:
        """Rounding errors of the means in float64, (n,), see `Moments.mean_rest`."""
        rests = [part.mean_rest for part in self._strips]
        if all(rest is None for rest in rests):
            return None
        whole = [np.zeros(p.n) if rest is None else rest for p, rest in zip(self._strips, rests, strict=True)]
        return np.concatenate(whole)

    @property
    def folds(self) -> tuple[Rows, ...]:
        """The rows of each fold, if there are folds."""
        count = 0 if self.apart is None else int(self.apart.max()) + 1
        return tuple(self._taken(self.apart == fold) for fold in range(count))

    def outside_folds(self) -> Iterator[Rows]:
        """Yield for each fold the rows of all other folds."""
        for fold in range(len(self.folds)):
            yield self._taken(self.apart != fold)

    def times(self, count: Array) -> Rows:
        """Return the rows, each counted a number of times, (m,), without those that are counted zero times."""
        weights = count if self.weights is None else count * self.weights
        return replace(self, weights=weights, apart=None)._taken(count > 0)

    def _taken(self, mask: Any) -> Rows:
        kept = (None if values is None else values[mask] for values in (self.weights, self.apart))
        weights, apart = kept
        return replace(self, block=self.block[mask], weights=weights, apart=apart)

    def moments(self) -> Moments:
        """Compute the n x n moments, with those of the folds."""
        whole = Moments.of(self.block, self.weights, names=self.names)
        folds = tuple(replace(fold, apart=None).moments() for fold in self.folds)
        return replace(whole, dropped=self.dropped, folds=folds)

    def base(
        self,
        center: bool | ArrayLike = False,
        scale: float | str | ArrayLike | None = None,
        *,
        rest: Array | None = None,
    ) -> Factor:
        """Return the prepared rows as a factor; ``rest`` as for `Moments.gram`."""
        return Factor(self.factor(center, *self.preparation(center, scale), rest=rest))

    def preparation(self, center: bool | ArrayLike, scale: float | str | ArrayLike | None) -> tuple[Array, Array]:
        """Resolve ``center`` and ``scale`` to (mu, sigma), as `Moments.preparation` does."""
        if np.ndim(center) > 0 or np.ndim(scale) > 0:  # type: ignore[arg-type]
            return self._given(center, scale)
        pairs = [part.preparation(center, scale) for part in self._strips]
        mu, sigma = zip(*pairs, strict=True)
        return np.concatenate(mu), np.concatenate(sigma)

    def factor(self, center: bool | ArrayLike, mu: Array, sigma: Array, *, rest: Array | None = None) -> Array:
        """Return the prepared rows times the root of their weights: F with F'F the prepared Gram matrix, (m, n)."""
        F: Array = difference(self.block, mu, np.empty(self.block.shape))
        if takes_means(center):
            # The mean of 64-bit integers may not be representable in float64.
            F -= np.concatenate([part.shift - part.mean + part.total / part.weight for part in self._strips])
            F[:, self.spread == 0] = 0.0
        elif rest is not None:
            F -= rest
        F /= sigma
        if self.weights is not None:
            F *= np.sqrt(self.weights)[:, None]
        return F

    @cached_property
    def _strips(self) -> tuple[Moments, ...]:
        strips = (self.block[:, start : start + STRIP] for start in range(0, self.n, STRIP))
        return tuple(Moments.of(strip, self.weights) for strip in strips)

    def _given(self, center: bool | ArrayLike, scale: float | str | ArrayLike | None) -> tuple[Array, Array]:
        """Check the given vectors as a whole, and compute the option that is not a vector."""
        n = self.n
        blank = Moments(1, 1.0, np.zeros(n), np.zeros(n), np.broadcast_to(0.0, (n, n)), np.zeros(n))
        mu = blank.preparation(center)[0] if np.ndim(center) > 0 else self.preparation(center, None)[0]
        sigma = blank.preparation(False, scale)[1] if np.ndim(scale) > 0 else self.preparation(False, scale)[1]  # type: ignore[arg-type]
        return mu, sigma


def select_from_rows(rows: Rows, k: int, problem: Problem, *, bound: bool = False) -> tuple[Selection, Array]:
    """Pick k columns as `select` does from moments; return the selection and its weights, (k, n).

    Time O(k m n) and memory O(m n), less than with a Gram matrix if m < n.
    """
    prepared, base = problem.preparation(rows), rows.base(problem.center, problem.scale)
    (picked,) = solve(base, k, problem.by_index(rows.n, rows.names).prepared(rows.n), bound=bound)
    names = None if rows.names is None else tuple(rows.names[i] for i in picked.columns)
    weights = evaluate.weights_from_rows(base.rows(picked.columns), picked.columns, picked.lams)
    return replace(picked, names=names, all_names=rows.names, **prepared.known), weights


def weights_on(rows: Rows, picked: Selection, problem: Problem) -> Array:
    """Return the weights, (k, n), of a selection from rows."""
    GS = rows.base(problem.center, problem.scale).rows(picked.columns)
    return evaluate.weights_from_rows(GS, picked.columns, picked.lams)


def solved(source: Moments | Rows, k: int, problem: Problem) -> Selection:
    """Solve a problem with one lambda on moments or rows."""
    return select_from_rows(source, k, problem)[0] if isinstance(source, Rows) else solve(source, k, problem)[0]


def _filled(X: NDArray[Any], weights: NDArray[Any] | None) -> NDArray[Any]:
    """Fill gaps with the means of their columns."""
    gap = np.isnan(X)
    w = np.ones(len(X)) if weights is None else weights.astype(np.float64)
    count = w @ ~gap
    if np.any(count == 0):
        column = int(np.flatnonzero(count == 0)[0])
        raise ValueError(
            f"column {column} has no value at all, so there is no mean to fill its gaps with. Leave it out."
        )
    mean = (w @ np.where(gap, 0.0, X)) / count
    return np.where(gap, mean, X)

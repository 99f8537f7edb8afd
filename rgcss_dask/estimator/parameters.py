"""Parameters of an estimator: checks, defaults, and choice by cross-validation."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from rgcss_dask.answering import rank_outside_folds, validated, validated_for_share
from rgcss_dask.cluster.placement import PLACES
from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.objective import objective_named
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.stop import Stop
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows
from rgcss_dask.scanning.given import are_few
from rgcss_dask.selecting import DEFAULT_COLUMNS, TRIED_COLUMNS, most_columns, stop_at

DEFAULT_FOLDS = 5
TARGETS = (None, "y", "both")


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of an estimator, under the same names; see `RGCSS`."""

    n_features_to_select: Any
    lam: Any
    objective: str
    center: Any
    scale: Any
    nan: str
    include: Any
    exclude: Any
    cv: Any
    refine: bool | None
    effort: int
    exact: bool
    stop: Stop | None
    where: str | None
    pickle_parts: bool
    aims: Aims | None
    target: str | None
    carrying: Problem | None = None  # the problem for moments of X and y together

    @classmethod
    def of(cls, estimator: Any) -> Parameters:
        """Return the current parameters of an estimator."""
        names = (name for name in cls.__dataclass_fields__ if name != "carrying")
        return cls(**{name: getattr(estimator, name) for name in names})

    def check(self) -> None:
        """Check the parameters that no other function checks before the pass."""
        if self.where not in (None, *PLACES):
            raise ValueError(f"where must be None or one of {PLACES}; got {self.where!r}.")
        if self.nan not in ("raise", "drop", "mean"):
            raise ValueError(f"nan must be 'raise', 'drop' or 'mean'; got {self.nan!r}.")
        if isinstance(self.cv, numbers.Integral) and self.cv < 2:
            raise ValueError(f"cv must be a number of folds, 2 or more; got {self.cv!r}.")
        if self.stop is not None and not isinstance(self.stop, Stop):
            raise ValueError(f"stop must be None or a Stop, such as Stop(loss=0.05); got {self.stop!r}.")
        if self.lam != "cv" and not isinstance(self.lam, numbers.Real):
            raise ValueError(f"lam must be a number or 'cv'; got {self.lam!r}.")
        if self.lam != "cv":
            evaluate.checked_lambda(float(self.lam))
        objective_named(self.objective)
        self._check_aims()
        if self.share is not None and not 0 < self.share < 1:
            raise ValueError(
                "n_features_to_select as a share to explain must be above 0 and below 1, such as 0.9; as a number of "
                f"columns it must be a whole number; got {self.n_features_to_select!r}."
            )

    def _check_aims(self) -> None:
        if self.aims is not None and not isinstance(self.aims, Aims):
            raise ValueError(f"aims must be None or Aims, such as Aims(noise='rows'); got {self.aims!r}.")
        if self.target not in TARGETS:
            raise ValueError(f"target must be None, 'y' or 'both'; got {self.target!r}.")

    @property
    def chooses_count(self) -> bool:
        """Whether the number of columns is chosen by cross-validation."""
        return isinstance(self.n_features_to_select, str) and self.n_features_to_select == "cv"

    @property
    def share(self) -> float | None:
        """The share that the columns must explain, if given instead of their number."""
        asked = self.n_features_to_select
        return float(asked) if isinstance(asked, float | np.floating) else None

    @property
    def tunes(self) -> bool:
        """Whether lambda or the number of columns is chosen by cross-validation."""
        return self.chooses_count or self.lam == "cv"

    @property
    def folds(self) -> int | None:
        """Number of folds that the pass makes from row numbers."""
        if self.cv is None:
            return DEFAULT_FOLDS if self.tunes else None
        if not isinstance(self.cv, numbers.Integral):
            raise ValueError(f"cv must be a number of folds if the rows are not in memory; got {self.cv!r}.")
        return int(self.cv)

    @property
    def needs_no_folds(self) -> bool:
        """Whether the pass makes no folds."""
        return self.cv is None and self.folds is None

    @property
    def problem(self) -> Problem:
        """The problem of every selection; a lambda that is tuned is replaced later."""
        if self.carrying is not None:
            return self.carrying
        return Problem(
            objective=self.objective,
            lam=1.0 if self.lam == "cv" else float(self.lam),
            include=_given(self.include),
            exclude=_given(self.exclude),
            center=self.center,
            scale=self.scale,
            stop=stop_at(self.share, self.stop),
            aims=self.aims or Aims(),
        )

    def count(self, n: int, names: tuple[str, ...] | None) -> int:
        """Return the number of columns to pick of n."""
        asked = self.n_features_to_select
        if self.share is not None:
            return most_columns(n, names, None, self.problem, tunes=self.tunes)
        if asked is None:
            return max(min(DEFAULT_COLUMNS, self.problem.free(n, names)), len(_given(self.include)))
        if isinstance(asked, str) or not is_whole(asked) or asked < 1:
            raise ValueError(
                "n_features_to_select must be None, 'cv', a whole number from 1, or a share to explain between 0 and "
                f"1; got {asked!r}."
            )
        if asked > n:
            raise ValueError(f"n_features_to_select must be at most n_features={n}; got {asked}.")
        return int(asked)

    def check_count(self, n: int, names: tuple[str, ...] | None) -> None:
        """Check the number of columns to pick against n, before the pass."""
        if not self.chooses_count:
            self.count(n, names)

    def is_wide(self, shape: tuple[int, ...]) -> bool:
        """Tell whether to work on the rows: there are fewer rows than columns, and no Gram is needed."""
        return are_few(shape) and not self.exact and self._suits_rows

    @property
    def needs_noise(self) -> bool:
        """Whether the pass must compare neighbouring rows."""
        return self.aims is not None and isinstance(self.aims.noise, str)

    @property
    def _suits_rows(self) -> bool:
        return self.target is None and self.problem.aims.suit_rows

    @property
    def searches(self) -> bool:
        """Whether a search for better picks was asked for explicitly."""
        return bool(self.refine or self.effort or self.exact)

    def tuned(self, moments: Moments | Rows) -> CrossValidation | None:
        """Choose lambda and the number of columns by cross-validation, as asked."""
        if not self.tunes:
            return None
        count = self._most(moments) if self.chooses_count else self.count(moments.n, moments.names)
        lams = None if self.lam == "cv" else [float(self.lam)]
        rule: dict[str, Any] = {"one_se": self.chooses_count, "fixed_k": not self.chooses_count}
        if self.share is not None:
            return validated_for_share(moments, count, self.problem, where=self.where)
        found = validated(moments, count, self.problem, lams=lams, where=self.where, **rule)
        if found.at_the_cap and count == TRIED_COLUMNS:  # not if the rank of the folds is the limit
            warnings.warn(
                f"cross-validation chose {found.k} columns, the maximum tried, of {moments.n}; more columns may "
                "be better. Give n_features_to_select as a number, or call cross_validate with a larger k.",
                stacklevel=4,
            )
        return found

    def _most(self, moments: Moments | Rows) -> int:
        """Return the most columns to try; with lambda = 0 at most the rank of every training fold."""
        free = self.problem.free(moments.n, moments.names)
        most = max(min(TRIED_COLUMNS, free), len(_given(self.include)))
        if self.lam != 0 or len(moments.folds) < 2:
            return most
        return rank_outside_folds(moments, most, self.problem, where=self.where)


def is_plain(value: Any) -> bool:
    """Tell whether a parameter can be stored in a result."""
    return isinstance(value, str | int | float | np.number | np.bool_)


def _given(columns: Any) -> Any:
    return () if columns is None else columns

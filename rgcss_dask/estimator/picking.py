"""Selection from moments or rows by the parameters of an estimator, and the fitted attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.answering import answered, answered_from_rows, improved, validated_swaps, weights
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import PartialSums
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.refinement import swaps_asked
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows, weights_on
from rgcss_dask.estimator.fitted import TellsItsResult
from rgcss_dask.estimator.parameters import Parameters
from rgcss_dask.scanning.uncounted import scan_uncounted
from rgcss_dask.selecting import warn_of_shortfall
from rgcss_dask.sources import lazy_columns as lazy

Array = NDArray[np.float64]


class Picks(TellsItsResult):
    """An estimator that selects columns by its parameters."""

    nan: str
    refine: bool | None
    effort: int
    exact: bool
    cv_results_: CrossValidation
    ranking_: NDArray[np.intp]
    loss_path_: Array
    lam_: float
    _mean: Array
    _all_weights: Array  # of the columns of X, followed by those of y if there is a target

    @property
    def _asked(self) -> Parameters:
        return Parameters.of(self)

    def _fit_uncounted(self, X: Any) -> Self:
        """Fit on Dask blocks of unknown length, in one compute."""
        _, n, names = lazy.columns_of(X)
        self._set_columns(n, names)
        self._asked.check_count(n, names)
        return self._pick(scan_uncounted(X, nan=self.nan))

    def _pick(self, moments: Moments, parts: PartialSums | None = None, carrying: Problem | None = None) -> Self:
        """Select from moments, tune and refine as asked, and store the result."""
        if self.where == "client" and isinstance(moments, RemoteMoments):
            moments = moments.fetch()
        asked = replace(self._asked, carrying=carrying)
        self.__dict__.pop("cv_results_", None)
        most = 0 if asked.chooses_count else asked.count(moments.n, moments.names)
        tuned = asked.tuned(moments)
        if tuned is None:
            picked = answered(moments, most, asked.problem, where=self.where)[0]
        else:
            picked, self.cv_results_ = tuned.selection, tuned
        warn_of_shortfall(picked, asked.share, most)
        if asked.searches or swaps_asked(self.refine, picked.n, picked.k):
            picked = improved(picked, moments, where=self.where, effort=self.effort, exact=self.exact).selection
            self._validate_swaps(picked, moments, asked.problem, where=self.where)
        self._moments, self._rows, self._parts = moments, None, parts
        return self._store(picked, weights(picked, moments, where=self.where), moments.mean)

    def _pick_from_rows(self, rows: Rows) -> Self:
        """Select from fewer rows than columns, and store the result."""
        asked = self._asked
        self.__dict__.pop("cv_results_", None)
        most = 0 if asked.chooses_count else asked.count(rows.n, rows.names)
        tuned = asked.tuned(rows)
        if tuned is None:
            (picked,), (found,) = answered_from_rows(rows, most, asked.problem)
        else:
            picked, self.cv_results_ = tuned.selection, tuned
            found = weights_on(rows, picked, asked.problem)
        if asked.searches:
            picked = improved(picked, rows, effort=self.effort).selection
            self._validate_swaps(picked, rows, asked.problem)
            found = weights_on(rows, picked, asked.problem)
        self._moments, self._rows, self._parts = None, rows, None
        warn_of_shortfall(picked, asked.share, most)
        return self._store(picked, found, rows.preparation(True, None)[0])

    def _validate_swaps(self, picked: Selection, source: Moments | Rows, problem: Problem, **where: Any) -> None:
        """Put swapped picks into the cross-validation, if there is one, with their held-out loss."""
        if (tuned := getattr(self, "cv_results_", None)) is not None:
            self.cv_results_ = validated_swaps(tuned, picked, source, problem, effort=self.effort, **where)

    def _store(self, picked: Selection, weights: Array, mean: Array) -> Self:
        n = self.n_features_in_  # the columns of y follow, if there is a target
        self.selection_, self._all_weights, self._bound = picked, weights, None
        self.coef_, self._mean = weights[:, :n], mean[:n]
        self.selected_, self.loss_path_, self.lam_ = picked.columns, picked.loss, picked.lam
        self.ranking_ = np.full(n, picked.k + 1)
        self.ranking_[picked.columns] = np.arange(1, picked.k + 1)
        self.support_ = self.ranking_ <= picked.k
        return self

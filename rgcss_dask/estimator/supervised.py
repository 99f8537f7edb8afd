"""Columns picked to carry y: y becomes columns beside those of X, which are targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rgcss_dask.answering import loss_and_start
from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.estimator.picking import Picks
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.beside import Targets, with_targets
from rgcss_dask.sources.registry import open_source


def beside_y(data: Any, y: Any, names: tuple[str, ...] | None, classes: Any = None) -> tuple[Source, Targets]:
    """Return a source of the columns of X and of y, and what y became."""
    if y is None:
        raise ValueError("target asks for y: give fit(X, y).")
    source = data if isinstance(data, Source) else open_source(data)
    source.names = source.names or names  # those of a frame
    targets = Targets.of(y, source.shape[0], classes)
    return with_targets(source, targets), targets


def carrying_y(problem: Problem, moments: Moments, targets: Targets, share: float) -> Problem:
    """Return the problem for moments of X and y: the columns of y are targets, each class counts alike.

    Of classes, indicators that are whitened: what counts is the share of each that is explained, so that their weight
    is one over how often they occur.
    """
    q = len(targets.names)
    n = moments.n - q
    names = None if moments.names is None else moments.names[:n]
    asked = problem.by_index(n, names)
    center, scale = _with_more(problem.center, n, q, 0.0), _with_more(problem.scale, n, q, 1.0)
    weights = np.ones(q)
    if targets.classes is not None:
        _, sigma = moments.preparation(center, scale)
        weights = sigma[n:] ** 2 / moments.mean[n:]
    aims = asked.aims
    own = np.ones(n) if aims.column_weights is None else aims.column_weights
    given = np.asarray(aims.targets, dtype=np.intp)
    more: dict[str, Any] = {
        name: None if (values := getattr(aims, name)) is None else np.concatenate([values, np.full(q, beyond)])
        for name, beyond in (("penalties", 1.0), ("noise", 0.0), ("costs", 1.0))
        if not isinstance(getattr(aims, name), str)
    }
    places = None if aims.places is None else np.pad(aims.places, ((0, q), (0, 0)))
    aims = replace(
        aims,
        column_weights=np.concatenate([own, weights]),
        targets=np.concatenate([given, np.arange(n, n + q)]),
        target_share=share,
        places=places,
        **more,
    )
    return replace(asked, center=center, scale=scale, aims=aims)


def share_of(target: str, aims: Aims) -> float:
    """Return how much of the loss y makes up: all of it, or half where nothing else is said."""
    if target == "y":
        return 1.0
    return 0.5 if aims.target_share in (None, 1.0) else float(aims.target_share)


def _with_more(given: Any, n: int, q: int, beyond: float) -> Any:
    """Return what columns are centred or divided by, with nothing done to those of y where values were given."""
    if np.ndim(given) == 0:
        return given
    values = np.asarray(given, dtype=np.float64)
    return np.concatenate([values, np.full(q, beyond)]) if len(values) == n else values


class CarriesY(Picks):
    """An estimator whose picks may be those that carry y best."""

    target: str | None
    aims: Aims | None
    _targets: Targets

    def _fit_to(self, data: Any, y: Any, sample_weight: Any) -> Any:
        """Pick the columns that carry y, or X and y."""
        asked = self._asked
        source, self._targets = beside_y(data, y, self._names())
        shown = None if isinstance(data, Source) else False
        options: dict[str, Any] = {"folds": asked.folds, "nan": self.nan, "noise": asked.needs_noise, "progress": shown}
        moments = scan(source, weights=sample_weight, **options)
        share = share_of(str(self.target), self.aims or Aims())
        return self._pick(moments, carrying=carrying_y(asked.problem, moments, self._targets, share))

    def _score_of_y(self, source: Source, y: Any, sample_weight: Any) -> float:
        """Return the share that is explained of what was to be carried."""
        joined, _ = beside_y(source, y, self._names(), self._targets.classes)
        model = Rebuild.of(self.selection_, self._all_weights)
        seen = scan(joined, weights=sample_weight, nan=self.nan, progress=False)
        loss, start = loss_and_start(seen, model, where=self._where(seen))
        return float(evaluate.explained_share(loss, start))

    def _refuse_target(self, method: str) -> None:
        """Refuse ways to fit that have no y."""
        if self.target is not None:
            raise ValueError(f"target={self.target!r} needs X and y in one pass; {method} has none. Use fit(X, y).")

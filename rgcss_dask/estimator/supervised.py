"""Selection for y: y becomes target columns next to the columns of X."""

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
    """Return a source of the columns of X and y, and the targets made from y."""
    if y is None:
        raise ValueError("a target needs y, and none was given: call fit(X, y).")
    source = data if isinstance(data, Source) else open_source(data)
    source.names = source.names or names  # the names of a frame
    targets = Targets.of(y, source.shape[0], classes)
    return with_targets(source, targets), targets


def carrying_y(problem: Problem, moments: Moments, targets: Targets, share: float) -> Problem:
    """Return the problem for moments of X and y: the columns of y are targets, and each class counts alike.

    Indicators of classes are whitened: each counts by its explained share, so its weight before scaling is 1 over the
    frequency of the class.
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
    """Return the share of y in the loss: all, or by default half with target="both"."""
    if target == "y":
        return 1.0
    return 0.5 if aims.target_share in (None, 1.0) else float(aims.target_share)


def _with_more(given: Any, n: int, q: int, beyond: float) -> Any:
    """Extend given values for centring or scaling by neutral values for the columns of y."""
    if np.ndim(given) == 0:
        return given
    values = np.asarray(given, dtype=np.float64)
    return np.concatenate([values, np.full(q, beyond)]) if len(values) == n else values


class CarriesY(Picks):
    """An estimator that can pick the columns that explain y best."""

    target: str | None
    aims: Aims | None
    _targets: Targets

    def _fit_to(self, data: Any, y: Any, sample_weight: Any) -> Any:
        """Pick the columns that explain y, or X and y."""
        asked = self._asked
        source, self._targets = beside_y(data, y, self._names())
        shown = None if isinstance(data, Source) else False
        options: dict[str, Any] = {"folds": asked.folds, "nan": self.nan, "noise": asked.needs_noise, "progress": shown}
        moments = scan(source, weights=sample_weight, **options)
        share = share_of(str(self.target), self.aims or Aims())
        return self._pick(moments, carrying=carrying_y(asked.problem, moments, self._targets, share))

    def _score_of_y(self, source: Source, y: Any, sample_weight: Any) -> float:
        """Return the explained share of the targets."""
        joined, _ = beside_y(source, y, self._names(), self._targets.classes)
        model = Rebuild.of(self.selection_, self._all_weights)
        seen = scan(joined, weights=sample_weight, nan=self.nan, progress=False)
        loss, start = loss_and_start(seen, model, where=self._where(seen))
        return float(evaluate.explained_share(loss, start))

    def _refuse_target(self, method: str) -> None:
        """Refuse fit methods without y."""
        if self.target is not None:
            raise ValueError(f"target={self.target!r} needs X and y in one pass; {method} has none. Use fit(X, y).")

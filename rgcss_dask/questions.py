"""The questions that are asked of moments, each answered where the moments are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeGuard, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.cluster.placement import ask, check_where, recorded_warnings
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import evaluate, greedy, memory_needs, refinement, tuning
from rgcss_dask.core import stability as bootstrap
from rgcss_dask.core.gram import Gram
from rgcss_dask.core.greedy import Columns, Source
from rgcss_dask.core.grid import GRID
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.refinement import Refinement
from rgcss_dask.core.selection import Selection, Stop
from rgcss_dask.core.stability import Stability
from rgcss_dask.core.tuning import CrossValidation

Array = NDArray[np.float64]
Asking = TypeVar("Asking", bound=Callable[..., Any])


class _Prepared(TypedDict, total=False):
    """Options of every selection."""

    objective: str
    include: Columns
    exclude: Columns
    center: bool | ArrayLike
    scale: float | str | ArrayLike | None


class SelectOptions(_Prepared, total=False):
    """Options of `select` besides lambda."""

    stop: Stop | None
    bound: bool


class TuneOptions(_Prepared, total=False):
    """Options of `cross_validate`."""

    lams: float | Sequence[float] | NDArray[Any] | None
    lam_per_row: float | Sequence[float] | NDArray[Any] | None
    measure: str | None
    one_se: bool
    fixed_k: bool


class StabilityOptions(_Prepared, total=False):
    """Options of `stability`."""

    lam: float
    lam_per_row: float | None
    resamples: int
    seed: int
    memory: int | None


class RefineOptions(TypedDict, total=False):
    """Options of `refine`."""

    include: Columns
    exclude: Columns
    sweeps: int


WHERE = """
where : for moments that `scan` left on a cluster: ``"scheduler"`` (the default) brings what is needed from their
    worker to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"``
    fetches them. Other sources are worked on in this process."""


def _described_by(core: Callable[..., Any]) -> Callable[[Asking], Asking]:
    """Give a function the signature and the documentation of the one it asks, with ``where`` as the last option."""

    def describe(asking: Asking) -> Asking:
        given = inspect.signature(core)
        where = inspect.signature(asking).parameters["where"]
        before, heading, after = (inspect.getdoc(core) or "").partition("Parameters\n----------\n")
        options, blank, rest = after.partition("\n\n")
        described: Any = asking
        described.__signature__ = given.replace(parameters=[*given.parameters.values(), where])
        described.__doc__ = before + heading + options + WHERE + blank + rest
        return asking

    return describe


@overload
def select(
    source: Source, k: int, *, lam: float = 1.0, where: str | None = None, **options: Unpack[SelectOptions]
) -> Selection: ...


@overload
def select(
    source: Source,
    k: int,
    *,
    lam: Sequence[float] | NDArray[Any],
    where: str | None = None,
    **options: Unpack[SelectOptions],
) -> list[Selection]: ...


@_described_by(greedy.select)
def select(
    source: Source,
    k: int,
    *,
    lam: float | Sequence[float] | NDArray[Any] = 1.0,
    where: str | None = None,
    **options: Unpack[SelectOptions],
) -> Selection | list[Selection]:
    """Ask `greedy.select`."""
    if not _is_remote(source, where):
        return greedy.select(source, k, lam=lam, **options)
    stop = options.get("stop")
    bounded = options.get("bound", False) or (stop is not None and stop.bound is not None)
    need = memory_needs.select_need(source.n, _count(k, source.n), int(np.size(lam)), bound=bounded)
    return ask(greedy.select, source, k, need=need, where=where, lam=lam, **options)


@_described_by(tuning.cross_validate)
def cross_validate(
    moments: Moments, k: int, *, where: str | None = None, **options: Unpack[TuneOptions]
) -> CrossValidation:
    """Ask `tuning.cross_validate`."""
    if not _is_remote(moments, where):
        return tuning.cross_validate(moments, k, **options)
    given = [grid for grid in (options.get("lams"), options.get("lam_per_row")) if grid is not None]
    count = int(np.size(given[0])) if given else GRID
    need = memory_needs.tune_need(moments.n, _count(k, moments.n), count, len(moments.folds))
    return ask(tuning.cross_validate, moments, k, need=need, where=where, **options)


@_described_by(bootstrap.stability)
def stability(moments: Moments, k: int, *, where: str | None = None, **options: Unpack[StabilityOptions]) -> Stability:
    """Ask `stability.stability`."""
    if not _is_remote(moments, where):
        return bootstrap.stability(moments, k, **options)
    need = memory_needs.stability_need(moments.n, _count(k, moments.n), len(moments.groups), options.get("memory"))
    return ask(bootstrap.stability, moments, k, need=need, where=where, **options)


@_described_by(refinement.refine)
def refine(
    selection: Selection,
    source: Moments | ArrayLike,
    *,
    where: str | None = None,
    **options: Unpack[RefineOptions],
) -> Refinement:
    """Ask `refinement.refine`."""
    if not _is_remote(source, where):
        return refinement.refine(selection, source, **options)
    need = memory_needs.refine_need(source.n, selection.k)
    return ask(_refine, source, selection, need=need, where=where, **options)


def weights(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the weights of a selection, (k, n), worked out where the moments are; see `Selection.weights`."""
    if not _is_remote(source, where):
        return selection.weights(source)
    return ask(_weights, source, selection, need=memory_needs.select_need(source.n, selection.k), where=where)


def tight_bound(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the tight lower bound after each pick, (k,), worked out where the moments are; O(n^3)."""
    if not _is_remote(source, where):
        return _tight_bound(source, selection)
    need = memory_needs.select_need(source.n, selection.k, bound=True)
    return ask(_tight_bound, source, selection, need=need, where=where)


def loss_and_start(source: Moments, model: Rebuild, objective: str, *, where: str | None = None) -> tuple[float, float]:
    """Return the loss of weights learnt before on these rows, and the squared norm of the rows prepared alike."""
    if not _is_remote(source, where):
        return _loss_and_start(source, model, objective)
    need = memory_needs.select_need(source.n, len(model.columns))
    return ask(_loss_and_start, source, model, objective, need=need, where=where)


def rank_outside_folds(moments: Moments, k: int, *, where: str | None = None, **options: Any) -> int:
    """Return how many columns, at most k, the rows outside any fold span."""
    if not _is_remote(moments, where):
        return _rank_outside_folds(moments, k, **options)
    need = memory_needs.tune_need(moments.n, k, 1, len(moments.folds))
    return ask(_rank_outside_folds, moments, k, need=need, where=where, **options)


def _is_remote(source: Any, where: str | None) -> TypeGuard[RemoteMoments]:
    """Tell a handle from what is in this process, and refuse a place that there is not."""
    check_where(where, source)
    return isinstance(source, RemoteMoments)


def _refine(moments: Moments, selection: Selection, **options: Any) -> Refinement:
    return refinement.refine(selection, moments, **options)


def _weights(moments: Moments, selection: Selection) -> Array:
    return selection.weights(moments)


def _tight_bound(source: Moments | ArrayLike, selection: Selection) -> Array:
    spectrum = Gram(selection.prepare(source)).spectrum()
    return evaluate.bounds(spectrum, selection.k, selection.lam, selection.objective).tight


def _loss_and_start(moments: Moments, model: Rebuild, objective: str) -> tuple[float, float]:
    B = moments.gram(model.mu, model.sigma, rest=model.mu_rest)
    return evaluate.loss_on(B, model.weights, model.columns, objective), float(np.trace(B))


def _rank_outside_folds(moments: Moments, k: int, **options: Any) -> int:
    with recorded_warnings():  # that the rank is reached is what is asked here
        return min(greedy.select(rest, k, lam=0.0, **options).k for rest in tuning.leave_one_out(moments.folds))


def _count(k: Any, n: int) -> int:
    """Return how many columns to plan for; a k that is none is refused by the function that is asked."""
    return min(int(k), n) if isinstance(k, int | np.integer) and k > 0 else n

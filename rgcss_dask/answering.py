"""Dispatch of computations on moments or rows: in this process, or on the cluster that holds the moments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.cluster.placement import ask, check_where, recorded_warnings
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import memory_needs, refinement, validation
from rgcss_dask.core import stability as bootstrap
from rgcss_dask.core.exact import check_searchable
from rgcss_dask.core.folds import outside_folds
from rgcss_dask.core.grid import GRID
from rgcss_dask.core.held_out import held_out_losses, swapped_losses
from rgcss_dask.core.memory_needs import Need
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.problem import Lambdas, Problem
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.refinement import Refinement
from rgcss_dask.core.search import Told
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.sizes import size_remark
from rgcss_dask.core.solver import greedy
from rgcss_dask.core.solver.bases import base_of
from rgcss_dask.core.solver.greedy import Source
from rgcss_dask.core.stability import Stability
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows, select_from_rows, solved
from rgcss_dask.core.words import size
from rgcss_dask.runtime.disk_matrices import folder_of
from rgcss_dask.runtime.memory_limit import unused_memory

Array = NDArray[np.float64]

WORTH_A_LOOK = 2**27  # smallest n x n matrix, in bytes, for which free memory is checked


def answered(
    source: Source, k: int, problem: Problem, *, bound: bool = False, where: str | None = None
) -> list[Selection]:
    """Solve a problem where the source is; return a selection for each of its lambdas."""

    def need(n: int) -> Need:
        bounded = bound or problem.stop.bound is not None
        columns, lams = problem.aims.columns_with_signals(n), int(np.size(problem.lam))
        return memory_needs.select_need(columns, _count(k, n), lams, bound=bounded)

    if not _is_remote(source, where):
        _check_fits(source, need)
        return _select(source, k, problem, bound=bound)
    found: list[Selection] = ask(_select, source, k, problem, need=need(source.n), where=where, bound=bound)
    return found


def answered_by(
    source: Source | Rows, k: int, problem: Problem, *, bound: bool = False, where: str | None = None
) -> list[Selection]:
    """Solve a problem on rows or any other source; return a selection for each of its lambdas."""
    if not isinstance(source, Rows):
        return answered(source, k, problem, bound=bound, where=where)
    check_where(where, source)
    return answered_from_rows(source, k, problem, bound=bound)[0]


def answered_from_rows(
    rows: Rows, k: int, problem: Problem, *, bound: bool = False
) -> tuple[list[Selection], list[Array]]:
    """Solve a problem on fewer rows than columns; return selections and weights, (k, n), for each of its lambdas."""
    warn_of_sizes(rows, problem)
    pairs = [select_from_rows(rows, k, problem.at(lam), bound=bound) for lam in problem.lams]
    return [picked for picked, _ in pairs], [weights for _, weights in pairs]


def validated(
    moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None, **options: Any
) -> CrossValidation:
    """Cross-validate a problem where the moments are."""

    def need(n: int) -> Need:
        given = [grid for grid in (options.get("lams"), options.get("lam_per_row")) if grid is not None]
        count = int(np.size(given[0])) if given else GRID
        columns = problem.aims.columns_with_signals(n)
        return memory_needs.tune_need(columns, _count(k, n), count, len(moments.folds))

    if not _is_remote(moments, where):
        _check_fits(moments, need)
        return _validate(moments, k, problem, **options)
    found: CrossValidation = ask(_validate, moments, k, problem, need=need(moments.n), where=where, **options)
    return found


def validated_for_share(
    moments: Moments | Rows, most: int, problem: Problem, *, lams: Lambdas | None = None, where: str | None = None
) -> CrossValidation:
    """Choose lambda for the number of columns that reaches the share of the problem, at most ``most``.

    With all columns, or many more than needed, the held-out losses of all lambdas are alike. So each lambda first finds
    the number of columns that it needs on all rows; the lambda with the smallest held-out loss at the smallest of these
    numbers is chosen.
    """
    tuned = validated(moments, most, problem.without_stop(), lams=lams, fixed_k=True, where=where)
    with recorded_warnings():  # repeated warnings, or about lambdas that are not chosen
        paths = answered_by(moments, most, problem.at(tuned.lams), where=where)
    fewest = min(len(path) for path in paths)
    lam = tuned.best_lam(fewest)
    picked = paths[int(np.flatnonzero(tuned.lams == lam)[0])]
    return replace(tuned, lam=lam, k=len(picked), selection=picked)


def validated_swaps(
    tuned: CrossValidation,
    swapped: Selection,
    moments: Moments | Rows,
    problem: Problem,
    *,
    effort: int = 0,
    where: str | None = None,
) -> CrossValidation:
    """Return a cross-validation with swapped picks, and the held-out loss of picks that are swapped in every fold too.

    Lambda and k stay: choosing them on swapped picks leads to no lower held-out loss. But that of picks before swaps is
    higher, on real data by 1 to 12 %.
    """
    if swapped.k == 0:
        return replace(tuned, selection=swapped)
    options: dict[str, Any] = {"per_row": tuned.per_row, "measure": tuned.measure, "effort": effort}
    k, asked = swapped.k, problem.at(tuned.lam)
    if _is_remote(moments, where):
        need = memory_needs.tune_need(moments.n, k, 1, len(moments.folds))
        losses = ask(swapped_losses, moments, k, asked, need=need, where=where, **options)
    else:
        with recorded_warnings():  # the same as those of the selection on all rows
            losses = swapped_losses(moments, k, asked, **options)
    return replace(tuned, selection=swapped, swapped=losses)


def resampled(
    moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None, **options: Any
) -> Stability:
    """Solve a problem on resamples of the row groups, where the moments are, or of rows."""
    if isinstance(moments, Rows):
        return bootstrap.resample(moments, k, problem, **options)

    def need(n: int) -> Need:
        columns = problem.aims.columns_with_signals(n)
        return memory_needs.stability_need(columns, _count(k, n), len(moments.groups), options.get("memory"))

    if not _is_remote(moments, where):
        _check_fits(moments, need)
        return bootstrap.resample(moments, k, problem, **options)
    found: Stability = ask(bootstrap.resample, moments, k, problem, need=need(moments.n), where=where, **options)
    return found


def improved(
    selection: Selection,
    source: Moments | Rows | ArrayLike,
    problem: Problem | None = None,
    *,
    where: str | None = None,
    told: Told | None = None,
    **options: Any,
) -> Refinement:
    """Swap picked columns for better ones that the problem allows, where the source is.

    With fewer rows than columns, the Gram is computed only for searches that read all of it.
    """
    if isinstance(source, Rows) and (options.get("exact") or selection.aims.column_groups):
        if options.get("exact"):
            check_searchable(source.n)  # before n x n is formed
        source = source.moments()

    def need(n: int) -> Need:
        columns = selection.aims.columns_with_signals(n)
        return memory_needs.refine_need(
            columns, selection.k, options.get("effort", 0), exact=options.get("exact", False)
        )

    if not _is_remote(source, where):
        _check_fits(source, need)
        return refinement.improve(selection, source, problem, told=told, **options)
    found: Refinement = ask(_improve, source, selection, problem, need=need(source.n), where=where, **options)
    return found


def weights(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the weights of a selection, (k, n), computed where the moments are; see `Selection.weights`."""
    if not _is_remote(source, where):
        return selection.weights(source)
    return ask(_weights, source, selection, need=memory_needs.select_need(source.n, selection.k), where=where)


def tight_bound(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the tight lower bound after each pick, (k,), computed where the moments are; see `Gram.spectrum`."""
    if not _is_remote(source, where):
        return _tight_bound(source, selection)
    need = memory_needs.select_need(source.n, selection.k, bound=True)
    return ask(_tight_bound, source, selection, need=need, where=where)


def loss_and_start(source: Moments, model: Rebuild, *, where: str | None = None) -> tuple[float, float]:
    """Return the loss of given weights on these rows, and the squared norm of the prepared rows."""
    if not _is_remote(source, where):
        return _loss_and_start(source, model)
    need = memory_needs.select_need(source.n, len(model.columns))
    return ask(_loss_and_start, source, model, need=need, where=where)


def held_out(moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None, **options: Any) -> Array:
    """Return the squared error of each column in each fold, (folds, n), computed where the moments are."""
    if not _is_remote(moments, where):
        return held_out_losses(moments, k, problem, **options)
    need = memory_needs.tune_need(moments.n, k, 1, len(moments.folds))
    return ask(held_out_losses, moments, k, problem, need=need, where=where, **options)


def rank_outside_folds(moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None) -> int:
    """Return the smallest rank, at most k, of the rows outside each fold."""
    if not _is_remote(moments, where):
        return _rank_outside_folds(moments, k, problem)
    need = memory_needs.tune_need(moments.n, k, 1, len(moments.folds))
    rank: int = ask(_rank_outside_folds, moments, k, problem, need=need, where=where)
    return rank


def _is_remote(source: Any, where: str | None) -> TypeGuard[RemoteMoments]:
    """Tell whether a source is a handle; refuse an unsuitable place."""
    check_where(where, source)
    return isinstance(source, RemoteMoments)


def _check_fits(source: Any, need: Callable[[int], Need]) -> None:
    """Refuse computations that need more memory than is free: the system would kill this process, or start to swap."""
    if not isinstance(source, Moments) or source.KIND != Moments.KIND or 8 * source.n**2 < WORTH_A_LOOK:
        return
    work = need(source.n).in_memory(source.n, on_disk=folder_of(source.product) is not None)
    free = unused_memory()
    if work > free:
        raise MemoryError(
            f"the answer takes {size(work)} besides the moments, and {size(free)} of memory are free. Close what else "
            "takes memory, ask about fewer columns (moments.take(columns)), or use a machine that has more."
        )


def _select(source: Source, k: int, problem: Problem, *, bound: bool) -> list[Selection]:
    warn_of_sizes(source, problem)
    return greedy.solve(source, k, problem, bound=bound)


def _validate(moments: Moments | Rows, k: int, problem: Problem, **options: Any) -> CrossValidation:
    warn_of_sizes(moments, problem)
    return validation.validate(moments, k, problem, **options)


def warn_of_sizes(source: Any, problem: Problem) -> None:
    """Warn if columns on very different scales are neither centred nor scaled; not for a bare Gram."""
    remark = size_remark(source, problem) if isinstance(source, Moments | Rows) else None
    if remark is not None:
        warnings.warn(remark, stacklevel=4)


def _improve(moments: Moments, selection: Selection, problem: Problem | None, **options: Any) -> Refinement:
    return refinement.improve(selection, moments, problem, **options)


def _weights(moments: Moments, selection: Selection) -> Array:
    return selection.weights(moments)


def _tight_bound(source: Moments | ArrayLike, selection: Selection) -> Array:
    base = selection.base(source)
    return selection.tight_bound(base.spectrum(selection.counting.counts(base.n), selection.k))


def _loss_and_start(moments: Moments, model: Rebuild) -> tuple[float, float]:
    return model.losses_in(base_of(moments, model.mu, model.sigma, rest=model.mu_rest))


def _rank_outside_folds(moments: Moments | Rows, k: int, problem: Problem) -> int:
    with recorded_warnings():  # about the rank, which is what is measured here
        return min(solved(rest, k, problem.at(0.0)).k for rest in outside_folds(moments))


def _count(k: Any, n: int) -> int:
    """Return the number of columns to plan memory for; an invalid k counts as n, and is refused later."""
    return min(int(k), n) if isinstance(k, int | np.integer) and k > 0 else n

"""The questions that are asked of moments, each answered where the moments are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.cluster.placement import ask, check_where, recorded_warnings
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import evaluate, memory_needs, refinement, tuning
from rgcss_dask.core import stability as bootstrap
from rgcss_dask.core.grid import GRID
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.problem import Center, Columns, Lambdas, Problem, Scale
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.refinement import Refinement
from rgcss_dask.core.selection import Selection, Stop
from rgcss_dask.core.solver import greedy
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.greedy import Source
from rgcss_dask.core.stability import Stability
from rgcss_dask.core.tuning import CrossValidation

Array = NDArray[np.float64]


@overload
def select(
    source: Source,
    k: int,
    *,
    lam: float = 1.0,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    where: str | None = None,
) -> Selection: ...


@overload
def select(
    source: Source,
    k: int,
    *,
    lam: Sequence[float] | NDArray[Any],
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    where: str | None = None,
) -> list[Selection]: ...


def select(
    source: Source,
    k: int,
    *,
    lam: Lambdas = 1.0,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    where: str | None = None,
) -> Selection | list[Selection]:
    """Pick k columns, each the one that lowers the regularised loss most.

    With C the picked columns, the loss is the squared norm of A - C (C'C + lam I)^-1 C'A, over the columns not
    picked (``objective="unselected"``) or over all of them (``"all"``). ``lam=0`` is plain greedy column subset
    selection. Time O(k n^2): each pick reads half of the Gram once; memory one Gram and k n numbers, or up to 3 k n
    for each of several lambdas.

    Parameters
    ----------
    source : `Moments`, an n x n Gram, or `Factor` of a wide block.
    k : how many columns, those in ``include`` counted.
    lam : lambda on the prepared Gram, or several: their paths then share the reads of a large Gram.
    objective : what counts, the error of the columns not picked, ``"unselected"``, or of ``"all"``.
    include, exclude : columns (indices or names) taken first, in this order, and columns never taken. Excluded
        columns still count in the loss.
    center, scale : preparation of `Moments`, see `Moments.preparation`.
    stop : end before k by loss or bound, see `Stop`.
    bound : also compute the tight lower bound after each pick; one eigenvalue decomposition, O(n^3).
    where : for moments that `scan` left on a cluster: ``"scheduler"`` (the default) brings what is needed from their
        worker to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"``
        fetches them. Other sources are worked on in this process.

    Returns
    -------
    `Selection`, or a list of them when ``lam`` is a sequence.

    Notes
    -----
    With M = I - C (C'C + lam I)^-1 C', H = A'MA and R = A'M^2 A, picking i lowers the loss by
    2 rho_i / alpha_i - R_ii eta_i / alpha_i^2, where alpha_i = lam + H_ii, eta_i = sum_j H_ij^2 and
    rho_i = sum_j H_ij R_ij. This is the paper's algorithm; as printed there it does not minimise the loss. Errata,
    each checked against brute force: in step 3, x_i'x_i multiplies the whole bracket -2/alpha_i - x_ii/alpha_i^2; in
    delta the last term is negative, and the third needs each pick's own (x~_ww - x_ww)/alpha_w^2 between W and
    W'; the update of x~_ii uses x~_ww - x_ww (not x~_ii - x_ii) and -x_wi^2/alpha_w (not -x_wi/alpha_w); the
    last term of the loss identity is divided by alpha_w^2.

    Subtracting large numbers loses digits, so eta and rho are recomputed from G and the picks whenever the loss has
    fallen far or a gain proves inexact; tracked and recomputed loss agree to 1e-9 of the loss plus 1e-12 of the
    start, plus what rounding in the Gram itself does (``Selection.rounding``). With lam near 0 that is more the less
    earlier picks have left of a column: where it shows there is a warning, and with some 1e-14 left of it a column
    is not picked any more.
    """
    problem = Problem(objective, lam, include, exclude, center, scale, stop or Stop())
    found = answered(source, k, problem, bound=bound, where=where)
    return found if np.ndim(lam) else found[0]


def answered(
    source: Source, k: int, problem: Problem, *, bound: bool = False, where: str | None = None
) -> list[Selection]:
    """Answer a problem where the source is, with a selection for each of its lambdas."""
    if not _is_remote(source, where):
        return greedy.solve(source, k, problem, bound=bound)
    bounded = bound or problem.stop.bound is not None
    need = memory_needs.select_need(source.n, _count(k, source.n), int(np.size(problem.lam)), bound=bounded)
    found: list[Selection] = ask(greedy.solve, source, k, problem, need=need, where=where, bound=bound)
    return found


def cross_validate(
    moments: Moments,
    k: int,
    *,
    lams: Lambdas | None = None,
    lam_per_row: Lambdas | None = None,
    objective: str = "unselected",
    measure: str | None = None,
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    one_se: bool = False,
    fixed_k: bool = False,
    where: str | None = None,
) -> CrossValidation:
    """Choose lambda and the number of columns by the loss on rows that were not used to choose or to fit.

    For each fold, columns and weights are learnt on the other folds, for all lambdas together, and every prefix of the
    picks is measured on the fold. Centring and scaling are learnt on the other folds too. Nothing but moments is
    needed, so there is no further pass. Time O(folds k n^2 lambdas), memory some four Grams besides the moments.

    Folds must differ from each other as new data will differ. Those of a pass are drawn row by row; where neighbouring
    rows belong together (a time series, pictures of one person) they promise too much, and whole runs of rows are
    better held out: ``cross_validate(dataclasses.replace(moments, folds=moments.groups), k)``.

    Parameters
    ----------
    moments : moments with folds kept apart, ``scan(source, folds=5)``.
    k : the most columns to pick.
    lams : lambdas to try, the same number for the rows of K - 1 folds and for all rows, as the paper uses its 1.
    lam_per_row : instead of ``lams``: lambda is this times the weight of the rows it is applied to. The Gram grows with
        the rows, so lambda = 1 is a strong penalty at a thousand rows and none at a billion; a lambda per row
        means the same at both. What was learnt on K - 1 folds then carries over to all rows with the same shrinkage.
        Default: 13 values per row from the spectrum of the Gram (`grid.default_grid`); they are in the result.
    objective : what the selection minimises, see `select`.
    measure : the held-out loss that decides, over ``"all"`` columns (the paper's) or those ``"unselected"``; default
        as ``objective``. Both are in the result.
    include, exclude, center, scale : as in `select`.
    one_se : choose the fewest columns, then the largest lambda, within one standard error of the smallest loss.
    fixed_k : choose lambda for exactly k columns, instead of at most k.
    where : for moments that `scan` left on a cluster: ``"scheduler"`` (the default) brings what is needed from their
        worker to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"``
        fetches them. Other sources are worked on in this process.
    """
    problem = Problem(objective=objective, include=include, exclude=exclude, center=center, scale=scale)
    return validated(
        moments,
        k,
        problem,
        where=where,
        lams=lams,
        lam_per_row=lam_per_row,
        measure=measure,
        one_se=one_se,
        fixed_k=fixed_k,
    )


def validated(
    moments: Moments, k: int, problem: Problem, *, where: str | None = None, **options: Any
) -> CrossValidation:
    """Answer a problem by cross-validation, where the moments are."""
    if not _is_remote(moments, where):
        return tuning.validate(moments, k, problem, **options)
    given = [grid for grid in (options.get("lams"), options.get("lam_per_row")) if grid is not None]
    count = int(np.size(given[0])) if given else GRID
    need = memory_needs.tune_need(moments.n, _count(k, moments.n), count, len(moments.folds))
    found: CrossValidation = ask(tuning.validate, moments, k, problem, need=need, where=where, **options)
    return found


def stability(
    moments: Moments,
    k: int,
    *,
    lam: float = 1.0,
    lam_per_row: float | None = None,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    resamples: int = 100,
    seed: int = 0,
    memory: int | None = None,
    where: str | None = None,
) -> Stability:
    """Select on bootstrap resamples of the row groups and say how much the selections agree.

    A resample draws as many groups as there are, with repetition: a block bootstrap, so rows that depend on their
    neighbours stay together. Its moments are a weighted sum of those of the groups, so no row is read again.
    Time O(resamples n^2 (groups + k)).

    Parameters
    ----------
    moments : moments with groups kept apart, ``scan(source, groups=100)``.
    lam, lam_per_row : lambda, or lambda per row, which is multiplied by the weight of each resample.
    k, objective, include, exclude, center, scale : as in `select`; centring and scaling are learnt on each resample.
    resamples, seed : how many, and from which random numbers.
    memory : bytes to use at most besides the moments; default as many as the moments and their groups take.
        More memory forms more Grams in one product.
    where : for moments that `scan` left on a cluster: ``"scheduler"`` (the default) brings what is needed from their
        worker to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"``
        fetches them. Other sources are worked on in this process.
    """
    problem = Problem(objective, lam, include, exclude, center, scale)
    options = {"lam_per_row": lam_per_row, "resamples": resamples, "seed": seed, "memory": memory}
    return resampled(moments, k, problem, where=where, **options)


def resampled(moments: Moments, k: int, problem: Problem, *, where: str | None = None, **options: Any) -> Stability:
    """Answer a problem on resamples of the row groups, where the moments are."""
    if not _is_remote(moments, where):
        return bootstrap.resample(moments, k, problem, **options)
    need = memory_needs.stability_need(moments.n, _count(k, moments.n), len(moments.groups), options.get("memory"))
    found: Stability = ask(bootstrap.resample, moments, k, problem, need=need, where=where, **options)
    return found


def refine(
    selection: Selection,
    source: Moments | ArrayLike,
    *,
    include: Columns = (),
    exclude: Columns = (),
    sweeps: int = 20,
    where: str | None = None,
) -> Refinement:
    """Exchange picked columns for others, one at a time, while that lowers the regularised loss.

    A sweep scores all k (n - k) swaps at once from the Gram, O(n^2 k), then makes the best of them one after the other
    until one, recomputed in full, is no better. So the loss never rises, and when the swaps settle no single
    exchange would lower it. In 100 random factor models of 8 to 12 columns the greedy selection was the best of all
    subsets 19 times, the refined one 87 times.

    Parameters
    ----------
    selection : what `select` picked; its lambda, objective, centring and scaling are used.
    source : the moments or the Gram it was picked from, or others of the same columns.
    include, exclude : columns that stay, and columns that are never taken in: those given to `select`.
    sweeps : how many times at most all swaps are scored.
    where : for moments that `scan` left on a cluster: ``"scheduler"`` (the default) brings what is needed from their
        worker to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"``
        fetches them. Other sources are worked on in this process.
    """
    return improved(selection, source, Problem(include=include, exclude=exclude), sweeps=sweeps, where=where)


def improved(
    selection: Selection,
    source: Moments | ArrayLike,
    problem: Problem,
    *,
    sweeps: int = 20,
    where: str | None = None,
) -> Refinement:
    """Exchange picked columns for better ones that the problem allows, where the source is."""
    if not _is_remote(source, where):
        return refinement.improve(selection, source, problem, sweeps=sweeps)
    need = memory_needs.refine_need(source.n, selection.k)
    found: Refinement = ask(_improve, source, selection, problem, need=need, where=where, sweeps=sweeps)
    return found


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


def loss_and_start(source: Moments, model: Rebuild, *, where: str | None = None) -> tuple[float, float]:
    """Return the loss of weights learnt before on these rows, and the squared norm of the rows prepared alike."""
    if not _is_remote(source, where):
        return _loss_and_start(source, model)
    need = memory_needs.select_need(source.n, len(model.columns))
    return ask(_loss_and_start, source, model, need=need, where=where)


def rank_outside_folds(moments: Moments, k: int, problem: Problem, *, where: str | None = None) -> int:
    """Return how many columns, at most k, the rows outside any fold span."""
    if not _is_remote(moments, where):
        return _rank_outside_folds(moments, k, problem)
    need = memory_needs.tune_need(moments.n, k, 1, len(moments.folds))
    rank: int = ask(_rank_outside_folds, moments, k, problem, need=need, where=where)
    return rank


def _is_remote(source: Any, where: str | None) -> TypeGuard[RemoteMoments]:
    """Tell a handle from what is in this process, and refuse a place that there is not."""
    check_where(where, source)
    return isinstance(source, RemoteMoments)


def _improve(moments: Moments, selection: Selection, problem: Problem, *, sweeps: int) -> Refinement:
    return refinement.improve(selection, moments, problem, sweeps=sweeps)


def _weights(moments: Moments, selection: Selection) -> Array:
    return selection.weights(moments)


def _tight_bound(source: Moments | ArrayLike, selection: Selection) -> Array:
    spectrum = Gram(selection.prepare(source)).spectrum(selection.counting.counts(selection.n))
    return selection.counting.bounds(spectrum, selection.k, selection.lam).tight


def _loss_and_start(moments: Moments, model: Rebuild) -> tuple[float, float]:
    B = moments.gram(model.mu, model.sigma, rest=model.mu_rest)
    start = float(np.diagonal(B) @ model.counting.counts(model.n))
    return evaluate.loss_on(B, model.weights, model.columns, model.counting), start


def _rank_outside_folds(moments: Moments, k: int, problem: Problem) -> int:
    with recorded_warnings():  # that the rank is reached is what is asked here
        return min(greedy.solve(rest, k, problem.at(0.0))[0].k for rest in tuning.leave_one_out(moments.folds))


def _count(k: Any, n: int) -> int:
    """Return how many columns to plan for; a k that is none is refused by the function that is asked."""
    return min(int(k), n) if isinstance(k, int | np.integer) and k > 0 else n

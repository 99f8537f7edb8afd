"""The questions that are asked of moments, each answered where the moments are."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, TypeGuard, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.cluster.placement import ask, check_where, recorded_warnings
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import memory_needs, refinement, tuning
from rgcss_dask.core import stability as bootstrap
from rgcss_dask.core.aims import Aims, Asked
from rgcss_dask.core.exact import SECONDS
from rgcss_dask.core.grid import GRID
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.preparation import Center, Scale
from rgcss_dask.core.problem import Columns, Lambdas, Problem
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
from rgcss_dask.origin import PickedFrom

Array = NDArray[np.float64]


def answered(
    source: Source, k: int, problem: Problem, *, bound: bool = False, where: str | None = None
) -> list[Selection]:
    """Answer a problem where the source is, with a selection for each of its lambdas."""
    if not _is_remote(source, where):
        return _select(source, k, problem, bound=bound)
    bounded = bound or problem.stop.bound is not None
    n, lams = problem.aims.columns_with_signals(source.n), int(np.size(problem.lam))
    need = memory_needs.select_need(n, _count(k, source.n), lams, bound=bounded)
    found: list[Selection] = ask(_select, source, k, problem, need=need, where=where, bound=bound)
    return found


def answered_by(
    source: Source | Rows, k: int, problem: Problem, *, bound: bool = False, where: str | None = None
) -> list[Selection]:
    """Answer a problem with a selection for each of its lambdas, from rows or anything else."""
    if not isinstance(source, Rows):
        return answered(source, k, problem, bound=bound, where=where)
    check_where(where, source)
    return answered_from_rows(source, k, problem, bound=bound)[0]


def answered_from_rows(
    rows: Rows, k: int, problem: Problem, *, bound: bool = False
) -> tuple[list[Selection], list[Array]]:
    """Answer a problem from fewer rows than columns: for each of its lambdas a selection and its weights, (k, n)."""
    warn_of_sizes(rows, problem)
    pairs = [select_from_rows(rows, k, problem.at(lam), bound=bound) for lam in problem.lams]
    return [picked for picked, _ in pairs], [weights for _, weights in pairs]


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
    **aims: Unpack[Asked],
) -> CrossValidation:
    """Choose lambda and the number of columns by the loss on rows that were used neither to choose nor to fit.

    For each fold, columns and weights are learnt on the other folds, for all lambdas together, and every prefix of the
    picks is measured on the fold. Centring and scaling are learnt on the other folds too. Only the moments are needed,
    so no row is read again. Time O(folds k n^2 lambdas), memory some four Grams besides the moments.

    Folds must differ from each other as new data will differ. `scan` assigns rows to folds one by one. Where
    neighbouring rows belong together (a time series, pictures of one person) such folds promise too much; then hold out
    whole runs of rows: ``scan(source, folds=5, blocks=True)``.

    Parameters
    ----------
    moments : Moments
        Moments with folds kept apart, ``scan(source, folds=5)``.
    k : int
        The most columns to pick.
    lams : sequence of float, optional
        Lambdas to try: the same number for the rows of K - 1 folds and for all rows, as the paper uses its 1.
    lam_per_row : sequence of float, optional
        Instead of ``lams``: lambda is this value times the weight of the rows it is applied to. The Gram grows with the
        rows, so lambda = 1 is a strong penalty at a thousand rows and a negligible one at a billion; a lambda per row
        means the same at both. Default: 13 values per row from the spectrum of the Gram, which are in the result.
    objective : {"unselected", "all"}, default="unselected"
        What the selection minimises, see `select`.
    measure : {"unselected", "all"}, optional
        The held-out loss that decides, over all columns (the paper's) or over those that were not picked. Default: as
        ``objective``. Both are in the result.
    include : sequence of int or str, optional
        Columns that are picked first, see `select`.
    exclude : sequence of int or str, optional
        Columns that are never picked, see `select`.
    center : bool or array of shape (n,), default=False
        Whether columns are centred, see `select`.
    scale : {None, "std"}, bool, float or array of shape (n,), default=None
        What columns are divided by, see `select`.
    one_se : bool, default=False
        Choose the fewest columns, then the largest lambda, within one standard error of the smallest loss.
    fixed_k : bool, default=False
        Choose lambda for exactly k columns, instead of at most k.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster. ``"scheduler"`` (the default) brings what is needed from their worker
        to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"`` fetches
        them. Other sources are worked on in this process.
    **aims
        What is to be carried, and by which columns, see `Aims`.

    Returns
    -------
    CrossValidation
        Every held-out loss, the lambda and k that were chosen, and the selection with these on all rows.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> moments = rg.scan(load_wine(as_frame=True).data, folds=5)
    >>> tuned = rg.cross_validate(moments, 8, center=True, scale="std", lam_per_row=[1e-3, 1e-2, 0.1, 1], one_se=True)
    >>> tuned.k
    8
    >>> tuned.held_out_loss.shape  # lambdas, numbers of columns, folds
    (4, 8, 5)
    >>> print(tuned.sentence)  # doctest: +NORMALIZE_WHITESPACE, +ELLIPSIS
    lambda = 17.8 (0.1 per row) and 8 columns, the most that were tried, chosen by 5-fold cross-validation, keep
    ... % of the variation of unseen rows (standard error ... %).
    """
    problem = Problem(
        objective=objective, include=include, exclude=exclude, center=center, scale=scale, aims=Aims(**aims)
    )
    found = validated(
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
    return found.known(PickedFrom.of(moments))


def validated(
    moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None, **options: Any
) -> CrossValidation:
    """Answer a problem by cross-validation, where the moments are."""
    if not _is_remote(moments, where):
        return _validate(moments, k, problem, **options)
    given = [grid for grid in (options.get("lams"), options.get("lam_per_row")) if grid is not None]
    count = int(np.size(given[0])) if given else GRID
    n = problem.aims.columns_with_signals(moments.n)
    need = memory_needs.tune_need(n, _count(k, moments.n), count, len(moments.folds))
    found: CrossValidation = ask(_validate, moments, k, problem, need=need, where=where, **options)
    return found


def validated_for_share(
    moments: Moments | Rows, most: int, problem: Problem, *, lams: Lambdas | None = None, where: str | None = None
) -> CrossValidation:
    """Choose lambda for as many columns as the share of the problem takes, at most ``most``.

    For all columns, or many more than are picked in the end, every lambda is as good. So each lambda first says how
    many columns it needs on all rows; for the fewest of these the one with the smallest held-out loss is taken.
    """
    tuned = validated(moments, most, problem.without_stop(), lams=lams, fixed_k=True, where=where)
    with recorded_warnings():  # said of the moments before, or of lambdas that are not taken
        paths = answered_by(moments, most, problem.at(tuned.lams), where=where)
    fewest = min(len(path) for path in paths)
    lam = tuned.best_lam(fewest)
    picked = paths[int(np.flatnonzero(tuned.lams == lam)[0])]
    return replace(tuned, lam=lam, k=len(picked), selection=picked)


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
    **aims: Unpack[Asked],
) -> Stability:
    """Select on bootstrap resamples of the row groups and say how much the selections agree.

    A resample draws as many groups as there are, with repetition. This is a block bootstrap: rows that depend on their
    neighbours stay together. The moments of a resample are a weighted sum of those of the groups, so no row is read
    again. Time O(resamples n^2 (groups + k)).

    Parameters
    ----------
    moments : Moments
        Moments with groups kept apart, ``scan(source, groups=100)``.
    k : int
        How many columns each selection picks.
    lam : float, default=1.0
        Lambda on the Gram of each resample.
    lam_per_row : float, optional
        Instead of ``lam``: lambda is this value times the weight of each resample.
    objective : {"unselected", "all"}, default="unselected"
        What the selections minimise, see `select`.
    include : sequence of int or str, optional
        Columns that are picked first, see `select`.
    exclude : sequence of int or str, optional
        Columns that are never picked, see `select`.
    center : bool or array of shape (n,), default=False
        Whether columns are centred, see `select`; means are learnt on each resample.
    scale : {None, "std"}, bool, float or array of shape (n,), default=None
        What columns are divided by, see `select`; standard deviations are learnt on each resample.
    resamples : int, default=100
        How many resamples.
    seed : int, default=0
        Seed of the random numbers.
    memory : int, optional
        Bytes to use at most besides the moments; by default as many as the moments and their groups take. With more
        memory, more Grams are formed in one product.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster. ``"scheduler"`` (the default) brings what is needed from their worker
        to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"`` fetches
        them. Other sources are worked on in this process.
    **aims
        What is to be carried, and by which columns, see `Aims`.

    Returns
    -------
    Stability
        The mean Jaccard index of all pairs of selections, its expectation by chance, and how often each column was
        picked.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> moments = rg.scan(load_wine(as_frame=True).data, groups=40)
    >>> trust = rg.stability(moments, 4, center=True, scale="std", resamples=50)
    >>> print(trust)  # doctest: +NORMALIZE_WHITESPACE, +ELLIPSIS
    50 selections of 4 of 13 columns on bootstrap resamples of 40 row groups: two of them have on average ... % of the
    columns that either has in common (Jaccard index); random subsets would have 19.9 %. ...
    """
    problem = Problem(objective, lam, include, exclude, center, scale, aims=Aims(**aims))
    options = {"lam_per_row": lam_per_row, "resamples": resamples, "seed": seed, "memory": memory}
    return resampled(moments, k, problem, where=where, **options)


def resampled(moments: Moments, k: int, problem: Problem, *, where: str | None = None, **options: Any) -> Stability:
    """Answer a problem on resamples of the row groups, where the moments are."""
    if not _is_remote(moments, where):
        return bootstrap.resample(moments, k, problem, **options)
    n = problem.aims.columns_with_signals(moments.n)
    need = memory_needs.stability_need(n, _count(k, moments.n), len(moments.groups), options.get("memory"))
    found: Stability = ask(bootstrap.resample, moments, k, problem, need=need, where=where, **options)
    return found


def refine(
    selection: Selection,
    source: Moments | ArrayLike | None = None,
    *,
    include: Columns | None = None,
    exclude: Columns | None = None,
    sweeps: int = 20,
    effort: int = 0,
    seed: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    progress: Told | None = None,
    where: str | None = None,
) -> Refinement:
    """Swap picked columns for others, one at a time, while that lowers the regularised loss.

    A sweep scores all k (n - k) swaps at once from the Gram, O(n^2 k), then makes the best of them one after the other
    until some, recomputed in full, are no better. So the loss never rises, and when the swaps settle no single swap
    would lower it. In 100 random factor models of 8 to 12 columns the greedy selection was the best of all subsets 19
    times, the refined one 87 times, and with ``effort=5`` 100 times.

    Parameters
    ----------
    selection : Selection
        What `select` picked; its lambda, objective, centring and scaling are used.
    source : Moments or array of shape (n, n), optional
        The moments or the Gram it was picked from, or others of the same columns. Default: what it was picked from.
    include : sequence of int or str, optional
        Columns that stay. Default: those given to `select`.
    exclude : sequence of int or str, optional
        Columns that are never swapped in. Default: those given to `select`.
    sweeps : int, default=20
        How many times at most all swaps are scored, in one search.
    effort : int, default=0
        How many more searches to make: of up to 100 columns from random picks, of more columns after kicks, which
        replace a tenth of the best picks at random. Each takes one to two times as long as the swaps themselves; 12 to
        20 are a good number. The result is never worse than without, and the same for any number of threads.
    seed : int, default=0
        Of the random numbers.
    exact : bool, default=False
        Search all subsets, by branch and bound, for the best one, and prove that it is. For up to 60 columns and 8
        picks that takes seconds; at most 500 columns. What is proved is in the ``certificate`` of the selection.
    seconds : float, default=60
        When an exact search ends at the latest; then the certificate has a lower bound for the loss of all subsets.
    progress : callable, optional
        Called after every few searches, or parts of an exact one, with how many were made, how many there are and the
        lowest loss. Not called of moments on a cluster.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster. ``"scheduler"`` (the default) brings what is needed from their worker
        to the scheduler, which goes on scheduling meanwhile; ``"worker"`` works where they are; ``"client"`` fetches
        them. Other sources are worked on in this process.

    Returns
    -------
    Refinement
        The selection after the swaps, and what they brought.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> picked = rg.select(load_wine(as_frame=True).data, 4, center=True, scale="std")
    >>> better = rg.refine(picked)
    >>> better.swaps, better.settled
    (0, True)
    >>> bool(better.after <= better.before)
    True
    """
    origin = PickedFrom.of(source) or selection.origin
    if source is None:
        source = _moments_behind(selection)
    problem = selection.problem or Problem()
    stay = problem.include if include is None else include
    never = problem.exclude if exclude is None else exclude
    problem = replace(problem, include=stay, exclude=never)
    options: dict[str, Any] = {"sweeps": sweeps, "effort": effort, "seed": seed, "exact": exact, "seconds": seconds}
    return improved(selection, source, problem, where=where, told=progress, **options).known(origin)


def _moments_behind(selection: Selection) -> Moments:
    """Return the moments that a selection was picked from; of few rows they are formed for it."""
    if not isinstance(selection.origin, PickedFrom):
        raise ValueError(
            "what these columns were picked from is not known: give the moments, refine(selection, moments)."
        )
    source = selection.origin.source
    return source.moments() if isinstance(source, Rows) else source


def improved(
    selection: Selection,
    source: Moments | ArrayLike,
    problem: Problem | None = None,
    *,
    where: str | None = None,
    told: Told | None = None,
    **options: Any,
) -> Refinement:
    """Exchange picked columns for better ones that the problem allows, where the source is."""
    if not _is_remote(source, where):
        return refinement.improve(selection, source, problem, told=told, **options)
    n = selection.aims.columns_with_signals(source.n)
    need = memory_needs.refine_need(n, selection.k, options.get("effort", 0), exact=options.get("exact", False))
    found: Refinement = ask(_improve, source, selection, problem, need=need, where=where, **options)
    return found


def weights(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the weights of a selection, (k, n), worked out where the moments are; see `Selection.weights`."""
    if not _is_remote(source, where):
        return selection.weights(source)
    return ask(_weights, source, selection, need=memory_needs.select_need(source.n, selection.k), where=where)


def tight_bound(selection: Selection, source: Moments | ArrayLike, *, where: str | None = None) -> Array:
    """Return the tight lower bound after each pick, (k,), worked out where the moments are; see `Gram.spectrum`."""
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


def rank_outside_folds(moments: Moments | Rows, k: int, problem: Problem, *, where: str | None = None) -> int:
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


def _select(source: Source, k: int, problem: Problem, *, bound: bool) -> list[Selection]:
    warn_of_sizes(source, problem)
    return greedy.solve(source, k, problem, bound=bound)


def _validate(moments: Moments | Rows, k: int, problem: Problem, **options: Any) -> CrossValidation:
    warn_of_sizes(moments, problem)
    return tuning.validate(moments, k, problem, **options)


def warn_of_sizes(source: Any, problem: Problem) -> None:
    """Warn where columns of very different size are counted as they are; of a Gram alone it cannot be told."""
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
    with recorded_warnings():  # that the rank is reached is what is asked here
        return min(solved(rest, k, problem.at(0.0)).k for rest in tuning.outside_folds(moments))


def _count(k: Any, n: int) -> int:
    """Return how many columns to plan for. An invalid k counts as n here; the function that selects refuses it."""
    return min(int(k), n) if isinstance(k, int | np.integer) and k > 0 else n

"""The public functions that take moments: cross_validate, stability and refine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.answering import improved, resampled, validated, validated_swaps
from rgcss_dask.core.aims import Aims, Asked
from rgcss_dask.core.exact import SECONDS
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.preparation import Center, Scale
from rgcss_dask.core.problem import Columns, Lambdas, Problem
from rgcss_dask.core.refinement import Refinement
from rgcss_dask.core.search import Told
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.stability import Stability
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows
from rgcss_dask.origin import PickedFrom
from rgcss_dask.scanning.given import are_few, rows_of
from rgcss_dask.sources.registry import open_source

Array = NDArray[np.float64]


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
    refine: bool = False,
    effort: int = 0,
    where: str | None = None,
    **aims: Unpack[Asked],
) -> CrossValidation:
    """Choose lambda and the number of columns by the loss on held-out rows.

    For each fold, columns and weights are learnt on the other folds, for all lambdas together, and every prefix of the
    picks is measured on the fold. Centring and scaling are learnt on the other folds too. Only the moments are needed,
    so no row is read again. Time O(folds k n^2 lambdas), memory some four Grams besides the moments.

    Held-out rows should be as different from the others as new data will be. `scan` assigns rows to folds at random. If
    neighbouring rows depend on each other (a time series, pictures of one person), such folds are too optimistic; then
    hold out whole runs of rows: ``scan(source, folds=5, blocks=True)``.

    Parameters
    ----------
    moments : Moments
        Moments with folds, ``scan(source, folds=5)``.
    k : int
        The maximum number of columns.
    lams : sequence of float, optional
        Lambdas to try: the same number is used for K - 1 folds and for all rows, like the paper's 1.
    lam_per_row : sequence of float, optional
        Instead of ``lams``: lambda is this value times the weight of the rows it is applied to. The Gram grows with the
        rows, so lambda = 1 is a strong penalty at a thousand rows and negligible at a billion; a lambda per row has the
        same effect at both. Default: 13 values per row from the spectrum of the Gram, which are in the result.
    objective : {"unselected", "all"}, default="unselected"
        The loss to minimise, see `select`.
    measure : {"unselected", "all"}, optional
        The held-out loss to choose by, over all columns (the paper's) or over the columns that were not picked.
        Default: ``objective``. Both are in the result.
    include : sequence of int or str, optional
        Columns to pick first, see `select`.
    exclude : sequence of int or str, optional
        Columns that must not be picked, see `select`.
    center : bool or array of shape (n,), default=False
        Whether columns are centred, see `select`.
    scale : {None, "std"}, bool, float or array of shape (n,), default=None
        Divisors of the columns, see `select`.
    one_se : bool, default=False
        Choose the fewest columns, then the largest lambda, within one standard error of the smallest loss.
    fixed_k : bool, default=False
        Choose lambda for exactly k columns, instead of at most k.
    refine : bool, default=False
        Swap the picks for the chosen lambda and k, on all rows and in every fold: then the held-out share in the words
        is that of swapped picks, which leave some per cent less. Lambda and k are chosen before the swaps;
        choosing them on swapped picks was no better.
    effort : int, default=0
        Number of further searches, on all rows and in every fold, see `refine`.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster: ``"scheduler"`` (the default) fetches what is needed to the
        scheduler, which goes on scheduling; ``"worker"`` computes where the moments are; ``"client"`` fetches them.
        Other sources are processed in this process.
    **aims
        What the picks must explain, and which columns may be picked, see `Aims`.

    Returns
    -------
    CrossValidation
        All held-out losses, the chosen lambda and k, and the selection with these on all rows.

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
    lambda = 17.8 (0.1 per row) and 8 columns (the maximum tried), chosen by 5-fold cross-validation, keep
    ... % of the variation of held-out rows (standard error ... %).
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
    if refine or effort:
        picked = improved(found.selection, moments, where=where, effort=effort).selection
        found = validated_swaps(found, picked, moments, problem, effort=effort, where=where)
    return found.known(PickedFrom.of(moments))


def stability(
    moments: Any,
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
    """Select on bootstrap resamples of the row groups, and measure how much the selections agree.

    A resample draws as many groups as there are, with repetition. This is a block bootstrap: rows that depend on their
    neighbours stay together. The moments of a resample are a weighted sum of those of the groups, so no row is read
    again. Time O(resamples n^2 (groups + k)).

    With fewer rows than columns, the rows are resampled themselves, and no n x n matrix is made. Time
    O(resamples k m n), memory O(m n).

    Parameters
    ----------
    moments : Moments, or rows as for `scan`
        Moments with groups, ``scan(source, groups=100)``. Or rows, fewer than columns: they are divided into 100 groups
        of neighbouring rows, or each is a group.
    k : int
        Number of columns of each selection.
    lam : float, default=1.0
        Lambda on the Gram of each resample.
    lam_per_row : float, optional
        Instead of ``lam``: lambda is this value times the weight of each resample.
    objective : {"unselected", "all"}, default="unselected"
        The loss to minimise, see `select`.
    include : sequence of int or str, optional
        Columns to pick first, see `select`.
    exclude : sequence of int or str, optional
        Columns that must not be picked, see `select`.
    center : bool or array of shape (n,), default=False
        Whether columns are centred, see `select`; means are learnt on each resample.
    scale : {None, "std"}, bool, float or array of shape (n,), default=None
        Divisors of the columns, see `select`; standard deviations are learnt on each resample.
    resamples : int, default=100
        Number of resamples.
    seed : int, default=0
        Seed of the random numbers.
    memory : int, optional
        Memory limit in bytes, besides the moments; by default as much as the moments and their groups take. With more
        memory, more Grams are computed in one product.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster: ``"scheduler"`` (the default) fetches what is needed to the
        scheduler, which goes on scheduling; ``"worker"`` computes where the moments are; ``"client"`` fetches them.
        Other sources are processed in this process.
    **aims
        What the picks must explain, and which columns may be picked, see `Aims`.

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
    source = moments if isinstance(moments, Moments) else _few_rows(moments, problem)
    return resampled(source, k, problem, where=where, **options)


def refine(
    selection: Selection,
    source: Moments | ArrayLike | None = None,
    *,
    include: Columns | None = None,
    exclude: Columns | None = None,
    sweeps: int = 50,
    effort: int = 0,
    seed: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    progress: Told | None = None,
    where: str | None = None,
) -> Refinement:
    """Swap picked columns for others, one at a time, as long as that lowers the regularised loss.

    A sweep scores all k (n - k) swaps at once from the Gram, O(n^2 k), then makes the best of them one after the other
    until the recomputed loss no longer falls. So the loss never rises, and when the swaps settle no single swap would
    lower it. In 100 random factor models of 8 to 12 columns, the greedy selection was the best of all subsets 19 times,
    the refined one 87 times, and with ``effort=5`` 100 times.

    Parameters
    ----------
    selection : Selection
        What `select` picked; its lambda, objective, centring and scaling are used.
    source : Moments or array of shape (n, n), optional
        Moments or a Gram of the same columns. Default: those that the selection was picked from. With fewer rows than
        columns, the rows are used without their Gram.
    include : sequence of int or str, optional
        Columns that must stay. Default: those given to `select`.
    exclude : sequence of int or str, optional
        Columns that must not be swapped in. Default: those given to `select`.
    sweeps : int, default=50
        Maximum number of sweeps in one search.
    effort : int, default=0
        Number of further searches: with up to 100 columns from random picks, with more columns after kicks, which
        replace a tenth of the best picks at random. Each takes one to two times as long as the swaps themselves; 12 to
        20 is a good choice. The result is never worse, and the same for any number of threads.
    seed : int, default=0
        Seed of the random numbers.
    exact : bool, default=False
        Search all subsets, by branch and bound, for the best one, and prove that it is. For up to 60 columns and 8
        picks this takes seconds; at most 500 columns. The ``certificate`` of the selection holds what was proved.
    seconds : float, default=60
        Time limit of an exact search; after it the certificate has a lower bound for the loss of all subsets.
    progress : callable, optional
        Called after every few searches, or parts of an exact search, with the number done, the total number and the
        lowest loss. Not called for moments on a cluster.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster: ``"scheduler"`` (the default) fetches what is needed to the
        scheduler, which goes on scheduling; ``"worker"`` computes where the moments are; ``"client"`` fetches them.
        Other sources are processed in this process.

    Returns
    -------
    Refinement
        The selection after the swaps, with the losses before and after.

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
    found = _behind(selection) if source is None else source
    problem = selection.problem or Problem()
    stay = problem.include if include is None else include
    never = problem.exclude if exclude is None else exclude
    problem = replace(problem, include=stay, exclude=never)
    options: dict[str, Any] = {"sweeps": sweeps, "effort": effort, "seed": seed, "exact": exact, "seconds": seconds}
    return improved(selection, found, problem, where=where, told=progress, **options).known(origin)


def _behind(selection: Selection) -> Moments | Rows:
    """Return the moments, or the few rows, that a selection was picked from."""
    if not isinstance(selection.origin, PickedFrom):
        raise ValueError(
            "refine needs the moments of the selection, which are not known here: give the moments, "
            "refine(selection, moments)."
        )
    return selection.origin.source


def _few_rows(source: Any, problem: Problem) -> Rows:
    """Return rows, fewer than columns, of a source."""
    opened = open_source(source)
    if not (problem.aims.suit_rows and are_few(opened.shape)):
        m, n = opened.shape
        raise ValueError(
            f"stability takes moments with groups; rows only if they are fewer than columns, fit in memory, and noise= "
            f"and column_groups= are not given. Got {m:,} rows of {n:,} columns. Give scan(source, groups=100)."
        )
    return rows_of(opened)

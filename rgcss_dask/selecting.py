"""The public function select: columns picked from rows, moments or a Gram."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.answering import answered_by, improved, validated, validated_for_share, validated_swaps
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core.aims import Aims, Asked
from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.exact import SECONDS
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.preparation import Center, Scale
from rgcss_dask.core.problem import Columns, Problem
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.stop import Stop
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows
from rgcss_dask.core.words import counted, percent
from rgcss_dask.origin import PickedFrom, as_asked
from rgcss_dask.scanning.given import Given, given
from rgcss_dask.two_readings import band_of_candidates

FOLDS = 5  # of rows read for lam="cv"
DEFAULT_COLUMNS = 10  # default of estimators, commands and batches
TRIED_COLUMNS = 64  # maximum if cross-validation chooses the number, or lambda for a share
RESOLVED = 1e-12  # share of the squared norm that a Gram resolves


@overload
def select(
    data: Any,
    k: int | None = None,
    *,
    lam: float | Literal["cv"] = 1.0,
    explained: float | None = None,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    refine: bool = False,
    effort: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    nan: str = "raise",
    weights: Any = None,
    progress: bool | Callback | None = None,
    where: str | None = None,
    **aims: Unpack[Asked],
) -> Selection: ...


@overload
def select(
    data: Any,
    k: int | None = None,
    *,
    lam: Sequence[float] | NDArray[Any],
    explained: float | None = None,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    refine: bool = False,
    effort: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    nan: str = "raise",
    weights: Any = None,
    progress: bool | Callback | None = None,
    where: str | None = None,
    **aims: Unpack[Asked],
) -> list[Selection]: ...


def select(
    data: Any,
    k: int | None = None,
    *,
    lam: float | str | Sequence[float] | NDArray[Any] = 1.0,
    explained: float | None = None,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    stop: Stop | None = None,
    bound: bool = False,
    refine: bool = False,
    effort: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    nan: str = "raise",
    weights: Any = None,
    progress: bool | Callback | None = None,
    where: str | None = None,
    **aims: Unpack[Asked],
) -> Selection | list[Selection]:
    """Pick k columns, each the one that lowers the regularised loss most.

    With C the picked columns, the loss is the squared norm of A - C (C'C + lam I)^-1 C'A, over the columns not
    picked (``objective="unselected"``) or over all of them (``"all"``). ``lam=0`` is plain greedy column subset
    selection. Time O(k n^2) after the pass over rows, if rows are given: each pick reads half of the Gram once; memory
    one Gram and k n numbers, or up to 3 k n for each of several lambdas.

    Parameters
    ----------
    data : array-like, data frame, path, `Moments` or `Factor`
        Rows, in any form that `scan` takes (a path, an array, a frame, a DataArray, an AnnData), which are read once.
        Or `Moments`, or the path of their archive, without reading rows. Or an n x n Gram, or a `Factor`. A square
        array, list or frame in memory is treated as a Gram, and refused if it is not symmetric; pass square rows as
        ``scan(rows)``. Anything else in memory, and every path, is treated as rows. A square array that is not in
        memory, such as a Dask array, is refused, because it could be either.
    k : int, optional
        Number of columns, including those in ``include``. With ``explained``, the maximum, by default all columns.
    lam : float, sequence of float or ``"cv"``, default=1.0
        Lambda on the prepared Gram. Several lambdas share the reads of a large Gram. ``"cv"`` takes the lambda with the
        smallest loss on held-out rows for k columns, see `cross_validate`: with the folds of the moments, or, for rows,
        with 5 folds.
    explained : float, optional
        Pick the fewest columns, in order, that explain this share of the squared norm, or of the variation with
        ``center=True``: 0.9, for example. With ``lam="cv"``, lambda has the smallest held-out loss for that number of
        columns, and k is at most 64 by default.
    objective : {"unselected", "all"}, default="unselected"
        Whether the loss counts the columns that were not picked, or all of them.
    include : sequence of int or str, optional
        Columns to pick first, in this order, by index or name.
    exclude : sequence of int or str, optional
        Columns that must not be picked, by index or name. They still count in the loss.
    center : bool or array of shape (n,), default=False
        Subtract the column means, or these values, see `Moments.preparation`.
    scale : {None, "std"}, bool, float or array of shape (n,), default=None
        Divide by the standard deviations (``"std"`` or True), or by these values. By default columns are not scaled; a
        warning says if their scales differ much.
    stop : Stop, optional
        Rules to stop before k by loss or bound.
    bound : bool, default=False
        Also compute the tight lower bound after each pick, from the leading eigenvalues.
    refine : bool, default=False
        Swap picked columns for others as long as that lowers the loss, see `refine`. Included columns stay.
    effort : int, default=0
        Number of further searches from other starting picks, see `refine`; 12 to 20 is a good choice.
    exact : bool, default=False
        Search all subsets for the best one, and prove that it is, see `refine`; takes seconds for 60 columns and 8
        picks.
    seconds : float, default=60
        Time limit of an exact search.
    nan : {"raise", "drop", "mean"}, default="raise"
        Policy for missing values when rows are read, see `scan`.
    weights : array of shape (m,), optional
        Weights of the rows, see `scan`.
    progress : bool or callable, optional
        Progress of the reading, see `scan`.
    where : {"scheduler", "worker", "client"}, optional
        For moments that `scan` left on a cluster: ``"scheduler"`` (the default) fetches what is needed to the
        scheduler, which goes on scheduling; ``"worker"`` computes where the moments are; ``"client"`` fetches them.
        Other sources are processed in this process.
    **aims
        What the picks must explain, and which columns may be picked: ``column_weights``, ``targets``, ``noise``,
        ``candidates``, ``penalties``, ``column_groups``, ``costs``, ``budget``, ``limits``, ``distance``; see `Aims`.
        With a ``budget``, k is optional.

    Returns
    -------
    Selection or list of Selection
        A list when ``lam`` is a sequence. A selection refers to its moments or rows, for `report`, ``save`` and
        `refine`, which keeps them in memory as long as the selection.

    See Also
    --------
    cross_validate : choose lambda and k together, with all losses that were compared.
    refine : swap picked columns for others.
    RGCSS : the same as a scikit-learn estimator.

    Notes
    -----
    With M = I - C (C'C + lam I)^-1 C', H = A'MA and R = A'M^2 A, picking i lowers the loss by 2 rho_i / alpha_i - R_ii
    eta_i / alpha_i^2, where alpha_i = lam + H_ii, eta_i = sum_j H_ij^2 and rho_i = sum_j H_ij R_ij. This is the paper's
    algorithm, corrected: as printed it does not minimise the loss. The errata are listed in the documentation.

    The recurrences lose digits by cancellation. So eta and rho are recomputed from G and the picks whenever the loss
    has fallen far or a gain proves inexact. The tracked and the recomputed loss agree to 1e-9 of the loss plus 1e-12 of
    the start, plus the effect of rounding in the Gram (``Selection.rounding``). With lam near 0 that effect grows as
    the remainder of a column shrinks; a warning says when it matters, and a column whose remainder is below some 1e-14
    is not picked.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> wines = load_wine(as_frame=True).data
    >>> picked = rg.select(wines, 4, center=True, scale="std")
    >>> picked
    4 of 13 columns keep 64.6 % of the variation, with lambda = 1.
    Picked, in order: flavanoids, color_intensity, alcalinity_of_ash, magnesium.
    >>> rg.select(wines, explained=0.8, center=True, scale="std").names
    ('flavanoids', 'color_intensity', 'alcalinity_of_ash', 'magnesium', 'malic_acid', 'ash', 'nonflavanoid_phenols')
    >>> few, more = rg.select(wines, 4, lam=[1, 100], center=True, scale="std")
    >>> more.names == few.names
    True
    """
    tunes = isinstance(lam, str)
    if isinstance(lam, str) and lam != "cv":
        raise ValueError(f"lam must be a number, a sequence of numbers, or 'cv'; got {lam!r}.")
    stop = stop_at(explained, stop)
    asked_lam: Any = 1.0 if tunes else lam
    problem = Problem(objective, asked_lam, include, exclude, center, scale, stop, Aims(**aims))
    if isinstance(k, float) and 0 < k < 1:
        raise ValueError(f"k must be a number of columns; got {k:g}. For a share to explain give explained={k:g}.")
    if k is None and explained is None and problem.aims.budget is None:
        raise ValueError(
            "the number of columns is missing: give k, select(data, 10), or a share, select(data, explained=0.9)."
        )
    reading = {"folds": FOLDS if tunes else None, "nan": nan, "weights": weights, "progress": progress}
    found = _found(data, k, problem, bound=bound, **reading)
    problem = problem if found.names is None else problem.by_index(len(found.names), found.names)
    k = most_columns(_width(found.source), getattr(found.source, "names", None), k, problem, tunes=tunes)
    picked, tuned = _picked(found, k, problem, tunes=tunes, explained=explained, bound=bound, where=where)
    for selection in picked:
        warn_of_shortfall(selection, explained, k)
    asked: dict[str, Any] = {"k": k, "lam": lam, "explained": explained, "objective": objective}
    asked |= {"nan": nan, "center": _said(center), "scale": _said(scale)}
    asked |= {"include": list(include), "exclude": list(exclude), **problem.aims.said}
    if refine or effort or exact:
        options = {"effort": effort, "exact": exact, "seconds": seconds, "where": where}
        picked = [_refined(selection, found.source, **options) for selection in picked]
        if tuned is not None and isinstance(found.source, Moments | Rows):
            tuned = validated_swaps(tuned, picked[0], found.source, problem, effort=effort, where=where)
    tuning = None if tuned is None else tuned.summary
    asked |= {"refine": refine, "effort": effort or None, "exact": exact}
    origin = PickedFrom.of(found.source, {**found.provenance, "asked": as_asked(asked)}, tuning)
    picked = [_named(selection, found.names).known(origin) for selection in picked]
    return picked if np.ndim(lam) else picked[0]


def _found(data: Any, k: int | None, problem: Problem, *, bound: bool, **reading: Any) -> Given:
    """Return the source to pick from; with too many columns a band of candidates, made in two passes."""
    aims = problem.aims
    noise = isinstance(aims.noise, str)
    try:
        return given(data, noise=noise, needs_moments=not aims.suit_rows, **reading)
    except TooManyColumnsError:
        if k is None or noise or bound or aims.column_groups:
            raise
        return Given(band_of_candidates(data, k, problem, say=warn_of_readings, **reading))


def warn_of_readings(words: str) -> None:
    """Warn that the rows are read twice."""
    warnings.warn(words, stacklevel=4)


def _named(picked: Selection, names: tuple[str, ...] | None) -> Selection:
    """Give a selection the names that came with a Gram."""
    return picked if names is None else replace(picked, names=tuple(names[j] for j in picked.columns), all_names=names)


def stop_at(explained: float | None, stop: Stop | None) -> Stop:
    """Return stopping rules that include the share to explain."""
    stop = stop or Stop()
    if explained is None:
        return stop
    if isinstance(explained, bool) or not 0 < explained <= 1:
        raise ValueError(f"explained must be a share above 0 and at most 1, such as 0.9; got {explained!r}.")
    if stop.loss is not None:
        raise ValueError("explained and Stop(loss=) set the same rule; both were given. Give one of them.")
    return replace(stop, loss=max(1.0 - explained, RESOLVED))


def most_columns(n: int, names: tuple[str, ...] | None, k: int | None, problem: Problem, *, tunes: bool) -> int:
    """Return the maximum number of columns to pick: the given number, or all that may be picked."""
    if k is not None:
        return k
    free = problem.free(n, names)
    return max(min(free, TRIED_COLUMNS), len(problem.include)) if tunes else free


def warn_of_shortfall(picked: Selection, explained: float | None, most: int) -> None:
    """Warn if the allowed number of columns does not reach the share."""
    if explained is not None and picked.k == most and picked.explained[-1] < explained - RESOLVED:
        reached = ("explains " if picked.k == 1 else "explain ") + percent(picked.explained[-1], 2)
        warnings.warn(
            f"{counted(picked.k, 'column')}, the maximum allowed, {reached}, not the {100 * explained:g} % asked for. "
            "Allow more columns, or ask for a smaller share.",
            stacklevel=3,
        )


def _picked(
    found: Given,
    k: int,
    problem: Problem,
    *,
    tunes: bool,
    explained: float | None,
    bound: bool,
    where: str | None,
) -> tuple[list[Selection], CrossValidation | None]:
    """Return a selection for each lambda, and the cross-validation that chose it, if any."""
    source = found.source
    if not tunes:
        return answered_by(found.base, k, problem, bound=bound, where=where), None
    if not isinstance(source, Moments | Rows):
        raise ValueError(
            "lam='cv' needs rows or moments with folds; got a Gram or a Factor, which has no rows to hold out."
        )
    if explained is None:
        tuned = validated(source, k, problem, fixed_k=True, where=where)
    else:
        tuned = validated_for_share(source, k, problem, where=where)
    if not bound:
        return [tuned.selection], tuned
    return answered_by(source, k, problem.at(tuned.lam), bound=True, where=where), tuned


def _refined(picked: Selection, source: Any, **options: Any) -> Selection:
    """Swap picked columns for better ones."""
    if isinstance(source, Factor):
        raise ValueError("swaps need moments, a Gram or rows; got a Factor, which allows only greedy picks.")
    return improved(picked, source, **options).selection


def _width(source: Any) -> int:
    return len(source) if isinstance(source, np.ndarray) else int(source.n)


def _said(preparation: Any) -> Any:
    """Replace a given array by a phrase, for the provenance."""
    return "given values" if np.ndim(preparation) else preparation

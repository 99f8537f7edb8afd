"""Any number of columns: a first reading finds candidates by a sketch, a second adds up exactly what they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rgcss_dask.answering import answered, improved, validated
from rgcss_dask.cluster.placement import ask
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core import memory_needs
from rgcss_dask.core.candidates import RUNNERS_UP, check_same_data, noted
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.plan import size
from rgcss_dask.core.preparation import Center, Scale
from rgcss_dask.core.problem import Columns, Problem
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.sketch import ROWS_PER_PICK
from rgcss_dask.origin import PickedFrom
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.xarray import along

Say = Callable[[str], None]

# Rows of a sketch at least: below that they cost nothing, and estimates are poor.
LEAST_ROWS = 160


def select_wide(
    source: Any,
    k: int,
    *,
    lam: float | str = 1.0,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: Center = False,
    scale: Scale = None,
    refine: bool = True,
    sketch: int | None = None,
    runners_up: int = RUNNERS_UP,
    folds: int = 5,
    weights: Any = None,
    rows: Any = None,
    nan: str = "raise",
    missing: str = "raise",
    memory: int | float | str | None = None,
    progress: bool | Callback | None = None,
    say: Say | None = None,
    seed: int = 0,
    storage_options: dict[str, Any] | None = None,
) -> Selection:
    """Pick k of any number of columns in two readings of the rows; nothing n x n is formed.

    The first reading makes a `Sketch`. On it k columns are picked, and those that gain most beside each pick are noted:
    the candidates. The second reading adds up the products of the candidates with all columns, a `Band`. From that the
    picks, the swaps, the loss over all n columns and the weights are exact among the candidates. Time O(m n) for the
    first reading and O(m c n) for the second, with c up to ``runners_up`` k; memory d n and c n numbers.

    Parameters
    ----------
    source : array-like, data frame, path or list of these
        Rows, as `scan` takes them. They are read twice, and refused if they changed in between.
    k : int
        How many columns.
    lam : float or "cv", default=1.0
        Lambda; ``"cv"`` takes the one with the smallest loss on held-out rows for k columns, see `cross_validate`.
    objective : {"unselected", "all"}, default="unselected"
        As in `select`.
    include, exclude : sequence of int or str, optional
        Columns to take first, and never to take.
    center : bool or array of shape (n,), default=False
        As in `select`.
    scale : float, "std" or array of shape (n,), optional
        As in `select`.
    refine : bool, default=True
        Exchange picked columns for other candidates while that lowers the loss.
    sketch : int, optional
        Rows of the sketch; 10 for each column to pick, and 160 at least, by default.
    runners_up : int, default=16
        How many columns are noted before each pick.
    folds : int, default=5
        Folds kept apart for ``lam="cv"``.
    weights : array of shape (m,), path or Dask array, optional
        Non-negative weights of the rows.
    rows : slice, float, array of bool of shape (m,) or str, optional
        Read only these rows, as in `scan`.
    nan : {"raise", "drop"}, default="raise"
        Whether values that are not finite are refused or their rows dropped. They cannot be filled.
    missing : {"raise", "fill"}, default="raise"
        What a chunk is that is not in the store.
    memory : int, float or str, optional
        Memory that each of the two readings may use in each process.
    progress : bool or callable, optional
        As in `scan`.
    say : callable, optional
        Is told what is read and why.
    seed : int, default=0
        Seed of the sketch, of the folds and of the fraction of rows.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Selection
        The picks, with their exact losses.

    See Also
    --------
    select : the same from the products of all columns, where they fit the memory.
    scan : makes a sketch, ``sketch=``, or a band, ``candidates=``, alone.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> draw = np.random.default_rng(0)
    >>> rows = draw.normal(size=(4000, 4)) @ draw.normal(size=(4, 300)) + 0.1 * draw.normal(size=(4000, 300))
    >>> picked = rg.select_wide(rows, 4)
    >>> bool(picked.explained[-1] > 0.99)
    True
    """
    tunes = isinstance(lam, str)
    if isinstance(lam, str) and lam != "cv":
        raise ValueError(f"lam must be a number or 'cv'; got {lam!r}.")
    problem = Problem(objective, 1.0 if isinstance(lam, str) else lam, include, exclude, center, scale)
    reading = {"weights": weights, "rows": rows, "nan": nan, "missing": missing, "memory": memory}
    reading |= {"progress": progress, "seed": seed, "storage_options": storage_options}
    band = band_of_candidates(
        source, k, problem, sketch=sketch, runners_up=runners_up, folds=folds if tunes else None, say=say, **reading
    )
    tuned = validated(band, k, problem, fixed_k=True) if tunes else None
    picked = answered(band, k, problem)[0] if tuned is None else tuned.selection
    if refine:
        picked = improved(picked, band, problem).selection
    asked = {"k": k, "lam": lam, "objective": objective, "readings": 2}
    return picked.known(PickedFrom.of(band, {"asked": asked}, None if tuned is None else tuned.summary))


def band_of_candidates(
    source: Any,
    k: int,
    problem: Problem,
    *,
    sketch: int | None = None,
    runners_up: int = RUNNERS_UP,
    folds: int | None = None,
    groups: int | None = None,
    say: Say | None = None,
    rows: Any = None,
    **reading: Any,
) -> Moments:
    """Read rows twice: find candidates for k picks, then add up their products with all columns."""
    source, rows = along(source, rows)
    stored = {name: reading[name] for name in ("missing", "storage_options") if reading.get(name) is not None}
    opened = source if isinstance(source, Source) else open_source(source, **stored)
    height = max(ROWS_PER_PICK * k, LEAST_ROWS) if sketch is None else sketch
    tell, began = say or (lambda words: None), time.monotonic()
    m, n = opened.shape
    tell(
        f"the products of all {n:,} columns would take {size(8 * n * n)}: reading {m:,} rows twice, "
        f"{size(m * opened.geometry.row_bytes)} each time; first for a sketch in {height:,} rows "
        f"({size(8 * height * n)})."
    )
    first = scan(opened, sketch=height, folds=folds, rows=rows, **reading)
    problem = problem.by_index(n, opened.names)
    if folds is not None:
        problem = problem.at(validated(first, k, problem, fixed_k=True).lam)
    need = memory_needs.select_need(n, k)
    need = replace(need, work=8 * n * (3 * height + 6 * k + 64))
    found = ask(noted, first, k, problem, runners_up, need=need, where=None)
    tell(
        f"after {time.monotonic() - began:.3g} seconds: {len(found):,} candidates. Reading again, for the products of "
        f"these with all columns ({size(8 * len(found) * n)})."
    )
    band = scan(opened, candidates=np.asarray(found), folds=folds, groups=groups, rows=rows, **reading)
    check_same_data(first, band, opened.address)
    return band

"""Selection among any number of columns: a pass for a sketch finds candidates, a second pass their exact products."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rgcss_dask.answering import answered, improved, validated
from rgcss_dask.cluster.execution import capacity
from rgcss_dask.cluster.placement import ask
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core import memory_needs
from rgcss_dask.core.candidates import RUNNERS_UP, check_same_data, noted
from rgcss_dask.core.estimates import check_height
from rgcss_dask.core.input_checks import checked_rows, is_whole
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.preparation import Center, Scale
from rgcss_dask.core.problem import Columns, Problem
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.sketch import ROWS_PER_PICK
from rgcss_dask.core.spans import READ_BYTES, reads_between
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.words import duration, size
from rgcss_dask.origin import PickedFrom
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.scanning.request import make_request
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.gap_filling import FilledSource
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.xarray import along

Say = Callable[[str], None]

# Time of a pass for a sketch, as a multiple of reading, roughly.
_SKETCHED = 1.5
# Size of the trial product that measures the speed of multiplication, in some milliseconds.
_TRIAL = 512
# Minimum rows of a sketch: fewer would save nothing and give poor estimates.
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
    """Pick k of any number of columns with two passes over the rows, without an n x n matrix.

    The first pass makes a `Sketch`. Selections on it and on its halves give the candidates: their picks, and before
    each pick the columns with the next largest gains. The second pass accumulates the products of the candidates with
    all columns, a `Band`. From the band the picks, the swaps, the loss over all n columns and the weights are exact
    among the candidates. Time O(m n) for the first pass and O(m c n) for the second, with c up to 3 ``runners_up`` k;
    memory d n and c n numbers.

    Parameters
    ----------
    source : array-like, data frame, path or list of these
        Rows, as for `scan`. They are read twice; a change in between is an error.
    k : int
        Number of columns.
    lam : float or "cv", default=1.0
        Lambda; ``"cv"`` takes the one with the smallest loss on held-out rows for k columns, see `cross_validate`.
    objective : {"unselected", "all"}, default="unselected"
        As in `select`.
    include, exclude : sequence of int or str, optional
        Columns to pick first, and columns that must not be picked.
    center : bool or array of shape (n,), default=False
        As in `select`.
    scale : float, "std" or array of shape (n,), optional
        As in `select`.
    refine : bool, default=True
        Swap picked columns for other candidates as long as that lowers the loss.
    sketch : int, optional
        Rows of the sketch; by default 10 for each column to pick, and at least 160.
    runners_up : int, default=8
        Number of candidates noted before each pick, on the sketch and on each of its halves.
    folds : int, default=5
        Number of folds for ``lam="cv"``.
    weights : array of shape (m,), path or Dask array, optional
        Non-negative weights of the rows.
    rows : slice, float, array of bool of shape (m,) or str, optional
        Read only these rows, as in `scan`.
    nan : {"raise", "drop", "mean"}, default="raise"
        Policy for missing values, as in `scan`. The second pass fills gaps with the means found by the first pass.
    missing : {"raise", "fill"}, default="raise"
        Policy for chunks that are not in the store, see `scan`.
    memory : int, float or str, optional
        Memory limit of each pass in each process.
    progress : bool or callable, optional
        As in `scan`.
    say : callable, optional
        Called with messages about what is read and why.
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
    select : the same from the products of all columns, if they fit into memory.
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
    archive: str | None = None,
    overwrite: bool = False,
    **reading: Any,
) -> Moments:
    """Read rows twice: find candidates for k picks, then sum their products with all columns, in an archive if given.

    A pass that does not fit into memory is refused before any data are read; if the band does not fit after the first
    pass, the number of runners-up is halved until it does.
    """
    source, rows = along(source, rows)
    stored = {name: reading[name] for name in ("missing", "storage_options") if reading.get(name) is not None}
    opened = source if isinstance(source, Source) else open_source(source, **stored)
    tell, began = say or (lambda words: None), time.monotonic()
    n = opened.shape[1]
    problem = problem.by_index(n, opened.names)
    problem.prepared(n).rules(k, n)  # refuses columns that cannot be picked
    height = _height(k, sketch, runners_up)
    filled = reading.get("nan") == "mean"  # gaps are filled in the second pass, which knows the means
    nan = "raise" if filled else reading.get("nan", "raise")
    room = _Room(opened, Options(folds or 0, groups or 0, nan=nan), reading.get("memory"))
    room.check(min(k, n))
    tell(_plan_in_words(opened, height, min(n, 3 * runners_up * k)))
    first = scan(opened, sketch=height, folds=folds, rows=rows, **reading)
    if folds is not None:
        problem = problem.at(validated(first, k, problem, fixed_k=True).lam)
    need = memory_needs.select_need(n, k)
    need = replace(need, work=8 * n * (3 * height + 6 * k + 64))
    found = ask(noted, first, k, problem, runners_up, need=need, where=None)
    while not room.holds(len(found)) and runners_up > 1:
        runners_up //= 2
        found = ask(noted, first, k, problem, runners_up, need=need, where=None)
        tell(f"products of more candidates would not fit into memory: {runners_up} runners-up are noted for each pick.")
    tell(
        f"after {time.monotonic() - began:.3g} seconds: {len(found):,} candidates. Reading again, for the products of "
        f"these with all columns ({size(8 * len(found) * n)})."
    )
    again = FilledSource(opened, first.mean, np.float64) if filled else opened
    reading |= {"nan": nan, "folds": folds, "groups": groups, "rows": rows, "archive": archive, "overwrite": overwrite}
    band = scan(again, candidates=np.asarray(found), **reading)
    check_same_data(first, band, opened.address)
    return band


def _height(k: int, sketch: int | None, runners_up: int) -> int:
    """Return the number of rows of the sketch; refuse numbers that are too small to find candidates."""
    if not is_whole(runners_up) or runners_up < 1:
        raise ValueError(f"runners_up must be a whole number, 1 or more; got {runners_up!r}.")
    height = checked_rows(max(ROWS_PER_PICK * k, LEAST_ROWS) if sketch is None else sketch)
    check_height(height, k)
    return height


@dataclass(frozen=True)
class _Room:
    """Tells which bands fit into the memory of a pass."""

    source: Source
    options: Options  # options of the pass, without the candidates
    memory: Any

    def check(self, candidates: int) -> None:
        """Refuse this number of candidates if their products do not fit."""
        options = replace(self.options, candidates=tuple(range(candidates)))
        make_request(self.source, options, weights=None, rows=None, reading=Reading(), memory=self.memory)

    def holds(self, candidates: int) -> bool:
        """Tell whether the products of this number of candidates fit."""
        try:
            self.check(candidates)
        except MemoryError:
            return False
        return True


def _plan_in_words(source: Source, height: int, candidates: int) -> str:
    """Describe the two passes and estimate their time from rates measured on this machine."""
    m, n = source.shape
    stored = m * (source.geometry.sparse_bytes or source.geometry.row_bytes)
    words = (
        f"the products of all {n:,} columns would take {size(8 * n * n)}: reading {m:,} rows twice, {size(stored)} "
        f"each time; first for a sketch in {height:,} rows ({size(8 * height * n)}), then for the products of "
        f"some {candidates:,} candidates."
    )
    if source.geometry.whole:  # computing its blocks takes an unknown time
        return words
    where = capacity(cluster=source.processes)
    read, multiplied = _rates(source)
    dense = 1.0 if not source.geometry.sparse_bytes else source.geometry.sparse_bytes / source.geometry.row_bytes
    first = _SKETCHED * m * read / where.threads
    second = (m * read + dense * m * n * candidates * multiplied) / where.threads
    each = "" if where.client is None else " for one worker alone"
    took = f"some {duration(first)} for the first and up to {duration(second)} for the second{each}"
    return f"{words} At the rates of this machine: {took}."


def _rates(source: Source) -> tuple[float, float]:
    """Return the seconds that one thread takes to read a row, and to multiply a pair of numbers in a large product."""
    step = max(1, READ_BYTES // source.geometry.row_bytes)
    _, stop = next(reads_between(source.cuts, 0, source.shape[0], step))
    began = time.perf_counter()
    block = source.read_block(0, stop)
    np.array(block.values if isinstance(block, SparseRows) else block)  # copies: a read from memory returns a view
    read = (time.perf_counter() - began) / stop
    X = np.ones((_TRIAL, _TRIAL), np.float32 if source.dtype.itemsize == 1 else np.float64)
    with single_threaded_blas():
        X @ X  # loads and starts the BLAS library
        began = time.perf_counter()
        X @ X
    return read, (time.perf_counter() - began) / _TRIAL**3

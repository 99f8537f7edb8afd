"""Swaps after the greedy selection: replace a picked column by another as long as that lowers the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.answer import AboutSelection
from rgcss_dask.core.exact import SECONDS, Certificate, certificate, search_all
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.search import BETTER, Local, Optimum, Told, Tries, widely
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.bases import Wide
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.solver.grouped import exchange
from rgcss_dask.core.solver.pool import Pool, threads_for
from rgcss_dask.core.swaps import Products, lambdas, swap_losses
from rgcss_dask.core.words import counted
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Up to this n^2 k swaps are made by default: that takes a second or two on two cores.
CHEAP = 2**28
# Swaps in a sweep that may fail, after earlier swaps of the sweep, before all swaps are scored again.
_FAILED = 4
# From this n^2 k on, products are kept from sweep to sweep; below, scoring all swaps anew takes milliseconds.
_KEPT = 2**24


@dataclass(frozen=True, eq=False, repr=False)
class Refinement(AboutSelection):
    """A selection after swaps, with the losses before and after.

    Made by `refine`. Columns, names and losses are those of its selection.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rng = np.random.default_rng(6)
    >>> rows = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 10)) + 0.3 * rng.normal(size=(50, 10))
    >>> better = rg.refine(rg.select(rows, 3, center=True))
    >>> better
    2 swaps lowered the loss by 13 %, from 237.464 to 206.685; no further swap lowers it.
    3 of 10 columns keep 91.1 % of the variation, with lambda = 1.
    """

    selection: Selection  #: a column takes the position of the column that it replaced
    before: float  #: loss of the given columns
    after: float  #: loss of the columns now, never higher
    swaps: int  #: swaps made; after further searches, the number of columns that differ
    sweeps: int  #: number of sweeps
    settled: bool  #: True: no single swap is better. False: the maximum number of sweeps was reached
    tries: Tries | None = None  #: further searches, if requested

    @property
    def k(self) -> int:
        """Number of picked columns."""
        return self.selection.k

    @property
    def sentence(self) -> str:
        """The improvement by the swaps, in a sentence or two."""
        if self.after == self.before:
            words = "No swap of one picked column for another lowers the loss."
        else:
            gain = 100 * (1 - self.after / self.before) if self.before > 0 else 0.0
            unsettled = f"more may be gained after {counted(self.sweeps, 'sweep')}"
            words = (
                f"{counted(self.swaps, 'swap')} lowered the loss by {gain:.3g} %, from {self.before:.6g} to "
                f"{self.after:.6g}; {'no further swap lowers it' if self.settled else unsettled}."
            )
        proved = self.selection.certificate
        more = ["" if self.tries is None else self.tries.sentence]
        more += ["" if proved is None else proved.sentence(self.k, self.after)]
        return " ".join([words, *filter(None, more)])

    @property
    def picks(self) -> str:
        """The selection after the swaps, in one sentence."""
        return self.selection.sentence


def improve(
    selection: Selection,
    source: Moments | Wide | ArrayLike,
    problem: Problem | None = None,
    *,
    sweeps: int = 50,
    effort: int = 0,
    seed: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    told: Told | None = None,
) -> Refinement:
    """Swap picked columns as long as that lowers the loss; see `rgcss_dask.refine`.

    A sweep scores all k (n - k) swaps at once from the Gram, then makes the best of them one after the other until the
    recomputed loss no longer falls. ``problem`` (default: that of the selection) gives the columns that must stay, and
    those that must not be picked; lambda, objective and preparation are those of the selection.
    """
    _check_whole("sweeps", sweeps, 1)
    _check_whole("effort", effort, 0)
    _check_whole("seed", seed, 0)
    if (effort or exact) and selection.aims.column_groups:
        what = "effort" if effort else "exact"
        raise ValueError(f"{what} needs single columns; this selection has column_groups. Leave {what} out.")
    ground = _Ground(selection, source, problem or selection.problem or Problem(), sweeps)
    tries = proved = None
    with Pool(None if exact else threads_for(ground.base.matrix.size)) as pool, single_threaded_blas():
        first = best = ground.descend(selection.columns, pool)
        if effort:
            local = Local(ground.descend, ground.allowed)
            best, tries = widely(local, best, effort, seed, pool, told)
        if exact:
            best, proved = ground.prove(best, seconds, pool, told)
    swaps, refined, wide = 0, selection, exact or tries is not None
    if best.loss < first.start:
        swaps = len(np.setdiff1d(best.columns, selection.columns)) if wide else best.swaps
        refined = ground.selection(ground.in_order(best.columns) if wide else best.columns)
    refined = replace(refined, certificate=proved) if exact else refined
    return Refinement(refined, first.start, best.loss, swaps, best.sweeps, best.settled, tries)


def swaps_asked(refine: bool | None, n: int, k: int) -> bool:
    """Tell whether to make swaps: as requested, and by default if they are cheap."""
    return n * n * k <= CHEAP if refine is None else refine


class _Ground:
    """The ground of swaps: the Gram, the weights in the loss, and the allowed swaps."""

    def __init__(self, selection: Selection, source: Moments | Wide | ArrayLike, problem: Problem, sweeps: int) -> None:
        self.base = selection.base(source)
        self._norms = self.base.diagonal * self.base.unit
        self._selection, self._sweeps = selection, sweeps
        # The Gram has the column order of the selection.
        self._names = selection.all_names or getattr(source, "names", None)
        given = (problem.include, problem.exclude)
        self._stay, self._never = (column_indices(one, selection.n, self._names) for one in given)
        self._aims = selection.aims.extended(selection.n)
        self._lams = self._aims.lams(selection.lam, self.base.n)
        self._candidates = self._aims.may_be_picked(self.base.n)
        self._candidates[self._never] = False
        if self.base.candidates is not None:
            self._candidates &= np.isin(np.arange(self.base.n), self.base.candidates)
        self._problem = replace(problem, include=self._stay, exclude=self._never, aims=selection.aims, is_settled=True)
        absent = np.setdiff1d(self._stay, selection.columns)
        if len(absent):
            raise ValueError(f"columns that must stay must have been picked; column {absent[0]} was not.")

    def _weighed(self, columns: Index) -> tuple[float, float]:
        """Return the loss of picks, recomputed in full, and the resolution of a Gram: smaller differences do not count.

        The resolution is the rounding of the columns that were not picked.
        """
        GS = self.base.rows(columns)
        W = evaluate.weights_from_rows(GS, columns, self._lams[columns])
        losses = evaluate.column_losses_from_rows(self._norms, GS, W, columns)
        roots = np.sqrt(np.maximum(self._norms, 0.0))
        rounding = np.delete(evaluate.rounding_left(roots, W, roots[columns]), columns).sum()
        return float(losses @ self._selection.counting.counts(self.base.n, columns)), float(rounding)

    def allowed(self, columns: Index) -> NDArray[np.bool_]:
        """Return which column may replace which pick, (k, n); a picked column replaces no other."""
        if self._aims.constrains:
            others = (np.delete(columns, place) for place in range(len(columns)))
            mask = np.array([self._aims.allowed(picked, self._candidates) for picked in others])
            mask = mask.reshape(len(columns), -1)
        else:
            mask = np.tile(self._candidates, (len(columns), 1))
        mask[np.isin(columns, self._stay)] = False
        mask[:, columns] = False
        return mask

    def _allows(self, columns: Index, place: int) -> bool:
        """Tell whether the column at this place is allowed with the others, after other swaps of the same sweep."""
        mask = self._aims.allowed(np.delete(columns, place), self._candidates)
        return bool(mask[columns[place]])

    def descend(self, columns: Index, pool: Pool) -> Optimum:
        """Swap picks until no swap lowers the loss, or the maximum number of sweeps is reached."""
        return self._exchange_groups(columns) if self._aims.column_groups else self._exchange_columns(columns, pool)

    def _exchange_groups(self, columns: Index) -> Optimum:
        """Swap one group, or one column outside groups, in each sweep."""
        rules = self._problem.prepared(self._selection.n).rules(self._selection.k, self.base.n)
        G = self.base.rows(np.arange(self.base.n))
        start, resolved = self._weighed(columns)
        after, done, settled = start, 0, False
        while done < self._sweeps and not settled:
            done += 1
            trial, _ = exchange(G, columns.tolist(), self._stay, self._lams, rules)
            loss, _ = self._weighed(np.array(trial))
            settled = not loss < after - BETTER * after - resolved
            if not settled:
                columns, after = np.array(trial), loss
        return Optimum(columns, start, after, done - settled, done, settled)

    def _exchange_columns(self, columns: Index, pool: Pool) -> Optimum:
        """Swap in sweeps: with kept products while these find swaps, then until the exact table has none left."""
        after, resolved = self._weighed(columns)
        start, swaps, done = after, 0, 0
        settled = after <= resolved or not self.allowed(columns).any()
        kept = None
        if self.base.n**2 * len(columns) >= _KEPT and not settled:
            lams = lambdas(self.base, len(columns), self._lams)
            kept = Products(self.base, columns, lams, self._selection.counting, pool)
        while done < self._sweeps and not settled:
            sweep = _Sweep(columns, after, resolved)
            if kept is not None:
                self._quick_sweep(kept, sweep)
                loss, rounding = self._weighed(sweep.columns)
                if not sweep.swaps or not loss < after - BETTER * after - resolved:
                    kept = None  # its digits do not suffice any more
                    continue
                sweep.loss, sweep.resolved = loss, rounding
            else:
                self._exact_sweep(sweep, pool)
            columns, after, resolved = sweep.columns, sweep.loss, sweep.resolved
            done, swaps, settled = done + 1, swaps + sweep.swaps, sweep.swaps == 0
        return Optimum(columns, start, after, swaps, done, settled)

    def _exact_sweep(self, sweep: _Sweep, pool: Pool) -> None:
        table = swap_losses(self.base, sweep.columns, self._lams, self._selection.counting, pool)
        for place, column in self._promising(table, sweep):
            trial = sweep.columns.copy()
            trial[place] = column
            loss, rounding = self._weighed(trial)
            if loss < sweep.limit and self._allows(trial, place):
                sweep.made(trial, loss, rounding)
            else:
                sweep.failed += 1

    def _quick_sweep(self, kept: Products, sweep: _Sweep) -> None:
        """Do the same with losses that may lose digits."""
        for place, column in self._promising(kept.swap_losses(), sweep):
            trial = sweep.columns.copy()
            trial[place] = column
            loss, inner = kept.loss_after(place, column)
            if loss < sweep.limit and self._allows(trial, place):
                kept.swap(place, column, inner)
                sweep.made(trial, loss, sweep.resolved)
            else:
                sweep.failed += 1

    def _promising(self, table: Array, sweep: _Sweep) -> Iterator[tuple[int, int]]:
        """Yield the swaps to try, best first, until too many have failed or the table has none that gains."""
        table[~self.allowed(sweep.columns)] = np.inf
        limit = sweep.limit
        for place, column in _best_first(table):
            yield place, column
            if sweep.failed > _FAILED or not table[place, column] < limit:
                return

    def prove(self, best: Optimum, seconds: float, pool: Pool, told: Told | None) -> tuple[Optimum, Certificate]:
        """Search all subsets, and return the best one with its certificate."""
        if self._aims.constrains:
            raise ValueError(
                f"an exact search does not support {self._aims.constraints}; leave one of them out, or use effort=20."
            )
        limits: dict[str, Any] = {"include": self._stay, "candidates": self._candidates, "seconds": seconds}
        if not isinstance(self.base, Gram):
            raise ValueError("an exact search needs the products of all columns; scan without candidates= or sketch=.")
        asked = (self.base, best.columns, self._lams, self._selection.counting, best.loss)
        found = search_all(*asked, **limits, pool=pool, told=told)
        columns, lower, nodes = found
        loss, _ = self._weighed(columns)
        if loss < best.loss:
            best = replace(best, columns=columns, loss=loss, settled=True)
        known = self._selection.tight_bound(self.base.spectrum(self._selection.counting.counts(self.base.n)))[-1]
        lower = max(lower, min(float(known), best.loss))  # after a short search, the known bound may be tighter
        return best, certificate(lower, best.loss, self._selection.start, nodes, seconds)

    def in_order(self, columns: Index) -> Index:
        """Return unordered picks in the order of a greedy selection among them."""
        aims = replace(self._aims, candidates=columns, costs=None, budget=None, limits=(), distance=None, places=None)
        rules = Problem(self._selection.objective, self._selection.lam, self._stay, aims=aims, is_settled=True)
        first = solve(self.base, len(columns), rules, quiet=True)[0].columns
        return np.concatenate([first, columns[~np.isin(columns, first)]])

    def selection(self, columns: Index) -> Selection:
        """Return the selection with other columns, and the losses of their prefixes."""
        selection, names, GS = self._selection, self._names, self.base.rows(columns)
        losses = evaluate.prefix_column_losses_from_rows(GS, columns, self._lams[columns], self._norms, GS)
        if selection.error is not None:  # on a sketch losses are too low, by the same factor as before
            own = self._weighed(selection.columns)[0]
            losses = losses * (selection.last_loss / own if own > 0 else 1.0)
        return replace(
            selection,
            columns=columns,
            loss=evaluate.sum_prefixes(losses, columns, selection.counting),
            names=None if names is None else tuple(names[j] for j in columns),
            problem=self._problem,
            rounding=None,  # known only for the greedy picks
        )


@dataclass
class _Sweep:
    """A sweep in the making: the picks, their loss, and what counts as a gain."""

    columns: Index
    loss: float
    resolved: float  # smaller differences of losses do not count
    swaps: int = 0
    failed: int = 0

    @property
    def limit(self) -> float:
        """The loss below which a swap counts."""
        return self.loss - BETTER * self.loss - self.resolved

    def made(self, columns: Index, loss: float, resolved: float) -> None:
        """Count a swap."""
        self.columns, self.loss, self.resolved, self.swaps = columns, loss, resolved, self.swaps + 1


def _best_first(table: Array) -> Iterator[tuple[int, int]]:
    """Yield the best replacement of each picked column, best swaps first, without repeating columns."""
    best = table.argmin(axis=1)
    value = table[np.arange(len(table)), best]
    taken = set()
    for place in np.argsort(value, kind="stable"):
        if np.isfinite(value[place]) and int(best[place]) not in taken:
            taken.add(int(best[place]))
            yield int(place), int(best[place])


def _check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}.")

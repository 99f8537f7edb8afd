"""Swaps after the greedy selection: exchange one picked column for another while that lowers the loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.answer import AboutSelection
from rgcss_dask.core.exact import SECONDS, Certificate, certificate, search_all
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.objective import Objective
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.search import BETTER, Local, Optimum, Told, Tries, widely
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver import kernels
from rgcss_dask.core.solver.bases import Wide
from rgcss_dask.core.solver.gram import Base, Gram
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.solver.grouped import exchange
from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.words import counted
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# Up to this n^2 k swaps are made unasked: that takes a second or two on two cores.
CHEAP = 2**28
# Swaps of a sweep that may bring nothing, after those made before them, until all are scored anew.
_FAILED = 4


@dataclass(frozen=True, eq=False, repr=False)
class Refinement(AboutSelection):
    """A selection after swaps, and what they brought.

    Made by `refine`; asked for columns, names or losses, it gives those of its selection.

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

    selection: Selection  #: a swapped-in column has the place of the one it replaced
    before: float  #: loss of the columns that were given
    after: float  #: loss of the columns now: never more
    swaps: int  #: that were made; after further tries, how many columns are others in the end
    sweeps: int  #: how often all swaps were scored
    settled: bool  #: True: no single swap is better. False: the sweeps were used up
    tries: Tries | None = None  #: how often the search was begun again, where that was asked for

    @property
    def k(self) -> int:
        """Number of picked columns."""
        return self.selection.k

    @property
    def sentence(self) -> str:
        """Say in a sentence or two what the swaps brought."""
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
        """What is picked now is worth, in a sentence."""
        return self.selection.sentence


def improve(
    selection: Selection,
    source: Moments | Wide | ArrayLike,
    problem: Problem | None = None,
    *,
    sweeps: int = 20,
    effort: int = 0,
    seed: int = 0,
    exact: bool = False,
    seconds: float = SECONDS,
    told: Told | None = None,
) -> Refinement:
    """Exchange picked columns while that lowers the loss; see `rgcss_dask.refine`.

    A sweep scores all k (n - k) swaps at once from the Gram, then makes the best of them one after the other until
    some, recomputed in full, are no better. Of the problem, by default that of the selection, the columns that stay and
    those that are never taken in count; lambda, objective and preparation are those of the selection.
    """
    _check_whole("sweeps", sweeps, 1)
    _check_whole("effort", effort, 0)
    _check_whole("seed", seed, 0)
    if (effort or exact) and selection.aims.column_groups:
        what = "effort" if effort else "exact"
        raise ValueError(f"{what} searches among single columns; column_groups are only swapped: leave {what} out.")
    ground = _Ground(selection, source, problem or selection.problem or Problem(), sweeps)
    tries = proved = None
    with Pool() as pool, single_threaded_blas():
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
    """Say whether to swap: as asked for, and where nothing was said if it is cheap."""
    return n * n * k <= CHEAP if refine is None else refine


class _Ground:
    """What picks are exchanged on: the Gram, what counts, and which swaps are allowed."""

    def __init__(self, selection: Selection, source: Moments | Wide | ArrayLike, problem: Problem, sweeps: int) -> None:
        self.base = selection.base(source)
        self._norms = self.base.diagonal * self.base.unit
        self._selection, self._sweeps = selection, sweeps
        self._names = selection.all_names or getattr(source, "names", None)  # the Gram has the order of the selection
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
            raise ValueError(f"a column to keep must have been picked; column {absent[0]} was not.")

    def _weighed(self, columns: Index) -> tuple[float, float]:
        """Return the loss of picks, recomputed in full, and what a Gram resolves of it: no less is a difference.

        That is the rounding of the columns that were not picked. Others are known.
        """
        GS = self.base.rows(columns)
        W = evaluate.weights_from_rows(GS, columns, self._lams[columns])
        losses = evaluate.column_losses_from_rows(self._norms, GS, W, columns)
        roots = np.sqrt(np.maximum(self._norms, 0.0))
        rounding = np.delete(evaluate.rounding_left(roots, W, roots[columns]), columns).sum()
        return float(losses @ self._selection.counting.counts(self.base.n, columns)), float(rounding)

    def allowed(self, columns: Index) -> NDArray[np.bool_]:
        """Say which column may take the place of which pick, (k, n); a picked one takes no other place."""
        others = (np.delete(columns, place) for place in range(len(columns)))
        mask = np.array([self._aims.allowed(picked, self._candidates) for picked in others]).reshape(len(columns), -1)
        mask[np.isin(columns, self._stay)] = False
        mask[:, columns] = False
        return mask

    def descend(self, columns: Index, pool: Pool) -> Optimum:
        """Exchange picks until no swap lowers the loss, or the sweeps are used up."""
        return self._exchange_groups(columns) if self._aims.column_groups else self._exchange_columns(columns, pool)

    def _exchange_groups(self, columns: Index) -> Optimum:
        """Exchange one group, or a column that is in none, for another in each sweep."""
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
        objective = self._selection.counting
        columns, swaps, done = columns.copy(), 0, 0
        after, resolved = self._weighed(columns)
        start = after
        settled = after <= resolved or not self.allowed(columns).any()
        while done < self._sweeps and not settled:
            done, settled, failed, limit = done + 1, True, 0, after - BETTER * after - resolved
            table = swap_losses(self.base, columns, self._lams, objective, pool)
            table[~self.allowed(columns)] = np.inf
            for place, column in _best_first(table):
                trial = columns.copy()
                trial[place] = column
                loss, rounding = self._weighed(trial)
                if loss < after - BETTER * after - resolved and self.allowed(columns)[place, column]:
                    columns, after, resolved, swaps, settled = trial, loss, rounding, swaps + 1, False
                else:
                    failed += 1
                if failed > _FAILED or not table[place, column] < limit:
                    break
        return Optimum(columns, start, after, swaps, done, settled)

    def prove(self, best: Optimum, seconds: float, pool: Pool, told: Told | None) -> tuple[Optimum, Certificate]:
        """Search all subsets, and say what is proved of the best one."""
        if self._aims.constrains:
            raise ValueError(
                f"an exact search knows no {self._aims.constraints}; leave one of them out, or use effort=20."
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
        return best, certificate(lower, best.loss, self._selection.start, nodes, seconds)

    def in_order(self, columns: Index) -> Index:
        """Return picks that have no order of their own in the order the greedy selection takes them."""
        aims = replace(self._aims, candidates=columns, costs=None, budget=None, limits=(), distance=None, places=None)
        rules = Problem(self._selection.objective, self._selection.lam, self._stay, aims=aims, is_settled=True)
        first = solve(self.base, len(columns), rules, quiet=True)[0].columns
        return np.concatenate([first, columns[~np.isin(columns, first)]])

    def selection(self, columns: Index) -> Selection:
        """Return the selection with other columns in the same places, and the losses of their prefixes."""
        selection, names, GS = self._selection, self._names, self.base.rows(columns)
        losses = evaluate.prefix_column_losses_from_rows(GS, columns, self._lams[columns], self._norms, GS)
        if selection.error is not None:  # on the sketch picks look better than they are, by as much as before
            own = self._weighed(selection.columns)[0]
            losses = losses * (selection.last_loss / own if own > 0 else 1.0)
        return replace(
            selection,
            columns=columns,
            loss=evaluate.sum_prefixes(losses, columns, selection.counting),
            names=None if names is None else tuple(names[j] for j in columns),
            problem=self._problem,
            rounding=None,  # that of the picks which were made one by one
        )


def _best_first(table: Array) -> Iterator[tuple[int, int]]:
    """Yield for each picked column its best replacement, the best swap first, no column twice."""
    best = table.argmin(axis=1)
    value = table[np.arange(len(table)), best]
    taken = set()
    for place in np.argsort(value, kind="stable"):
        if np.isfinite(value[place]) and int(best[place]) not in taken:
            taken.add(int(best[place]))
            yield int(place), int(best[place])


def swap_losses(base: Base, columns: Index, lam: ArrayLike, objective: Objective, pool: Pool) -> Array:
    """Return the loss after replacing each picked column by each other one, (k, n); infinite for picked ones.

    With a lambda for each column, Ki = (G_SS + lam)^-1, W = Ki G_S and V = Ki lam W, dropping column a adds w w'/q to H
    and (1/q - p/q^2) w w' + (v w' + w v')/q to R, where w = W_a, v = V_a, q = Ki_aa and p = (Ki lam Ki)_aa. The sums
    behind the gain of adding j, eta' and rho', then follow from those of all picks and H w, H v and R w.
    """
    lams = _lambdas(base, len(columns), lam)
    own = lams[columns][:, None]
    counts = objective.counts(base.n, columns)
    GS = np.array([base.column(j) for j in columns])
    L = np.linalg.cholesky(GS[:, columns] + np.diagflat(own))
    Y = scipy.linalg.solve_triangular(L, GS, lower=True)
    W = scipy.linalg.solve_triangular(L, Y, lower=True, trans=1)
    Ki = scipy.linalg.cho_solve((L, True), np.eye(len(columns)))
    V = Ki @ (own * W)
    terms = base.gain_terms(columns, Y, W, lams[columns], counts, pool)
    XG = base.multiply(np.concatenate([W * counts, V * counts]), pool)
    XH = XG - (np.concatenate([W * counts, V * counts]) @ GS.T) @ W
    Hw, Hv = XH[: len(columns)], XH[len(columns) :]
    Rw = Hw - ((W * counts) @ W.T) @ (own * W)
    q = np.diagonal(Ki)[:, None]
    # With a dropped, column a of H' is D_a and column a of R' is E_a; they also make up the change of H and R.
    D, E = W / q, (1.0 - np.sum(own.T * Ki**2, axis=1)[:, None] / q) * W / q + V / q
    ww, vw = ((X * W) @ counts[:, None] for X in (W, V))
    eta = terms.eta + 2.0 * D * Hw + D**2 * ww
    rho = terms.rho + E * Hw + W * Hv / q + D * Rw + D * (E * ww + W * vw / q)
    diag_h, diag_r = terms.diag_h + D * W, terms.diag_r + E * W + V * W / q
    dropped = diag_r @ counts[:, None]
    leaving = objective.leaving(objective.counts(base.n))
    again = leaving[columns][:, None]  # how much of its own error the dropped column brings back
    eta, rho = eta + again * D**2, rho + again * D * E
    dropped += again * np.take_along_axis(E, columns[:, None], axis=1)
    gained = kernels.gains(eta, rho, diag_h, diag_r, lams, leaving)
    # Nothing where nothing is left of the column.
    gained[diag_h <= evaluate.DOUBT * base.diagonal] = 0.0
    table = (dropped - gained) * base.unit
    table[:, columns] = np.inf
    return table


def _lambdas(base: Base, k: int, lam: ArrayLike) -> Array:
    """Return lambda for each column, just above its rounding where picks may depend on each other: scores propose."""
    largest = float(base.diagonal.max(initial=0.0))
    return np.maximum(
        np.asarray(lam) / base.unit, k * evaluate.DOUBT * np.where(base.diagonal > 0, base.diagonal, largest)
    )


def _check_whole(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more; got {value!r}.")

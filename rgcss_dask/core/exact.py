"""The best of all subsets, found and proved by branch and bound."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import branching
from rgcss_dask.core.objective import Objective
from rgcss_dask.core.search import Told
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.words import counted, percent

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# A loss is lower only if it differs by more than this share of it plus this share of the loss before the first pick.
_SLACK = 1e-9, 1e-12
# The number of parts of the search, and of parts searched before the lowest loss is shared: constants, so that the same
# of equally good picks are found for any number of threads.
_PARTS, _ROUND = 64, 4
# Nodes between two checks of the clock: up to a millisecond each.
_BUDGET = 256
SECONDS = 60.0  # default time limit
# Maximum number of columns: beyond it, a proof would take unreasonably long.
MOST = 500


@dataclass(frozen=True)
class Certificate:
    """What an exact search proved: no picks have a loss below ``lower``."""

    lower: float  #: in exact arithmetic; a column with a remainder below 1e-10 counts as linearly dependent
    optimal: bool  #: True: the picks are the best. False: the time limit was reached
    nodes: int  #: sets of columns that were bounded or evaluated
    seconds: float  #: time limit

    def sentence(self, k: int, loss: float) -> str:
        """Describe in one sentence what is proved for k picks with this loss."""
        if self.optimal:
            return f"Proved to be the best {counted(k, 'column')} ({counted(self.nodes, 'node')} searched)."
        most = 1.0 - self.lower / loss if loss > 0 else 0.0
        return (
            f"Not proved to be the best within {self.seconds:g} s: other picks may have a loss that is lower by up to "
            f"{percent(most)}."
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of the search: all subsets with these picks and further picks among these candidates."""

    bound: float
    picks: Index
    C: Index


class _State:
    """The levels of a depth-first search."""

    def __init__(self, search: _Search, part: _Part) -> None:
        n, k = search.n, search.k
        self.H, self.R, self.E, self.P = np.empty((4, k, n, n))
        self.counts, self.cand = np.empty((k, n)), np.zeros((k, n), dtype=np.int64)
        self.loss, self.bound = np.zeros((2, k))
        self.size, self.place, self.due, self.picks = np.zeros((4, k), dtype=np.int64)
        self.depth, self.nodes = len(part.picks), 0
        self._begin(search, part)

    def _begin(self, search: _Search, part: _Part) -> None:
        """Make the picks shared by all subsets of a part."""
        self.H[0] = self.R[0] = search.G
        self.E[0] = self.P[0] = search.squares
        self.counts[0], self.loss[0] = search.counts, search.start
        matrices = (self.H, self.R, self.E, self.P)
        for d, w in enumerate(part.picks):
            rest = np.concatenate([part.picks[d + 1 :], part.C])
            tiny = self.H[d, w, w] <= search.floor[w]
            gain = branching.gain_of(*(M[d] for M in matrices), w, search.lam, search.leaving, search.floor)
            branching.pick(*matrices, self.counts, d, w, rest, search.lam, search.drops, tiny)
            self.loss[d + 1] = self.loss[d] - gain
        d, m = self.depth, len(part.C)
        self.picks[:d] = part.picks
        self.cand[d, :m], self.size[d], self.due[d], self.bound[: d + 1] = part.C, m, m, part.bound

    def explore(self, search: _Search, best: float, found: Index, budget: int) -> float:
        """Continue for at most ``budget`` nodes; return the lowest loss."""
        self.depth, best, unused = branching.explore(
            *(self.H, self.R, self.E, self.P, self.counts, self.loss, self.bound),
            *(self.cand, self.size, self.place, self.due, self.picks, self.depth),
            *(search.lam, search.drops, search.leaving, search.floor, best, found, search.slack, budget),
        )
        self.nodes += budget - unused
        return best

    @property
    def open(self) -> float:
        """A lower bound on the loss of subsets that were not searched yet."""
        return float(min(self.bound[: self.depth + 1], default=np.inf))


class _Search:
    """A branch and bound over the subsets of k columns."""

    def __init__(self, base: Gram, k: int, lams: Array, objective: Objective, best: float, deadline: float) -> None:
        self.G, self.n, self.k, self.lam = base.matrix, base.n, k, lams / base.unit
        self.counts = objective.counts(base.n)
        self.leaving, self.drops = objective.leaving(self.counts), not objective.picks_count
        self.start = float(base.diagonal @ self.counts)
        self.squares = (self.G * self.counts) @ self.G
        self.floor = branching.NOTHING * base.diagonal
        self.slack = _SLACK[0] * best + _SLACK[1] * self.start
        self.best, self.deadline, self.nodes = best, deadline, 0
        self.columns = np.zeros(k, dtype=np.int64)  # the best columns, once better ones were found
        self.found = False
        self.lower = np.inf

    def run(self, include: Index, candidates: Index, pool: Pool, told: Told | None) -> None:
        """Search all subsets of the included columns and candidates."""
        parts = self._divided(_Part(0.0, include.astype(np.int64), candidates.astype(np.int64)))
        for first in range(0, len(parts), _ROUND):
            ends = pool.map(self._searched, ((part, self.best) for part in parts[first : first + _ROUND]))
            for best, found, left, nodes in ends:
                self._take(best, found)
                self.lower, self.nodes = min(self.lower, left), self.nodes + nodes
            if told is not None:
                told(min(first + _ROUND, len(parts)), len(parts), self.best)
        self.lower = min(self.lower, self.best)

    def _take(self, best: float, found: Index) -> None:
        if best < self.best:
            self.best, self.columns, self.found = best, found, True

    def _divided(self, whole: _Part) -> list[_Part]:
        """Divide the subsets into parts by their first picks, sorted by their bounds."""
        parts, small = [whole], list[_Part]()
        while parts and len(parts) + len(small) < _PARTS and time.monotonic() < self.deadline:
            part = parts.pop(0)
            state, found = _State(self, part), np.zeros(self.k, dtype=np.int64)
            depth = state.depth
            self._take(state.explore(self, self.best, found, 1), found)
            self.nodes += state.nodes
            C = state.cand[depth, : state.size[depth]].copy() if state.depth == depth else state.cand[depth, :0]
            for i, w in enumerate(C):
                child = _Part(float(state.bound[depth]), np.append(part.picks, w), C[i + 1 :])
                (parts if self.k - len(child.picks) > 3 else small).append(child)
            parts.sort(key=lambda part: part.bound)
        return sorted(parts + small, key=lambda part: part.bound)

    def _searched(self, part: _Part, best: float) -> tuple[float, Index, float, int]:
        """Search a part; return the lowest loss, its picks, a bound for what was not searched, and the nodes."""
        found = np.zeros(self.k, dtype=np.int64)
        if part.bound >= best - self.slack:
            return best, found, np.inf, 0
        if time.monotonic() > self.deadline:
            return best, found, part.bound, 0
        state = _State(self, part)
        while state.depth >= 0 and time.monotonic() < self.deadline:
            best = state.explore(self, best, found, _BUDGET)
        return best, found, state.open, state.nodes


def search_all(
    base: Gram,
    columns: Index,
    lams: Array,
    objective: Objective,
    loss: float,
    *,
    include: Index,
    candidates: NDArray[np.bool_],
    seconds: float,
    pool: Pool,
    told: Told | None = None,
) -> tuple[Index, float, int]:
    """Return the best columns, as many as were given, a lower bound for all subsets, and the number of nodes.

    Each column has its lambda, and is a candidate or not. ``loss`` is the loss of the given columns, which are returned
    if no others have a lower one. For a set of picks and the columns that may be added, an upper bound of what further
    picks can explain is computed (`branching.reach`); if it cannot get below the lowest loss so far, all these subsets
    are skipped. By the same bound, candidates that cannot be in a better subset are dropped one by one. The last two
    picks are the best of all pairs. The returned bound is the smallest of those not searched when the time was up, or
    else the lowest loss.
    """
    check_searchable(base.n)
    search = _Search(base, len(columns), lams, objective, loss / base.unit, time.monotonic() + seconds)
    free = np.setdiff1d(np.flatnonzero(candidates), include)
    if len(include) < len(columns):
        search.run(include, free, pool, told)
    best = search.columns.astype(np.intp) if search.found else columns
    return best, min(search.lower, search.best) * base.unit, search.nodes


def check_searchable(n: int) -> None:
    """Refuse to search all subsets of so many columns."""
    if n > MOST:
        raise ValueError(f"an exact search takes at most {MOST} columns; got {n}. Use effort=20 instead.")


def certificate(lower: float, loss: float, start: float, nodes: int, seconds: float) -> Certificate:
    """Return the certificate for picks with this loss, given a lower bound for all subsets."""
    return Certificate(min(lower, loss), loss - lower <= 2 * (_SLACK[0] * loss + _SLACK[1] * start), nodes, seconds)

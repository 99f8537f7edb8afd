"""Repeated local search from other starting points, in parallel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.words import counted

Index = NDArray[np.intp]

# A loss is better only if it is lower by more than this share of it.
BETTER = 1e-10
# With up to this many columns a try starts anywhere; with more, at the best picks with this share of them replaced.
_FEW = 100
_KICKED = 0.1
_KICKED_AT_LEAST = 2
# Tries per round, which start at the same picks, so that the result does not depend on the number of threads.
_ROUND = 4

Told = Callable[[int, int, float], None]  # tries done, tries in total, lowest loss so far


@dataclass(frozen=True, eq=False)
class Optimum:
    """The end of a local search."""

    columns: Index
    start: float  # the loss at the beginning
    loss: float
    swaps: int
    sweeps: int
    settled: bool  # False: the sweeps were used up


@dataclass(frozen=True)
class Tries:
    """The number of further searches, and how many of all ended at the best picks."""

    made: int
    best: int  # of all searches, including the first
    restarts: bool  # True: from random picks; False: from the best picks with some of them replaced

    @property
    def sentence(self) -> str:
        """How often the best picks were found: the more often, the more likely they are optimal."""
        begun = counted(self.made, "random start" if self.restarts else "kick")
        return f"Of {self.made + 1:,} searches, the first and those after {begun}, {self.best:,} ended at this loss."


@dataclass(frozen=True, eq=False)
class Local:
    """The functions of a local search."""

    descend: Callable[[Index, Pool], Optimum]  # from any picks to an optimum
    allowed: Callable[[Index], NDArray[np.bool_]]  # (k, n) which column may replace which pick


def widely(
    local: Local, start: Optimum, effort: int, seed: int, pool: Pool, told: Told | None = None
) -> tuple[Optimum, Tries]:
    """Repeat a local search ``effort`` times and return the best result, never worse than ``start``.

    With few columns each try starts at random picks. With many columns, where random picks are far worse, it starts at
    the best picks with a tenth of them replaced at random (a kick), which can leave a local optimum.
    """
    places, columns = np.nonzero(local.allowed(start.columns))
    movable, n = np.unique(places), local.allowed(start.columns).shape[1]
    restarts, best, losses = n <= _FEW, start, [start.loss]
    kicked = len(movable) if restarts else min(len(movable), max(_KICKED_AT_LEAST, round(_KICKED * len(movable))))
    if len(columns) == 0:
        return start, Tries(0, 1, restarts)

    def tried(number: int, picks: Index) -> Optimum:
        draw = np.random.default_rng([seed, number])
        return local.descend(_shaken(picks, draw.permutation(movable)[:kicked], local, draw), pool)

    for first in range(0, effort, _ROUND):
        ends = pool.map(tried, [(number, best.columns) for number in range(first, min(first + _ROUND, effort))])
        for end in ends:
            losses.append(end.loss)
            best = end if end.loss < best.loss * (1 - BETTER) else best
        if told is not None:
            told(len(losses) - 1, effort, best.loss)
    return best, Tries(effort, sum(loss <= best.loss * (1 + 10 * BETTER) for loss in losses), restarts)


def _shaken(picks: Index, places: Index, local: Local, draw: np.random.Generator) -> Index:
    """Replace the picks at these places, one after the other, by random allowed columns."""
    columns = picks.copy()
    for place in places:
        free = local.allowed(columns)[place]
        free[columns] = False
        if free.any():
            columns[place] = draw.choice(np.flatnonzero(free))
    return columns

"""More search for more time: a local search begun again elsewhere, many times, side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.solver.pool import Pool
from rgcss_dask.core.words import counted

Index = NDArray[np.intp]

# A loss must be lower by more than this share of it to be better.
BETTER = 1e-10
# Up to so many columns a try begins anywhere; of more, near the best picks so far, of which it replaces this share.
_FEW = 100
_KICKED = 0.1
_KICKED_AT_LEAST = 2
# Tries that begin at the same picks, whatever the number of threads, so that what is found does not depend on it.
_ROUND = 4

Told = Callable[[int, int, float], None]  # tries made, tries to make, the lowest loss so far


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a local search ended."""

    columns: Index
    start: float  # the loss where it began
    loss: float
    swaps: int
    sweeps: int
    settled: bool  # False: the sweeps were used up


@dataclass(frozen=True)
class Tries:
    """How often the search was begun again, and how often that ended at the best picks."""

    made: int
    best: int  # of all, the first search too
    restarts: bool  # from picks drawn at random; False: from the best ones with some of them replaced

    @property
    def sentence(self) -> str:
        """Say how often the best was found: the oftener, the surer that there is nothing better."""
        begun = counted(self.made, "random start" if self.restarts else "kick")
        return f"Of {self.made + 1:,} searches, the first and those after {begun}, {self.best:,} ended at this loss."


@dataclass(frozen=True, eq=False)
class Local:
    """A local search among picks, as this module needs it."""

    descend: Callable[[Index, Pool], Optimum]  # from any picks to an optimum
    allowed: Callable[[Index], NDArray[np.bool_]]  # (k, n) which column may take the place of which pick


def widely(
    local: Local, start: Optimum, effort: int, seed: int, pool: Pool, told: Told | None = None
) -> tuple[Optimum, Tries]:
    """Begin a local search again ``effort`` times and return the best end, never worse than ``start``.

    Of few columns each try begins at picks drawn at random. Of many, where random picks are far worse than any that
    were searched for, a tenth of the best picks are replaced at random, as one leaves a valley by a kick.
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
    """Replace the picks at these places, one after the other, by columns drawn from those that may stand there."""
    columns = picks.copy()
    for place in places:
        free = local.allowed(columns)[place]
        free[columns] = False
        if free.any():
            columns[place] = draw.choice(np.flatnonzero(free))
    return columns

"""Selection of groups of columns: H and R are formed whole after each pick, because gains of groups need blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.problem import Rules
from rgcss_dask.core.solver import kernels

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# In a group of linearly dependent columns, directions below this share are rounding.
_MIXES = 1e-12
# A gain below this share of the loss at the start is rounding.
_NOTHING = 1e-13


def units_of(rules: Rules) -> list[Index]:
    """Return the units of selection, each group and each candidate without a group, ordered by lowest column."""
    groups = [np.asarray(group, dtype=np.intp) for group in rules.aims.column_groups]
    grouped = np.concatenate([*groups, np.empty(0, dtype=np.intp)])
    alone = np.setdiff1d(np.flatnonzero(rules.candidates), grouped)
    whole = [group for group in groups if rules.candidates[group].all()]
    return sorted([*whole, *alone[:, None]], key=lambda unit: int(unit.min()))


@dataclass(frozen=True, eq=False)
class Whole:
    """H and R after some picks, formed from G, and the weights of the columns in the loss."""

    H: Array  # (n, n)
    R: Array  # (n, n)
    counts: Array  # (n,)
    lams: Array  # (n,)
    leaving: Array  # (n,) how much of a column's own error leaves the loss when it is picked

    @classmethod
    def of(cls, G: Array, picks: Sequence[int], lams: Array, rules: Rules) -> Whole:
        """Form H = G - Y'Y and R = H - W' lam W."""
        S = np.array(picks, dtype=np.intp)
        counts = rules.objective.counts(len(G), S)
        H = R = G
        L, kept = evaluate.triangle(G[np.ix_(S, S)], lams[S])
        if len(kept):
            Y = scipy.linalg.solve_triangular(L, G[S[kept]], lower=True)
            V = np.sqrt(lams[S[kept]])[:, None] * scipy.linalg.solve_triangular(L, Y, lower=True, trans=1)
            H = G - Y.T @ Y
            R = H - V.T @ V
        return cls(H, R, counts, lams, rules.objective.leaving(counts))

    @property
    def loss(self) -> float:
        """The objective of the picks."""
        return float(np.maximum(np.diagonal(self.R), 0.0) @ self.counts)

    def gains(self, units: list[Index], floor: Array) -> Array:
        """Return the decrease of the loss by each of the units, (units,)."""
        eta, rho = (self.H**2) @ self.counts, (self.H * self.R) @ self.counts
        h, alone = np.diagonal(self.H), np.zeros(len(eta))
        some = h > floor
        terms = (eta, rho, h, np.diagonal(self.R), self.lams, self.leaving)
        alone[some] = kernels.gains(*(values[some] for values in terms))
        return np.array([alone[unit[0]] if len(unit) == 1 else self._of_group(unit, floor) for unit in units])

    def _of_group(self, B: Index, floor: Array) -> float:
        """Return 2 tr(K^-1 P) - tr(K^-1 E K^-1 R_BB), K = lam + H_BB, and the own error of the group that leaves."""
        HB, RB = self.H[B], self.R[B]
        E, P = (HB * self.counts) @ HB.T, (RB * self.counts) @ HB.T
        inverse = _inverse(HB[:, B], self.lams[B], floor[B])
        own = inverse * self.lams[B]
        kept = inverse @ E @ inverse
        left = np.einsum("ij,ij->j", own, RB[:, B] @ own) @ self.leaving[B]
        return float(2.0 * np.sum(inverse * P.T) - np.sum(kept * RB[:, B]) + left)


def _inverse(H: Array, lams: Array, floor: Array) -> Array:
    """Return (lam + H)^-1 on the directions above rounding."""
    values, U = scipy.linalg.eigh(H + np.diagflat(lams))
    least = max(_MIXES * float(values[-1]), float(floor.max()))
    good = values > least
    return np.asarray((U[:, good] / values[good]) @ U[:, good].T)


def pick_in_groups(G: Array, rules: Rules, lams: Array, bound: Array | None) -> tuple[list[int], bool, bool]:
    """Pick units one by one; return the columns, whether no gain was left, and whether no unit was allowed."""
    units, floor = units_of(rules), evaluate.DOUBT * np.diagonal(G)
    picks: list[int] = []
    state = Whole.of(G, picks, lams, rules)
    start = state.loss
    first = _included(units, rules)
    while len(picks) < rules.k:
        may = np.array([fits(unit, picks, rules) for unit in units])
        if not may.any():
            return picks, False, True
        if first:
            best = first.pop(0)
        else:
            if picks and rules.stop.met(state.loss, start, None if bound is None else float(bound[len(picks) - 1])):
                break
            found = np.where(may, state.gains(units, floor) * _worth(units, rules), -np.inf)
            best = int(found.argmax())
            if found[best] <= _NOTHING * start and not lams.any():
                return picks, True, False
        picks += [int(column) for column in units[best]]
        state = Whole.of(G, picks, lams, rules)
    return picks, False, False


def fits(unit: Index, picks: Sequence[int], rules: Rules) -> bool:
    """Tell whether all columns of a unit may be picked, one after the other, in addition to the picks."""
    if len(picks) + len(unit) > rules.k or int(unit[0]) in picks:
        return False
    return all(rules.allowed([*picks, *unit[:i]])[column] for i, column in enumerate(unit))


def exchange(G: Array, columns: Sequence[int], stay: Index, lams: Array, rules: Rules) -> tuple[list[int], float]:
    """Return the picks after the best exchange of one unit for another, and their loss; unchanged if none is better."""
    units, floor = units_of(rules), evaluate.DOUBT * np.diagonal(G)
    best, picks = Whole.of(G, columns, lams, rules).loss, list(columns)
    for unit in units:
        if int(unit[0]) not in columns or np.isin(unit, stay).any():
            continue
        rest = [column for column in columns if column not in unit]
        may = [other for other in units if fits(other, rest, rules)]
        if not may:
            continue
        gains = Whole.of(G, rest, lams, rules).gains(may, floor)
        place = next(i for i, column in enumerate(columns) if column in unit)
        trial = [*rest[:place], *map(int, may[int(gains.argmax())]), *rest[place:]]
        loss = Whole.of(G, trial, lams, rules).loss
        if loss < best:
            best, picks = loss, trial
    return picks, best


def _included(units: list[Index], rules: Rules) -> list[int]:
    """Return the units that have columns to include, in their order, each once."""
    places = [next(i for i, unit in enumerate(units) if column in unit) for column in rules.include]
    return list(dict.fromkeys(places))


def _worth(units: list[Index], rules: Rules) -> Array:
    if not rules.looks_at_costs:
        return np.ones(len(units))
    return np.array([1.0 / rules.aims.cost(unit) for unit in units])

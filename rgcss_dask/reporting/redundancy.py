"""Which picked columns explain which others, and how well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.result import Result

Array = NDArray[np.float64]
Index = NDArray[np.intp]

# A column below this share of the largest squared norm is constant up to rounding.
NOTHING = 1e-13
# From this explained share on, a pick represents a column.
EXPLAINED = 0.5


@dataclass(frozen=True, eq=False)
class Redundancy:
    """How the unpicked columns depend on the picked ones."""

    unpicked: Index  # (u,) unpicked columns that vary
    constant: Index  # columns with nothing to explain
    share: Array  # (n,) explained share of each column; 1 for picked columns, NaN for constant ones
    pull: Array  # (k, n) weights of the picks for columns scaled to norm 1

    def worst(self, loss: Array, count: int) -> Index:
        """Return the unpicked columns with the largest loss, largest first."""
        order = np.argsort(-loss[self.unpicked], kind="stable")
        return self.unpicked[order][:count]

    def best(self, norm: Array, count: int) -> Index:
        """Return the unpicked columns that are explained best; among equals, larger columns first."""
        order = np.lexsort((-norm[self.unpicked], -np.round(self.share[self.unpicked], 4)))
        return self.unpicked[order][:count]

    def strongest(self, column: int, count: int = 3) -> list[tuple[int, float]]:
        """Return the picks (by pick order) with the largest weights for a column, and these weights."""
        pull = self.pull[:, column]
        order = np.argsort(-np.abs(pull), kind="stable")[:count]
        return [(int(i), float(pull[i])) for i in order if abs(pull[i]) >= 0.005]

    def stands_for(self) -> list[Index]:
        """Return for each pick the at least half explained columns with their largest weight there, best first."""
        good = self.unpicked[self.share[self.unpicked] >= EXPLAINED]
        leader = np.abs(self.pull[:, good]).argmax(axis=0) if good.size else np.empty(0, dtype=np.intp)
        groups = [good[leader == i] for i in range(len(self.pull))]
        return [group[np.argsort(-self.share[group], kind="stable")] for group in groups]


def redundancy(result: Result) -> Redundancy:
    """Compute explained shares and standardised weights from a result."""
    norm, columns = result.column_norm, result.selection.columns
    varies = norm > NOTHING * norm.max(initial=0.0)
    share = np.full(result.n, np.nan)
    share[varies] = 1.0 - result.column_loss[varies] / norm[varies]
    share[columns] = 1.0
    length = np.sqrt(np.where(varies, norm, 1.0))
    free = varies.copy()
    free[columns] = False
    pull = np.where(varies, result.weights * length[columns][:, None] / length, 0.0)
    return Redundancy(np.flatnonzero(free), np.flatnonzero(~varies), share, pull)

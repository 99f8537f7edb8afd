"""How many bytes a question asked of moments takes, besides the moments themselves."""

from __future__ import annotations

from dataclasses import dataclass

from rgcss_dask.core.resampling import planned_bytes
from rgcss_dask.runtime.cpus import available_cpus

# Rows of a Gram that a thread holds twice in a refresh, and vectors of a path besides its factors.
_BAND, _VECTORS = 256, 64
# Numbers for each column and pick: its factor, with that times G and its column of G^2, and three while refreshing.
_FACTORS = 6


@dataclass(frozen=True)
class Need:
    """What must be there to answer a question."""

    kind: str  # "": the moments of all rows; "folds" or "groups": those kept apart too
    parts: int  # how many of them
    work: int  # bytes besides the moments

    def moments(self, n: int) -> int:
        """Bytes of the moments themselves, where they have to be sent."""
        return 8 * (1 + self.parts) * n * (n + 2)


def select_need(n: int, k: int, lams: int = 1, *, bound: bool = False) -> Need:
    """Count the prepared Gram, the factors of each lambda, and another matrix for the eigenvalues of a bound."""
    return Need("", 0, 8 * n * ((2 if bound else 1) * n + _paths(n, k, lams)))


def tune_need(n: int, k: int, lams: int, folds: int) -> Need:
    """Training and held-out Grams, merges of the other folds that are alive at a time, and the prefix losses."""
    alive = 4 + max(1, folds).bit_length()
    return Need("folds", folds, 8 * n * (alive * n + _paths(n, k, lams) + 8 * min(k, n)))


def stability_need(n: int, k: int, groups: int, memory: int | None) -> Need:
    """As many bytes as were allowed, or what it takes by default: as many as the groups."""
    default = max(planned_bytes(n, groups, k, 1), 8 * (groups + 1) * n * n)
    return Need("groups", groups, default if memory is None else memory)


def refine_need(n: int, k: int, effort: int = 0, *, exact: bool = False) -> Need:
    """Count two Grams and the tables of all swaps, for each search side by side; if exact, four matrices a level."""
    cpus, picks = available_cpus(), min(k, n)
    levels = 4 * picks * n * cpus if exact else 0
    return Need("", 0, 8 * n * (2 * n + 24 * picks * min(max(effort, 1), cpus) + levels + _paths(n, k, 1)))


def _paths(n: int, k: int, lams: int) -> int:
    """Columns of n numbers that the paths of so many lambdas hold."""
    bands = 2 * _BAND * available_cpus()  # as many as here, for want of better
    picks = min(k, n)
    return lams * (_FACTORS * picks + picks * picks // n + _VECTORS) + bands

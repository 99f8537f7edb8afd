"""Memory needs of computations on moments, in bytes besides the moments themselves."""

from __future__ import annotations

from dataclasses import dataclass

from rgcss_dask.core.resampling import planned_bytes
from rgcss_dask.runtime.cpus import available_cpus

# Rows of a Gram that a thread holds twice in a refresh, and vectors of a path besides its factors.
_BAND, _VECTORS = 256, 64
# Numbers per column and pick: the factor, its product with G, its column of G^2, and three during a refresh.
_FACTORS = 6


@dataclass(frozen=True)
class Need:
    """The memory that a computation needs."""

    kind: str  # "": the moments of all rows; "folds" or "groups": these parts too
    parts: int  # number of parts
    work: int  # bytes besides the moments
    matrices: int = 0  # n x n matrices among these, which are on a disk if the moments are

    def moments(self, n: int) -> int:
        """Return the bytes of the moments themselves, if they have to be sent."""
        return 8 * (1 + self.parts) * n * (n + 2)

    def in_memory(self, n: int, *, on_disk: bool) -> int:
        """Return the bytes besides the moments that have to be in memory; the moments may be on a disk."""
        return self.work - (8 * n * n * self.matrices if on_disk else 0)


def select_need(n: int, k: int, lams: int = 1, *, bound: bool = False) -> Need:
    """Count the prepared Gram, the factors of each lambda, and another matrix for the eigenvalues of a bound."""
    matrices = 2 if bound else 1
    return Need("", 0, 8 * n * (matrices * n + _paths(n, k, lams)), matrices)


def tune_need(n: int, k: int, lams: int, folds: int) -> Need:
    """Count training and held-out Grams, live merges of other folds, and prefix losses."""
    alive = 4 + max(1, folds).bit_length()
    return Need("folds", folds, 8 * n * (alive * n + _paths(n, k, lams) + 8 * min(k, n)), alive)


def stability_need(n: int, k: int, groups: int, memory: int | None) -> Need:
    """Return the allowed bytes, or by default the bytes of the groups."""
    default = max(planned_bytes(n, groups, k, 1), 8 * (groups + 1) * n * n)
    return Need("groups", groups, default if memory is None else memory)


def refine_need(n: int, k: int, effort: int = 0, *, exact: bool = False) -> Need:
    """Count two Grams and the tables of all swaps per parallel search; for an exact search four matrices per level."""
    cpus, picks = available_cpus(), min(k, n)
    levels = 4 * picks * n * cpus if exact else 0
    return Need("", 0, 8 * n * (2 * n + 24 * picks * min(max(effort, 1), cpus) + levels + _paths(n, k, 1)), 2)


def _paths(n: int, k: int, lams: int) -> int:
    """Return the vectors of n numbers that the paths of these lambdas hold."""
    bands = 2 * _BAND * available_cpus()  # the number of CPUs here, as an estimate
    picks = min(k, n)
    return lams * (_FACTORS * picks + picks * picks // n + _VECTORS) + bands

"""Hashes of row numbers: the fold, run or fraction of a row depends only on its number and a seed, not on chunks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fold_of(rows: NDArray[np.uint64], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign rows to folds by a hash of their numbers."""
    return (hashed(rows, seed, stream=0) % np.uint64(folds)).astype(np.int64)


def hashed(rows: NDArray[np.uint64], seed: int, *, stream: int) -> NDArray[np.uint64]:
    """Return hashes of row numbers: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    start = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) % 2**64
    with np.errstate(over="ignore"):
        z = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(start)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def runs(rows: NDArray[np.int64], m: int, count: int) -> NDArray[np.int64]:
    """Return for each of m rows which of ``count`` runs of neighbouring rows, of about equal length, it is in."""
    return rows * count // m

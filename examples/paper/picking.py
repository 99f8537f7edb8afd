"""Selections on a sample of rows, as several experiments need them: GCSS and RGCSS to the largest k at once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rgcss_dask as rg

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class Picks:
    """Columns in pick order, for one lambda."""

    lam: float
    columns: Index  # (k,)
    chosen: int  # how many of them were chosen; the others are arbitrary, because with lambda = 0 the rank was used up


def pick(
    source: Any, n: int, k: int, lams: Sequence[float], rng: np.random.Generator, *, scale: float | None = None
) -> list[Picks]:
    """Pick k of n columns for each lambda; what is beyond the rank is filled with random columns.

    With lambda = 0 the columns that span the sample leave no error, so that every further choice is as good as any
    other. The package then stops; the paper's experiments go on ("ties are broken arbitrarily").
    ``source`` is what `rg.select` takes: moments, a Gram, or `rg.Factor` of fewer rows than columns.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="picked .* columns instead of", category=UserWarning)
        found = rg.select(source, k, lam=list(lams), scale=scale)
    return [Picks(picked.lam, fill(picked.columns, n, k, rng), picked.k) for picked in found]


def fill(columns: Index, n: int, k: int, rng: np.random.Generator) -> Index:
    """Return k different columns that begin with the given ones."""
    rest = np.setdiff1d(np.arange(n), columns)
    return np.concatenate([columns, rng.permutation(rest)[: k - len(columns)]]).astype(np.intp)


def source_of(rows: Array) -> Any:
    """Return what to select from: the rows themselves when they are fewer than the columns, else their moments."""
    return rg.Factor(rows) if len(rows) < rows.shape[1] else rg.Moments.of(rows)


def sample_rows(count: int, share: float, rng: np.random.Generator) -> Index:
    """Draw a share of the row numbers, each once, in order."""
    return np.sort(rng.choice(count, size=max(1, round(share * count)), replace=False))


def generator(*labels: object) -> np.random.Generator:
    """Return random numbers that depend on the labels only, so that any part can be run alone and again."""
    return np.random.default_rng(list("/".join(map(str, labels)).encode()))

"""Samples of training rows to select from; MNIST comes out of Zarr through Dask, the rest out of memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.paper.datasets import DataSet, Datasets
from examples.paper.picking import Picks, pick, sample_rows, source_of

Array = NDArray[np.float64]
GREY_LEVELS = 255.0


@dataclass(frozen=True, eq=False)
class Sample:
    """Some training rows: what to select from, and their Gram."""

    rows: Array  # (m, n)
    moments: rg.Moments | None = None  # of the unscaled rows, where they came out of an archive

    @property
    def m(self) -> int:
        return len(self.rows)

    @property
    def n(self) -> int:
        return self.rows.shape[1]

    @cached_property
    def gram(self) -> Array:
        return self.rows.T @ self.rows if self.moments is None else self.moments.gram(scale=GREY_LEVELS)

    def pick(self, k: int, lams: tuple[float, ...], rng: np.random.Generator) -> list[Picks]:
        """Pick at most k columns for each lambda; see `picking.pick`."""
        k = min(k, self.n)
        if self.moments is None:
            return pick(source_of(self.rows), self.n, k, lams, rng)
        return pick(self.moments, self.n, k, lams, rng, scale=GREY_LEVELS)


class Sampler:
    """Draws samples of the training rows of one data set; a context, because MNIST's archives are temporary."""

    def __init__(self, data: Datasets, name: str) -> None:
        self.data: DataSet = data.load(name)
        self._folder = tempfile.TemporaryDirectory() if name == "MNIST" else None
        self._archives = None if self._folder is None else data.mnist_archives(Path(self._folder.name))
        self._digits: Any = None if self._archives is None else da.from_zarr(self._archives[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def draw(self, share: float, rng: np.random.Generator, *, of: int | None = None) -> Sample:
        """Draw a share of the training rows, or of as many of them as ``of`` says."""
        train = self.data.train
        chosen = sample_rows(len(train), share * (of or len(train)) / len(train), rng)
        if self._digits is None:
            return Sample(train[chosen])
        return Sample(train[chosen], rg.scan(self._digits[chosen]))

    @cached_property
    def test_gram(self) -> Array:
        if self._archives is None:
            return self.data.test.T @ self.data.test
        return rg.scan(str(self._archives[1])).gram(scale=GREY_LEVELS)

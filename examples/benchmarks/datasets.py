"""The matrices that columns are selected from: real ones, prepared alike for every contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits
from zarr import open_group

from examples.paper.datasets import Datasets

Array = NDArray[np.float64]

MNIST_ROWS = 2_000  # some contenders copy or decompose all rows for every pick
OUTLIER = 31_037 - 30_000  # the one row of OnlineNews with absurd values, in its test part


@dataclass(frozen=True, eq=False)
class Case:
    """Training and held-out rows, both shifted (and scaled) by the training rows, and the numbers of columns asked."""

    name: str
    train: Array
    held_out: Array
    ks: tuple[int, ...]


def cases(folder: Path | None, quick: bool) -> Iterator[Case]:
    """Yield scikit-learn's own small data sets, then those whose files are in the folder."""
    yield prepared("digits", *every_third(load_digits().data), (8, 16))
    if quick:
        return
    yield prepared("breast cancer", *every_third(load_breast_cancer().data), (4, 8), standardise=True)
    for file, load in FILES.items():
        if folder is not None and (folder / file).exists():
            yield load(folder)


def absent(folder: Path | None) -> list[str]:
    """Return the files that would have been used if they were there."""
    return [file for file in FILES if folder is None or not (folder / file).exists()]


def prepared(name: str, train: Array, held_out: Array, ks: tuple[int, ...], standardise: bool = False) -> Case:
    mean = train.mean(axis=0)
    spread = train.std(axis=0) if standardise else np.ones(train.shape[1])
    return Case(name, (train - mean) / spread, (held_out - mean) / spread, ks)


def every_third(X: Array) -> tuple[Array, Array]:
    """Hold out every third row."""
    out = np.arange(len(X)) % 3 == 2
    return X[~out], X[out]


def _mnist(folder: Path) -> Case:
    data = Datasets(folder).load("MNIST")
    rows = np.sort(np.random.default_rng(0).choice(len(data.train), MNIST_ROWS, replace=False))
    return prepared("MNIST, 2,000 rows", data.train[rows], data.test, (16, 64))


def _online_news(folder: Path) -> Case:
    data = Datasets(folder).load("OnlineNews")
    return prepared("OnlineNews", data.train, np.delete(data.test, OUTLIER, axis=0), (8, 24), standardise=True)


def _of_paper(name: str, ks: tuple[int, ...]) -> Callable[[Path], Case]:
    def load(folder: Path) -> Case:
        data = Datasets(folder).load(name)
        return prepared(name, data.train, data.test, ks)

    return load


def _air(folder: Path) -> Case:
    """Four maps a day: the first year, and the second held out."""
    stored = open_group(folder / "air_temperature.zarr", mode="r")["air"]
    X = np.asarray(stored[:], dtype=np.float64).reshape(stored.shape[0], -1) * stored.attrs["scale_factor"]
    return prepared("air temperature", X[: len(X) // 2], X[len(X) // 2 :], (16, 64))


FILES: dict[str, Callable[[Path], Case]] = {
    "onlinenews.npz": _online_news,
    "isolet.npz": _of_paper("Isolet", (16, 64)),
    "mnist.npz": _mnist,
    "yaleb32.npz": _of_paper("YaleB", (16, 64)),
    "orl32.npz": _of_paper("ORL", (16, 64)),
    "air_temperature.zarr": _air,
}

"""Bands of a hyperspectral image, chosen in seven ways: how well a classifier does with each.

    python -m examples.benchmarks.bands [--data FOLDER] [--splits 20] [--quick] [--output FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds indian_pines.npz. A tenth of the labelled pixels of each
class trains a support vector machine with fixed parameters, the others are classified. Noise-aware selection leaves
open where noise is looked for and how bands are weighted: that is settled on one half of the splits, and everything is
reported on the other half.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.stats
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import rgcss_dask as rg
from examples.benchmarks.tables import markdown

Array = NDArray[np.float64]
Index = NDArray[np.intp]

KS = (5, 10, 15, 30)
TRAINING = 10  # one in so many pixels of a class, but three or more
LEVEL = 0.05  # of the two-sided t test on paired differences
TODAY, AWARE, LABELS = "plain selection", "noise-aware", "targets: training labels"
EVEN, ENDS, QR, PEAKS = "equally spaced", "equally spaced, both ends included", "pivoted QR", "E-FDPC"


@dataclass(frozen=True)
class Image:
    """Pixels line by line, their labels (0: none), and the noise of each band, by where it is looked for."""

    pixels: Array  # (m, n)
    labels: NDArray[np.uint8]  # (m,)
    moments: rg.Moments
    noise: dict[str, Array]

    @classmethod
    def of(cls, cube: NDArray[np.uint16], labels: NDArray[np.uint8]) -> Image:
        """Pass over the pixels line by line, and column by column for the noise across lines."""
        bands = cube.shape[2]
        moments = rg.scan(cube.reshape(-1, bands), noise=True, progress=False)
        across = rg.scan(cube.transpose(1, 0, 2).reshape(-1, bands), noise=True, progress=False)
        noise = {"along lines": moments.differences.variance, "across lines": across.differences.variance}
        return cls(cube.reshape(-1, bands).astype(np.float64), labels.ravel(), moments, noise)

    @property
    def bands(self) -> int:
        return self.pixels.shape[1]

    def split(self, seed: int) -> tuple[Index, Index]:
        """Return training and test pixels, class by class."""
        rng = np.random.default_rng(seed)
        training, test = [], []
        for label in np.unique(self.labels[self.labels > 0]):
            members = rng.permutation(np.flatnonzero(self.labels == label))
            cut = max(3, len(members) // TRAINING)
            training.append(members[:cut])
            test.append(members[cut:])
        return np.concatenate(training), np.concatenate(test)


def noise_aware(image: Image, k: int, where: str, weighting: str) -> Index:
    """Pick bands that carry the signal of all bands."""
    noise = image.noise[where]
    weights = {"alike": None, "1 / noise": 1.0 / noise, "1 / variance": 1.0 / image.moments.spread**2}[weighting]
    return rg.select(image.moments, k, center=True, noise=noise, column_weights=weights).columns


def for_labels(image: Image, k: int, training: Index) -> Index:
    """Pick bands that carry the indicators of the classes, each divided by the root of its number of pixels."""
    labels = image.labels[training]
    indicators = (labels[:, None] == np.unique(labels)).astype(np.float64)
    weights = np.concatenate([np.zeros(image.bands), 1.0 / indicators.sum(axis=0)])
    rows = np.hstack([image.pixels[training], indicators])
    targets = range(image.bands, rows.shape[1])
    return rg.select(rg.Moments.of(rows), k, center=True, targets=targets, column_weights=weights).columns


def density_peaks(pixels: Array, k: int) -> Index:
    """Rank bands by density times squared distance to a denser band (E-FDPC: Jia, Tang, Zhu and Li, 2016)."""
    n = pixels.shape[1]
    squares = np.sum(pixels**2, axis=0)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * pixels.T @ pixels, 0.0)) / n
    pairs = np.sort(distance[np.tril_indices(n, -1)])
    cutoff = pairs[round(0.02 * len(pairs))] / np.exp(k / n)  # shrinks as more bands are asked for
    density = np.exp(-((distance / cutoff) ** 2)).sum(axis=1) - 1.0
    order = np.argsort(-density, kind="stable")
    apart = np.empty(n)
    apart[order[0]] = distance[order[0]].max()
    for place in range(1, n):
        apart[order[place]] = distance[order[place], order[:place]].min()
    unit = [(values - values.min()) / np.ptp(values) for values in (density, apart)]
    return np.argsort(-unit[0] * unit[1] ** 2, kind="stable")[:k]


def middles(bands: int, k: int) -> Index:
    """Cut the bands into k equal runs and take the middle one of each."""
    return ((np.arange(k) + 0.5) * bands / k).astype(np.intp)


def pivots(pixels: Array, k: int) -> Index:
    return scipy.linalg.qr(pixels - pixels.mean(axis=0), mode="r", pivoting=True)[1][:k]


def accuracy(image: Image, bands: Index, training: Index, test: Index) -> float:
    """Return the share of test pixels that are classified rightly, in per cent."""
    model = make_pipeline(StandardScaler(), SVC(C=1000.0, gamma="scale"))
    model.fit(image.pixels[np.ix_(training, bands)], image.labels[training])
    return 100.0 * model.score(image.pixels[np.ix_(test, bands)], image.labels[test])


def settle(image: Image, seeds: Sequence[int], ks: Sequence[int]) -> dict[tuple[str, str], float]:
    """Return the mean accuracy over these splits and all k of every noise-aware rule."""
    splits = [image.split(seed) for seed in seeds]
    found = {}
    for where in image.noise:
        for weighting in ("alike", "1 / noise", "1 / variance"):
            order = noise_aware(image, max(ks), where, weighting)
            found[where, weighting] = float(np.mean([accuracy(image, order[:k], *s) for s in splits for k in ks]))
            print(f"  noise {where}, weights {weighting}: {found[where, weighting]:.2f} %", flush=True)
    return found


def contenders(image: Image, most: int, rule: tuple[str, str]) -> dict[str, Callable[[int, Index], Index]]:
    """Return every way to choose k bands, given the training pixels."""
    plain = rg.select(image.moments, most, center=True).columns
    aware = noise_aware(image, most, *rule)
    pivoted = pivots(image.pixels, most)
    peaks = {k: density_peaks(image.pixels, k) for k in range(1, most + 1) if k in KS}
    return {
        TODAY: lambda k, training: plain[:k],
        AWARE: lambda k, training: aware[:k],
        LABELS: lambda k, training: for_labels(image, k, training),
        EVEN: lambda k, training: middles(image.bands, k),
        ENDS: lambda k, training: np.linspace(0, image.bands - 1, k).round().astype(np.intp),
        QR: lambda k, training: pivoted[:k],
        PEAKS: lambda k, training: peaks[k],
    }


def report(image: Image, seeds: Sequence[int], ks: Sequence[int], rule: tuple[str, str]) -> dict[str, Array]:
    """Return the accuracies of all contenders, (splits, k)."""
    splits = [image.split(seed) for seed in seeds]
    found = {}
    for name, choose in contenders(image, max(ks), rule).items():
        rows = [[accuracy(image, choose(k, training), training, test) for k in ks] for training, test in splits]
        found[name] = np.array(rows)
        print(f"  {name}: {found[name].mean(axis=0).round(2)}", flush=True)
    return found


def mean_and_error(values: Array) -> tuple[Array, Array]:
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def document(
    settled: dict[tuple[str, str], float], found: dict[str, Array], ks: Sequence[int], seeds: tuple[range, range]
) -> str:
    """Return the page."""
    where, weighting = max(settled, key=settled.__getitem__)
    rules = [[*rule, f"{share:.2f}"] for rule, share in settled.items()]
    header = ["overall accuracy, %", *(f"k = {k}" for k in ks)]
    parts = [
        "# Bands of Indian Pines\n",
        "`python -m examples.benchmarks.bands` wrote this page. Accuracies are of a support vector machine (RBF "
        f"kernel, C = 1000, bands standardised), trained on one in {TRAINING} pixels of each class.\n",
        f"The noise-aware rule was settled on splits {seeds[0].start} to {seeds[0].stop - 1}: noise {where}, weights "
        f"{weighting}. It has the highest mean over these splits and all k:\n",
        markdown(["noise from second differences", "weights of bands", "accuracy, %"], rules),
        f"Splits {seeds[1].start} to {seeds[1].stop - 1}, mean and standard error:\n",
        markdown(header, [[name, *cells(*mean_and_error(values))] for name, values in found.items()]),
        f"Differences to bands that are {EVEN}, on the same splits:\n",
        markdown(header, [[n, *cells(*mean_and_error(v - found[EVEN]), "+")] for n, v in found.items() if n != EVEN]),
        *(f"- {sentence}" for sentence in statements(found, ks)),
    ]
    return "\n".join(parts) + "\n"


def cells(means: Array, errors: Array, sign: str = "") -> list[str]:
    return [f"{mean:{sign}.2f} ± {error:.2f}" for mean, error in zip(means, errors, strict=True)]


def statements(found: dict[str, Array], ks: Sequence[int]) -> Iterator[str]:
    """Say where noise-aware selection is better than each other one, and where it is not."""
    for other in (name for name in found if name != AWARE):
        mean, error = mean_and_error(found[AWARE] - found[other])
        least = scipy.stats.t.ppf(1.0 - LEVEL / 2.0, len(found[AWARE]) - 1) * error
        places = {
            "better": [k for k, d, e in zip(ks, mean, least, strict=True) if d > e],
            "not told apart": [k for k, d, e in zip(ks, mean, least, strict=True) if abs(d) <= e],
            "worse": [k for k, d, e in zip(ks, mean, least, strict=True) if d < -e],
        }
        said = "; ".join(f"{word} at k = {', '.join(map(str, at))}" for word, at in places.items() if at)
        yield f"Noise-aware against {other}: {said} (paired t test, {LEVEL:.0%})."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="a part of the image, 4 splits: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder of the data sets is needed: --data FOLDER or RGCSS_DATA")
    stored = np.load(Path(options.data) / "indian_pines.npz")
    lines, width, splits, ks = (30, 80, 4, KS[:1]) if options.quick else (None, None, options.splits, KS)
    image = Image.of(stored["cube"][:lines, :width], stored["labels"][:lines, :width])
    seeds = range(splits // 2), range(splits // 2, splits)
    settled = settle(image, seeds[0], ks)
    found = report(image, seeds[1], ks, max(settled, key=settled.__getitem__))
    text = document(settled, found, ks, seeds)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()

"""Bands of a hyperspectral image, chosen in eight ways: how well a classifier does with each.

    python -m examples.benchmarks.bands [--data FOLDER] [--splits 20] [--quick] [--output FILE] [--picture FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds indian_pines.npz. A tenth of the labelled pixels of each
class trains a support vector machine with fixed parameters, the others are classified. Noise-aware selection leaves
open where noise is looked for, how bands are weighted, and how much labels count beside the signals: that is settled on
one half of the splits, and everything is reported on the other half.
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
from examples.benchmarks.machine import versions
from examples.benchmarks.tables import markdown
from rgcss_dask import plots
from rgcss_dask.sources.cube import in_turns

Array = NDArray[np.float64]
Index = NDArray[np.intp]

KS = (5, 10, 15, 30)
TRAINING = 10  # one in so many pixels of a class, but three or more
LEVEL = 0.05  # of the two-sided t test on paired differences
SHARES = (0.1, 0.25, 0.5, 0.75)  # of the loss, for labels beside signals
TODAY, AWARE, LABELS = "plain selection", "noise-aware", "targets: training labels"
BOTH = "targets: training labels, and signals"
EVEN, ENDS, QR, PEAKS = "equally spaced", "equally spaced, both ends included", "pivoted QR", "E-FDPC"
LEFT_OUT = """\
## What was left out

- Other images, other classifiers, and methods that train networks.
- Training pixels lie among the test pixels, so that accuracies are higher than on another scene would be. Ways without
  labels see all pixels of the image, as their users do.
- Rules were tried for ours (the first two tables) and none for the others, which have no options or have defaults.
"""


@dataclass(frozen=True)
class Image:
    """A cube, its pixels line by line, their labels (0: none), and the noise of bands by where it is looked for."""

    cube: NDArray[np.uint16]
    pixels: Array  # (m, n)
    labels: NDArray[np.uint8]  # (m,)
    moments: rg.Moments
    noise: dict[str, Array]

    @classmethod
    def of(cls, cube: NDArray[np.uint16], labels: NDArray[np.uint8]) -> Image:
        """Pass over the pixels line by line, and column by column for the noise across lines."""
        moments = rg.scan(in_turns(cube), noise=True, progress=False)
        across = rg.scan(in_turns(cube.transpose(1, 0, 2)), noise=True, progress=False)
        noise = {"along lines": moments.differences.variance, "across lines": across.differences.variance}
        pixels = cube.reshape(-1, cube.shape[2]).astype(np.float64)
        return cls(cube, pixels, labels.ravel(), moments, noise)

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


def for_labels(image: Image, k: int, training: Index, share: float = 1.0) -> Index:
    """Pick bands that carry the classes of the training pixels, and for a share below 1 the signals too."""
    labels = np.zeros_like(image.labels)
    labels[training] = image.labels[training]
    return rg.bands(image.cube, k, labels=labels.reshape(image.cube.shape[:2]), share=share, progress=False).columns


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


def settle_share(image: Image, seeds: Sequence[int], ks: Sequence[int]) -> dict[float, float]:
    """Return the mean accuracy over these splits and all k of every share of the labels in the loss."""
    splits, found = [image.split(seed) for seed in seeds], {}
    for share in SHARES:
        each = [accuracy(image, for_labels(image, k, split[0], share), *split) for split in splits for k in ks]
        found[share] = float(np.mean(each))
        print(f"  share of the labels {share:g}: {found[share]:.2f} %", flush=True)
    return found


def contenders(
    image: Image, most: int, rule: tuple[str, str], share: float
) -> dict[str, Callable[[int, Index], Index]]:
    """Return every way to choose k bands, given the training pixels."""
    plain = rg.select(image.moments, most, center=True).columns
    aware = noise_aware(image, most, *rule)
    pivoted = pivots(image.pixels, most)
    peaks = {k: density_peaks(image.pixels, k) for k in range(1, most + 1) if k in KS}
    return {
        TODAY: lambda k, training: plain[:k],
        AWARE: lambda k, training: aware[:k],
        LABELS: lambda k, training: for_labels(image, k, training),
        BOTH: lambda k, training: for_labels(image, k, training, share),
        EVEN: lambda k, training: middles(image.bands, k),
        ENDS: lambda k, training: np.linspace(0, image.bands - 1, k).round().astype(np.intp),
        QR: lambda k, training: pivoted[:k],
        PEAKS: lambda k, training: peaks[k],
    }


def report(
    image: Image, seeds: Sequence[int], ks: Sequence[int], rule: tuple[str, str], share: float
) -> dict[str, Array]:
    """Return the accuracies of all contenders, (splits, k)."""
    splits = [image.split(seed) for seed in seeds]
    found = {}
    for name, choose in contenders(image, max(ks), rule, share).items():
        rows = [[accuracy(image, choose(k, training), training, test) for k in ks] for training, test in splits]
        found[name] = np.array(rows)
        print(f"  {name}: {found[name].mean(axis=0).round(2)}", flush=True)
    return found


def mean_and_error(values: Array) -> tuple[Array, Array]:
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def document(
    settled: dict[tuple[str, str], float],
    shares: dict[float, float],
    found: dict[str, Array],
    ks: Sequence[int],
    seeds: tuple[range, range],
    same: bool,
) -> str:
    """Return the page."""
    where, weighting = max(settled, key=settled.__getitem__)
    share = max(shares, key=shares.__getitem__)
    rules = [[*rule, f"{share:.2f}"] for rule, share in settled.items()]
    header = ["overall accuracy, %", *(f"k = {k}" for k in ks)]
    parts = [
        "# Bands of Indian Pines\n",
        "`python -m examples.benchmarks.bands` wrote this page. Accuracies are of a support vector machine (RBF "
        f"kernel, C = 1000, bands standardised), trained on one in {TRAINING} pixels of each class.\n",
        f"The noise-aware rule was settled on splits {seeds[0].start} to {seeds[0].stop - 1}: noise {where}, weights "
        f"{weighting}. It has the highest mean over these splits and all k:\n",
        markdown(["noise from second differences", "weights of bands", "accuracy, %"], rules),
        f"`rgcss_dask.bands` {'picks the same bands' if same else 'picks other bands, by a rule of its own'}.\n",
        f"How much labels count beside signals was settled on the same splits: {share:g} of the loss.\n",
        markdown(["share of the labels", "accuracy, %"], [[f"{one:g}", f"{mean:.2f}"] for one, mean in shares.items()]),
        f"Splits {seeds[1].start} to {seeds[1].stop - 1}, mean and standard error:\n",
        markdown(header, [[name, *cells(*mean_and_error(values))] for name, values in found.items()]),
        f"Differences to bands that are {EVEN}, on the same splits:\n",
        markdown(header, [[n, *cells(*mean_and_error(v - found[EVEN]), "+")] for n, v in found.items() if n != EVEN]),
        *(f"- {sentence}" for sentence in statements(found, ks)),
        f"\n{LEFT_OUT}",
        versions("numpy", "scipy", "scikit-learn"),
    ]
    return "\n".join(parts) + "\n"


def cells(means: Array, errors: Array, sign: str = "") -> list[str]:
    return [f"{mean:{sign}.2f} ± {error:.2f}" for mean, error in zip(means, errors, strict=True)]


def statements(found: dict[str, Array], ks: Sequence[int]) -> Iterator[str]:
    """Say where ours are better than others, and where they are not."""
    pairs = [(AWARE, name) for name in found if name != AWARE] + [(BOTH, name) for name in (AWARE, LABELS, EVEN)]
    for ours, other in (pair for pair in pairs if all(name in found for name in pair)):
        mean, error = mean_and_error(found[ours] - found[other])
        least = scipy.stats.t.ppf(1.0 - LEVEL / 2.0, len(found[ours]) - 1) * error
        places = {
            "better": [k for k, d, e in zip(ks, mean, least, strict=True) if d > e],
            "not told apart": [k for k, d, e in zip(ks, mean, least, strict=True) if abs(d) <= e],
            "worse": [k for k, d, e in zip(ks, mean, least, strict=True) if d < -e],
        }
        said = "; ".join(f"{word} at k = {', '.join(map(str, at))}" for word, at in places.items() if at)
        yield f"{ours[0].upper()}{ours[1:]}, against {other}: {said} (paired t test, {LEVEL:.0%})."


def drawn(image: Image, path: Path) -> str:
    """Draw ten bands that `bands` picks on the mean spectrum, and return what shows the picture."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 (only where a picture is asked for)

    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    plots.bands(rg.bands(image.cube, 10, progress=False), axes)
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return f"![Ten picked bands on the mean spectrum]({path.name})\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="a part of the image, 4 splits: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    parser.add_argument("--picture", type=Path, help="file for a picture of the picked bands, beside the page")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder of the data sets is needed: --data FOLDER or RGCSS_DATA")
    stored = np.load(Path(options.data) / "indian_pines.npz")
    lines, width, splits, ks = (30, 80, 4, KS[:1]) if options.quick else (None, None, options.splits, KS)
    image = Image.of(stored["cube"][:lines, :width], stored["labels"][:lines, :width])
    seeds = range(splits // 2), range(splits // 2, splits)
    settled, shares = settle(image, seeds[0], ks), settle_share(image, seeds[0], ks)
    rule, share = max(settled, key=settled.__getitem__), max(shares, key=shares.__getitem__)
    found = report(image, seeds[1], ks, rule, share)
    picked = rg.bands(image.cube, max(ks), progress=False)
    same = np.array_equal(picked.columns, noise_aware(image, max(ks), *rule))
    text = document(settled, shares, found, ks, seeds, same)
    if options.picture:
        text = f"{text}\n{drawn(image, options.picture)}"
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()

"""Bands of an image cube
======================

A camera has 120 bands, and a cheaper one may have eight. Which eight explain the signal in all bands, and which
separate the kinds of ground?

Run: python examples/10_bands_of_an_image.py [CUBE] [bands] [picture]
CUBE is an .npz file with `cube` (lines, columns, bands) and `labels` (lines, columns; 0: none); without it, an
artificial image of four kinds of ground is used, whose noise differs between bands. Not shown: a classifier and
pixels to test it on.

With a classifier, on Indian Pines, beside equally spaced bands, pivoted QR and E-FDPC, with the losses:
python -m examples.benchmarks.bands, which wrote the page "Bands of Indian Pines" of the benchmarks.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import rgcss_dask as rg
from rgcss_dask import plots


def make_image() -> tuple[np.ndarray, np.ndarray]:
    """Return a cube and its labels: four spectra, mixed where kinds of ground meet, and noise."""
    rng = np.random.default_rng(0)
    wavelengths = np.linspace(0, 1, 120)
    centres, widths = rng.uniform(size=(4, 5)), rng.uniform(0.03, 0.3, size=(4, 5))
    spectra = (np.exp(-(((wavelengths - centres[..., None]) / widths[..., None]) ** 2))).sum(axis=1)
    down, across = np.meshgrid(np.linspace(0, 3, 60), np.linspace(0, 4, 80), indexing="ij")
    smooth = 3 * np.cos(np.stack([down + across, down - across, 2 * down, 2 * across]) + np.arange(4)[:, None, None])
    shares = np.exp(smooth) / np.exp(smooth).sum(axis=0)
    noise = 0.02 + 0.5 * (np.abs(wavelengths - 0.55) < 0.05) + 0.1 * wavelengths
    cube = np.tensordot(shares, spectra, (0, 0)) + noise * rng.normal(size=(60, 80, 120))
    labels = np.where(shares.max(axis=0) > 0.7, shares.argmax(axis=0) + 1, 0)
    return cube, labels


def main(path: str | None = None, k: int = 8, picture: str | None = None) -> dict[str, rg.Bands]:
    if path is None:
        cube, labels = make_image()
    else:
        stored = np.load(path)
        cube, labels = stored["cube"], stored["labels"]
    found = {
        "all bands alike": rg.bands(cube, k, noise=None),
        "signal behind the noise": rg.bands(cube, k),
        "labels": rg.bands(cube, k, labels=labels),
    }
    figure, axes = plt.subplots(3, 1, figsize=(8, 8), sharex=True, layout="constrained")
    for (name, picked), ax in zip(found.items(), axes, strict=True):
        print(f"{name}: {picked.sentence} Picked: {', '.join(map(str, picked.columns))}.")
        plots.bands(picked, ax).set_title(name)
    if picture is not None:
        figure.savefig(picture, dpi=110)
        plt.close(figure)
    return found


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))  # type: ignore[arg-type]

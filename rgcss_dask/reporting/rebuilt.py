"""Figures of original rows beside their reconstruction from the picked columns."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from markupsafe import Markup

from rgcss_dask.core.result import Result
from rgcss_dask.reporting import figures, maps
from rgcss_dask.reporting.drawing import Array
from rgcss_dask.reporting.layout import Layout
from rgcss_dask.reporting.samples import Samples

SHOWN = 1500  # points of original against reconstructed values
MAPPED = 2  # rows that are drawn as maps


def pictures(result: Result, layout: Layout | None, samples: Samples) -> Any:
    """Draw strips of images, maps of fields, or a scatter plot of values."""
    if layout is None:
        return _scatter(result, samples)
    if layout.image:
        return _strips(result, layout.image, samples)
    pairs = zip(samples.rows[:MAPPED].tolist(), samples.original, samples.rebuilt, strict=False)
    return [
        (row, _map(layout, original, row, "original"), _map(layout, rebuilt, row, "reconstructed"))
        for row, original, rebuilt in pairs
    ]


def _map(layout: Layout, values: Array, row: int, what: str) -> Markup:
    return maps.field_picture(layout, values, f"Map of row {row}, {what}.")


def _scatter(result: Result, samples: Samples) -> Markup:
    free = np.setdiff1d(np.arange(result.n), result.selection.columns)
    sigma = np.where(result.spread > 0, result.spread, 1.0)
    original, rebuilt = (
        ((values - result.mean) / sigma)[:, free].ravel() for values in (samples.original, samples.rebuilt)
    )
    known = np.flatnonzero(np.isfinite(original))
    known = known[np.linspace(0, len(known) - 1, min(len(known), SHOWN)).astype(np.intp)] if len(known) else known
    label = f"Scatter chart of {len(known)} values of unpicked columns, reconstructed against original."
    return figures.scatter_chart(original[known], rebuilt[known], label)


def _strips(result: Result, shape: tuple[int, int], samples: Samples) -> list[tuple[str, list[tuple[int, str]]]]:
    """Return images of the rows in base64: original, picked pixels only, and reconstructed."""
    only = np.full_like(samples.original, np.nan)
    only[:, result.selection.columns] = samples.original[:, result.selection.columns]
    strips = []
    for what, values in (("Original", samples.original), ("What was kept", only), ("Reconstructed", samples.rebuilt)):
        images = []
        for row, original, image in zip(samples.rows, samples.original, values, strict=True):
            known = original[np.isfinite(original)]
            png = maps.picture(image.reshape(shape), known.min(initial=np.inf), known.max(initial=-np.inf))
            images.append((int(row), base64.b64encode(png).decode()))
        strips.append((what, images))
    return strips

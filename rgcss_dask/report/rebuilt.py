"""The section of a report that shows rows as they are beside what is made of them from the picked columns."""

from __future__ import annotations

import base64

import numpy as np

from rgcss_dask.core.result import Result
from rgcss_dask.report import figures
from rgcss_dask.report.layout import Layout
from rgcss_dask.report.markup import figure, row_of, section
from rgcss_dask.report.samples import Samples

SHOWN = 1500  # points of original against reconstructed values


def pictures(result: Result, layout: Layout | None, samples: Samples | None) -> str:
    """Return the section: strips of images, maps of fields, or value against value; nothing without rows."""
    if samples is None:
        return ""
    lead = (
        f"Rows {', '.join(f'{int(row):,}' for row in samples.rows)} of the data, and what is made of them when only "
        f"the {result.k} picked columns are known."
    )
    if layout is None:
        return section("Rows rebuilt from the picks", lead, row_of(_scatter(result, samples)))
    if layout.image:
        return section("Rows rebuilt from the picks", lead, _strips(result, layout.image, samples))
    maps = [
        figure(f"Row {int(row):,}, {what}", figures.field_picture(layout, values[i], f"Map of row {int(row)}, {what}."))
        for i, row in list(enumerate(samples.rows))[:2]
        for what, values in (("original", samples.original), ("reconstructed", samples.rebuilt))
    ]
    return section("Rows rebuilt from the picks", lead, *(row_of(*maps[i : i + 2]) for i in range(0, len(maps), 2)))


def _scatter(result: Result, samples: Samples) -> str:
    free = np.setdiff1d(np.arange(result.n), result.selection.columns)
    sigma = np.where(result.spread > 0, result.spread, 1.0)
    original, rebuilt = (
        ((values - result.mean) / sigma)[:, free].ravel() for values in (samples.original, samples.rebuilt)
    )
    known = np.flatnonzero(np.isfinite(original))
    known = known[np.linspace(0, len(known) - 1, min(len(known), SHOWN)).astype(np.intp)] if len(known) else known
    label = f"Scatter chart of {len(known)} values of unpicked columns, reconstructed against original."
    chart = figures.scatter_chart(original[known], rebuilt[known], label)
    note = "Values of unpicked columns. On the line they would be exact."
    return figure("Reconstructed against original", chart, note)


def _strips(result: Result, shape: tuple[int, int], samples: Samples) -> str:
    only = np.full_like(samples.original, np.nan)
    only[:, result.selection.columns] = samples.original[:, result.selection.columns]
    strips = []
    for what, values in (
        ("Original", samples.original),
        ("What was kept", only),
        ("Reconstructed", samples.rebuilt),
    ):
        cells = []
        for row, original, image in zip(samples.rows, samples.original, values, strict=True):
            known = original[np.isfinite(original)]
            png = figures.picture(image.reshape(shape), known.min(initial=np.inf), known.max(initial=-np.inf))
            data = base64.b64encode(png).decode()
            size = f'width="{shape[1]}" height="{shape[0]}"'
            cells.append(f'<img src="data:image/png;base64,{data}" {size} alt="{what}, row {int(row)}">')
        strips.append(f"<figure><figcaption><strong>{what}</strong></figcaption><div>{''.join(cells)}</div></figure>")
    return f'<div class="strips">{"".join(strips)}</div>'

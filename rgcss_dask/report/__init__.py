"""The report: one HTML file about a result, which needs nothing else to be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rgcss_dask.core.result import Result
from rgcss_dask.io.files import Folder
from rgcss_dask.io.outputs import refuse_inputs, refuse_others
from rgcss_dask.report.layout import Layout, grid_layout, image_layout
from rgcss_dask.report.samples import sample
from rgcss_dask.sources.registry import open_source

SAMPLES = 6  # rows shown beside their reconstruction
GENERATOR = b'<meta name="generator" content="rgcss_dask report">'  # in page.html; by it a report is known


def write_report(
    result: Result,
    path: str | Path,
    *,
    image_shape: tuple[int, int] | None = None,
    rows: Any = None,
    grid: Any = None,
    overwrite: bool = False,
) -> None:
    """Write a report of a result as one HTML file, in one step: a reader finds the old file or the new one.

    The file loads nothing from anywhere, follows the reader's choice of dark or light, and prints.
    It needs matplotlib, ``pip install 'rgcss-dask[report]'``.

    Parameters
    ----------
    result : what `make_result` or `load_result` returned.
    path : where to write, a local path or an fsspec URL.
    image_shape : rows and columns of the image that the columns are the pixels of, row by row; the picks are then
        shown on the mean image.
    rows : anything `scan` takes, with the same columns, in any order if they have names; a few of its rows are read and
        shown beside their reconstruction.
    grid : coordinates of the columns, for a map: a pair (x, y) or a mapping such as ``{"longitude": x,
        "latitude": y}``, with one entry per column, or with the two axes of a regular grid that the columns
        fill with x running fastest.
    overwrite : replace a file that is there also if it is no report.
    """
    source = None if rows is None else open_source(rows)
    refuse_inputs(path, () if source is None else source.places)
    folder, name = report_place(path, overwrite=overwrite)
    try:
        from rgcss_dask.report import page  # noqa: PLC0415 (matplotlib is an extra, and slow to import)
    except ImportError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        raise ImportError(
            "the report needs matplotlib, which is not installed: pip install 'rgcss-dask[report]'.",
            name=error.name,
        ) from error
    layout = _layout(result, image_shape, grid)
    samples = None if rows is None else sample(result, source, SAMPLES)
    content = page.page(result, layout, samples)
    folder.write(name, content.encode("utf-8", "replace"))


def report_place(path: str | Path, *, overwrite: bool = False) -> tuple[Folder, str]:
    """Return where to write a report, or say why not there."""
    return refuse_others(path, GENERATOR, "a report", overwrite=overwrite)


def _layout(result: Result, image_shape: tuple[int, int] | None, grid: Any) -> Layout | None:
    if image_shape is not None and grid is not None:
        raise ValueError("columns are either the pixels of an image or places on a map: give image_shape or grid.")
    if image_shape is not None:
        return image_layout(image_shape, result.n)
    return None if grid is None else grid_layout(grid, result.n)

"""The report: one self-contained HTML file about a result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rgcss_dask.core.answer import Answer
from rgcss_dask.core.downstream import Downstream
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.result import Result, Trust
from rgcss_dask.core.stability import Stability
from rgcss_dask.io.files import Folder
from rgcss_dask.io.outputs import refuse_inputs, refuse_others
from rgcss_dask.reporting.layout import Layout, grid_layout, image_layout, named_layout
from rgcss_dask.reporting.samples import sample
from rgcss_dask.reporting.score import Score, score
from rgcss_dask.runtime.extras import imported
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.registry import open_source

SAMPLES = 6  # rows shown beside their reconstruction
GENERATOR = b'<meta name="generator" content="rgcss_dask report">'  # in page.html; the mark of a report


@dataclass(frozen=True)
class Written:
    """The path of a written report, its first sentence, and the score on rows."""

    path: str
    sentence: str
    score: float | None = None  #: explained share of the given rows

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}"

    def __repr__(self) -> str:
        return f"<{self}>"


def report(
    answer: Any,
    path: str | Path,
    *,
    rows: Any = None,
    nan: str | None = None,
    stability: Stability | None = None,
    downstream: Downstream | None = None,
    image_shape: tuple[int, int] | None = None,
    grid: Any = None,
    overwrite: bool = False,
) -> Written:
    """Write a report about picked columns as one HTML file, optionally with their score on other rows.

    The report needs matplotlib, ``pip install 'rgcss-dask[report]'``, and computes the leading eigenvalues.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What `select`, `refine`, `cross_validate` or `load_result` returned, or a fitted `RGCSS`.
    path : str or Path
        Where to write: a local path or an fsspec URL.
    rows : array-like, data frame or path, optional
        Rows, for example held-out rows, in any form that `scan` takes, with the same columns, in any order if they have
        names. The report gives the share of all of them that is explained with the weights of the selection, and shows
        a few of them beside their reconstruction. They are read once.
    nan : {"raise", "drop", "mean"}, optional
        Policy for missing values in ``rows``, see `scan`; by default that of the selection.
    stability : Stability, optional
        What `stability` returned, to be included.
    downstream : Downstream, optional
        What `downstream` returned, to be included.
    image_shape : pair of int, optional
        Height and width of the image whose pixels are the columns, see `write_report`.
    grid : pair or mapping of arrays, optional
        Coordinates of the columns, see `write_report`.
    overwrite : bool, default=False
        Replace the file at ``path`` even if it is not a report.

    Returns
    -------
    Written
        The path of the report, its first sentence, and the explained share of ``rows`` (``score``).

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> wines = load_wine(as_frame=True).data
    >>> picked = rg.select(wines[::2], 4, center=True, scale="std")
    >>> written = rg.report(picked, "report.html", rows=wines[1::2])
    >>> print(f"{written.score:.2f} of the other rows")
    0.60 of the other rows
    """
    source = None if rows is None else open_source(rows)
    _check(path, source, overwrite)
    result = result_of(answer, None if stability is None else stability.summary)
    found = None if source is None else score(result, source, nan=nan or _nan_of(result))
    more = {"found": found, "given": rows, "downstream": _of_as_many(result, downstream)}
    _write(result, path, source, image_shape, grid, overwrite=overwrite, **more)
    words = result.sentence if found is None else f"{result.sentence} {found.sentence}"
    return Written(str(path), words, None if found is None else found.explained)


def _of_as_many(result: Result, downstream: Downstream | None) -> Downstream | None:
    """Refuse figures of another selection, as far as that can be told."""
    if downstream is not None and (downstream.k, downstream.columns) != (result.k, result.n):
        raise ValueError(
            f"downstream must be of the columns that the report is about, {result.k:,} of {result.n:,}; it is of "
            f"{downstream.k:,} of {downstream.columns:,}."
        )
    return downstream


def _nan_of(result: Result) -> str:
    """Return the policy for missing values of the selection, or of its moments."""
    asked = result.provenance.get("asked")
    told = asked if isinstance(asked, dict) and "nan" in asked else result.provenance
    return str(told.get("nan", "raise"))


def result_of(answer: Any, trust: Trust | None = None) -> Result:
    """Return everything that a report shows."""
    shown = {} if trust is None else {"trust": trust}
    if isinstance(answer, Result):
        return answer if trust is None else replace(answer, trust=trust)
    if isinstance(answer, Answer) or hasattr(answer, "selection_"):
        return answer.result(**shown)
    if hasattr(answer, "n_features_to_select"):
        raise ValueError(f"picked columns are needed; this {type(answer).__name__} is not fitted yet.")
    way_out = f" Read a saved result with load_result({str(answer)!r})." if isinstance(answer, str | Path) else ""
    raise WrongKindError(
        "picked columns are needed: what select, refine, cross_validate or load_result returned, or a fitted "
        f"estimator; got {type(answer).__module__}.{type(answer).__qualname__}.{way_out}"
    )


def write_report(
    result: Result,
    path: str | Path,
    *,
    image_shape: tuple[int, int] | None = None,
    rows: Any = None,
    grid: Any = None,
    overwrite: bool = False,
) -> None:
    """Write a report of a result as one HTML file, atomically.

    The file is self-contained, follows the reader's choice of dark or light mode, and can be printed. Reports need
    matplotlib, ``pip install 'rgcss-dask[report]'``.

    Parameters
    ----------
    result : Result
        What `load_result` or the method ``result`` of a selection returned.
    path : str or Path
        Where to write: a local path or an fsspec URL.
    image_shape : pair of int, optional
        Height and width of the image whose pixels, row by row, are the columns; the picks are then shown on the mean
        image.
    rows : array-like, data frame or path, optional
        Rows, in any form that `scan` takes, with the same columns, in any order if they have names; a few of them are
        read and shown beside their reconstruction.
    grid : pair or mapping of arrays, optional
        Coordinates of the columns, for a map: a pair (x, y) or a mapping such as ``{"longitude": x,
        "latitude": y}``, with one entry per column, or with the two axes of a regular grid that the columns
        fill with x running fastest.
    overwrite : bool, default=False
        Replace the file at ``path`` even if it is not a report.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> picked = rg.select(load_digits().data, 8, center=True)
    >>> rg.write_report(picked.result(), "digits.html", image_shape=(8, 8))
    """
    source = None if rows is None else open_source(rows)
    _check(path, source, overwrite)
    _write(result, path, source, image_shape, grid, overwrite=overwrite, given=rows)


def _check(path: str | Path, source: Source | None, overwrite: bool) -> None:
    """Check the output path and matplotlib before the work."""
    refuse_inputs(path, () if source is None else source.places)
    report_place(path, overwrite=overwrite)
    imported("matplotlib", extra="report", by="the report")


def _write(
    result: Result,
    path: str | Path,
    source: Source | None,
    image_shape: tuple[int, int] | None,
    grid: Any,
    *,
    overwrite: bool,
    found: Score | None = None,
    given: Any = None,
    downstream: Downstream | None = None,
) -> None:
    from rgcss_dask.reporting import page  # noqa: PLC0415 (matplotlib is an extra, and slow to import)

    folder, name = report_place(path, overwrite=overwrite)
    layout = layout_of(result, image_shape, grid)
    samples = None if source is None else sample(result, source, SAMPLES, given)
    content = page.page(result, layout, samples, found, downstream)
    folder.write(name, content.encode("utf-8", "replace"))


def report_place(path: str | Path, *, overwrite: bool = False) -> tuple[Folder, str]:
    """Return the place of a report, or raise an error if it cannot be written there."""
    return refuse_others(path, GENERATOR, "a report", overwrite=overwrite)


def layout_of(result: Result, image_shape: tuple[int, int] | None, grid: Any) -> Layout | None:
    """Return the positions of the columns, if they are known."""
    if image_shape is not None and grid is not None:
        raise ValueError("columns are either the pixels of an image or places on a map: give image_shape or grid.")
    if image_shape is not None:
        return image_layout(image_shape, result.n)
    return named_layout(result.names) if grid is None else grid_layout(grid, result.n)

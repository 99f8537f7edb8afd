"""The content of a report: numbers, lists and figures of each section; texts and markup are in templates."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.downstream import Downstream
from rgcss_dask.core.result import Result, Trust, Tuning
from rgcss_dask.core.words import counted, digits
from rgcss_dask.reporting import figures, maps
from rgcss_dask.reporting.drawing import style
from rgcss_dask.reporting.layout import Layout
from rgcss_dask.reporting.rebuilt import pictures
from rgcss_dask.reporting.redundancy import Redundancy, redundancy
from rgcss_dask.reporting.rendering import TEMPLATES, percent
from rgcss_dask.reporting.samples import Samples
from rgcss_dask.reporting.score import Score

LISTED = 12  # columns in each list of those explained worst and best
RIVALS = 8  # unpicked columns that resamples pick

Content = dict[str, Any]  # variables of the templates


def page(
    result: Result,
    layout: Layout | None,
    samples: Samples | None,
    score: Score | None = None,
    downstream: Downstream | None = None,
) -> str:
    """Return the HTML of the report."""
    script = TEMPLATES.get_template("report.js").render()
    content = {
        "allowed": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **{"result": result, "picked": result.selection, "tuning": result.tuning, "trust": result.trust},
        **{
            "layout": layout,
            "samples": samples,
            "score": score,
            "downstream": downstream,
            **_head(result),
            **_provenance(result),
        },
        "copied": json.dumps([result.label(column) for column in result.selection.columns], ensure_ascii=False),
    }
    with style():
        content |= _sections(result, layout, samples) if result.k else {}
    return TEMPLATES.get_template("page.html").render(content)


def _sections(result: Result, layout: Layout | None, samples: Samples | None) -> Content:
    found = redundancy(result)
    return {
        "explained": _explained(result),
        "marked": None if layout is None else _marked(result, layout),
        "picks": _picks(result, found),
        "gains": _gains(result),
        "rows": None if samples is None else pictures(result, layout, samples),
        "choice": None if result.tuning is None else _choice(result.tuning),
        "again": None if result.trust is None else _again(result, result.trust),
        "others": _others(result, found, layout) if len(found.unpicked) else None,
    }


def _head(result: Result) -> Content:
    picked = result.selection
    prepared = [
        word
        for word, values, plain in (("centred", picked.mu, 0.0), ("scaled", picked.sigma, 1.0))
        if values is not None and np.any(values != plain)
    ]
    source = next((result.provenance[key] for key in ("source", "data", "address") if key in result.provenance), "")
    bound = None if picked.bound is None else picked.bound[-1:]
    return {
        "origin": source if isinstance(source, str) else "",
        "prepared": " and ".join(prepared) or "unprepared",
        "kept": float(picked.explained[-1]) if result.k else 0.0,
        "limit": None if bound is None or not result.k else float(evaluate.explained_share(bound, picked.start)[0]),
    }


def _marked(result: Result, layout: Layout) -> Markup:
    what, ground = ("pixels", "the mean image") if layout.image else ("places", "a map of the column means")
    label = f"The {result.k} picked {what}, numbered in the order they were picked, on {ground}."
    return maps.field_picture(layout, result.mean, label, marks=result.selection.columns)


def _explained(result: Result) -> Markup:
    picked, best = result.selection.explained, result.components_explained
    return figures.explained_chart(
        result,
        f"Line chart: the picked columns explain {percent(picked[0])} of the {result.selection.share_of} after the "
        f"first pick and {percent(picked[-1])} after {result.k}; the same number of {result.components} explains "
        f"{percent(best[-1])}.",
    )


def _picks(result: Result, found: Redundancy) -> list[tuple[Any, ...]]:
    """Return for each pick: the column, its gain as a share, the explained share, and the columns it represents."""
    picked = result.selection
    gains = -np.diff(picked.loss, prepend=picked.start) / (picked.start or 1.0)
    return list(zip(picked.columns, gains, picked.explained, found.stands_for(), strict=True))


def _gains(result: Result) -> Content:
    picked = result.selection
    left = picked.loss / (picked.start or 1.0)
    label = (
        f"Line chart: {percent(left[0])} of the {picked.share_of} is left unexplained after the first pick and "
        f"{percent(left[-1], 2)} after {result.k}, above its lower bounds."
    )
    paper = result.paper_bound
    return {
        "chart": figures.loss_chart(result, label),
        "paper": None if paper is None else float(paper.max(initial=0.0)) / (picked.start or 1.0),
        "paper_shows": figures.paper_bound_shows(result),
    }


def _choice(tuning: Tuning) -> Content:
    at = int(np.abs(tuning.lams - tuning.lam).argmin()), tuning.k - 1
    loss, error = float(tuning.mean[at]), float(tuning.error[at])
    choice = f"lambda {digits(tuning.lam)} and {counted(tuning.k, 'column')}"
    words = f"{choice} leave {percent(loss, 2)} (± {percent(error, 2)})"
    content: Content = {"at": words, "heat": figures.HEAT[::-1], "swaps": tuning.swapped is not None}
    told = (loss, error) if tuning.swapped is None else (tuning.swapped, tuning.swapped_error)
    content |= dict(zip(("loss", "error"), told, strict=True))
    content |= {"low": float(tuning.mean.min()), "high": float(tuning.mean.max())}
    lams, sizes = tuning.mean.shape
    if min(lams, sizes) > 1:
        label = f"Heat map of the loss on held-out rows, over lambda and the number of columns; chosen: {words}."
        content["surface"] = figures.surface_chart(tuning, label)
    if lams > 1:
        label = f"Chart with error bars: loss on held-out rows against lambda with {tuning.k} columns; {words}."
        content["lams"] = figures.lambda_chart(tuning, label)
    if sizes > 1:
        label = f"Chart with error bars: loss on held-out rows against the number of columns; {words}."
        content["sizes"] = figures.size_chart(tuning, label)
    return content


def _again(result: Result, trust: Trust) -> Content:
    frequency = trust.frequency[result.selection.columns]
    chance = result.k / result.n
    label = (
        f"Bar chart: of {result.k} picked columns, {int((frequency >= 0.9).sum())} are picked in at least 90 % of "
        f"{trust.resamples} resamples; by chance a column is picked in {percent(chance)}."
    )
    free = np.setdiff1d(np.flatnonzero(trust.frequency > 0), result.selection.columns)
    rivals = free[np.argsort(-trust.frequency[free], kind="stable")][:RIVALS]
    return {"chart": figures.frequency_chart(frequency, chance, label), "rivals": rivals.tolist()}


def _others(result: Result, found: Redundancy, layout: Layout | None) -> Content:
    share = found.share[found.unpicked]
    middle = percent(float(np.median(share)))
    label = f"Histogram of the explained share of {len(share)} unpicked columns; the median is {middle}."
    content = {
        "count": len(share),
        "well": int((share >= 0.9).sum()),
        "poorly": int((share < 0.5).sum()),
        "constant": len(found.constant),
        "histogram": figures.share_histogram(share, label),
        "worst": _listed(result, found, found.worst(result.column_loss, LISTED)),
        "best": None if len(share) <= LISTED else _listed(result, found, found.best(result.column_norm, LISTED)),
    }
    if layout is not None:
        label = f"Explained share of each of the {result.n} columns, where it lies; bright is well explained."
        content["map"] = maps.field_picture(layout, np.clip(found.share, 0.0, 1.0), label)
    return content


def _listed(result: Result, found: Redundancy, columns: NDArray[np.intp]) -> list[tuple[Any, ...]]:
    """Return for each column: its explained share, its share of the loss, and the picks that explain it."""
    total = float(result.column_loss[found.unpicked].sum()) or 1.0
    left = result.column_loss / total
    return [(column, found.share[column], left[column], found.strongest(int(column))) for column in columns]


def _provenance(result: Result) -> Content:
    picked = result.selection
    asked = {
        "rows": f"{result.rows:,}" + ("" if result.weight == result.rows else f" (weight {result.weight:,.6g})"),
        "columns": f"{result.n:,}",
        "picked": result.k,
        "lambda": digits(picked.lam),
        "objective": picked.objective,
        **result.provenance,
    }
    made = {"created": result.created, **(result.versions or {})}
    return {"asked": asked, "made": {key: value for key, value in made.items() if value}}

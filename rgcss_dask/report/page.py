"""The HTML of a report: sections of text, tables and pictures, with everything from the data escaped."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.result import Result, Trust, Tuning
from rgcss_dask.report import figures
from rgcss_dask.report.figures import short
from rgcss_dask.report.layout import Layout
from rgcss_dask.report.markup import GENERATOR, escape, figure, named, percent, row_of, section, signed, table
from rgcss_dask.report.rebuilt import pictures
from rgcss_dask.report.redundancy import Redundancy, redundancy
from rgcss_dask.report.samples import Samples

Array = NDArray[np.float64]

LISTED = 12  # columns in each list of those explained worst and best
RIVALS = 8  # unpicked columns that resamples pick


def page(result: Result, layout: Layout | None, samples: Samples | None) -> str:
    """Return the whole file."""
    style, script = (files("rgcss_dask.report").joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Should a name ever slip through unescaped, the browser still runs no script but this one.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    with figures.style():
        content = "".join([_head(result, layout), *_sections(result, layout, samples), _provenance(result)])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(result.sentence)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
{content}
</main>
<script>{script}</script>
</body>
</html>
"""


def _sections(result: Result, layout: Layout | None, samples: Samples | None) -> list[str]:
    if not result.k:
        return []
    found = redundancy(result)
    return [
        _picks(result, found, layout),
        _kept(result, layout),
        pictures(result, layout, samples),
        "" if result.tuning is None else _choice(result.tuning),
        "" if result.trust is None else _trust(result, result.trust),
        _others(result, found, layout),
    ]


def _head(result: Result, layout: Layout | None) -> str:
    hero = ""
    if result.k:
        hero = _explained(result) if layout is None else _marked(result, layout)
    facts = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>" for name, value, note in _facts(result)
    )
    return f"""<header>
<div>
<p class="eyebrow">Column selection</p>
<h1>{escape(result.sentence)}</h1>
<p class="lead">{_asked(result)}</p>
<dl class="facts">{facts}</dl>
</div>
{hero}
</header>
"""


def _asked(result: Result) -> str:
    """Say in a sentence or two what was done, to what."""
    picked = result.selection
    kinds = {"unselected": "the columns that were not picked", "all": "all columns"}
    prepared = [
        word
        for word, values, plain in (("centred", picked.mu, 0.0), ("scaled", picked.sigma, 1.0))
        if values is not None and np.any(values != plain)
    ]
    source = next((result.provenance[key] for key in ("source", "data", "address") if key in result.provenance), None)
    origin = f" from {named(str(source), 80)}" if isinstance(source, str) else ""
    words = (
        f"Chosen greedily from {result.rows:,} rows{origin}, "
        f"with {' and '.join(prepared) or 'unprepared'} columns and lambda = {short(picked.lam)}, "
        f"so that {kinds.get(picked.objective, escape(picked.objective))} can be told from the picked ones."
    )
    if picked.exhausted:
        words += " It ended there because no other column had anything left to add."
    if picked.doubtful is not None:
        words += (
            f" The losses from pick {picked.doubtful + 1} on are less certain: that column is nearly a mix of those "
            "before it, so that rounding shows in them."
        )
    return words


def _facts(result: Result) -> list[tuple[str, str, str]]:
    """Return the few numbers that tell the story: name, value, remark."""
    if not result.k:
        return []
    picked = result.selection
    kept = float(picked.explained[-1])
    facts = [("Kept", percent(kept), f"by {result.k} of {result.n:,} columns")]
    if picked.bound is not None:
        limit = float(evaluate.explained_share(picked.bound[-1:], picked.start)[0])
        reached = f"no {result.k} columns can keep more; this is {percent(kept / limit)} of it" if limit > 0 else ""
        facts.append(("Limit", percent(limit), reached))
    if result.tuning is not None:
        mean, error = _chosen(result.tuning)
        size = "" if result.tuning.k == result.k else f" with {result.tuning.k} columns"
        facts.append(("Left in new rows", percent(mean), f"± {percent(error, 2)}, cross-validated{size}"))
    if result.trust is not None:
        trust = result.trust
        facts.append(("Stability", f"{trust.jaccard:.2f}", f"Jaccard index; {trust.expected:.2f} by chance"))
    facts.append(("Condition", escape(result.condition).split(" (")[0], _condition_words(result)))
    return facts


def _condition_words(result: Result) -> str:
    if not result.condition.resolved:
        return "more than can be resolved: picks repeat each other"
    return (
        "of the picks: noise is not magnified"
        if result.condition.value <= 100
        else "of the picks: weights magnify noise"
    )


def _chosen(tuning: Tuning) -> tuple[float, float]:
    at = int(np.abs(tuning.lams - tuning.lam).argmin()), tuning.k - 1
    return float(tuning.mean[at]), float(tuning.error[at])


def _marked(result: Result, layout: Layout) -> str:
    what, ground = ("pixels", "the mean image") if layout.image else ("places", "a map of the column means")
    label = f"The {result.k} picked {what}, numbered in the order they were picked, on {ground}."
    picture = figures.field_picture(layout, result.mean, label, marks=result.selection.columns)
    return figure(f"The picked {what}", picture, f"Numbered in the order they were picked, on {ground}.")


def _explained(result: Result) -> str:
    picked, best = result.selection.explained, result.components_explained
    label = (
        f"Line chart: the picked columns explain {percent(picked[0])} of the variation after the first pick and "
        f"{percent(picked[-1])} after {result.k}; as many principal components explain {percent(best[-1])}."
    )
    legend = [("accent", "picked columns"), ("second dashed", "as many principal components")]
    return figure("Explained, beside PCA", figures.explained_chart(result, label), "", legend)


def _picks(result: Result, found: Redundancy, layout: Layout | None) -> str:
    picked = result.selection
    groups = found.stands_for()
    gains = -np.diff(picked.loss, prepend=picked.start) / (picked.start or 1.0)
    heads = [("number", "Pick"), ("name", "Column")]
    heads += [] if layout is None else [("", "Place")]
    heads += [("number", "Adds"), ("number", "Explained so far"), ("number", "Mean"), ("number", "Std. dev.")]
    heads += [] if result.trust is None else [("number", "Picked again")]
    heads += [("", "Stands for")]

    def cells(i: int, column: int) -> list[tuple[str, object]]:
        row: list[tuple[str, object]] = [(str(i + 1), i + 1), (named(result.label(column)), _key(result, column))]
        row += [] if layout is None else [(escape(layout.place(column)), column)]
        row += [(percent(gains[i], 2), float(gains[i])), (percent(picked.explained[i]), float(picked.explained[i]))]
        row += [(f"{value:.4g}", float(value)) for value in (result.mean[column], result.spread[column])]
        if result.trust is not None:
            frequency = float(result.trust.frequency[column])
            row.append((percent(frequency, 0), frequency))
        return [*row, (_group(result, groups[i]), len(groups[i]))]

    rows = [cells(i, int(column)) for i, column in enumerate(picked.columns)]
    lead = (
        "In the order they were picked. <em>Adds</em> is what a pick took off the unexplained variation when its turn "
        "came. <em>Stands for</em> lists the unpicked columns, at least half explained, in which the pick weighs most."
    )
    return section("The picked columns", lead, table("Picked columns, in order", heads, rows))


def _group(result: Result, columns: NDArray[np.intp]) -> str:
    if not len(columns):
        return "itself"
    some = ", ".join(named(result.label(int(column)), 24) for column in columns[:3])
    return f"{len(columns)}: {some}{' …' if len(columns) > 3 else ''}"


def _kept(result: Result, layout: Layout | None) -> str:
    picked = result.selection
    left = picked.loss / (picked.start or 1.0)
    label = (
        f"Line chart: {percent(left[0])} of the variation is left unexplained after the first pick and "
        f"{percent(left[-1], 2)} after {result.k}, above its lower bounds."
    )
    legend = [
        ("accent", "picked columns"),
        ("second dashed", "tight bound"),
        ("muted dotted", "the paper&#39;s bound"),
    ]
    note = "No choice of as many columns can be below the bounds."
    if not figures.paper_bound_shows(result):
        share = float(result.paper_bound.max(initial=0.0)) / (picked.start or 1.0)
        note += f" The paper&#39;s is at most {short(100 * share)}\u202f% here, below the chart."
        legend.pop()
    parts = [figure("Left unexplained", figures.loss_chart(result, label), note, legend)]
    if layout is not None:
        parts.insert(0, _explained(result))
    return section("What each pick adds", "", row_of(*parts))


def _choice(tuning: Tuning) -> str:
    mean, error = _chosen(tuning)
    at = f"lambda {short(tuning.lam)} and {tuning.k} columns leave {percent(mean, 2)} (± {percent(error, 2)})"
    parts = []
    if min(tuning.mean.shape) > 1:
        label = f"Heat map of the loss on rows held out, over lambda and the number of columns; chosen: {at}."
        low, high = float(tuning.mean.min()), float(tuning.mean.max())
        ramp = f'<span class="ramp" style="background:linear-gradient(90deg,{",".join(figures.HEAT[::-1])})"></span>'
        legend = [("", f"{percent(low)} {ramp} {percent(high)} left unexplained")]
        parts.append(
            figure("Every lambda and size", figures.surface_chart(tuning, label), "The ring is the choice.", legend)
        )
    if len(tuning.lams) > 1:
        label = f"Chart with error bars: loss on rows held out against lambda with {tuning.k} columns; {at}."
        note = "With one standard error over the folds."
        parts.append(figure("Over lambda", figures.lambda_chart(tuning, label), note))
    if tuning.mean.shape[1] > 1:
        label = f"Chart with error bars: loss on rows held out against the number of columns; {at}."
        note = "With one standard error over the folds."
        parts.append(figure("Over the number of columns", figures.size_chart(tuning, label), note))
    plain = f"By {tuning.folds}-fold cross-validation: {at} unexplained in rows that were not seen."
    return section("How lambda and the number of columns were chosen", _words(tuning.words) or plain, row_of(*parts))


def _words(text: str) -> str:
    return " ".join(escape(line) for line in text.splitlines())


def _trust(result: Result, trust: Trust) -> str:
    columns = result.selection.columns
    again = trust.frequency[columns]
    label = (
        f"Bar chart: of {result.k} picked columns, {int((again >= 0.9).sum())} are picked in at least 90 % of "
        f"{trust.resamples} resamples; by chance a column is picked in {percent(result.k / result.n)}."
    )
    legend = [("accent block", "picked again"), ("ink dotted", "by chance")]
    chart = figure("Picked again", figures.frequency_chart(again, result.k / result.n, label), "", legend)
    plain = (
        f"Two of {trust.resamples} resamples of the rows share columns with a Jaccard index of {trust.jaccard:.2f} on "
        f"average; picked at random it would be {trust.expected:.2f}."
    )
    lead = _words(trust.words) or plain
    return section("Would other rows lead to the same columns?", lead, row_of(chart, _rivals(result, trust)))


def _rivals(result: Result, trust: Trust) -> str:
    """List the unpicked columns that resamples pick most often."""
    order = np.argsort(-trust.frequency, kind="stable")
    rivals = [
        int(j) for j in order[: result.k + RIVALS] if j not in result.selection.columns and trust.frequency[j] > 0
    ]
    if not rivals:
        return ""
    rows = [
        [(named(result.label(j), 32), _key(result, j)), (percent(trust.frequency[j], 0), float(trust.frequency[j]))]
        for j in rivals[:RIVALS]
    ]
    heads = [("name", "Column"), ("number", "Of the resamples")]
    return f"<div><h3>Picked in their place</h3>{table('Unpicked columns that resamples pick', heads, rows)}</div>"


def _key(result: Result, column: int) -> object:
    """Return what a column is sorted by: its name, or its number."""
    return column if result.names is None else result.label(column)


def _others(result: Result, found: Redundancy, layout: Layout | None) -> str:
    share = found.share[found.unpicked]
    count = len(share)
    if not count:
        return section("The columns that were not picked", "None is left that varies.")
    well = int((share >= 0.9).sum())
    poorly = int((share < 0.5).sum())
    lead = (
        f"Of {count:,} unpicked columns that vary, {well:,} are explained by 90\u202f% or more, "
        f"{poorly:,} by less than half."
    )
    if len(found.constant):
        lead += f" {len(found.constant):,} hold nothing to explain: as prepared, they are constant."
    middle = percent(float(np.median(share)))
    label = f"Histogram of the explained share of {count} unpicked columns; the median is {middle}."
    parts = [figure("How well they are explained", figures.share_histogram(share, label))]
    if layout is not None:
        label = f"Explained share of each of the {result.n} columns, where it lies; bright is well explained."
        picture = figures.field_picture(layout, np.clip(found.share, 0.0, 1.0), label)
        parts.append(figure("Where", picture, "Bright is well explained; blank has nothing to explain."))
    worst = _listed(
        result,
        found,
        found.worst(result.column_loss, LISTED),
        "Where most is left",
        "Unpicked columns that add most to what is left",
    )
    best = _listed(
        result,
        found,
        found.best(result.column_norm, LISTED),
        "Explained best",
        "Unpicked columns that are explained best",
    )
    note = (
        '<p class="note">Weights are for columns scaled to the same size. '
        f"The condition number of the picked columns is {escape(result.condition)}; "
        "above a hundred or so, weights begin to magnify noise.</p>"
    )
    return section(
        "The columns that were not picked", lead, row_of(*parts), f'<div class="lists">{worst}{best}</div>', note
    )


def _listed(result: Result, found: Redundancy, columns: NDArray[np.intp], title: str, caption: str) -> str:
    picked = result.selection.columns
    total = float(result.column_loss[found.unpicked].sum()) or 1.0
    heads = [("name", "Column"), ("number", "Explained"), ("number", "Of all that is left"), ("", "By picks (weight)")]
    rows = []
    for column in map(int, columns):
        by = found.strongest(column)
        names = ", ".join(f"{named(result.label(picked[i]), 24)} ({signed(weight)})" for i, weight in by)
        share, left = float(found.share[column]), float(result.column_loss[column]) / total
        rows.append(
            [
                (named(result.label(column), 32), _key(result, column)),
                (percent(share), share),
                (percent(left, 2), left),
                (names or "none", by[0][0] if by else -1),
            ]
        )
    return f"<div><h3>{title}</h3>{table(caption, heads, rows)}</div>"


def _provenance(result: Result) -> str:
    picked = result.selection
    asked: dict[str, Any] = {
        "rows": f"{result.rows:,}" + ("" if result.weight == result.rows else f" (weight {result.weight:,.6g})"),
        "columns": f"{result.n:,}",
        "picked": result.k,
        "lambda": repr(picked.lam),
        "objective": picked.objective,
        **result.provenance,
    }
    made = {"created": result.created, **(result.versions or {})}
    return section("What was asked, of what data", "", _terms(asked), _terms({k: v for k, v in made.items() if v}))


def _terms(content: dict[Any, Any]) -> str:
    rows = "".join(
        f"<div><dt>{named(str(key).replace('_', ' '))}</dt><dd>{_value(value)}</dd></div>"
        for key, value in content.items()
    )
    return f'<dl class="terms">{rows}</dl>'


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return _terms(value) if value else "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(_value(item) for item in value[:20])
        return (shown or "none") + (f" … ({len(value):,} in all)" if len(value) > 20 else "")
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return named(str(value), 400)

"""The figures of a report: matplotlib drawings as SVG, with colours from the style sheet of the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from rgcss_dask.core.answer import Answer
from rgcss_dask.core.result import Result, Tuning
from rgcss_dask.core.words import digits
from rgcss_dask.reporting.layout import Layout

Array = NDArray[np.float64]

# Placeholder colours for CSS variables, so that one drawing serves dark mode, light mode and print.
INK, MUTED, RULE, ACCENT, SECOND, ON_ACCENT = "#010203", "#010204", "#010205", "#010206", "#010207", "#010208"
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    SECOND: "second",
    ON_ACCENT: "on-accent",
}
GREYS = ("#15181d", "#f3f1ec")
HEAT = ("#fde9c9", "#e8a87c", "#a65d78", "#4b3a6e", "#1b1d3a")  # from large to small losses: the best is darkest
UNITS = 360  # width of a drawing, that of a phone, so that text is readable there
STYLE = {"svg.fonttype": "none", "font.size": 11, "axes.unicode_minus": True, "text.parse_math": False}


@contextmanager
def style() -> Iterator[None]:
    """Draw with fixed settings, independent of the user's."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def _chart(height: float = 230) -> tuple[Figure, Axes]:
    """Start a drawing with plain axes; ``height`` is in the units of the SVG."""
    figure = Figure(figsize=(UNITS / 72, height / 72))
    figure.patch.set_visible(False)
    # Fixed margins, so that charts side by side are aligned.
    left, right, bottom, top = 50 / UNITS, 14 / UNITS, 44 / height, 23 / height
    axes = figure.add_axes((left, bottom, 1 - left - right, 1 - bottom - top))
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, length=0, pad=5)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _name_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=MUTED)
    axes.set_title(y + " (logarithmic)" * (axes.get_yscale() == "log"), color=MUTED, loc="left", fontsize=11, pad=9)


def _count_axis(axes: Axes, k: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=7))
    axes.set_xlim(min(1.0, k - 0.5), max(k, 1.5))


def _percent(value: float, _: int | None = None) -> str:
    return f"{100 * value:.4g} %"


def _to_svg(figure: Figure, label: str) -> Markup:
    """Return a figure as an SVG element with a label, without unused ids and without a fixed size."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": label}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's browser has other fonts
        figure.savefig(buffer, format="svg", dpi=220, metadata={"Date": None})
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    start = f'<svg {box[0]} role="img" aria-label="{escape(label)}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    # Safe, because Matplotlib escapes its texts.
    return Markup(start + re.sub(r"\n\s*", " ", text[text.index(">") + 1 :]).strip())


def short(value: float) -> str:
    """Write a number in few characters."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    if -3 <= int(exponent) <= 4:
        return np.format_float_positional(float(f"{value:.2g}"), trim="-")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1.0" else f"{mantissa.removesuffix('.0')}·{power}"


def explained_chart(result: Result, label: str) -> Markup:
    """Draw the share explained after each pick, and that of the same number of components, as SVG."""
    figure, axes = _chart()
    draw_explained(axes, result.selection, {result.components: result.components_explained})
    return _to_svg(figure, label)


def draw_explained(axes: Axes, answer: Answer, others: dict[str, Array]) -> None:
    """Draw the share that the picks explain after 0, 1, 2, ... columns, and other shares by their label."""
    picked, *curves = (np.concatenate([[0.0], shares]) for shares in (answer.explained, *others.values()))
    for label, curve, dashes in zip(others, curves, ("--", ":", "-."), strict=False):
        axes.plot(curve, color=SECOND, linestyle=dashes, linewidth=1.6, label=label)
    axes.plot(picked, color=ACCENT, linewidth=2.2, label="picked columns")
    _end(axes, len(picked) - 1, float(picked[-1]), above=False)
    axes.set_ylim(min(float(curve.min()) for curve in (picked, *curves)), 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    last = max(map(len, (picked, *curves))) - 1
    _count_axis(axes, last)
    axes.set_xlim(0, last)
    _name_axes(axes, "columns picked", f"of the {answer.share_of} explained")


def loss_chart(result: Result, label: str) -> Markup:
    """Draw the unexplained share after each pick, and its lower bounds, as SVG."""
    figure, axes = _chart()
    draw_loss(axes, result)
    return _to_svg(figure, label)


def draw_loss(axes: Axes, result: Result) -> None:
    """Draw the unexplained share after each pick, and its lower bounds."""
    start = result.selection.start or 1.0
    steps = np.arange(1, result.k + 1)
    loss, tight = (_positive(x / start) for x in (result.selection.loss, _tight(result)))
    if result.paper_bound is not None:
        axes.plot(steps, _positive(result.paper_bound / start), color=MUTED, linestyle=":", linewidth=1.6)
    axes.plot(steps, tight, color=SECOND, linestyle="--", linewidth=1.6)
    axes.plot(steps, loss, color=ACCENT, linewidth=2.2)
    _end(axes, result.k, float(loss[-1]), above=True)
    _share_axis(axes, np.concatenate([loss, tight]))
    _count_axis(axes, result.k)
    _name_axes(axes, "columns picked", f"of the {result.selection.share_of} left unexplained")


def paper_bound_shows(result: Result) -> bool:
    """Tell whether the paper's bound is large enough to be visible in `loss_chart`."""
    drawn = np.concatenate([result.selection.loss, _tight(result)])
    smallest = drawn[drawn > 0].min(initial=np.inf)
    return result.paper_bound is not None and bool(result.paper_bound.max(initial=0.0) > 0.5 * smallest)


def _tight(result: Result) -> Array:
    bound = result.selection.bound
    return np.zeros(result.k) if bound is None else bound


def _end(axes: Axes, k: int, value: float, *, above: bool) -> None:
    """Mark the last value of a curve, with its number."""
    if not np.isfinite(value):
        return
    axes.plot(k, value, "o", color=ACCENT, markersize=5, clip_on=False)
    words = f"{100 * value:.1f} %" if value >= 0.001 else f"{short(100 * value)} %"
    axes.annotate(
        words,
        (k, value),
        (0, 13 if above else -13),  # clear of its own line
        textcoords="offset points",
        color=ACCENT,
        ha="right",
        va="bottom" if above else "top",
        fontweight="bold",
    )


def _positive(values: Array) -> Array:
    return np.where(values > 0, values, np.nan)


def _share_axis(axes: Axes, values: Array) -> None:
    """Make the y axis logarithmic if the range is large, and set its limits."""
    values = values[np.isfinite(values) & (values > 0)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.1, 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    if high < 4 * low:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        if high > low:
            axes.set_ylim(low - 0.15 * (high - low), high + 0.1 * (high - low))
        return
    axes.set_yscale("log")
    axes.set_ylim(0.8 * low, 1.15 * high)
    decades = np.log10(high / low)
    subs = (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=7 if decades > 2.5 else 12))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def surface_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss of every lambda and number of columns, and the chosen point, as SVG."""
    figure, axes = _chart()
    draw_surface(axes, tuning)
    return _to_svg(figure, label)


def draw_surface(axes: Axes, tuning: Tuning) -> None:
    """Draw the held-out loss of every lambda and number of columns, and the chosen point."""
    axes.grid(visible=False)
    count, sizes = tuning.mean.shape
    values = np.maximum(tuning.mean, np.finfo(np.float64).tiny)
    low, high = float(values.min()), float(values.max())
    colours = LinearSegmentedColormap.from_list("heat", HEAT[::-1])
    axes.imshow(
        values,
        norm=LogNorm(low, high if high > low else 2 * low),
        cmap=colours,
        origin="lower",
        aspect="auto",
        interpolation="none",
        extent=(0.5, sizes + 0.5, -0.5, count - 0.5),
    )
    at = (tuning.k, _nearest(tuning))
    axes.plot(
        *at, "o", markersize=11, markerfacecolor="none", markeredgecolor="white", markeredgewidth=3.6, clip_on=False
    )
    axes.plot(
        *at, "o", markersize=11, markerfacecolor="none", markeredgecolor=ACCENT, markeredgewidth=1.8, clip_on=False
    )
    axes.spines["bottom"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=6))
    axes.yaxis.set_major_locator(FixedLocator(_some(count)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda i, _: short(tuning.lams[round(i)])))
    _name_axes(axes, "columns picked", _lambda_axis(tuning.lams))


def _lambda_axis(lams: Array) -> str:
    """Return the label of an axis of lambdas."""
    steps = np.diff(np.log(np.maximum(lams, np.finfo(np.float64).tiny)))
    return f"lambda ({'logarithmic' if steps.size and np.ptp(steps) < 1e-3 * steps.max() else 'as given'})"


def lambda_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss against lambda at the chosen number of columns, with standard errors, as SVG."""
    figure, axes = _chart()
    draw_lambdas(axes, tuning)
    return _to_svg(figure, label)


def draw_lambdas(axes: Axes, tuning: Tuning) -> None:
    """Draw the held-out loss against lambda at the chosen number of columns, with standard errors."""
    at = _nearest(tuning)
    mean, error = tuning.mean[:, tuning.k - 1], tuning.error[:, tuning.k - 1]
    where = np.arange(len(mean))
    axes.errorbar(where, mean, error, color=SECOND, linewidth=1.4, elinewidth=1.2, capsize=3, marker="o", markersize=3)
    axes.errorbar([at], mean[[at]], error[[at]], color=ACCENT, elinewidth=1.8, capsize=4, marker="o", markersize=6)
    _share_axis(axes, np.concatenate([mean - error, mean + error]))
    axes.xaxis.set_major_locator(FixedLocator(_some(len(mean))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda i, _: short(tuning.lams[round(i)])))
    _name_axes(axes, f"{_lambda_axis(tuning.lams)}, with {tuning.k} columns", "left unexplained of rows held out")


def size_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss against the number of columns at the chosen lambda, with standard errors, as SVG."""
    figure, axes = _chart()
    draw_sizes(axes, tuning)
    return _to_svg(figure, label)


def draw_sizes(axes: Axes, tuning: Tuning) -> None:
    """Draw the held-out loss against the number of columns at the chosen lambda, with standard errors."""
    at = _nearest(tuning)
    mean, error = tuning.mean[at], tuning.error[at]
    where = np.arange(1, len(mean) + 1)
    some = np.unique(np.linspace(0, len(mean) - 1, 24).round().astype(int))
    axes.plot(where, mean, color=SECOND, linewidth=1.4)
    axes.errorbar(where[some], mean[some], error[some], fmt="none", color=SECOND, elinewidth=1.2, capsize=2)
    i = tuning.k - 1
    axes.errorbar([tuning.k], mean[[i]], error[[i]], color=ACCENT, elinewidth=1.8, capsize=4, marker="o", markersize=6)
    _share_axis(axes, np.concatenate([mean - error, mean + error]))
    _count_axis(axes, len(mean))
    axes.set_xlim(0.5, len(mean) + 0.5)
    _name_axes(axes, f"columns picked, with lambda {digits(tuning.lam)}", "left unexplained of rows held out")


def _nearest(tuning: Tuning) -> int:
    return int(np.abs(tuning.lams - tuning.lam).argmin())


def _some(count: int, most: int = 5) -> list[int]:
    step = max(1, -(-(count - 1) // (most - 1)))
    return list(range(0, count, step))


def frequency_chart(frequency: Array, chance: float, label: str) -> Markup:
    """Draw how often each picked column is picked again, in pick order, and how often by chance, as SVG."""
    figure, axes = _chart()
    draw_frequency(axes, frequency, chance)
    return _to_svg(figure, label)


def draw_frequency(axes: Axes, frequency: Array, chance: float) -> None:
    """Draw how often each picked column is picked again, in pick order, and how often by chance."""
    k = len(frequency)
    axes.bar(np.arange(1, k + 1), frequency, width=0.8 if k <= 80 else 1.0, color=ACCENT, linewidth=0)
    axes.axhline(chance, color=INK, linestyle=":", linewidth=1.6)
    axes.set_ylim(0, 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=7))
    axes.set_xlim(0.4, k + 0.6)
    _name_axes(axes, "picked columns, in order", "of the resamples pick it again")


def share_histogram(share: Array, label: str) -> Markup:
    """Draw a histogram of the explained shares of columns, as SVG."""
    figure, axes = _chart()
    draw_shares(axes, share)
    return _to_svg(figure, label)


def draw_shares(axes: Axes, share: Array) -> None:
    """Draw a histogram of the explained shares of columns."""
    counts, edges = np.histogram(np.clip(share, 0.0, 1.0), bins=20, range=(0.0, 1.0))
    axes.bar(edges[:-1] + 0.025, counts, width=0.042, color=SECOND, linewidth=0)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=5))
    _name_axes(axes, "of the column explained", "columns not picked")


def draw_means(axes: Axes, shares: Array, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw a share for each row and column, darker for more, with the names of both."""
    heat = LinearSegmentedColormap.from_list("heat", HEAT)
    axes.imshow(np.clip(shares, 0.0, 1.0), cmap=heat, vmin=0.0, vmax=1.0, aspect="auto", interpolation="none")
    axes.set_xticks(np.arange(len(columns)), columns, rotation=90)
    axes.set_yticks(np.arange(len(rows)), rows)
    axes.grid(visible=False)
    _name_axes(axes, "picked genes", "")


def scatter_chart(original: Array, rebuilt: Array, label: str) -> Markup:
    """Draw reconstructed values over the original ones."""
    figure, axes = _chart(300)
    values = np.concatenate([original, rebuilt])
    ends = [float(values.min()), float(values.max())] if values.size else [0.0, 1.0]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    axes.scatter(original, rebuilt, s=7, color=ACCENT, alpha=0.55, linewidths=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    _name_axes(axes, "original, in standard deviations from the mean", "reconstructed")
    return _to_svg(figure, label)


def field_picture(layout: Layout, values: Array, label: str, *, marks: NDArray[np.intp] | None = None) -> Markup:
    """Draw a value per column at its position, and number the marked columns, as SVG."""
    figure, axes = _chart(_height(layout))
    draw_places(axes, layout, values, marks)
    if layout.image:
        axes.set_position((0.0, 0.0, 1.0, 1.0))
    return _to_svg(figure, label)


def draw_places(axes: Axes, layout: Layout, values: Array, marks: NDArray[np.intp] | None = None) -> None:
    """Draw a value per column at its position, and number the marked columns."""
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    _draw_field(axes, layout, values)
    if layout.image:
        axes.set_axis_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        _name_axes(axes, layout.x_label[:40], layout.y_label[:40])
    if marks is not None:
        _number(axes, layout, marks)


def _draw_field(axes: Axes, layout: Layout, values: Array) -> None:
    greys = LinearSegmentedColormap.from_list("greys", GREYS)
    if layout.image:
        axes.imshow(
            np.ma.masked_invalid(values).reshape(layout.image), cmap=greys, norm=_norm(values), interpolation="none"
        )
        return
    if layout.axes:
        x, y = layout.axes
        C = np.ma.masked_invalid(values).reshape(len(y), len(x))
        axes.pcolormesh(x, y, C, cmap=greys, norm=_norm(values), shading="nearest", rasterized=True)
    else:
        size = float(np.clip(30000 / len(values), 4, 160))
        axes.scatter(
            layout.x, layout.y, size, values, marker="s", cmap=greys, norm=_norm(values), linewidths=0, rasterized=True
        )
    axes.set_aspect(_aspect(layout))


def _norm(values: Array) -> Normalize:
    known = values[np.isfinite(values)]
    return Normalize(*((known.min(), known.max()) if known.size else (0.0, 1.0)))


def _aspect(layout: Layout) -> float:
    """Return the ratio of the units of y and x."""
    if layout.on_the_globe:
        return float(1.0 / max(0.2, np.cos(np.deg2rad(layout.y.mean()))))
    wide, high = (max(float(np.ptp(values)), 1e-300) for values in (layout.x, layout.y))
    return 1.0 if 0.25 <= high / wide <= 2 else 0.6 * wide / high


def _height(layout: Layout) -> float:
    if layout.image:
        return float(np.clip(UNITS * layout.image[0] / layout.image[1], 60, 520))
    wide, high = (max(float(np.ptp(values)), 1e-300) for values in (layout.x, layout.y))
    return float(np.clip((UNITS - 64) * _aspect(layout) * high / wide + 72, 150, 520))


def _number(axes: Axes, layout: Layout, marks: NDArray[np.intp]) -> None:
    """Draw a numbered disc at each mark, of the size of a pixel, but large enough to read."""
    cell = UNITS / layout.image[1] if layout.image else 0.0
    smallest = 9.0 if len(marks) > 99 else 11.0 if len(marks) > 30 else 14.0
    size = float(np.clip(cell, smallest, 20.0))
    for place, column in enumerate(marks, start=1):
        above = 4.0 - place / (1 + len(marks))  # where discs overlap, the earlier pick is on top
        at = (float(layout.x[column]), float(layout.y[column]))
        axes.plot(*at, "o", color=ACCENT, markersize=size, markeredgewidth=0, zorder=above, clip_on=False)
        axes.text(
            *at,
            str(place),
            color=ON_ACCENT,
            fontsize=size * (0.62 if place < 100 else 0.46),
            ha="center",
            va="center_baseline",
            zorder=above,
        )


def picture(values: Array, low: float, high: float) -> bytes:
    """Return an image as PNG, with one pixel per value; values that are not finite are masked."""
    buffer = io.BytesIO()
    greys = LinearSegmentedColormap.from_list("greys", GREYS)
    ends = (low, high) if low < high else (low, low + 1.0) if np.isfinite(low) else (0.0, 1.0)
    seen = np.ma.masked_invalid(values)
    imsave(buffer, seen, vmin=ends[0], vmax=ends[1], cmap=greys, format="png")
    return buffer.getvalue()

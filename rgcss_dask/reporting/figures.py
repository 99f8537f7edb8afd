"""The charts of a report: curves, bars and surfaces, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rgcss_dask.core.answer import Answer
from rgcss_dask.core.result import Result, Tuning
from rgcss_dask.core.words import digits
from rgcss_dask.reporting.drawing import (
    ACCENT,
    INK,
    MUTED,
    SECOND,
    Array,
    as_percent,
    chart,
    name_axes,
    short,
    to_svg,
)

HEAT = ("#fde9c9", "#e8a87c", "#a65d78", "#4b3a6e", "#1b1d3a")  # from large to small losses: the best is darkest


def _count_axis(axes: Axes, k: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=7))
    axes.set_xlim(min(1.0, k - 0.5), max(k, 1.5))


def explained_chart(result: Result, label: str) -> Markup:
    """Draw the share explained after each pick, and that of the same number of components, as SVG."""
    figure, axes = chart()
    draw_explained(axes, result.selection, {result.components: result.components_explained})
    return to_svg(figure, label)


def draw_explained(axes: Axes, answer: Answer, others: dict[str, Array]) -> None:
    """Draw the share that the picks explain after 0, 1, 2, ... columns, and other shares by their label."""
    picked, *curves = (np.concatenate([[0.0], shares]) for shares in (answer.explained, *others.values()))
    for label, curve, dashes in zip(others, curves, ("--", ":", "-."), strict=False):
        axes.plot(curve, color=SECOND, linestyle=dashes, linewidth=1.6, label=label)
    axes.plot(picked, color=ACCENT, linewidth=2.2, label="picked columns")
    _end(axes, len(picked) - 1, float(picked[-1]), above=False)
    axes.set_ylim(min(float(curve.min()) for curve in (picked, *curves)), 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(as_percent))
    last = max(map(len, (picked, *curves))) - 1
    _count_axis(axes, last)
    axes.set_xlim(0, last)
    name_axes(axes, "columns picked", f"of the {answer.share_of} explained")


def loss_chart(result: Result, label: str) -> Markup:
    """Draw the unexplained share after each pick, and its lower bounds, as SVG."""
    figure, axes = chart()
    draw_loss(axes, result)
    return to_svg(figure, label)


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
    name_axes(axes, "columns picked", f"of the {result.selection.share_of} left unexplained")


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
    axes.yaxis.set_major_formatter(FuncFormatter(as_percent))
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
    axes.yaxis.set_major_formatter(FuncFormatter(as_percent))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def surface_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss of every lambda and number of columns, and the chosen point, as SVG."""
    figure, axes = chart()
    draw_surface(axes, tuning)
    return to_svg(figure, label)


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
    name_axes(axes, "columns picked", _lambda_axis(tuning.lams))


def _lambda_axis(lams: Array) -> str:
    """Return the label of an axis of lambdas."""
    steps = np.diff(np.log(np.maximum(lams, np.finfo(np.float64).tiny)))
    return f"lambda ({'logarithmic' if steps.size and np.ptp(steps) < 1e-3 * steps.max() else 'as given'})"


def lambda_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss against lambda at the chosen number of columns, with standard errors, as SVG."""
    figure, axes = chart()
    draw_lambdas(axes, tuning)
    return to_svg(figure, label)


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
    name_axes(axes, f"{_lambda_axis(tuning.lams)}, with {tuning.k} columns", "left unexplained of rows held out")


def size_chart(tuning: Tuning, label: str) -> Markup:
    """Draw the held-out loss against the number of columns at the chosen lambda, with standard errors, as SVG."""
    figure, axes = chart()
    draw_sizes(axes, tuning)
    return to_svg(figure, label)


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
    name_axes(axes, f"columns picked, with lambda {digits(tuning.lam)}", "left unexplained of rows held out")


def _nearest(tuning: Tuning) -> int:
    return int(np.abs(tuning.lams - tuning.lam).argmin())


def _some(count: int, most: int = 5) -> list[int]:
    step = max(1, -(-(count - 1) // (most - 1)))
    return list(range(0, count, step))


def frequency_chart(frequency: Array, chance: float, label: str) -> Markup:
    """Draw how often each picked column is picked again, in pick order, and how often by chance, as SVG."""
    figure, axes = chart()
    draw_frequency(axes, frequency, chance)
    return to_svg(figure, label)


def draw_frequency(axes: Axes, frequency: Array, chance: float) -> None:
    """Draw how often each picked column is picked again, in pick order, and how often by chance."""
    k = len(frequency)
    axes.bar(np.arange(1, k + 1), frequency, width=0.8 if k <= 80 else 1.0, color=ACCENT, linewidth=0)
    axes.axhline(chance, color=INK, linestyle=":", linewidth=1.6)
    axes.set_ylim(0, 1.0)
    axes.yaxis.set_major_formatter(FuncFormatter(as_percent))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=7))
    axes.set_xlim(0.4, k + 0.6)
    name_axes(axes, "picked columns, in order", "of the resamples pick it again")


def share_histogram(share: Array, label: str) -> Markup:
    """Draw a histogram of the explained shares of columns, as SVG."""
    figure, axes = chart()
    draw_shares(axes, share)
    return to_svg(figure, label)


def draw_shares(axes: Axes, share: Array) -> None:
    """Draw a histogram of the explained shares of columns."""
    counts, edges = np.histogram(np.clip(share, 0.0, 1.0), bins=20, range=(0.0, 1.0))
    axes.bar(edges[:-1] + 0.025, counts, width=0.042, color=SECOND, linewidth=0)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(as_percent))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=5))
    name_axes(axes, "of the column explained", "columns not picked")


def draw_means(axes: Axes, shares: Array, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draw a share for each row and column, darker for more, with the names of both."""
    heat = LinearSegmentedColormap.from_list("heat", HEAT)
    axes.imshow(np.clip(shares, 0.0, 1.0), cmap=heat, vmin=0.0, vmax=1.0, aspect="auto", interpolation="none")
    axes.set_xticks(np.arange(len(columns)), columns, rotation=90)
    axes.set_yticks(np.arange(len(rows)), rows)
    axes.grid(visible=False)
    name_axes(axes, "picked genes", "")


def scatter_chart(original: Array, rebuilt: Array, label: str) -> Markup:
    """Draw reconstructed values over the original ones."""
    figure, axes = chart(300)
    values = np.concatenate([original, rebuilt])
    ends = [float(values.min()), float(values.max())] if values.size else [0.0, 1.0]
    axes.plot(ends, ends, color=MUTED, linewidth=1)
    axes.scatter(original, rebuilt, s=7, color=ACCENT, alpha=0.55, linewidths=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    name_axes(axes, "original, in standard deviations from the mean", "reconstructed")
    return to_svg(figure, label)

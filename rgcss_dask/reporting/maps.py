"""Maps and images of a report: a value per column at its position, and the picks on it."""

from __future__ import annotations

import io

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from rgcss_dask.reporting.drawing import ACCENT, GREYS, ON_ACCENT, UNITS, Array, chart, name_axes, to_svg
from rgcss_dask.reporting.layout import Layout


def field_picture(layout: Layout, values: Array, label: str, *, marks: NDArray[np.intp] | None = None) -> Markup:
    """Draw a value per column at its position, and number the marked columns, as SVG."""
    figure, axes = chart(_height(layout))
    draw_places(axes, layout, values, marks)
    if layout.image:
        axes.set_position((0.0, 0.0, 1.0, 1.0))
    return to_svg(figure, label)


def draw_places(axes: Axes, layout: Layout, values: Array, marks: NDArray[np.intp] | None = None) -> None:
    """Draw a value per column at its position, and number the marked columns."""
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    _draw_field(axes, layout, values)
    if layout.image:
        axes.set_axis_off()
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        name_axes(axes, layout.x_label[:40], layout.y_label[:40])
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

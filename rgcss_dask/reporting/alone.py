"""Drawings of the report that stand alone: on axes of the user's, in colours of their own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rgcss_dask.runtime.extras import imported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCENT, SECOND = "#c2410c", "#4b3a6e"
COLOURS = {"INK": "#1b1f24", "MUTED": "#57606a", "RULE": "#d0d7de", "ON_ACCENT": "#ffffff"}
COLOURS |= {"ACCENT": ACCENT, "SECOND": SECOND}


def axes_of(ax: Axes | None) -> Axes:
    """Return the axes that were given, or those of a new figure."""
    pyplot = imported("matplotlib.pyplot", extra="report", by="plot()")
    made: Axes = pyplot.subplots(layout="constrained")[1] if ax is None else ax
    return made


def drawn(ax: Axes | None, draw: str, *values: Any) -> Axes:
    """Draw with a function of the report, then replace the colours that the style sheet of a report would set.

    The function is given as "figures.draw_loss": its module needs matplotlib.
    """
    axes = axes_of(ax)
    module, name = draw.split(".")
    getattr(_part(module), name)(axes, *values)
    colours = {getattr(_part("drawing"), kind): colour for kind, colour in COLOURS.items()}
    for artist in axes.findobj():
        for part in ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor"):
            now = getattr(artist, f"get_{part}", lambda: None)()
            if isinstance(now, str) and now in colours:
                getattr(artist, f"set_{part}")(colours[now])
    for patch in axes.patches:  # bars store their colours as numbers
        patch.set_facecolor(colours.get(_hex(patch.get_facecolor()), patch.get_facecolor()))
    return axes


def _part(module: str) -> Any:
    return importlib.import_module(f"rgcss_dask.reporting.{module}")


def _hex(colour: Any) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour[:3])

"""What the figures of a report have in common: axes, labels, colours from the style sheet of the page, and SVG."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
import matplotlib.style
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

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
UNITS = 360  # width of a drawing, that of a phone, so that text is readable there
STYLE = {"svg.fonttype": "none", "font.size": 11, "axes.unicode_minus": True, "text.parse_math": False}


@contextmanager
def style() -> Iterator[None]:
    """Draw with fixed settings, independent of the user's."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def chart(height: float = 230) -> tuple[Figure, Axes]:
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


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Write what the axes show; that of y stands above the drawing."""
    axes.set_xlabel(x, color=MUTED)
    axes.set_title(y + " (logarithmic)" * (axes.get_yscale() == "log"), color=MUTED, loc="left", fontsize=11, pad=9)


def as_percent(value: float, _: int | None = None) -> str:
    """Format a tick of an axis of shares."""
    return f"{100 * value:.4g} %"


def to_svg(figure: Figure, label: str) -> Markup:
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

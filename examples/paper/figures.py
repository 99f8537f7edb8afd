"""Small figures: panels side by side, saved with few colours and few dots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DPI = 70


def panels(count: int, across: int = 3, *, height: float = 2.4) -> tuple[Figure, list[Any]]:
    """Return a figure with as many axes as asked for, in rows."""
    down = -(-count // across)
    figure = Figure(figsize=(3.6 * across, height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, list(axes[:count])


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})

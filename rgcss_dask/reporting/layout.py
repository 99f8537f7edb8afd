"""Positions of columns in a plane: the pixels of an image, or places on a map."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NUMBER = r"(-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?)"
PLACE = re.compile(rf"([^=,]+)={_NUMBER}, ([^=,]+)={_NUMBER}")  # a column name with coordinates


@dataclass(frozen=True, eq=False)
class Layout:
    """A position for each column."""

    x: Array  # (n,)
    y: Array  # (n,)
    x_label: str
    y_label: str
    image: tuple[int, int] | None = None  # height and width of the image whose pixels, row by row, are the columns
    axes: tuple[Array, Array] | None = None  # x and y of a regular grid that the columns fill row by row

    def place(self, column: int) -> str:
        """Describe the position of a column."""
        if self.image:
            return f"row {int(self.y[column])}, column {int(self.x[column])}"
        return f"{self.x_label} {self.x[column]:.5g}, {self.y_label} {self.y[column]:.5g}"

    @property
    def on_the_globe(self) -> bool:
        """Whether x and y are longitudes and latitudes."""
        return self.x_label.lower().startswith("lon") and self.y_label.lower().startswith("lat")


def image_layout(shape: tuple[int, int], n: int) -> Layout:
    """Return the layout of n columns that are the pixels of an image, row by row."""
    sides = tuple(int(side) for side in shape)
    if len(sides) != 2 or min(sides) < 1 or sides[0] * sides[1] != n:
        words = " x ".join(str(side) for side in sides)
        raise ValueError(f"image_shape must have as many pixels as there are columns, {n}; got {words}.")
    y, x = np.divmod(np.arange(n, dtype=np.float64), sides[1])
    return Layout(x, y, "column", "row", image=(sides[0], sides[1]))


def grid_layout(grid: Any, n: int) -> Layout:
    """Return the layout of n columns by coordinates: one x and y per column, or the axes of a regular grid.

    ``grid`` is a pair (x, y), or a mapping of two names to coordinates; names that begin with "lat" are y.
    """
    (x_label, x), (y_label, y) = _named(grid)
    if len(x) == len(y) == n:
        return Layout(x, y, x_label, y_label)
    if len(x) * len(y) == n:
        Y, X = np.meshgrid(y, x, indexing="ij")
        return Layout(X.ravel(), Y.ravel(), x_label, y_label, axes=(x, y) if _rising(x) and _rising(y) else None)
    raise ValueError(
        f"grid must have an x and a y for each of the {n} columns, or two axes with that many grid points; "
        f"got {len(x)} x and {len(y)} y."
    )


def named_layout(names: tuple[str, ...] | None) -> Layout | None:
    """Return the layout given by coordinates in column names, such as "lat=62.5, lon=265.0"."""
    found = [PLACE.fullmatch(name) for name in names or ()]
    if not found or not all(found):
        return None
    parts = [match.groups() for match in found if match]
    if len({(slow, fast) for slow, _, fast, _ in parts}) > 1:
        return None
    (slow, _, fast, _), (y, x) = parts[0], (np.array([part[i] for part in parts], dtype=np.float64) for i in (1, 3))
    rows, columns = (values[np.sort(np.unique(values, return_index=True)[1])] for values in (y, x))
    whole = len(rows) * len(columns) == len(parts) and np.array_equal(np.repeat(rows, len(columns)), y)
    whole = whole and np.array_equal(np.tile(columns, len(rows)), x)
    return grid_layout({fast: columns, slow: rows} if whole else {fast: x, slow: y}, len(parts))


def _named(grid: Any) -> list[tuple[str, Array]]:
    if isinstance(grid, Mapping):
        pairs = [(str(name), values) for name, values in grid.items()]
    else:
        pairs = [("x", None), ("y", None)] if not _is_pair(grid) else [("x", grid[0]), ("y", grid[1])]
    if len(pairs) != 2 or any(values is None for _, values in pairs):
        raise ValueError("grid must be a pair (x, y), or a mapping such as {'longitude': x, 'latitude': y}.")
    if pairs[0][0].lower().startswith("lat"):
        pairs.reverse()
    return [(name, _coordinates(name, values)) for name, values in pairs]


def _is_pair(grid: Any) -> bool:
    return isinstance(grid, tuple | list | np.ndarray) and len(grid) == 2


def _coordinates(name: str, values: Any) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(f"grid coordinates must be finite numbers in one dimension; {name} is not.")
    return found


def _rising(values: Array) -> bool:
    steps = np.diff(values)
    return len(steps) > 0 and bool(np.all(steps > 0) or np.all(steps < 0))

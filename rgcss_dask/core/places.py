"""Coordinates of columns, from names such as ``lat=75.0, lon=200.0``, and distances between columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LATITUDES, LONGITUDES = ("lat", "latitude"), ("lon", "long", "longitude")
EARTH = 6371.0088  # mean radius, km


def coordinates(names: tuple[str, ...] | None) -> dict[str, Array]:
    """Return the numeric coordinates in the column names, by dimension; empty if the names contain none."""
    parts = [dict(part.split("=", 1) for part in name.split(", ") if "=" in part) for name in names or ()]
    dims = list(parts[0]) if parts else []
    found = {}
    for dim in dims:
        try:
            found[dim] = np.array([float(part[dim]) for part in parts])
        except (KeyError, ValueError):
            continue
    return found


def _one_of(found: dict[str, Array], words: tuple[str, ...]) -> Array | None:
    return next((values for dim, values in found.items() if dim.lower() in words), None)


def knows_latitude(names: tuple[str, ...] | None) -> bool:
    """Tell whether every column knows its latitude."""
    return _one_of(coordinates(names), LATITUDES) is not None


def latitude_weights(names: tuple[str, ...] | None) -> Array:
    """Return the cosine of the latitude of every column, proportional to the area of a cell of a regular grid, (n,)."""
    latitude = _one_of(coordinates(names), LATITUDES)
    if latitude is None:
        raise ValueError(
            "column_weights='latitude' needs columns that know their latitude, as those of a DataArray with a "
            "dimension lat or latitude do; these do not. Give an array of weights, one for each column."
        )
    # At a pole rounding may give a number slightly below zero.
    return np.maximum(np.cos(np.radians(latitude)), 0.0)


def on_sphere(latitude: ArrayLike, longitude: ArrayLike) -> Array:
    """Return points on the Earth as vectors in km; chords grow with the distance along the ground."""
    lat, lon = np.radians(np.asarray(latitude, dtype=np.float64)), np.radians(np.asarray(longitude, dtype=np.float64))
    return EARTH * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)


def chord(distance: float) -> float:
    """Return the length in km of the chord between two points with this distance along the ground."""
    return 2.0 * EARTH * float(np.sin(min(distance / (2.0 * EARTH), np.pi / 2.0)))


def places_of(names: tuple[str, ...] | None, distance: float) -> tuple[Array, float]:
    """Return the positions of the columns and the smallest straight distance: in km for latitudes and longitudes."""
    found = coordinates(names)
    latitude, longitude = _one_of(found, LATITUDES), _one_of(found, LONGITUDES)
    if latitude is not None and longitude is not None:
        return on_sphere(latitude, longitude), chord(distance)
    if not found:
        raise ValueError(
            "distance needs columns that know where they lie, as those of a DataArray with coordinates do; these do "
            "not. Give places, the coordinates of each column."
        )
    return np.stack(list(found.values()), axis=1), distance


def far_enough(places: Array, picked: NDArray[np.intp], distance: float) -> NDArray[np.bool_]:
    """Return a mask of the columns with at least this distance from all picked columns, (n,)."""
    far = np.ones(len(places), dtype=bool)
    for place in places[picked]:
        far &= np.sum((places - place) ** 2, axis=1) >= distance**2 * (1.0 - 1e-12)
    return far


def nearest(names: tuple[str, ...] | None, points: Sequence[Sequence[float]]) -> NDArray[np.intp]:
    """Return the column nearest to each point, (p,); refuse a point farther away than the diagonal of a grid cell.

    A point is a latitude and a longitude if the columns have just these, otherwise one coordinate for each dimension.
    """
    found = coordinates(names)
    latitude, longitude = _one_of(found, LATITUDES), _one_of(found, LONGITUDES)
    globe = False
    if latitude is not None and longitude is not None and len(found) == 2:
        found, globe = {"latitude": latitude, "longitude": longitude}, True
    if not found:
        raise ValueError("points need columns that know where they lie, by numbers; these do not. Give their names.")
    dims = list(found)
    at = np.asarray(points, dtype=np.float64)
    if at.ndim != 2 or at.shape[1] != len(dims) or not np.all(np.isfinite(at)):
        raise ValueError(f"points must be finite numbers, {' and '.join(dims)} of each; got {points!r}.")
    if globe and np.any(np.abs(at[:, 0]) > 90.0):
        worst = float(at[np.argmax(np.abs(at[:, 0])), 0])
        raise ValueError(f"points are pairs of latitude and longitude; {worst:g} is no latitude, from -90 to 90.")
    places = np.stack(list(found.values()), axis=1)
    return np.array([_nearest(places, point, dims, globe=globe) for point in at], dtype=np.intp)


def _nearest(places: Array, point: Array, dims: list[str], *, globe: bool) -> int:
    """Return the index of the nearest place; refuse a point farther away than the diagonal of a grid cell."""
    steps = np.array([_step(values) for values in places.T])
    if globe:
        gaps = np.linalg.norm(on_sphere(*places.T) - on_sphere(*point[:, None]), axis=1)
        gaps = 2.0 * EARTH * np.arcsin(np.minimum(gaps / (2.0 * EARTH), 1.0))
        steps = np.radians(steps) * EARTH * np.array([1.0, np.cos(np.radians(point[0]))])
    else:
        gaps = np.linalg.norm(places - point, axis=1)
    best, reach = int(np.argmin(gaps)), float(np.linalg.norm(steps))
    if gaps[best] > reach:
        unit = " km" if globe else ""
        where = ", ".join(f"{dim} {value:g}" for dim, value in zip(dims, point, strict=True))
        there = ", ".join(f"{dim} {value:g}" for dim, value in zip(dims, places[best], strict=True))
        raise ValueError(
            f"a point must lie within the diagonal of a cell, {reach:.4g}{unit}, of a place with values; {where} is "
            f"{gaps[best]:.4g}{unit} from the nearest one, {there}."
        )
    return best


def _step(values: Array) -> float:
    """Return the grid spacing along one dimension; 0 if there is only one coordinate."""
    steps = np.diff(np.unique(values))
    return float(np.median(steps)) if len(steps) else 0.0

"""Where columns lie, known from names such as ``lat=75.0, lon=200.0``, and how far they are from each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

LATITUDES, LONGITUDES = ("lat", "latitude"), ("lon", "long", "longitude")
EARTH = 6371.0088  # mean radius, km


def coordinates(names: tuple[str, ...] | None) -> dict[str, Array]:
    """Return the coordinates that names of all columns give, by dimension; none where names are something else."""
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


def latitude_weights(names: tuple[str, ...] | None) -> Array:
    """Return the cosine of the latitude of every column: the area that a cell of a regular grid stands for, (n,)."""
    latitude = _one_of(coordinates(names), LATITUDES)
    if latitude is None:
        raise ValueError(
            "column_weights='latitude' needs columns that know their latitude, as those of a DataArray with a "
            "dimension lat or latitude do; these do not. Give an array of weights, one for each column."
        )
    # At a pole rounding leaves a number a little below zero.
    return np.maximum(np.cos(np.radians(latitude)), 0.0)


def on_sphere(latitude: ArrayLike, longitude: ArrayLike) -> Array:
    """Return points of the Earth in space, in km, so that the straight distance grows with the one along the ground."""
    lat, lon = np.radians(np.asarray(latitude, dtype=np.float64)), np.radians(np.asarray(longitude, dtype=np.float64))
    return EARTH * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)


def chord(distance: float) -> float:
    """Return the straight distance between points of the Earth that lie so many km apart along the ground."""
    return 2.0 * EARTH * float(np.sin(min(distance / (2.0 * EARTH), np.pi / 2.0)))


def places_of(names: tuple[str, ...] | None, distance: float) -> tuple[Array, float]:
    """Return where columns lie, and the least straight distance: km where there are latitudes and longitudes."""
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
    """Tell which columns are at least so far from all picked ones, (n,)."""
    far = np.ones(len(places), dtype=bool)
    for place in places[picked]:
        far &= np.sum((places - place) ** 2, axis=1) >= distance**2 * (1.0 - 1e-12)
    return far

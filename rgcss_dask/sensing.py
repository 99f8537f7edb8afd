"""Sensor placement on a map: places from which the field is rebuilt everywhere, and the remaining error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.answering import answered_by, held_out, improved, validated
from rgcss_dask.answering import weights as weights_of
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.answer import AboutSelection
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.input_checks import NotFiniteError, is_whole
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.places import knows_latitude, nearest
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.refinement import CHEAP
from rgcss_dask.core.result import Tuning
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.wide import Rows, weights_on
from rgcss_dask.core.words import counted, digits
from rgcss_dask.estimator.labelled import rebuilt_field
from rgcss_dask.origin import PickedFrom
from rgcss_dask.plots import error_left
from rgcss_dask.scanning.given import given
from rgcss_dask.selecting import most_columns
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.xarray import PLACE, RANK, Field

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Sensors(AboutSelection):
    """Sensor places, the linear model that rebuilds the field from the sensors, and the remaining error.

    Made by `sensors`. Its columns, losses and table of picks are those of its selection.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import rgcss_dask as rg
    >>> rng, lat, lon = np.random.default_rng(0), np.linspace(40, 60, 6), np.linspace(0, 30, 8)
    >>> waves = np.cos(np.arange(1, 6)[:, None, None] * (lat[:, None] + lon) / 25)
    >>> values = np.tensordot(rng.normal(size=(200, 5)), waves, 1) + 0.1 * rng.normal(size=(200, 6, 8))
    >>> field = xr.DataArray(values, {"lat": lat, "lon": lon}, ("time", "lat", "lon"), name="t")
    >>> placed = rg.sensors(field[:150], 5)
    >>> rebuilt = placed.rebuild(placed.read(field[150:]))
    >>> bool(np.sqrt(((rebuilt - field[150:]) ** 2).mean()) < 0.2)
    True
    """

    selection: Selection
    layout: Field
    kept: int  #: number of kept stations; they come first
    held_out: Array  #: (blocks, n) mean squared error of each column in each block of times
    held_out_rows: Array  #: (blocks,) number of times in each block, or their weight
    counts: Array  #: (n,) weight of the error of each column, such as its area
    coefficients: Array  #: (k, n) weights of the sensors, in pick order
    tuning: Tuning | None  #: how lambda was chosen; None if it was given

    @property
    def places(self) -> Any:
        """The columns of the sensors in pick order, with their coordinates, (k,) DataArray."""
        found = self.layout.places(self.columns)
        return found.assign_coords(kept=(PLACE, np.arange(len(self)) < self.kept))

    @property
    def error(self) -> Any:
        """Root mean square error at each place in held-out blocks of times, as a map."""
        share = self.held_out_rows / self.held_out_rows.sum()
        return self.layout.full(np.sqrt(share @ self.held_out)).rename("error")

    @property
    def block_rmse(self) -> Array:
        """Weighted root mean square error over all places in each held-out block of times, (blocks,)."""
        return np.asarray(np.sqrt(self.held_out @ self.counts / self.counts.sum()))

    @property
    def rmse(self) -> float:
        """Weighted root mean square error over all places in all held-out blocks of times."""
        share = self.held_out_rows / self.held_out_rows.sum()
        return float(np.sqrt(share @ self.block_rmse**2))

    @property
    def sentence(self) -> str:
        """Summarise the sensors and their error in two sentences."""
        error = self.block_rmse.std(ddof=1) / np.sqrt(len(self.block_rmse))
        there = f", {self.kept} of which stood there before" if self.kept else ""
        return (
            f"{counted(len(self), 'sensor')} among {counted(self.selection.n, 'place')}{there}, with lambda = "
            f"{digits(self.selection.lam)}. Root mean square error in {len(self.block_rmse)} blocks of times, each "
            f"rebuilt from sensors placed without it: {self.rmse:.4g} (standard error {error:.2g})."
        )

    def read(self, field: Any) -> Any:
        """Return the values of a field at the sensors.

        Parameters
        ----------
        field : DataArray
            A field on the same places as the field given to `sensors`; one without the dimension of times is one time.

        Returns
        -------
        DataArray of shape (m, k)
            Its values at the sensors, in pick order.
        """
        if not is_labelled(field):
            raise WrongKindError(f"a field is a DataArray of Xarray; got {type(field).__qualname__}.")
        self.layout.check_places(field)
        field = field if self.layout.rows in field.dims else field.expand_dims(self.layout.rows)
        found = field.isel(self.layout.indexers(self.columns)).transpose(self.layout.rows, PLACE)
        return found.assign_coords({RANK: (PLACE, np.arange(1, len(self) + 1))})

    def rebuild(self, readings: Any) -> Any:
        """Rebuild the field at all places from sensor readings.

        Parameters
        ----------
        readings : DataArray
            Values at the sensors, in pick order; in any order if they have the coordinates that ``read`` returns.

        Returns
        -------
        DataArray
            The field at all places; at the sensors it equals the readings. Readings in Dask stay lazy.
        """
        return rebuilt_field(readings, self.layout, Rebuild.of(self.selection, self.coefficients))

    def plot(self, ax: Any = None) -> Any:
        """Draw a map of the remaining error with the sensors in pick order; see `plots.error_left`.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default a new figure.

        Returns
        -------
        Axes
            The axes.
        """
        return error_left(self.error, self.places, ax)


def sensors(
    field: Any,
    k: int | None = None,
    *,
    rows: str | None = None,
    keep: Sequence[Sequence[float]] = (),
    distance: float | None = None,
    regions: Any = None,
    limits: Sequence[tuple[Any, int]] = (),
    costs: Any = None,
    budget: float | None = None,
    weights: Any = "latitude",
    lam: float | str = "cv",
    blocks: int = 5,
    refine: bool | None = None,
    effort: int = 0,
    nan: str = "raise",
    progress: bool | Callback | None = None,
) -> Sensors:
    """Place sensors so that their readings rebuild a field everywhere with the smallest squared error.

    Sensors are picked one by one, then moved as long as that lowers the error, if moving them takes seconds only.
    Blocks of neighbouring times are held out to choose lambda and to estimate the error at each place: each block is
    rebuilt from sensors that were placed without it. A field in Dask that is larger than memory is read once.

    Parameters
    ----------
    field : DataArray
        Values over time and places, such as ``(time, lat, lon)``. Places without any value (land in an ocean field)
        are left out.
    k : int, optional
        Number of sensors, including kept stations. Required unless ``budget`` is given.
    rows : str, optional
        Name of the time dimension; the first dimension by default.
    keep : sequence of (latitude, longitude), optional
        Existing stations that stay. Each is assigned to the nearest place with values, which must lie within one cell
        of the grid. For fields that are not maps of the Earth, give a coordinate for each dimension of the places.
    distance : float, optional
        Smallest distance of a new sensor from all others: in km on a map of the Earth, otherwise in the units of the
        coordinates.
    regions : DataArray or array of bool, optional
        A map of the places where new sensors are allowed. The error still counts everywhere.
    limits : sequence of (DataArray or array of bool, int), optional
        Pairs of a region and the largest number of sensors in it.
    costs : DataArray or array, optional
        A map of the cost of a sensor at each place, above 0.
    budget : float, optional
        Largest total cost of the new sensors; each costs 1 if ``costs`` is not given.
    weights : {"latitude"}, DataArray, array or None, default="latitude"
        Weight of the error at each place: the area of its cell, proportional to the cosine of the latitude; a map; or
        equal weights (None).
    lam : float or ``"cv"``, default="cv"
        Lambda, or ``"cv"`` for the lambda with the smallest error in the held-out blocks.
    blocks : int, default=5
        Number of blocks of neighbouring times, each held out once.
    refine : bool, optional
        Whether to move sensors after they are picked; by default only if that takes seconds.
    effort : int, default=0
        Number of additional searches for better places, see `refine`.
    nan : {"raise", "drop"}, default="raise"
        Policy for gaps at places that have other values: raise an error, or leave out those times.
    progress : bool or callable, optional
        Whether to show a progress bar while the field is read, see `scan`.

    Returns
    -------
    Sensors
        The places, the model that rebuilds the field, and the remaining error.

    See Also
    --------
    select : with all options; takes a field as a matrix, see `Field`.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import rgcss_dask as rg
    >>> rng, lat, lon = np.random.default_rng(0), np.linspace(40, 60, 6), np.linspace(0, 30, 8)
    >>> waves = np.cos(np.arange(1, 6)[:, None, None] * (lat[:, None] + lon) / 25)
    >>> values = np.tensordot(rng.normal(size=(200, 5)), waves, 1) + 0.1 * rng.normal(size=(200, 6, 8))
    >>> field = xr.DataArray(values, {"lat": lat, "lon": lon}, ("time", "lat", "lon"), name="t")
    >>> placed = rg.sensors(field, 4, keep=[(47.5, 11.3)], distance=500, regions=field.lat < 55)
    >>> placed.places["lat"].values
    array([48., 48., 40., 40.])
    >>> bool(placed.rmse < 0.3), placed.error.shape
    (True, (6, 8))
    """
    _check(field, k, budget, lam, blocks)
    layout = Field.of(field, rows)
    _check_layout(layout, field, weights, blocks)
    stations = _stations(layout, keep)
    maps = {"regions": regions, "limits": limits, "costs": costs, "weights": weights}
    aims = _aims(layout, stations, distance=distance, budget=budget, **maps)
    tunes = isinstance(lam, str)
    problem = Problem(lam=1.0 if isinstance(lam, str) else lam, include=stations, center=True, aims=aims)
    problem = problem.by_index(layout.n, layout.names)
    k = most_columns(layout.n, layout.names, k, problem, tunes=tunes)
    problem.rules(k, layout.n, layout.names)  # refuses invalid options before the field is read
    try:
        source = given(layout.matrix(field), folds=blocks, blocks=True, nan=nan, progress=progress).source
    except NotFiniteError as error:
        raise ValueError(_gap(error, layout, field)) from None
    assert isinstance(source, Moments | Rows)
    tuned = validated(source, k, problem, fixed_k=True) if tunes else None
    problem = problem if tuned is None else problem.at(tuned.lam)
    picked = answered_by(source, k, problem)[0] if tuned is None else tuned.selection
    swaps = _moves(source, k) if refine is None else refine
    if swaps or effort:
        picked = improved(picked, source, effort=effort).selection
    losses = held_out(source, k, problem, per_row=tunes, swaps=swaps, effort=effort)
    tuning = None if tuned is None else tuned.summary
    each = np.array([fold.weight for fold in source.folds])
    counts = np.ones(layout.n) if problem.aims.column_weights is None else problem.aims.column_weights
    learnt = weights_on(source, picked, problem) if isinstance(source, Rows) else weights_of(picked, source)
    found = Sensors(picked, layout, len(stations), losses / each[:, None], each, counts, learnt, tuning)
    return found.known(PickedFrom.of(source, {"address": f"DataArray {field.name}"}, tuning))


def _check(field: Any, k: int | None, budget: float | None, lam: float | str, blocks: int) -> None:
    """Refuse invalid options that later functions would not check, or only after the field is read."""
    if not is_labelled(field):
        raise WrongKindError(f"a field is a DataArray of Xarray; got {type(field).__qualname__}.")
    if k is None and budget is None:
        raise ValueError(
            "k or budget is required: the number of sensors, as in sensors(field, 10), or their total cost."
        )
    if not is_whole(blocks) or blocks < 2:
        raise ValueError(f"blocks must be a whole number of runs of times, 2 or more; got {blocks!r}.")
    if isinstance(lam, str) and lam != "cv":
        raise ValueError(f"lam must be a number or 'cv'; got {lam!r}.")


def _check_layout(layout: Field, field: Any, weights: Any, blocks: int) -> None:
    """Refuse fields whose first dimension is not the times, as far as that can be seen."""
    told = f"The times are {layout.rows!r}; if another dimension is, name it: rows='time'."
    if blocks > field.sizes[layout.rows]:
        raise ValueError(
            f"blocks must be at most the number of times, {field.sizes[layout.rows]}, because each is held out once; "
            f"got {blocks}. {told}"
        )
    if isinstance(weights, str) and weights == "latitude" and not knows_latitude(layout.names):
        dims = ", ".join(str(dim) for dim in layout.keep.dims)
        raise ValueError(
            f"weights='latitude', the default, needs a dimension called lat or latitude with numbers; the places have "
            f"{dims}. Give weights=None to count all places alike, or a map. {told}"
        )


def _gap(error: NotFiniteError, layout: Field, field: Any) -> str:
    """Say at which place and time a value is missing, and what to do."""
    times = layout.rows
    when = field[times].to_numpy()[error.row] if times in field.coords else error.row
    return (
        f"values must be finite; at {error.name} there is {error.value} for {times}={when}, and values at other times. "
        f"Use nan='drop' to leave out such times, or fill them before: field.interpolate_na({times!r})."
    )


def _moves(source: Moments | Rows, k: int) -> bool:
    """Tell whether to move sensors by default: if one sweep takes a second or two."""
    height = source.n if isinstance(source, Moments) else source.rows
    return height * source.n * k <= CHEAP


def _stations(layout: Field, keep: Sequence[Sequence[float]]) -> NDArray[np.intp]:
    """Return the columns of the existing stations; refuse two stations at the same place."""
    if len(keep) == 0:
        return np.empty(0, dtype=np.intp)
    found = nearest(layout.names, keep)
    for i, column in enumerate(found):
        if column in found[:i]:
            first = int(np.flatnonzero(found[:i] == column)[0])
            raise ValueError(
                f"each station to keep must be nearest to another place; those at {tuple(keep[first])} and "
                f"{tuple(keep[i])} both stand at {layout.names[column]}. Keep one of them."
            )
    return found


def _aims(
    layout: Field,
    stations: NDArray[np.intp],
    *,
    distance: float | None,
    regions: Any,
    limits: Sequence[tuple[Any, int]],
    costs: Any,
    budget: float | None,
    weights: Any,
) -> Aims:
    """Return the maps as values for columns; existing stations are allowed everywhere and cost nothing."""
    given_weights = weights is None or isinstance(weights, str)
    each = None if costs is None else layout.flat(costs, "costs")
    candidates = None
    if regions is not None:
        allowed = _mask(layout, regions, "regions")
        allowed[stations] = True
        candidates = np.flatnonzero(allowed)
    spent = 0.0 if budget is None else float(len(stations) if each is None else each[stations].sum())
    return Aims(
        column_weights=weights if given_weights else layout.flat(weights, "weights"),
        candidates=candidates,
        costs=each,
        budget=None if budget is None else budget + spent,
        limits=[(np.flatnonzero(_mask(layout, region, "a region of limits")), most) for region, most in limits],
        distance=distance,
    )


def _mask(layout: Field, region: Any, what: str) -> NDArray[np.bool_]:
    """Return which columns lie in a region, given a map of True and False."""
    mask = layout.flat(region, what)
    if mask.dtype != np.bool_:
        raise ValueError(f"{what} must be a map of True and False; got dtype {mask.dtype}.")
    return mask

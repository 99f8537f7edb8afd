"""Where to put thermometers
=========================

Place sensors so that the temperature everywhere else is rebuilt best. New sensors keep a minimum distance from each
other, and one existing station stays. Each cell counts by its area. The map shows the error in held-out blocks of
times, each rebuilt from sensors that were placed without it.

Run: python examples/05_sensor_placement.py [DATA] [sensors] [picture]
DATA is a Zarr store or NetCDF file with a variable over (time, lat, lon), such as air_temperature.zarr (NCEP) or
sst.mnmean.nc (ERSST); without it, an artificial field of waves is used. The first 70 % of the times are used for
training, the rest is rebuilt. Not shown: costs of sensors and regions where they are not allowed; `sensors` takes
both.

On real data, beside PySensors, with the losses: python -m examples.benchmarks.sensors, which wrote the page "Sensors"
of the benchmarks.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg
import xarray as xr

import rgcss_dask as rg


def make_field() -> xr.DataArray:
    """Return an artificial temperature field: a few waves over a region, and noise."""
    rng = np.random.default_rng(0)
    lat, lon = np.linspace(-30, 30, 25), np.linspace(0, 90, 37)
    waves = np.stack([np.cos((i + 1) * lat[:, None] / 20 + i * lon / 30) for i in range(12)])
    values = 15 + np.tensordot(rng.normal(size=(400, 12)) * np.geomspace(8, 1, 12), waves, 1)
    values += 0.5 * rng.normal(size=values.shape)
    coordinates = {"time": np.arange(400), "lat": lat, "lon": lon}
    return xr.DataArray(values, coordinates, ("time", "lat", "lon"), name="temperature", attrs={"units": "degree C"})


def open_field(path: Path) -> xr.DataArray:
    """Return the first variable over time and two more dimensions."""
    data = xr.open_zarr(path) if path.suffix == ".zarr" else xr.open_dataset(path)
    return next(v for v in data.data_vars.values() if v.ndim == 3 and "time" in v.dims)


def first_station(field: xr.DataArray) -> tuple[float, float]:
    """Return the first place with a value, in the middle latitude that has one, as the existing station."""
    there = field.isel(time=0).notnull().compute()
    lat = field["lat"][there.any("lon")]
    lat = float(lat[lat.size // 2])
    return lat, float(field["lon"][there.sel(lat=lat)][0])


def error_of(past: xr.DataArray, future: xr.DataArray, columns: np.ndarray) -> float:
    """Return the root mean square error at later times, weighted by area, of a model with these columns included."""
    e = rg.RGCSS(len(columns), lam="cv", center=True, include=columns).fit(past)
    return rmse(e.inverse_transform(e.transform(future)), future)


def rmse(rebuilt: xr.DataArray, field: xr.DataArray) -> float:
    """Return the root mean square error, weighted by the area of the cells."""
    squares = ((rebuilt - field) ** 2).mean("time").weighted(np.cos(np.radians(field["lat"])))
    return float(squares.mean() ** 0.5)


def main(path: str | None = None, sensors: int = 20, picture: str | None = None, km: float = 300.0) -> dict[str, float]:
    field = (make_field() if path is None else open_field(Path(path))).astype("float64")
    cut = int(0.7 * field.sizes["time"])
    past, future = field.isel(time=slice(0, cut)), field.isel(time=slice(cut, None))
    placed = rg.sensors(past, sensors, keep=[first_station(past)], distance=km)
    print(placed)
    rebuilt = placed.rebuild(placed.read(future))

    layout = rg.Field.of(past, "time")
    train = layout.matrix(past).read(0, cut)
    pivots = scipy.linalg.qr(train - train.mean(axis=0), mode="r", pivoting=True)[1][:sensors]
    drawn = [np.random.default_rng(seed).choice(layout.n, sensors, replace=False) for seed in range(5)]
    errors = {
        "placed": rmse(rebuilt, future),
        "random": float(np.mean([error_of(past, future, columns) for columns in drawn])),
        "pivoted QR": error_of(past, future, pivots),
    }
    print("Root mean square error at times not learnt from:", {name: round(value, 3) for name, value in errors.items()})
    fig, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(3, 1), layout="constrained")
    placed.plot(left).set_title(f"{len(placed)} sensors, in order; the square was there before")
    right.bar(list(errors), list(errors.values()), color=["#1b6ca8", "#999999", "#c9a227"])
    right.set(ylabel="root mean square error on later times", title="against other choices")
    if picture is not None:
        fig.savefig(picture, dpi=110)
        plt.close(fig)
    return errors


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))  # type: ignore[arg-type]

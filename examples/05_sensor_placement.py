"""Where to put thermometers
=========================

Pick the places from whose temperatures those everywhere else can be rebuilt best.

Run: python examples/05_sensor_placement.py [DATA] [sensors] [picture]
DATA is a Zarr store or NetCDF file with a variable over (time, lat, lon), such as air_temperature.zarr (NCEP) or
sst.mnmean.nc (ERSST); without it, a made-up field of waves is used. The first 70 % of the times are learnt from, the
rest is rebuilt.
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.linalg
import xarray as xr

from rgcss_dask import RGCSS, Field


def make_field() -> xr.DataArray:
    """Return a temperature made of a few waves over a region, and noise."""
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


def error_of(train: Any, test: Any, columns: Any, lam: float) -> float:
    """Return the root mean square error over the test rows of all places, rebuilt from these places."""
    e = RGCSS(len(columns), lam=lam, center=True, include=columns).fit(train)
    return float(np.sqrt(np.mean((e.inverse_transform(e.transform(test)) - test) ** 2)))


def draw(
    picture: str | None, array: xr.DataArray, rmse: xr.DataArray, places: xr.DataArray, errors: dict[str, float]
) -> None:
    """Draw the error at every place with the picked ones on it, and the error beside that of other choices."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(13, 4.2), width_ratios=(3, 1), layout="constrained")
    rows, columns = rmse.dims
    shown = left.pcolormesh(rmse[columns], rmse[rows], rmse, cmap="viridis", shading="nearest")
    fig.colorbar(shown, ax=left, label=f"error of rebuilt {array.name} [{array.attrs.get('units', '')}]")
    left.scatter(places[columns], places[rows], s=110, c="white", edgecolors="black", zorder=2)
    for x, y, rank in zip(places[columns].values, places[rows].values, places["rank"].values, strict=True):
        left.annotate(str(rank), (x, y), ha="center", va="center", fontsize=7, zorder=3)
    left.set(
        xlabel=str(columns), ylabel=str(rows), title=f"{places.size} picked places, in order, and the error elsewhere"
    )
    right.bar(list(errors), list(errors.values()), color=["#1b6ca8", "#999999", "#c9a227"])
    right.set(ylabel="root mean square error on later times", title="against other choices")
    if picture is not None:
        fig.savefig(picture, dpi=110)
        plt.close(fig)


def main(path: str | None = None, sensors: int = 20, picture: str | None = None, lam: float = 10.0) -> dict[str, float]:
    array = (make_field() if path is None else open_field(Path(path))).astype("float64")
    cut = int(0.7 * array.sizes["time"])
    past, future = array.isel(time=slice(0, cut)), array.isel(time=slice(cut, None))
    picked = RGCSS(sensors, lam=lam, center=True).fit(past)
    field = Field.of(past, "time")
    train, test = (field.matrix(part).read(0, part.sizes["time"]) for part in (past, future))
    pivots = scipy.linalg.qr(train - train.mean(axis=0), mode="r", pivoting=True)[1][:sensors]
    drawn = [np.random.default_rng(seed).choice(field.n, sensors, replace=False) for seed in range(10)]
    errors = {
        "picked": error_of(train, test, picked.selected_, lam),
        "random": float(np.mean([error_of(train, test, columns, lam) for columns in drawn])),
        "pivoted QR": error_of(train, test, pivots, lam),
    }
    rebuilt = picked.inverse_transform(picked.transform(future))
    draw(picture, array, ((rebuilt - future) ** 2).mean("time").compute() ** 0.5, picked.places_, errors)
    print(picked.places_)
    print("Root mean square error on times not learnt from:", {k: round(v, 3) for k, v in errors.items()})
    return errors


if __name__ == "__main__":
    main(*(int(arg) if arg.isdigit() else arg for arg in sys.argv[1:]))  # type: ignore[arg-type]

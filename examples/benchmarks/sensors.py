"""Sensors placed by ours and by PySensors: the error of the fields rebuilt from them at times not learnt from.

    python -m examples.benchmarks.sensors [--data FOLDER] [--only sst|air] [--quick] [--output FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds sst.mnmean.nc and air_temperature.zarr. PySensors
(python-sensors, in the extra `bench`) has its own reconstruction, and the one that ours has: ridge regression on the
sensors, whose lambda is settled for each set of sensors by blocks of training times.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.benchmarks.tables import markdown

Array = NDArray[np.float64]
Index = NDArray[np.intp]

KS = (5, 10, 20, 40)
BLOCKS = 4  # of neighbouring training times, each held out once to settle lambda
SHARES = np.logspace(-6, 0, 7)  # of the squared norm of a mean column: the lambdas to try
KM = {"SST": 1000.0, "air temperature": 500.0}
FILES = {"SST": "sst.mnmean.nc", "air temperature": "air_temperature.zarr"}
HELD_OUT = ("last quarter", "every fourth month")
OURS, THEIRS, THEIR_PICKS = "ours", "PySensors", "PySensors' sensors, our reconstruction"


@dataclass(frozen=True)
class Times:
    """A field at the times that are learnt from and at others, about the means of the first."""

    field: Any  # DataArray of the training times
    train: Array  # (m, n)
    test: Array
    area: Array  # (n,) cosine of the latitude

    @classmethod
    def of(cls, array: Any, held_out: NDArray[np.bool_]) -> Times:
        layout = rg.Field.of(array, "time")
        rows = layout.matrix(array).read(0, array.sizes["time"])
        latitude = [float(name.split(",")[0].removeprefix("lat=")) for name in layout.names]
        mean = rows[~held_out].mean(axis=0)
        parts = (rows[~held_out] - mean, rows[held_out] - mean)
        return cls(array.isel(time=~held_out), *parts, np.cos(np.radians(latitude)))

    @cached_property
    def lams(self) -> Array:
        return SHARES * np.sum(self.train**2) / self.train.shape[1]


@dataclass(frozen=True)
class Question:
    """What is asked of both: whether a square degree counts by its area, and how far sensors lie apart."""

    by_area: bool = False
    apart: bool = False

    def __str__(self) -> str:
        parts = ["error by area" if self.by_area else "error of all cells alike"]
        return ", ".join([*parts, "least distance for ours"] if self.apart else parts)

    def options(self, km: float) -> dict[str, Any]:
        options: dict[str, Any] = {"column_weights": "latitude"} if self.by_area else {}
        return options | ({"distance": km} if self.apart else {})


QUESTIONS = (Question(), Question(by_area=True), Question(apart=True), Question(by_area=True, apart=True))


def blocks(rows: int) -> Iterator[NDArray[np.bool_]]:
    """Yield masks of the training times that are held out together."""
    for part in np.array_split(np.arange(rows), BLOCKS):
        yield np.isin(np.arange(rows), part)


def lost(learnt: Array, left: Array, columns: Index, lams: Sequence[float], weights: Array) -> Array:
    """Return the squared error of other rows, rebuilt from these columns with each lambda, but for a constant."""
    C, D = learnt[:, columns], left[:, columns]
    P, Q = C.T @ learnt, D.T @ left
    errors = []
    for lam in lams:
        W = np.linalg.solve(C.T @ C + lam * np.eye(len(columns)), P)
        errors.append(np.sum(W * (D.T @ D @ W - 2.0 * Q), axis=0) @ weights)
    return np.array(errors)


def rebuilt(times: Times, columns: Index, weights: Array) -> Array:
    """Rebuild the test times by ridge regression, with the lambda that rebuilds held-out training times best."""
    train = times.train
    errors = [lost(train[~out], train[out], columns, times.lams, weights) for out in blocks(len(train))]
    lam, C = times.lams[int(np.argmin(np.sum(errors, axis=0)))], train[:, columns]
    return times.test[:, columns] @ np.linalg.solve(C.T @ C + lam * np.eye(len(columns)), C.T @ train)


def ours(times: Times, question: Question, ks: Sequence[int], km: float) -> dict[int, Index]:
    """Pick for each k with the lambda whose picks, made without a block of training times, rebuild it best."""
    options = question.options(km) | {"center": True, "progress": False}
    weights = times.area if question.by_area else np.ones(len(times.area))
    errors = np.zeros((len(times.lams), len(ks)))
    for out in blocks(len(times.train)):
        learnt, left = times.train[~out], times.train[out]
        for i, path in enumerate(rg.select(times.field.isel(time=~out), max(ks), lam=times.lams, **options)):
            errors[i] += [lost(learnt, left, path.columns[:k], [path.lam], weights)[0] for k in ks]
    best = zip(ks, times.lams[np.argmin(errors, axis=0)], strict=True)
    swaps = times.train.shape[0] >= times.train.shape[1]  # else a selection needs no n x n matrix, but swaps would
    return {k: rg.select(times.field, k, lam=lam, refine=swaps, **options).columns for k, lam in best}


def theirs(times: Times, scale: Array, k: int) -> tuple[Index, Array]:
    """Return the sensors of SSPOR with as many modes, and the better of its two reconstructions of the test times."""
    basis = import_module("pysensors.basis").SVD(n_basis_modes=k, random_state=0)
    model = import_module("pysensors.reconstruction").SSPOR(basis=basis, n_sensors=k)
    with warnings.catch_warnings():  # about the noise that nobody gave
        warnings.simplefilter("ignore")
        model.fit(times.train * scale, quiet=True)
        columns = np.asarray(model.get_selected_sensors())
        seen = (times.test * scale)[:, columns]
        ways = [model.predict(seen, method=method) / scale for method in (None, "unregularized")]
    return columns, min(ways, key=lambda fields: float(np.sum(((fields - times.test) * scale) ** 2)))


def error(fields: Array, times: Times, weights: Array) -> float:
    """Return the root mean square error."""
    return float(np.sqrt(np.mean((fields - times.test) ** 2 @ weights) / weights.sum()))


def measure(data: str, times: Times, ks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the errors of all contenders for each question and k."""
    for question in QUESTIONS:
        weights = times.area if question.by_area else np.ones(len(times.area))
        picks = ours(times, question, ks, KM[data])
        for k in ks:
            columns, own = theirs(times, np.sqrt(weights), k)
            fields = {
                OURS: rebuilt(times, picks[k], weights),
                THEIRS: own,
                THEIR_PICKS: rebuilt(times, columns, weights),
            }
            errors = {name: error(values, times, weights) for name, values in fields.items()}
            print(f"  {question}, k = {k}: {errors}", flush=True)
            yield {"question": str(question), "k": k} | errors


def opened(folder: Path, data: str) -> Any:
    """Return the variable over time, latitude and longitude, in memory."""
    path = folder / FILES[data]
    found = xr.open_zarr(path) if path.suffix == ".zarr" else xr.open_dataset(path)
    return next(v for v in found.data_vars.values() if v.ndim == 3 and "time" in v.dims).astype("float64").load()


def held_out(array: Any, how: str) -> NDArray[np.bool_]:
    """Return which times are not learnt from, (m,)."""
    if how == HELD_OUT[0]:
        return np.arange(array.sizes["time"]) >= 3 * array.sizes["time"] // 4
    month = array["time"].dt.year * 12 + array["time"].dt.month
    return ((month - month[0]) % 4 == 3).to_numpy()


def document(found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return the page."""
    parts = [
        "# Sensors\n",
        "`python -m examples.benchmarks.sensors` wrote this page: root mean square errors at times that nothing was "
        "learnt from, in degrees. *By area* weighs each cell by the cosine of its latitude; PySensors then gets the "
        "columns times the root of that. A least distance, "
        + ", ".join(f"{km:g} km for {name}" for name, km in KM.items())
        + ", binds our sensors only. PySensors is SSPOR with as many modes as sensors, and the better of its two "
        "reconstructions. Our reconstruction is ridge regression; our lambdas are settled by blocks of training "
        "times; our sensors are swapped for better ones where there are more times than cells.\n",
    ]
    for (data, how), rows in found.items():
        parts += [f"## {data}, {how} held out\n"]
        header = ["", *(f"k = {k}" for k in dict.fromkeys(row["k"] for row in rows))]
        for question in dict.fromkeys(row["question"] for row in rows):
            asked = [row for row in rows if row["question"] == question]
            body = [[name, *(f"{row[name]:.4f}" for row in asked)] for name in (OURS, THEIRS, THEIR_PICKS)]
            parts += [markdown([question, *header[1:]], body)]
        parts += [f"- {sentence}" for sentence in statements(rows)]
        parts += [""]
    return "\n".join(parts)


def statements(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say in how many cases ours is lower, and name those in which it is not."""
    for other in (THEIRS, THEIR_PICKS):
        lower = [row for row in rows if row[OURS] < row[other]]
        yield f"Ours is lower than {other} in {len(lower)} of {len(rows)} cases."
        for row in rows:
            if row[OURS] >= row[other]:
                figures = f"{row[OURS]:.4f} and {row[other]:.4f}"
                yield f"Not lower than {other}: {row['question']}, k = {row['k']}, {figures}."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--only", choices=("sst", "air"))
    parser.add_argument("--quick", action="store_true", help="a coarse grid, two k: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder of the data sets is needed: --data FOLDER or RGCSS_DATA")
    found = {}
    for data in FILES:
        if options.only in (None, data[:3].lower()):
            array = opened(Path(options.data), data)
            if options.quick:
                array = array[:: max(1, array.sizes["time"] // 100), ::4, ::4]
            for how in HELD_OUT:
                print(f"{data}, {how}", flush=True)
                times = Times.of(array, held_out(array, how))
                found[data, how] = list(measure(data, times, KS[:2] if options.quick else KS))
    text = document(found)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()

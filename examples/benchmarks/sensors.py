"""Sensors placed by ours and by PySensors: the error of the fields rebuilt from them at times not learnt from.

    python -m examples.benchmarks.sensors [--data FOLDER] [--only sst|air] [--quick] [--output FILE] [--picture FILE]
                                          [--figures FILE] [--repeats 1]

FOLDER (default: the environment variable RGCSS_DATA) holds sst.mnmean.nc and air_temperature.zarr. Ours are placed, and
the field is rebuilt, by `rgcss_dask.sensors` as it is. PySensors (python-sensors, in the extra `bench`) has its own
reconstruction, and one like ours: ridge regression on its sensors, whose lambda is settled by blocks of training times.
The last quarter of the times is held out, and every fourth month: of air temperature each of the four in turn, for
standard errors, of SST as many as ``--repeats`` says, because one takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.benchmarks.machine import versions
from examples.benchmarks.tables import markdown

Array = NDArray[np.float64]
Index = NDArray[np.intp]

KS = (5, 10, 20, 40)
BLOCKS = 4  # of neighbouring training times, each held out once to settle lambda
SHARES = np.logspace(-6, 0, 7)  # of the squared norm of a mean column: the lambdas to try for sensors of others
KM = {"SST": 1000.0, "air temperature": 500.0}
KM_PER_DEGREE = 111.195
FILES = {"SST": "sst.mnmean.nc", "air temperature": "air_temperature.zarr"}
LAST, MONTHS = "last quarter", "every fourth month"
MOST = 4  # ways to hold out every fourth month
OURS = "ours"
QR, TPGR, GQR = "PySensors, SSPOR (QR)", "PySensors, SSPOR with TPGR", "PySensors, SSPOR with GQR"
RIDGE = ", our reconstruction"
LEFT_OUT = """\
## What was left out

- Costs, regions and existing stations: `rgcss_dask.sensors` and PySensors both know some of them, but not in the same
  form.
- TPGR with a noise and a prior of one's own; it has its defaults. Other bases of PySensors than its modes (SVD).
- Other numbers of modes than sensors, and reconstructions that are not linear.
- Times further from the training times than the last quarter, and data of other fields. Gaps: land is left out.
"""


@dataclass(frozen=True)
class Times:
    """A field at the times that are learnt from and at others, about the means of the first."""

    field: Any  # DataArray of the training times
    others: Any  # of the others
    train: Array  # (m, n)
    test: Array
    places: Array  # (n, 2) latitude and longitude

    @classmethod
    def of(cls, array: Any, held_out: NDArray[np.bool_]) -> Times:
        layout = rg.Field.of(array, "time")
        rows = layout.matrix(array).read(0, array.sizes["time"])
        places = [[float(part.split("=")[1]) for part in name.split(", ")] for name in layout.names]
        mean = rows[~held_out].mean(axis=0)
        parts = (rows[~held_out] - mean, rows[held_out] - mean)
        return cls(array.isel(time=~held_out), array.isel(time=held_out), *parts, np.array(places))

    @property
    def area(self) -> Array:
        return np.cos(np.radians(self.places[:, 0]))

    @cached_property
    def lams(self) -> Array:
        return SHARES * np.sum(self.train**2) / self.train.shape[1]


@dataclass(frozen=True)
class Question:
    """What is asked of all: whether a cell counts by its area, and how far sensors lie apart."""

    by_area: bool = False
    apart: bool = False

    def __str__(self) -> str:
        parts = ["error by area" if self.by_area else "error of all cells alike"]
        return ", ".join([*parts, "least distance"] if self.apart else parts)


QUESTIONS = (Question(), Question(by_area=True), Question(by_area=True, apart=True))


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


def ours(times: Times, question: Question, k: int, km: float) -> Array:
    """Place sensors with all defaults, and rebuild the test times from what they read."""
    options: dict[str, Any] = {"weights": "latitude" if question.by_area else None, "blocks": BLOCKS, "progress": False}
    placed = rg.sensors(times.field, k, distance=km if question.apart else None, **options)
    fields = placed.rebuild(placed.read(times.others))
    mean = times.field.mean("time")
    return placed.layout.matrix(fields - mean).read(0, fields.sizes["time"])


def optimizers(question: Question, times: Times, k: int, km: float) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return PySensors' ways to choose, with the options that they take when they are fitted."""
    found = import_module("pysensors.optimizers")
    ways: dict[str, tuple[Any, dict[str, Any]]] = {QR: (found.QR(), {}), TPGR: (found.TPGR(n_sensors=k), {})}
    if question.apart:  # else it is QR
        frame = pd.DataFrame({"y": times.places[:, 0], "x": times.places[:, 1]})
        degrees = {"r": km / KM_PER_DEGREE, "info": frame, "X_axis": "x", "Y_axis": "y"}
        ways[GQR] = (found.GQR(), degrees | {"constraint_option": "distance", "n_sensors": k})
    return ways


def theirs(times: Times, scale: Array, k: int, optimizer: Any, options: dict[str, Any]) -> tuple[Index, Array]:
    """Return the sensors of SSPOR with as many modes, and the better of its two reconstructions of the test times."""
    basis = import_module("pysensors.basis").SVD(n_basis_modes=k, random_state=0)
    model = import_module("pysensors.reconstruction").SSPOR(basis=basis, optimizer=optimizer, n_sensors=k)
    with warnings.catch_warnings():  # about the noise that nobody gave
        warnings.simplefilter("ignore")
        if options:
            first = import_module("pysensors.reconstruction").SSPOR(basis=basis, n_sensors=k)
            options = options | {"all_sensors": first.fit(times.train * scale, quiet=True).get_all_sensors()}
        model.fit(times.train * scale, quiet=True, **options)
        columns = np.asarray(model.get_selected_sensors())
        seen = (times.test * scale)[:, columns]
        ways = [model.predict(seen, method=method) / scale for method in (None, "unregularized")]
    return columns, min(ways, key=lambda fields: float(np.sum(((fields - times.test) * scale) ** 2)))


def error(fields: Array, times: Times, weights: Array) -> float:
    """Return the root mean square error."""
    return float(np.sqrt(np.mean((fields - times.test) ** 2 @ weights) / weights.sum()))


def measure(data: str, times: Times, questions: Sequence[Question], ks: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the errors of all contenders for each question and k."""
    for question in questions:
        weights = times.area if question.by_area else np.ones(len(times.area))
        for k in ks:
            errors = {OURS: error(ours(times, question, k, KM[data]), times, weights)}
            for name, (optimizer, options) in optimizers(question, times, k, KM[data]).items():
                columns, own = theirs(times, np.sqrt(weights), k, optimizer, options)
                errors[name] = error(own, times, weights)
                errors[name + RIDGE] = error(rebuilt(times, columns, weights), times, weights)
            print(f"  {question}, k = {k}: {errors}", flush=True)
            yield {"question": str(question), "k": k, "errors": errors}


def opened(folder: Path, data: str) -> Any:
    """Return the variable over time, latitude and longitude, in memory."""
    path = folder / FILES[data]
    found = xr.open_zarr(path) if path.suffix == ".zarr" else xr.open_dataset(path)
    return next(v for v in found.data_vars.values() if v.ndim == 3 and "time" in v.dims).astype("float64").load()


def held_out(array: Any, how: str, repeat: int) -> NDArray[np.bool_]:
    """Return which times are not learnt from, (m,)."""
    if how == LAST:
        return np.arange(array.sizes["time"]) >= 3 * array.sizes["time"] // 4
    month = array["time"].dt.year * 12 + array["time"].dt.month
    return ((month - month[0]) % 4 == (3 + repeat) % 4).to_numpy()


Found = dict[str, list[list[dict[str, Any]]]]  # by data and times held out: a list of rows for each repeat


def document(found: Found) -> str:
    """Return the page."""
    parts = [
        "# Sensors\n",
        "`python -m examples.benchmarks.sensors` wrote this page: root mean square errors at times that nothing was "
        "learnt from, in degrees. *By area* weighs each cell by the cosine of its latitude; PySensors then gets the "
        "columns times the root of that. A least distance is "
        + ", ".join(f"{km:g} km for {name}" for name, km in KM.items())
        + "; of PySensors only GQR has one, in degrees of latitude and longitude alike, which are shorter towards the "
        "poles. Without constraints GQR is QR. PySensors is SSPOR with as many modes as sensors, and the better of its "
        "two reconstructions on the test times. Ours is `rgcss_dask.sensors` with all defaults, which looks at the "
        "training times only; the same lambda serves placement and reconstruction. The sensors of PySensors with our "
        "reconstruction have a lambda settled for each set of sensors, by blocks of training times. Where every fourth "
        "month was held out in several ways, there are means and standard errors. These ways overlap in what they "
        "learn from, so that the errors are those of the choice of months only.\n",
    ]
    for about, repeats in found.items():
        ways = "" if len(repeats) == 1 else f", in {len(repeats)} ways"
        parts += [f"## {about}{ways}\n"]
        ks = sorted({row["k"] for row in repeats[0]})
        for question in dict.fromkeys(row["question"] for row in repeats[0]):
            names = next(row["errors"] for row in repeats[0] if row["question"] == question)
            body = [[name, *(cell(errors_of(repeats, question, k, name)) for k in ks)] for name in names]
            parts += [markdown([question, *(f"k = {k}" for k in ks)], body)]
        parts += [f"- {sentence}" for sentence in statements(repeats)]
        parts += [""]
    return "\n".join([*parts, LEFT_OUT, versions("python-sensors", "numpy", "scipy", "scikit-learn", "xarray"), ""])


def errors_of(repeats: Sequence[Sequence[dict[str, Any]]], question: str, k: int, name: str) -> Array:
    """Return the error of one contender in each repeat."""
    rows = [row for rows in repeats for row in rows if (row["question"], row["k"]) == (question, k)]
    return np.array([row["errors"][name] for row in rows])


def cell(errors: Array) -> str:
    """Write a mean with its standard error, where there is more than one figure."""
    if len(errors) == 0:
        return "not run"
    if len(errors) == 1:
        return f"{errors[0]:.4f}"
    return f"{errors.mean():.4f} ± {errors.std(ddof=1) / np.sqrt(len(errors)):.4f}"


def statements(repeats: Sequence[Sequence[dict[str, Any]]]) -> Iterator[str]:
    """Say in how many cases ours is lower, and name those in which it is not."""
    names = dict.fromkeys(name for row in repeats[0] for name in row["errors"] if name != OURS)
    for other in names:
        cases = [(row["question"], row["k"]) for row in repeats[0] if other in row["errors"]]
        pairs = {case: [errors_of(repeats, *case, name) for name in (OURS, other)] for case in cases}
        lower = sum(bool(mine.mean() < others.mean()) for mine, others in pairs.values())
        each = sum(bool(np.all(mine < others)) for mine, others in pairs.values())
        more = "" if len(repeats) == 1 else f", in {each} of them in every one of {len(repeats)} repeats"
        yield f"Ours is lower than {other} in {lower} of {len(cases)} cases{more}."
        for (question, k), (mine, others) in pairs.items():
            if mine.mean() >= others.mean():
                yield f"Not lower than {other}: {question}, k = {k}, {mine.mean():.4f} and {others.mean():.4f}."


def repeated(data: str, array: Any, found: dict[str, Any], months: int, *, quick: bool) -> Iterator[None]:
    """Measure with each choice of times held out, what is not measured yet."""
    if quick:
        array = array[:: max(1, array.sizes["time"] // 100), ::4, ::4]
    for how, repeats in {LAST: 1, MONTHS: months}.items():
        rows = found.setdefault(f"{data}, {how} held out", [])
        for repeat in range(len(rows), repeats):
            print(f"{data}, {how}, {repeat + 1} of {repeats}", flush=True)
            times = Times.of(array, held_out(array, how, repeat))
            questions = QUESTIONS if how == LAST else QUESTIONS[:2]
            rows.append(list(measure(data, times, questions, KS[:2] if quick else KS)))
            yield


def drawn(field: Any, path: Path) -> str:
    """Draw twenty sensors on the error that is left, and return what shows the picture."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 (only where a picture is asked for)

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    rg.sensors(field, 20, distance=KM["SST"], progress=False).plot(axes)
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return f"\n![Twenty sensors, and the error left in blocks of times held out]({path.name})\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--only", choices=("sst", "air"))
    parser.add_argument("--quick", action="store_true", help="a coarse grid, two k: to see that it works")
    parser.add_argument("--output", type=Path, help="file for the page")
    parser.add_argument("--picture", type=Path, help="file for a map of SST, beside the page")
    parser.add_argument(
        "--repeats", type=int, choices=range(1, MOST + 1), default=1, help="ways to hold out months of SST"
    )
    parser.add_argument("--figures", type=Path, help="file where figures are kept; what is there is not measured again")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder of the data sets is needed: --data FOLDER or RGCSS_DATA")
    kept = options.figures
    found: Found = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for data in (data for data in FILES if options.only in (None, data[:3].lower())):
        months = options.repeats if data == "SST" else MOST
        for _ in repeated(data, opened(Path(options.data), data), found, months, quick=options.quick):
            if kept:
                kept.write_text(json.dumps(found))
    text = document(found)
    if options.picture:
        text += drawn(opened(Path(options.data), "SST"), options.picture)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()

"""What experiments leave behind: CSV tables, how they came about, and RESULTS.md made from both."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("numpy", "scipy", "numba", "dask", "zarr", "scikit-learn", "dask-ml")
Row = dict[str, Any]


class Table:
    """`<name>.csv`, grown by whole parts, so that a run that was stopped goes on where it was."""

    def __init__(self, out: Path, name: str) -> None:
        self.path = out / f"{name}.csv"

    def rows(self, **where: Any) -> list[Row]:
        """Return the rows, numbers as numbers, in which the given fields have the given values."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            rows = [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]
        return [row for row in rows if all(row[key] == value for key, value in where.items())]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows of the same fields; a reader sees all of them or none."""
        new = list(rows)
        if new:
            write_csv(self.path, [*self.rows(), *new])


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, floats to six digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    with draft.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()})
    draft.replace(path)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


@contextmanager
def alone(out: Path, name: str) -> Iterator[None]:
    """Keep other processes off the tables of an experiment; two would measure the same and overwrite each other."""
    key = hashlib.sha256(str((out / name).resolve()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"rgcss-paper-{key}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(
                f"another process runs {name} in {out}; wait for it, or give another --out."
            ) from None
        yield


def begin(out: Path, name: str, size: str) -> None:
    """Note that a run begins; refuse to mix results of different sizes."""
    path = out / f"{name}.json"
    runs = _runs(path)
    other = {run["size"] for run in runs} - {size}
    if other:
        raise FileExistsError(
            f"{out} holds results of --{other.pop()} for {name}; --{size} would mix with them. "
            "Give another folder with --out, or --fresh to replace them."
        )
    around = _surroundings()
    if runs and runs[-1]["ended"] is None and around.items() <= runs[-1].items():
        return  # it was stopped, and goes on
    _write_json(path, [*runs, {"size": size, "began": _now(), "ended": None, **around}])


def end(out: Path, name: str) -> None:
    """Note that the last run ended well."""
    path = out / f"{name}.json"
    runs = _runs(path)
    runs[-1]["ended"] = _now()
    _write_json(path, runs)


def forget(out: Path, name: str) -> None:
    """Delete what an experiment wrote."""
    for path in sorted(out.glob(f"{name}*")):
        path.unlink()


def _runs(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.exists() else []


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(json.dumps(value, indent=1) + "\n")
    draft.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _surroundings() -> dict[str, Any]:
    versions = {"rgcss-dask": version("rgcss-dask"), "python": platform.python_version()}
    versions |= {package: version(package) for package in PACKAGES}
    return {"versions": versions, "cores": os.cpu_count(), "machine": platform.machine()}


HEAD = """# The paper's experiments, rerun

Written by `python -m examples.paper` from the CSV and JSON files in `{folder}`; every number, and every verdict, is
computed. "GCSS" is greedy column subset selection (lambda = 0), "RGCSS" the regularised one; "paper" marks figures
printed there (`examples/paper/printed.py` says in which table).
"""


def write(names: Sequence[str], load: Callable[[str], ModuleType], out: Path, target: Path) -> None:
    """Write RESULTS.md from what is in ``out``."""
    rows, sections = [], []
    for name in names:
        runs = _runs(out / f"{name}.json")
        if not runs:
            rows.append([name, "not run", "", ""])
            continue
        last = runs[-1]
        state = "finished" if last["ended"] else "not finished: what is below rests on the parts that are"
        rows.append([name, f"`--{last['size']}`", (last["ended"] or last["began"])[:16].replace("T", " "), state])
        sections.append(load(name).report(out).strip() + "\n")
    made = [run for name in names for run in _runs(out / f"{name}.json")]
    versions = sorted({f"{package} {number}" for run in made for package, number in run["versions"].items()})
    cores = sorted({f"{run['cores']} cores ({run['machine']})" for run in made})
    head = HEAD.format(folder=os.path.relpath(out, target.parent))
    table = markdown(["experiment", "run", "date (UTC)", "state"], rows)
    made_with = f"Made with {', '.join(versions)}, on {' and '.join(cores)}.\n"
    target.write_text("\n".join([head, table, made_with, *sections]))

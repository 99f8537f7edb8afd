"""Columns picked by ours and by others over paired random splits, with standard errors: is one better, or was it luck?

    python -m examples.benchmarks.splits [--data FOLDER] [--splits 20] [--case NAME] [--output FOLDER] [--report]

Every contender picks on the same half of the rows; what its columns leave unexplained is measured on both halves.
A verdict is made of the differences split by split: better or worse by more than two standard errors, else no clear
difference. What takes longer than some seconds for one pick is left out, and said. SPLITS.md and splits.json go to
examples/benchmarks; a run that is stopped goes on after the last data set that is done.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.benchmarks.contenders import GREEDY, REFINED, SELECTORS, TUNED, Selector
from examples.benchmarks.datasets import Case, cases
from examples.benchmarks.machine import describe
from examples.benchmarks.measure import figure
from examples.benchmarks.quality import picks, shares_of
from examples.benchmarks.statements import PARTS
from examples.benchmarks.tables import markdown

Array = NDArray[np.float64]

SLOW = 20.0  # seconds of the processor for one pick
CLEAR = 2.0  # standard errors
ROWS = 4000  # at most, of those picked on and of those held out
OURS = (GREEDY, TUNED, REFINED)
FILE = Path(__file__).parent / "splits.json"
# The keys of what is left, by the part of the rows; see `PARTS`.
LEFT = {"train": "left_of_used", "held_out": "left"}
ABOUT = """\
All rows of a data set are put in random order and cut in halves, {splits} times. Every contender picks on one half, at
most {rows:,} rows of it, and its columns are judged on as many rows of the other. Rows are centred by the means of the
half that is picked on; no labels are used. *Less left* is how much less than the best of the others ours leaves
unexplained, as a share of what that one leaves, with the standard error over the splits; *better* and *worse* are more
than two of them from zero. A contender that takes too long has one split only and is not compared. Times are medians
on a machine that other work was using: compare them within a column.
"""


def halves(case: Case, seed: int) -> tuple[Array, Array]:
    """Return two halves of all rows, drawn anew, prepared by the first of them."""
    rows = np.concatenate([case.train, case.held_out])
    order = np.random.default_rng(seed).permutation(len(rows))[: 2 * ROWS]
    train, held_out = np.array_split(rows[order], 2)
    mean = train.mean(axis=0)
    return train - mean, held_out - mean


def measured(case: Case, splits: int) -> list[dict[str, Any]]:
    """Return what each contender leaves in each split, for each k, and the seconds of the processor that it took."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    slow: set[str] = set()
    for seed in range(splits):
        A, B = halves(case, seed)
        for selector in SELECTORS:
            for k in case.ks if find_spec(selector.needs) and selector.name not in slow else ():
                left, of_used, seconds = _left(selector, A, B, k)
                about = {"data": case.name, "columns": A.shape[1], "k": k, "contender": selector.name}
                row = rows.setdefault((selector.name, k), about | {"left": [], "left_of_used": [], "seconds": []})
                for key, value in (("left", left), ("left_of_used", of_used), ("seconds", seconds)):
                    row[key].append(float(f"{value:.6g}"))
                if seconds > SLOW:
                    slow.add(selector.name)
        print(f"{case.name}: split {seed + 1} of {splits}", flush=True)
    return list(rows.values())


def _left(selector: Selector, A: Array, B: Array, k: int) -> tuple[float, float, float]:
    """Return what is left of the held-out and of the used rows, and the seconds of one pick; NaN where it fails."""
    shares, taken = [], 0.0
    try:
        for _ in range(selector.draws):
            began = time.process_time()
            columns = picks(selector, A, k)
            taken += time.process_time() - began
            shares.append(shares_of(A, B, columns))
    except Exception as error:  # a contender may fail in any way
        print(f"  {selector.name}, k = {k}: {type(error).__name__}: {error}", flush=True)
        return (float("nan"),) * 3
    used, held_out = np.mean(shares, axis=0)
    return 1.0 - held_out, 1.0 - used, taken / selector.draws


@dataclass(frozen=True)
class Verdict:
    """One of ours against the best of the others, which has the lowest mean, on one data set at one k."""

    data: str
    k: int
    best: str
    word: str  # "better", "no clear difference" or "worse"
    less: float  # ours leaves less by this share of what the other leaves
    error: float  # standard error of that

    def __str__(self) -> str:
        return f"{self.less:+.2%} ± {self.error:.2%}"


def compared(rows: Sequence[dict[str, Any]], name: str, part: str = "held_out") -> Iterator[Verdict]:
    """Yield for each case the verdict on one of ours; ``part`` is a key of `PARTS`."""
    for data, k in dict.fromkeys((row["data"], row["k"]) for row in rows):
        left = {row["contender"]: np.array(row[LEFT[part]]) for row in rows if (row["data"], row["k"]) == (data, k)}
        ours = left[name]
        others = {
            who: found
            for who, found in left.items()
            if who not in OURS and len(found) == len(ours) and not np.isnan(found).any()
        }
        best = min(others, key=lambda who: float(others[who].mean()))
        yield Verdict(data, k, best, *verdict(ours, others[best]))


def verdict(ours: Array, other: Array) -> tuple[str, float, float]:
    """Say whether ours leaves less, by how much and the standard error of that, as shares of what the other leaves."""
    difference = (other - ours) / other.mean()
    error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
    mean = float(difference.mean())
    if abs(mean) <= CLEAR * error:
        return "no clear difference", mean, error
    return ("better" if mean > 0 else "worse"), mean, error


def tally(found: Sequence[Verdict]) -> str:
    """Count the verdicts."""
    words = [one.word for one in found]
    counts = [f"{word} in {words.count(word)}" for word in ("better", "no clear difference", "worse")]
    return f"{', '.join(counts)} of {len(found)} cases"


def document(results: dict[str, Any]) -> str:
    """Return the page."""
    rows, machine = results["rows"], results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    parts = [
        "# Columns picked, over paired splits",
        f"`python -m examples.benchmarks.splits --splits {results['splits']}`",
        f"{machine['processor']}, {machine['cores']} cores; Python {machine['python']}, {machine['blas']}; {versions}.",
        ABOUT.format(splits=results["splits"], rows=ROWS),
    ]
    for name in OURS:
        for part, where in PARTS.items():
            found = list(compared(rows, name, part))
            body = [[one.data, str(one.k), one.best, one.word, str(one)] for one in found]
            header = ["data", "k", "best of the others", "ours", "less left"]
            parts += [f"## {name}, {where}", f"Against the best of the others: {tally(found)}.", markdown(header, body)]
    parts += ["## Share left of held-out rows, %", _cells(rows, _left_cell)]
    parts += ["## Seconds of the processor for one pick", _cells(rows, _seconds_cell)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _cells(rows: Sequence[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    """Return a table of all contenders in all cases."""
    cases_of = list(dict.fromkeys((row["data"], row["k"]) for row in rows))
    found = {(row["contender"], row["data"], row["k"]): cell(row) for row in rows}
    names = dict.fromkeys(row["contender"] for row in rows)
    body = [[name, *(found.get((name, *case), "-") for case in cases_of)] for name in names]
    return markdown(["", *(f"{data}, k = {k}" for data, k in cases_of)], body)


def _left_cell(row: dict[str, Any]) -> str:
    left = 100 * np.array(row["left"])
    error = f" ± {left.std(ddof=1) / np.sqrt(len(left)):.2f}" if len(left) > 1 else ""
    splits = "" if len(left) > 1 else " (1 split)"
    return "failed" if np.isnan(left).any() else f"{left.mean():.2f}{error}{splits}"


def _seconds_cell(row: dict[str, Any]) -> str:
    return figure(float(np.median(row["seconds"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the real data sets")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--case", help="only this data set")
    parser.add_argument("--output", type=Path, default=FILE.parent, help="folder for SPLITS.md and splits.json")
    parser.add_argument("--report", action="store_true", help="measure nothing: SPLITS.md again, from splits.json")
    options = parser.parse_args()
    file = options.output / FILE.name
    results = json.loads(file.read_text()) if file.exists() else {"rows": []}
    if not options.report:
        run(options, results, file)
    (options.output / "SPLITS.md").write_text(document(results))


def run(options: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    """Measure each data set that is not done, and write the file after each."""
    folder = None if options.data is None else Path(options.data)
    results |= {"splits": options.splits, "machine": describe()}
    done = {row["data"] for row in results["rows"]}
    for case in cases(folder, quick=False):
        if options.case in (None, case.name) and case.name not in done:
            results["rows"] += measured(case, options.splits)
            file.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()

"""Columns picked by ours and by others over paired random splits, with standard errors: is one better, or was it luck?

    python -m examples.benchmarks.splits [--data FOLDER] [--splits 20] [--case NAME] [--output splits.json]

Every contender picks on the same half of the rows; what its columns leave unexplained is measured on the other half.
A verdict is made of the differences split by split: better or worse by more than two standard errors, else no clear
difference. What takes longer than some seconds for one pick is left out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.benchmarks.contenders import GREEDY, REFINED, SELECTORS, TUNED, Selector
from examples.benchmarks.datasets import Case, cases
from examples.benchmarks.quality import picks, shares_of
from examples.benchmarks.tables import markdown

Array = NDArray[np.float64]

SLOW = 20.0  # seconds of the processor for one pick
CLEAR = 2.0  # standard errors
ROWS = 4000  # at most, of those picked on and of those held out
OURS = (GREEDY, TUNED, REFINED)


def halves(case: Case, seed: int) -> tuple[Array, Array]:
    """Return two halves of all rows, drawn anew, prepared by the first of them."""
    rows = np.concatenate([case.train, case.held_out])
    order = np.random.default_rng(seed).permutation(len(rows))[: 2 * ROWS]
    train, held_out = np.array_split(rows[order], 2)
    mean = train.mean(axis=0)
    return train - mean, held_out - mean


def measured(case: Case, splits: int) -> Iterator[dict[str, Any]]:
    """Yield what each contender leaves of held-out rows in each split, for each k."""
    slow: set[str] = set()
    for seed in range(splits):
        A, B = halves(case, seed)
        for selector in SELECTORS:
            for k in case.ks if find_spec(selector.needs) and selector.name not in slow else ():
                began = time.process_time()
                left, used = _left(selector, A, B, k)
                seconds = time.process_time() - began
                yield {"data": case.name, "k": k, "contender": selector.name, "split": seed} | {
                    "left": left, "used": used, "seconds": seconds
                }  # fmt: skip
                if seconds > SLOW * selector.draws:
                    slow.add(selector.name)
        print(f"{case.name}: split {seed + 1} of {splits}", flush=True)


def _left(selector: Selector, A: Array, B: Array, k: int) -> tuple[float, float]:
    """Return the shares of the held-out and of the used rows that are left; nothing is known where a pick fails."""
    try:
        shares = [shares_of(A, B, picks(selector, A, k)) for _ in range(selector.draws)]
    except Exception as error:  # a contender may fail in any way
        print(f"  {selector.name}, k = {k}: {type(error).__name__}: {error}", flush=True)
        return float("nan"), float("nan")
    return 1.0 - float(np.mean([share[1] for share in shares])), 1.0 - float(np.mean([share[0] for share in shares]))


def verdict(ours: Array, other: Array) -> tuple[str, float, float]:
    """Say whether ours leaves less, with the mean difference and its standard error, as shares of what others leave."""
    difference = (other - ours) / other.mean()
    error = float(difference.std(ddof=1) / np.sqrt(len(difference)))
    mean = float(difference.mean())
    if abs(mean) <= CLEAR * error:
        return "no clear difference", mean, error
    return ("better" if mean > 0 else "worse"), mean, error


def compared(rows: list[dict[str, Any]], name: str) -> Iterator[tuple[str, int, str, str, float, float]]:
    """Yield for each case the verdict on one of ours against the best of the others, which has the lowest mean."""
    for data, k in dict.fromkeys((row["data"], row["k"]) for row in rows):
        left: dict[str, dict[int, float]] = {}
        for row in rows:
            if (row["data"], row["k"]) == (data, k):
                left.setdefault(row["contender"], {})[row["split"]] = row["left"]
        whole = {who: found for who, found in left.items() if len(found) == len(left[name])}
        others = {who: np.array(list(found.values())) for who, found in whole.items() if who not in OURS}
        others = {who: found for who, found in others.items() if not np.isnan(found).any()}
        best = min(others, key=lambda who: float(others[who].mean()))
        yield (data, k, best, *verdict(np.array(list(left[name].values())), others[best]))


def statements(rows: list[dict[str, Any]]) -> str:
    """Return the verdicts as tables."""
    text = ""
    for name in OURS:
        found = list(compared(rows, name))
        words = [one[3] for one in found]
        counts = ", ".join(f"{word} in {words.count(word)}" for word in ("better", "no clear difference", "worse"))
        body = [[d, str(k), best, word, f"{mean:+.2%} ± {error:.2%}"] for d, k, best, word, mean, error in found]
        header = ["data", "k", "best of the others", "ours", "less left of held-out rows"]
        text += f"### {name}\n\nAgainst the best of the others: {counts} of {len(found)} cases.\n\n"
        text += markdown(header, body) + "\n"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the real data sets")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--case", help="only this data set")
    parser.add_argument("--output", type=Path, default=Path("splits.json"), help="where the figures are kept")
    options = parser.parse_args()
    folder = None if options.data is None else Path(options.data)
    rows = json.loads(options.output.read_text()) if options.output.exists() else []
    done = {row["data"] for row in rows}
    for case in cases(folder, quick=False):
        if options.case in (None, case.name) and case.name not in done:
            rows += list(measured(case, options.splits))
            options.output.write_text(json.dumps(rows))
    print(statements(rows))


if __name__ == "__main__":
    main()

"""The tables of headline results, made from the results files: `python -m examples.benchmarks.headline`.

The page of comparisons has all of them and where ours is not ahead; the README has the first few.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from examples.benchmarks import splits
from examples.benchmarks.contenders import GREEDY, REFINED
from examples.benchmarks.measure import figure, ratios, spread
from examples.benchmarks.passes import COVARIANCE, INCREMENTAL, LOOP, OURS, PCA, PRODUCT
from examples.benchmarks.statements import PARTS, against_ours, pass_place
from examples.benchmarks.tables import markdown
from rgcss_dask.core.words import counted

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"  # of the pass; of picks see `splits.FILE`
BEGIN = "<!-- headline: python -m examples.benchmarks.headline -->\n"
END = "<!-- end of headline -->\n"
EXPLICIT = "explicit greedy (as pycss)"
FEW = 5  # rows in the README
WHOLE = "https://github.com/rgcss-dask/rgcss-dask/blob/main/docs/comparison.md"


def main() -> None:
    for place, made in documents(measured()).items():
        old = (ROOT / place).read_text()
        new = with_table(old, made)
        if "--check" in sys.argv[1:] and new != old:
            raise SystemExit(f"{place} is not current with the results; run python -m examples.benchmarks.headline.")
        (ROOT / place).write_text(new)


def measured() -> dict[str, Any]:
    """Return what was measured of picks and of the pass."""
    return json.loads(RESULTS.read_text()) | {"splits": json.loads(splits.FILE.read_text())}


def documents(results: dict[str, Any]) -> dict[str, str]:
    """Return what stands between the markers of each document."""
    return {"README.md": short(results), "docs/comparison.md": table(results)}


def with_table(text: str, made: str) -> str:
    """Put the table between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + made + "\n" + END + rest.split(END)[1]


def table(results: dict[str, Any]) -> str:
    """Return the whole table, and below it where ours is not ahead."""
    lines, behind, unmeasured = _found(results)
    said = "".join(f"- {sentence}\n" for sentence in behind) or "- Nowhere in these measurements.\n"
    said += "".join(f"\n{sentence}\n" for sentence in unmeasured)
    return markdown(["what", "result"], lines) + "\nWhere it is not ahead:\n\n" + said


def short(results: dict[str, Any]) -> str:
    """Return the first rows of the table, and below it in how many cases ours is not ahead."""
    lines, behind, unmeasured = _found(results)
    said = f"Where it is not ahead, in {counted(len(behind), 'case')}, is listed in the [full comparison]({WHOLE})."
    return markdown(["what", "result"], lines[:FEW]) + "\n" + "\n\n".join([said, *unmeasured]) + "\n"


def _found(results: dict[str, Any]) -> tuple[list[list[str]], list[str], list[str]]:
    """Return the rows of the table, the sentences on what is behind, and those on what was not measured."""
    picked, passed = results["splits"], results.get("pass", {"results": []})["results"]
    lines = [[what, found] for what, found in (*_selection(picked), *_pass(passed))]
    behind = [*_selection_behind(picked["rows"]), *_pass_behind(passed)]
    return lines, behind, list(_unmeasured(passed))


def _selection(picked: dict[str, Any]) -> Iterator[tuple[str, str]]:
    rows = picked["rows"]
    for part, where in PARTS.items():
        found = splits.tally(list(splits.compared(rows, REFINED, part)))
        yield f'`RGCSS(k, lam="cv")` and the best without labels, {picked["splits"]} paired splits, {where}', found
    seconds = {(row["contender"], row["columns"], row["data"], row["k"]): row["seconds"] for row in rows}
    (columns, data, k), ratio = max(
        (case, spread(ratios(taken, seconds[GREEDY, *case])).middle)
        for (name, *of), taken in seconds.items()
        if name == EXPLICIT and (case := tuple(of))
    )
    yield f"processor time of explicit greedy / ours (lambda = 0), {data}, {columns} columns, k = {k}", figure(ratio)


def _selection_behind(rows: list[dict[str, Any]]) -> Iterator[str]:
    for part, where in PARTS.items():
        for one in splits.compared(rows, REFINED, part):
            if one.word == "worse":
                more = f"{-one.less:.1%} ± {one.error:.1%}"
                yield f"{one.data}, k = {one.k}, {where}: ours leaves {more} more unexplained than {one.best}."
    for case, loop, taken in _faster_loops(rows):
        yield f"{case}: a fit takes {taken} ms of the processor, the loop of explicit greedy {loop} ms."


def _faster_loops(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield the cases in which the loop takes less than half of the time of our greedy fit."""
    seconds = {(row["contender"], row["data"], row["k"]): float(np.median(row["seconds"])) for row in rows}
    for (name, data, k), taken in seconds.items():
        loop = seconds.get((EXPLICIT, data, k), taken)
        if name == GREEDY and 2.0 * loop < taken:
            yield f"{data}, k = {k}", figure(1e3 * loop), figure(1e3 * taken)


def _pass(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        others = against_ours(rows, dtype)
        for name in (LOOP, PRODUCT, COVARIANCE, PCA, INCREMENTAL):
            if name in others:
                yield f"pass over {dtype} rows: time of {name} / ours", str(others[name])
        peaks = {row["contender"]: spread(row["peak_mb"]).middle for row in rows if row["dtype"] == dtype}
        if PRODUCT in peaks:
            yield f"the same: peak memory of {PRODUCT} / ours", figure(peaks[PRODUCT] / peaks[OURS])


def _unmeasured(passed: list[dict[str, Any]]) -> Iterator[str]:
    """Say what the results do not hold, so that silence is not taken for a good result."""
    if not passed:
        yield "The time and memory of the pass beside others have not been measured yet."


def _pass_behind(rows: list[dict[str, Any]]) -> Iterator[str]:
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for name, taken in against_ours(rows, dtype).items():
            if pass_place(taken) != "ahead":
                yield f"The pass over {dtype} rows: {name} takes {taken} times as long as ours ({pass_place(taken)})."


if __name__ == "__main__":
    main()

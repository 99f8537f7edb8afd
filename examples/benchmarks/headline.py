"""The tables of headline results, made from the results files: `python -m examples.benchmarks.headline`.

The page of comparisons has all of them and where ours is not ahead; the README has the first few.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.benchmarks.contenders import GREEDY, REFINED
from examples.benchmarks.measure import figure, ratios, spread
from examples.benchmarks.passes import COVARIANCE, INCREMENTAL, LOOP, OURS, PCA, PRODUCT
from examples.benchmarks.statements import PARTS, against_ours, pass_place, standings, tally
from examples.benchmarks.tables import markdown
from rgcss_dask.core.words import counted

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.json"
BEGIN = "<!-- headline: python -m examples.benchmarks.headline -->\n"
END = "<!-- end of headline -->\n"
EXPLICIT = "explicit greedy (as pycss)"
FEW = 5  # rows in the README
WHOLE = "https://github.com/rgcss-dask/rgcss-dask/blob/main/docs/comparison.md"


def main() -> None:
    results = json.loads(RESULTS.read_text())
    for place, made in documents(results).items():
        old = (ROOT / place).read_text()
        new = with_table(old, made)
        if "--check" in sys.argv[1:] and new != old:
            raise SystemExit(f"{place} is not current with the results; run python -m examples.benchmarks.headline.")
        (ROOT / place).write_text(new)


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
    selection, passed = (results.get(part, {"results": []})["results"] for part in ("selection", "pass"))
    lines = [[what, found] for what, found in (*_selection(selection), *_pass(passed))]
    behind = [*_selection_behind(selection), *_pass_behind(passed)]
    return lines, behind, list(_unmeasured(selection, passed))


def _selection(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for part, where in PARTS.items():
        places = [one.place for one in standings(rows, REFINED, part)]
        if places:
            yield f'`RGCSS(k, lam="cv", refine=True)` among methods without labels, {where}', tally(places, "first")
    times = {(row["contender"], row["data"]): row["seconds"] for row in rows if "seconds" in row}
    found = {
        (row["columns"], data): spread(ratios(times[EXPLICIT, data], times[GREEDY, data])).middle
        for row in rows
        if (data := row["data"]) and (EXPLICIT, data) in times and (GREEDY, data) in times
    }
    if found:
        (columns, data), ratio = max(found.items())
        yield f"time of explicit greedy / ours (lambda = 0), {data}, {columns} columns", figure(ratio)


def _selection_behind(rows: list[dict[str, Any]]) -> Iterator[str]:
    for part, where in PARTS.items():
        for one in standings(rows, REFINED, part):
            if one.place == "behind":
                yield (
                    f"{one.data}, k = {one.k}, {where}: {one.best} explains {one.best_explained:.1%}, "
                    f"ours {one.explained:.1%}."
                )


def _pass(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        others = against_ours(rows, dtype)
        for name in (LOOP, PRODUCT, COVARIANCE, PCA, INCREMENTAL):
            if name in others:
                yield f"pass over {dtype} rows: time of {name} / ours", str(others[name])
        peaks = {row["contender"]: spread(row["peak_mb"]).middle for row in rows if row["dtype"] == dtype}
        if PRODUCT in peaks:
            yield f"the same: peak memory of {PRODUCT} / ours", figure(peaks[PRODUCT] / peaks[OURS])


def _unmeasured(selection: list[dict[str, Any]], passed: list[dict[str, Any]]) -> Iterator[str]:
    """Say what the results do not hold, so that silence is not taken for a good result."""
    if not passed:
        yield "The time and memory of the pass beside others have not been measured yet."
    if not any("seconds" in row for row in selection):
        yield "The time of a selection beside others has not been measured yet."


def _pass_behind(rows: list[dict[str, Any]]) -> Iterator[str]:
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for name, taken in against_ours(rows, dtype).items():
            if pass_place(taken) != "ahead":
                yield f"The pass over {dtype} rows: {name} takes {taken} times as long as ours ({pass_place(taken)})."


if __name__ == "__main__":
    main()

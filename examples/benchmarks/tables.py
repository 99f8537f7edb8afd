"""RESULTS.md, made from results.json and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from examples.benchmarks.contenders import GREEDY
from examples.benchmarks.measure import figure, ratios, spread
from examples.benchmarks.passes import OURS
from examples.benchmarks.statements import (
    PARTS,
    TIED,
    Row,
    against_ours,
    pass_statements,
    selection_statements,
)

SELECTION = f"""\
Every contender gets the same rows, centred (OnlineNews and breast cancer also scaled to unit variance) with the means
of the training rows, and returns k different columns. *Explained* is the share of the squared norm that a least-squares
fit on the picked columns reproduces; the weights come from the training rows, also for held-out rows. No labels are
used. Tied means that what is left unexplained differs by at most {TIED:.0%}. *ours, lambda = 0* is `GCSS(k)`; the
others of ours are `RGCSS(k, lam="cv")` and `RGCSS(k, lam="cv", refine=True)`. Cells hold one figure for each k; the
best is bold.
"""
PASS = """\
Every contender reads the same Zarr archive from the page cache, in a process of its own that imports only what it needs
and has warmed up on a small archive. BLAS and thread pools are as they come. *Times ours*: median (and middle half) of
the ratios round by round. *Peak* is the peak resident memory of the whole process, *above* what the pass added to it.
*Error* is the largest difference from the Gram of the loop, or what follows from it (covariance, the 30 largest
variances), relative to its largest value.
"""


def document(results: dict[str, Any]) -> str:
    """Return the whole page."""
    parts = ["# Side by side", ""]
    if results["mode"] != "full":
        parts += ["A quick run: it shows that everything works, and its times mean nothing.", ""]
    if "selection" in results:
        parts += ["## Columns picked", "", *_section(results["selection"], selection_statements), SELECTION]
        parts += [_explained(results["selection"]["results"], part) for part in PARTS]
        parts += [_times(results["selection"]["results"])]
    if "pass" in results:
        parts += ["## The pass", "", *_section(results["pass"], pass_statements), PASS]
        rows = results["pass"]["results"]
        parts += [_pass(rows, dtype) for dtype in dict.fromkeys(row["dtype"] for row in rows)]
    return "\n".join(parts).rstrip() + "\n"


def _section(section: dict[str, Any], statements: Any) -> Iterator[str]:
    machine = section["machine"]
    yield f"`{section['command']}`\n"
    yield (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {machine['system']}, "
        f"Python {machine['python']}, {machine['blas']}; "
        + ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        + f". Rounds after a warm-up: {section['rounds']}, contenders taking turns; slow ones have fewer turns.\n"
    )
    loads = ", ".join(f"{name} {load}" for name, load in section["load"].items())
    yield f"Load average after each: {loads}. Far above the number of cores, times are not to be trusted.\n"
    if "note" in section:
        yield section["note"] + "\n"
    yield from (f"- {sentence}" for sentence in statements(section["results"]))
    yield ""
    for missing in section["left_out"]:
        what = ", ".join(str(missing[key]) for key in ("contender", "data", "dtype") if key in missing)
        yield f"- Left out: {what}: {missing['reason']}"
    yield ""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _explained(rows: Sequence[Row], part: str) -> str:
    cases = _cases(rows)
    header = ["%"] + [f"{data}: {size}, k = {', '.join(map(str, ks))}" for data, (size, ks) in cases.items()]
    found = {(row["contender"], row["data"], row["k"]): row[part] for row in rows}
    best = {(data, k): max(share for (_, *case), share in found.items() if case == [data, k])
            for data, (_, ks) in cases.items() for k in ks}  # fmt: skip

    def cell(name: str, data: str, k: int) -> str:
        share = found.get((name, data, k))
        text = "-" if share is None else f"{100 * share:.2f}"
        return f"**{text}**" if share is not None and text == f"{100 * best[data, k]:.2f}" else text

    body = [
        [name, *(", ".join(cell(name, data, k) for k in ks) for data, (_, ks) in cases.items())]
        for name in dict.fromkeys(row["contender"] for row in rows)
    ]
    return f"### Explained {PARTS[part]}\n\n" + markdown(header, body)


def _cases(rows: Iterable[Row]) -> dict[str, tuple[str, list[int]]]:
    """Return the data sets with their sizes and their ks."""
    rows = list(rows)
    return {
        row["data"]: (
            f"{row['rows']:,} x {row['columns']}",
            sorted({other["k"] for other in rows if other["data"] == row["data"]}),
        )
        for row in rows
    }


def _times(rows: Sequence[Row]) -> str:
    taken = {(row["contender"], row["data"]): row["seconds"] for row in rows if "seconds" in row}
    if not taken:
        return "### Time, from rows to columns\n\nNot measured in this run.\n"
    cases = _cases(row for row in rows if (GREEDY, row["data"]) in taken)
    body = [[f"{GREEDY}, seconds", *(figure(spread(taken[GREEDY, data]).middle) for data in cases)]]
    for name in dict.fromkeys(row["contender"] for row in rows):
        cells = [taken.get((name, data)) for data in cases]
        body.append(
            [name] + [
                "-" if cell is None else str(spread(ratios(cell, taken[GREEDY, data])))
                for data, cell in zip(cases, cells, strict=True)
            ]
        )  # fmt: skip
    header = ["times ours, lambda = 0"] + [f"{data}, k = {ks[-1]}" for data, (_, ks) in cases.items()]
    return "### Time, from rows to columns\n\n" + markdown(header, body)


def _pass(rows: Sequence[Row], dtype: str) -> str:
    rows = [row for row in rows if row["dtype"] == dtype]
    others = against_ours(rows, dtype)
    first = rows[0]
    size = first["rows"] * first["columns"] * (1 if dtype == "uint8" else 8) / 1e6
    header = ["", "seconds", "times ours", "peak, MB", "above, MB", "error", "turns"]
    body = [
        [
            row["contender"],
            figure(spread(row["seconds"]).middle),
            "1" if row["contender"] == OURS else str(others[row["contender"]]),
            figure(spread(row["peak_mb"]).middle),
            figure(spread(row["above_mb"]).middle),
            f"{max(row['error']):.0e}" if max(row["error"]) else "0",
            str(len(row["seconds"])),
        ]
        for row in rows
    ]
    return f"### {dtype}, {first['rows']:,} x {first['columns']}, {size:,.0f} MB\n\n" + markdown(header, body)

"""The page of the benchmark of panels: tables, what is ahead and what is not, and a picture."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import rgcss_dask as rg
from examples.benchmarks.measure import figure
from examples.benchmarks.panels import (
    DEFAULTS,
    FEW,
    METRICS,
    RULES,
    SETTLING,
    SHOWN,
    TYPES,
    Found,
    K,
    error,
    less,
    mean,
    name_of,
)
from examples.benchmarks.tables import markdown
from rgcss_dask import plots
from rgcss_dask.panels import LAMBDA, SHARE

FAR = 0.2  # kNN overlap below which a panel is too far off to be drawn
PEERS = ("spapros", "scanpy", "xgboost", "scikit-learn", "anndata", "numpy")
PROTOCOL = """\
`{command}` wrote this page, with {peers}.

Data: 2,638 peripheral blood cells (PBMC 3k) of 8 types, 1,838 genes, of which 1,000 are highly variable: the test data
of spapros.

Each repeat cuts the cells of each type into halves; genes are picked on one half and judged on the other, then the
other way round. Figures are means and standard errors over splits.
"""
LEGEND = """\
*kNN overlap* (neighbours of cells that are the same as with all genes), *1 - mean correlation* and *correlated below
0.8* (share of the picked genes), and *recall, forest* (gradient boosting, cross-validated among the cells that judge,
types of 40 cells or more) are metrics of spapros at its defaults, but for one seed in the place of five. *Recall,
logistic*: mean over all 8 types, from a logistic regression (C = 0.1, classes balanced) on the half that was picked on.
*Seconds*: median processor time of one pick in one process, after everything was imported and compiled.
"""
RULE = """\
How much cell types count, and lambda for each cell, were settled on repeats 0 to {last}: the highest recall among the
rules whose kNN overlap is above that of each reference by two standard errors of the difference. The tables above are
of repeats {first} to {end}. The defaults of `gene_panel`: a share of {share:g}, a lambda of {lam:g} for each cell.
"""


def document(found: Found, picture: Path | None) -> str:
    """Return the page."""
    shown = [f"![kNN overlap and recall of all panels; picked genes by cell type]({picture.name})\n"] if picture else []
    parts = [
        f"# Panels of {K} genes for blood cells\n",
        PROTOCOL.format(command=_command(found), peers=", ".join(f"{name} {version(name)}" for name in PEERS)),
        *(f"- {sentence}" for sentence in statements(found)),
        "",
        *shown,
        markdown(["", "splits", *METRICS.values(), "seconds"], list(_rows(found))),
        LEGEND,
        "Differences on the same splits:\n",
        markdown(["", "splits", *METRICS.values()], list(_differences(found))),
        RULE.format(last=SETTLING - 1, first=SETTLING, end=found.repeats - 1, share=SHARE, lam=LAMBDA),
        markdown(["", *(METRICS[name] for name in SHOWN)], list(_settled(found))),
        "What was left out:\n",
        *(f"- {words}" for words in left_out(found)),
    ]
    return "\n".join(parts) + "\n"


def _command(found: Found) -> str:
    few, defaults = (len(found.late.get(name, [])) for name in (FEW, DEFAULTS))
    return f"python -m examples.benchmarks.panels --repeats {found.repeats} --few {few} --defaults {defaults}"


def _rows(found: Found) -> Iterator[list[str]]:
    for name, rows in found.late.items():
        cells = (_cell([row[metric] for row in rows]) for metric in METRICS)
        yield [name, str(len(rows)), *cells, figure(found.seconds[name])]


def _differences(found: Found) -> Iterator[list[str]]:
    for name in found.ours:
        for peer in found.peers:
            rows = found.late[name], found.late[peer]
            cells = (_cell(less(*rows, metric), "+") for metric in METRICS)
            yield [f"{name}, less {peer}", str(len(rows[1])), *cells]


def _settled(found: Found) -> Iterator[list[str]]:
    for name, rows in found.early.items():
        bold = "**" if name == name_of(found.rule) else ""
        yield [f"{bold}{name}{bold}", *(_cell([row[metric] for row in rows]) for metric in SHOWN)]


def _cell(values: Sequence[float], sign: str = "") -> str:
    of = error(values)
    return f"{np.mean(values):{sign}.3f}" + ("" if of is None else f" ± {of:.3f}")


def statements(found: Found) -> Iterator[str]:
    """Say where ours are ahead and where not; each peer is compared on the splits that it has."""
    for metric in ("knn", "forest", "recall"):
        for name in found.ours:
            gaps = {peer: less(found.late[name], found.late[peer], metric) for peer in found.peers}
            behind = [f"{peer} ({np.mean(gap):+.3f})" for peer, gap in gaps.items() if np.mean(gap) < 0]
            words = f"behind {', '.join(behind)}" if behind else f"ahead of all {len(gaps)} peers"
            yield f"{METRICS[metric]}: {name} is {words}."
    mine = name_of(found.rule)
    for metric in ("forest", "recall"):
        gaps = {name: less(rows, found.late[mine], metric) for name, rows in found.late.items() if len(rows) > 2}
        best = max(gaps, key=lambda name: float(np.mean(gaps[name])))
        if best == mine:
            yield f"{METRICS[metric]}: the best on all splits is that of {mine}."
        else:
            words = "" if np.mean(gaps[best]) <= (error(gaps[best]) or 0.0) else "not "
            said = f"that of {mine} is {words}within a standard error of it"
            yield f"{METRICS[metric]}: the best on all splits is that of {best}; {said}."
    ratios = [f"{peer} {figure(found.seconds[peer] / found.seconds[mine])}" for peer in found.peers]
    yield f"Processor time as a multiple of that of {mine}: {'; '.join(ratios)}."


def left_out(found: Found) -> list[str]:
    """Say what is not here, and why."""
    runs = "; ".join(f"{name} on {len(found.late.get(name, []))}" for name in (FEW, DEFAULTS))
    return [
        f"spapros takes long for a pick, so that it was run on few splits, from the first on: {runs}. Differences on "
        "one or two splits, and their standard errors, say little.",
        "geneBasis is a package of R, not to be had from PyPI.",
        "One data set. Its cell types and its highly variable genes were found on all cells by its publishers.",
        f"{len(RULES)} rules were tried for ours, none for the peers, which have defaults.",
        "Processor times are of one process on a machine that did other things too, which lengthens them.",
        "spapros 0.1.6 calls `np.in1d`, which NumPy 2.4 dropped; the benchmark puts `np.isin` in its place.",
    ]


def draw(adata: Any, found: Found, file: Path) -> None:
    """Draw the two metrics that decide, and the picked genes by cell type."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    page, (left, right) = pyplot.subplots(2, 1, figsize=(10, 8), height_ratios=(1, 1), layout="constrained")
    for name, rows in found.late.items():
        x, y = ([row[metric] for row in rows] for metric in SHOWN)
        marker = "o" if name in found.ours else "s"
        left.errorbar(np.mean(x), np.mean(y), error(y), error(x), marker=marker, capsize=2, linestyle="", label=name)
    near = [rows for rows in found.late.values() if mean(rows, SHOWN[0]) > FAR]
    for name, limit in zip(SHOWN, (left.set_xlim, left.set_ylim), strict=True):
        values = [mean(rows, name) for rows in near]
        limit(min(values) - 0.02, max(values) + 0.02)
    left.set(xlabel="kNN overlap", ylabel="recall, logistic")
    far = [name for name, rows in found.late.items() if rows not in near]
    left.set_title(
        f"not shown, with less than {FAR:g} of kNN overlap: {', '.join(far) or 'none'}", fontsize=9, loc="left"
    )
    left.legend(fontsize=8, loc="center")
    share, strength = found.rule
    lam = strength * adata.n_obs
    panel = rg.gene_panel(adata, K, TYPES, share=share, lam=lam, inplace=False, progress=False)
    plots.cell_types(panel, right)
    right.tick_params(axis="x", labelsize=8)
    right.set_title(
        f"{name_of(found.rule)}, picked on all cells: means, as shares of the highest", fontsize=10, loc="left"
    )
    page.savefig(file, dpi=100)
    pyplot.close(page)

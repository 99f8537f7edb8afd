"""What the reconstructions say, beside what the paper says of them; and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from examples.paper.results import Row, Table, markdown

NAME = "reconstruction"
WAYS = {
    "rgcss": "RGCSS",
    "gcss": "GCSS, no column past the rank",
    "filled": "GCSS, then random columns",
    "again": "GCSS, then one column over and over",
}
Array = NDArray[np.float64]
mpl.use("Agg")


def report(out: Path) -> str:
    """Return the section of RESULTS.md."""
    rows = Table(out, NAME).rows()
    parts = [_head(rows), _table(rows), f"![Error for each k](results/{NAME}_errors.png)\n", *_claims(rows)]
    panels = Table(out, f"{NAME}_panels").rows()
    if panels:
        parts += [_panel_text(panels), f"![Faces](results/{NAME}_panels.png)\n"]
    return "\n".join(parts)


def _head(rows: list[Row]) -> str:
    return (
        "## Reconstruction\n\n"
        "Faces of people not seen before (the last 100 rows of ORL, 64 x 64 pixels), rebuilt from k of their 4096 "
        "pixels with weights learnt on some of the first 300 rows, lambda = 1. The error is the root mean square over "
        "the pixels of a face, in grey levels from 0 to 1, mean over the faces. The paper prints pictures, no figures, "
        'says "a small portion" and not how much, and reads: the error goes on falling with RGCSS and ceases to fall '
        "with GCSS. Past the rank of the sample nothing is left for GCSS to decide; the package stops there.\n"
    )


def mean(rows: list[Row], way: str, **where: float) -> float:
    """Return the mean over the samples."""
    return float(np.mean([row[way] for row in rows if all(row[key] == value for key, value in where.items())]))


def _settings(rows: list[Row]) -> list[tuple[float, int]]:
    return sorted({(row["share"], row["rows"]) for row in rows})


def _ks(rows: list[Row]) -> list[int]:
    return sorted({row["k"] for row in rows})


def _table(rows: list[Row]) -> str:
    lines = []
    for share, m in _settings(rows):
        samples = len({row["repetition"] for row in rows if row["share"] == share})
        for way, label in WAYS.items():
            figures = [f"{mean(rows, way, share=share, k=k):.4f}" for k in _ks(rows)]
            lines.append([f"{m} ({share:.0%})", samples, label, *figures])
    return markdown(["training rows", "samples", "columns by", *(f"k = {k}" for k in _ks(rows))], lines)


def _claims(rows: list[Row]) -> list[str]:
    return [_goes_on(rows), _ceases(rows), _lower(rows)]


def _falls(rows: list[Row], way: str, share: float) -> tuple[float, bool]:
    """Return the relative fall of the error from the first k past the rank to the last, and if it fell each time."""
    rank = max(row["rank"] for row in rows if row["share"] == share)
    ks = [k for k in _ks(rows) if k >= rank]
    errors = [mean(rows, way, share=share, k=k) for k in ks]
    return 1.0 - errors[-1] / errors[0], bool(np.all(np.diff(errors) < 0))


def _goes_on(rows: list[Row]) -> str:
    found = {share: _falls(rows, "rgcss", share) for share, _ in _settings(rows)}
    each = ", ".join(f"{100 * fall:.1f} % at {share:.0%}" for share, (fall, _) in found.items())
    verdict = "confirmed" if all(always for _, always in found.values()) else "not confirmed at every k"
    return (
        f"- *With RGCSS the error goes on falling past the rank*: {verdict} (from there to the largest k by {each} of "
        "the rows).\n"
    )


def _ceases(rows: list[Row]) -> str:
    """Say for which way to go on past the rank the error ceases to fall."""
    texts = []
    for way in ("gcss", "again", "filled"):
        falls = {share: _falls(rows, way, share)[0] for share, _ in _settings(rows)}
        worst = max(falls.values())
        state = "confirmed" if worst < 0.01 else "not confirmed"
        each = ", ".join(f"{100 * fall:+.1f} % at {share:.0%}" for share, fall in falls.items())
        texts.append(f'{state} for "{WAYS[way]}" (falls by {each})')
    return "- *With GCSS it ceases to fall*: " + "; ".join(texts) + ".\n"


def _lower(rows: list[Row]) -> str:
    texts = []
    for way in ("gcss", "again", "filled"):
        cells = [(share, k) for share, _ in _settings(rows) for k in _ks(rows)]
        lower = [c for c in cells if mean(rows, "rgcss", share=c[0], k=c[1]) < mean(rows, way, share=c[0], k=c[1])]
        state = "confirmed" if len(lower) == len(cells) else f"in {len(lower)} of {len(cells)} cases"
        texts.append(f'{state} against "{WAYS[way]}"')
    filled = np.mean([row["filled"] / row["rgcss"] - 1 for row in rows if row["k"] > row["rank"]])
    sign = "more" if filled > 0 else "less"
    return (
        f"- *RGCSS rebuilds better*: {'; '.join(texts)}. Past the rank, random further columns have an error "
        f"{100 * abs(filled):.1f} % {sign} than RGCSS's: "
        + (
            "what is gained comes from having more columns, and little from which.\n"
            if abs(filled) < 0.1
            else "which columns they are matters.\n"
        )
    )


def _panel_text(panels: list[Row]) -> str:
    first, second = panels[0], panels[1]
    same = "the same face, as in the paper" if first["test_row"] == second["test_row"] else "two different faces"
    each = "; ".join(
        f"{WAYS[p['way']]}, k = {p['k']}: test row {p['test_row']} (error {p['error']:.4f}, mean {p['mean']:.4f})"
        for p in panels
    )
    return (
        "The faces whose error is nearest to the mean, chosen as in the paper, from one sample of "
        f"{first['rows']} rows. {each}. For the largest k both ways give {same}. Top: RGCSS. Bottom: GCSS, then one "
        "column over and over. Right: the face itself.\n"
    )


def draw_errors(out: Path) -> None:
    """Draw the error over k, one part for each share."""
    rows = Table(out, NAME).rows()
    settings = _settings(rows)
    figure = Figure(figsize=(3.2 * len(settings), 2.8), layout="constrained")
    axes = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    for ax, (share, m) in zip(axes, settings, strict=True):
        for way, label in WAYS.items():
            ax.plot(_ks(rows), [mean(rows, way, share=share, k=k) for k in _ks(rows)], marker=".", label=label)
        ax.set(xscale="log", xlabel="columns picked", title=f"{m} rows")
        ax.set_xticks(_ks(rows), map(str, _ks(rows)), minor=False)
        ax.minorticks_off()
    axes[0].set_ylabel("error of a face")
    axes[-1].legend(fontsize=6)
    figure.savefig(out / f"{NAME}_errors.png", dpi=90)


def draw_panels(
    out: Path,
    faces: Sequence[int],
    ks: Sequence[int],
    pictures: Mapping[tuple[int, str, int], Array],
    test: Array,
    side: int,
) -> None:
    """Draw each face: RGCSS above, GCSS below, k growing to the right, the original last."""
    rows, columns = 2 * len(faces), len(ks) + 1
    figure = Figure(figsize=(columns, rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    look = {"cmap": "gray", "vmin": 0.0, "vmax": float(test.max())}
    for i, face in enumerate(faces):
        for j, way in enumerate(("rgcss", "again")):
            for column, k in enumerate(ks):
                ax = axes[2 * i + j, column]
                ax.imshow(pictures[face, way, k].reshape(side, side), **look)
                if i == j == 0:
                    ax.set_title(f"k = {k}", fontsize=7)
        axes[2 * i, -1].imshow(test[face].reshape(side, side), **look)
    figure.savefig(out / f"{NAME}_panels.png", dpi=70)

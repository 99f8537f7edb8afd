"""What the variants say: how near to the printed figures each choice comes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.paper import judging, printed
from examples.paper.results import Row, Table, markdown

Array = NDArray[np.float64]
CLUSTERING, STABILITY, CHANCE = "variants_clustering", "variants_stability", "variants_chance"
AS_ABOVE, EACH_ROW, DIGIT = "as above", "for each row", "the digit as a column"
NEAR = 0.02
LAMS = (0.0, 1.0, 10.0)
# A fit is better when it has this share of the error of the first.
CLEAR = 0.7
# Samples that are as far off are seldom when they are fewer than this.
SELDOM = 0.05


def report(out: Path) -> str:
    """Return the section."""
    parts = [
        "## Variants",
        "Where our figures differ from the printed ones, one choice at a time is made otherwise here, with few "
        "repetitions. The experiments above stay as the paper's text has them.",
        *_clusterings(Table(out, CLUSTERING).rows()),
        *_chances(Table(out, CHANCE).rows()),
        *_noises(Table(out, STABILITY).rows()),
    ]
    return "\n\n".join(part.strip() for part in parts)


@dataclass(frozen=True)
class Fit:
    """Ours minus the printed averages, over the cells of a variant."""

    label: str
    repetitions: int
    whole: float  # with all columns
    off: dict[str, Array]  # GCSS, RGCSS

    @classmethod
    def of(cls, data: str, label: str, rows: list[Row]) -> Fit:
        cells: dict[tuple[int, float], list[Row]] = {}
        for row in rows:
            cells.setdefault((row["k"], row["share"]), []).append(row)
        gaps = np.array([_gaps(data, *cell, some) for cell, some in cells.items()])
        whole = np.mean([row["all"] for row in rows]) - np.mean(printed.CLUSTERING_ALL_COLUMNS[data])
        return cls(
            label, len({row["repetition"] for row in rows}), float(whole), {"GCSS": gaps[:, 0], "RGCSS": gaps[:, 1]}
        )


def _gaps(data: str, k: int, share: float, rows: list[Row]) -> tuple[float, float]:
    gcss, rgcss = printed.CLUSTERING[data][k][printed.CLUSTERING_SHARES.index(share)]
    ours, regularised = (float(np.mean([row[way] for row in rows])) for way in ("again", "rgcss"))
    return ours - gcss, regularised - rgcss


def _clusterings(rows: list[Row]) -> list[str]:
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        labels = dict.fromkeys(row["variant"] for row in mine)
        fits = [Fit.of(data, label, [row for row in mine if row["variant"] == label]) for label in labels]
        parts += [f"### Clustering of {data}", _fits(fits), "\n".join([_conclusion(fits), *_trends(data, mine)])]
    return parts


def _fits(fits: list[Fit]) -> str:
    head = ["variant", "repetitions", "all columns", f"GCSS within {NEAR}", "error", f"RGCSS within {NEAR}", "error"]
    lines = []
    for fit in fits:
        line: list[object] = [fit.label, fit.repetitions, f"{fit.whole:+.3f}"]
        for off in fit.off.values():
            line += [f"{_near(off)} of {len(off)}", f"{_error(off):.3f} ({off.mean():+.3f})"]
        lines.append(line)
    return (
        markdown(head, lines)
        + "\nOurs minus printed: with all columns; then the mean of the absolute differences (of the differences). "
        '"GCSS" goes on with one column over and over past the rank.'
    )


def _near(off: Array) -> int:
    return int((np.abs(off) <= NEAR).sum())


def _error(off: Array) -> float:
    return float(np.abs(off).mean())


def _conclusion(fits: list[Fit]) -> str:
    """Name the variants that fit clearly better than what the text of the paper says."""
    first, *others = fits
    texts = []
    for way, off in first.off.items():
        better = [fit for fit in others if _error(fit.off[way]) < CLEAR * _error(off)]
        told = [
            f"{fit.label} ({_near(fit.off[way])} of {len(off)} cells, error {_error(fit.off[way]):.3f})"
            for fit in better
        ]
        texts.append(
            f"{way} ({_near(off)} of {len(off)} cells, error {_error(off):.3f} {first.label}): "
            + (f"clearly nearer with {judging.listed(told)}" if told else "clearly nearer with none of them")
        )
    nearest = min(fits, key=lambda fit: abs(fit.whole))
    both = [fit.label for fit in fits if max(abs(fit.whole), *map(_error, fit.off.values())) <= NEAR]
    return (
        f"- Of {len(others)} other choices: {'; '.join(texts)}. With so many tried, and few repetitions, some come "
        f"nearer by chance.\n- All columns: nearest is {nearest.label} ({nearest.whole:+.3f}).\n"
        f"- All three within {NEAR} on average: {judging.listed(both)}."
    )


def _trends(data: str, rows: list[Row]) -> list[str]:
    """Compare how RGCSS changes with the share of rows, where a lambda that grows with them was tried."""
    grown = [label for label in dict.fromkeys(row["variant"] for row in rows) if label.endswith(EACH_ROW)]
    if not grown:
        return []
    shares = sorted({row["share"] for row in rows})
    k = min(row["k"] for row in rows)

    def change(label: str) -> str:
        first, last = (
            np.mean([r["rgcss"] for r in rows if (r["variant"], r["k"], r["share"]) == (label, k, share)])
            for share in (shares[0], shares[-1])
        )
        return f"{last - first:+.3f} with {label}" if label != AS_ABOVE else f"{last - first:+.3f} {label}"

    regularised = [of_share[1] for of_share in printed.CLUSTERING[data][k]]
    told = judging.listed([change(label) for label in (AS_ABOVE, *grown)])
    return [
        f"- From {shares[0]:.0%} to {shares[-1]:.0%} of the rows, RGCSS with k = {k} changes by "
        f"{regularised[-1] - regularised[0]:+.3f} as printed, {told}: more rows do not help where the penalty grows "
        "with them, as if it were set against the mean of squares instead of their sum. Which factor is nearest was "
        "tried, not derived."
    ]


def _chances(rows: list[Row]) -> list[str]:
    """Compare the printed figures of RGCSS on COIL20 with those of columns drawn at random."""
    if not rows:
        return []
    off = np.mean([row["all"] for row in rows]) - np.mean(printed.CLUSTERING_ALL_COLUMNS["COIL20"])
    lines, met, missed = [], [], []
    for k in dict.fromkeys(row["k"] for row in rows):
        drawn = np.array([row["nmi"] for row in rows if row["k"] == k])
        paper = np.array([regularised for _, regularised in printed.CLUSTERING["COIL20"][k]])
        near = _near(drawn.mean() - off - paper)
        spread = f"{drawn.mean() - off:.3f} ({drawn.min() - off:.3f} to {drawn.max() - off:.3f})"
        lines.append([k, len(drawn), spread, f"{paper.min():.3f} to {paper.max():.3f}", f"{near} of {len(paper)}"])
        (met if near > len(paper) / 2 else missed).append(f"k = {k}")
    head = [
        "k",
        "repetitions",
        "columns at random, mean (range)",
        "printed RGCSS",
        f"printed within {NEAR} of the mean",
    ]
    return [
        "### COIL20: columns at random",
        f"The difference with all columns, {off:+.3f}, is taken off.",
        markdown(head, lines)
        + f"\n- Columns drawn at random meet most printed figures of RGCSS for {judging.listed(met)}, and not for "
        f"{judging.listed(missed)}. Where they do, the printed selection tells no more than chance, for any number of "
        "training rows; so the deficiency that the paper reports there is of the columns its program took, not of "
        "the objective, whose greedy minimiser (RGCSS, above) does better.",
    ]


def _noises(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    labels = dict.fromkeys(row["variant"] for row in rows)
    paper = printed.STABILITY["MNIST"]
    lines = [["printed", "1", *(f"{paper[lam]:.3f}" for lam in LAMS), ""]]
    for label in labels:
        found = [indices(rows, label, lam) for lam in LAMS]
        beyond = [reaching(ours, paper[lam]) for ours, lam in zip(found, LAMS, strict=True)]
        cells = [f"{ours.mean():.3f} ({ours.min():.3f} to {ours.max():.3f})" for ours in found]
        lines.append([label, f"{len(found[0])}", *cells, ", ".join(map(str, beyond))])
    head = ["variant", "samples", *(f"lambda = {lam:g}" for lam in LAMS), "samples that reach the printed figures"]
    return ["### Stability of MNIST", markdown(head, lines), _noise_conclusion(rows, list(labels))]


def indices(rows: list[Row], label: str, lam: float) -> Array:
    """Return the Jaccard index of each sample."""
    return np.array([row["jaccard"] for row in rows if (row["variant"], row["lam"]) == (label, lam)])


def reaching(ours: Array, paper: float) -> int:
    """Count the samples that are as far from our mean as the printed figure, or further, on the same side."""
    side = np.sign(paper - ours.mean())
    return int((side * (ours - paper) >= 0).sum())


def odds(ours: Array, paper: float) -> str:
    """Say how seldom a sample of rows is as far from our mean as the printed figure."""
    count, deviation = reaching(ours, paper), float(ours.std(ddof=1))
    share = count / len(ours)
    state = "explains it" if share >= SELDOM else "can explain it, though seldom" if count else "hardly explains it"
    return (
        f"{paper - ours.mean():+.3f} from the mean of {len(ours)} samples, their standard deviation is "
        f"{deviation:.3f}, and {count} of them reach it: the choice of rows {state}"
    )


def _noise_conclusion(rows: list[Row], labels: list[str]) -> str:
    paper = printed.STABILITY["MNIST"]
    lines = []
    for lam in LAMS:
        held = [label for label in labels if label != AS_ABOVE and reaching(indices(rows, label, lam), paper[lam])]
        chance = odds(indices(rows, AS_ABOVE, lam), paper[lam])
        lines.append(
            f"- lambda = {lam:g}: the printed {paper[lam]:.3f} is {chance}. Other variants with samples that reach it: "
            f"{judging.listed(held)}."
        )
    whole = [label for label in labels if all(reaching(indices(rows, label, lam), paper[lam]) for lam in LAMS)]
    return (
        "\n".join(lines) + "\n- All three printed figures are reached, each by some sample: "
        f"{judging.listed(whole)}. Why the digit: see MNIST under Conditioning."
    )

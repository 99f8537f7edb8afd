"""The section on stability: mean Jaccard indices beside the printed ones, over several samples of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.paper import judging, printed
from examples.paper.figures import panels, save
from examples.paper.results import Row, Table, markdown
from examples.paper.variants_report import AS_ABOVE, DIGIT, STABILITY, indices, odds

Array = NDArray[np.float64]
LAMS = (0.0, 1.0, 10.0)
PAIRS = ((0.0, 1.0), (0.0, 10.0), (1.0, 10.0))
# Fewer figures than this say nothing of a correlation.
MANY = 10
# Further from our mean than this many standard deviations of single samples is not chance.
FAR = 3.0
FEW = 5
# Whose figures are compared with which line of the printed table.
PRINTED_AS = {"OnlineNews, 100 rows": "OnlineNews"}


class Figures:
    """The CSV, by label and lambda; samples in the same order for every lambda."""

    def __init__(self, out: Path) -> None:
        self._rows = Table(out, "stability").rows()
        self.labels = list(dict.fromkeys(row["data"] for row in self._rows))
        self._further = Table(out, STABILITY).rows()

    def of(self, label: str) -> list[Row]:
        return [row for row in self._rows if row["data"] == label]

    def jaccard(self, label: str, lam: float) -> Array:
        return np.array([row["jaccard"] for row in self.of(label) if row["lam"] == lam])

    def further(self, label: str, lam: float, variant: str = AS_ABOVE) -> Array:
        """Return the index in the further samples, with less noise added, that the variants have for MNIST."""
        return indices(self._further if label == "MNIST" else [], variant, lam)


def report(out: Path) -> str:
    """Return the section, and draw its figure."""
    data = Figures(out)
    _draw(data, out / "stability.png")
    parts = [
        "## Stability",
        "The same sample of rows with Gaussian noise of standard deviation 0.001 added, again and again; mean Jaccard "
        "index of all pairs of selections. The paper has one sample of rows for each data set; here are several: mean "
        "(minimum to maximum) over the samples. E[J] is the expected index of random subsets.",
        _table(data),
        _expected(data),
        f"![Jaccard indices]({out.name}/stability.png)",
        "### The comparisons the paper draws",
        _comparisons(data),
        "### What differs and why",
        *_differences(data),
    ]
    return "\n\n".join(part.strip() for part in parts)


def _paper(label: str) -> dict[float, float]:
    return printed.STABILITY[PRINTED_AS.get(label, label)]


def _table(data: Figures) -> str:
    rows = []
    for label in data.labels:
        first = data.of(label)[0]
        samples = len(data.jaccard(label, 0.0))
        cells = [label, first["rows"], first["columns"], first["k"], f"{samples} x {first['perturbations']}"]
        for lam in LAMS:
            ours = data.jaccard(label, lam)
            cells += [f"{ours.mean():.3f} ({ours.min():.3f} to {ours.max():.3f})", f"{_paper(label)[lam]:.3f}"]
        expected = printed.EXPECTED_JACCARD[PRINTED_AS.get(label, label)]
        rows.append([*cells, f"{first['expected']:.3f}", f"{expected:.3f}"])
    head = ["data", "rows", "columns", "k", "samples x noise"]
    for lam in LAMS:
        head += [f"lambda = {lam:g}", "paper"]
    return markdown([*head, "E[J]", "paper"], rows)


def _expected(data: Figures) -> str:
    same, cut, other = [], [], []
    for label in data.labels:
        if label in PRINTED_AS:
            continue
        ours, paper = float(data.of(label)[0]["expected"]), printed.EXPECTED_JACCARD[label]
        place = same if f"{ours:.3f}" == f"{paper:.3f}" else cut if int(1000 * ours) == round(1000 * paper) else other
        place.append(f"{label} ({ours:.5f})" if place is not same else label)
    text = f"E[J] to three digits is the printed one for {judging.listed(same)}"
    if cut:
        text += f"; for {judging.listed(cut)} the paper cut the digits off instead of rounding"
    return text + (f"; it differs for {judging.listed(other)}." if other else ".")


def _judged(data: Figures) -> Iterator[tuple[str, float, float, str, float]]:
    """Yield label, two lambdas, the verdict, and the share of samples with the printed sign."""
    for label in data.labels:
        for low, high in PAIRS:
            a, b = data.jaccard(label, low), data.jaccard(label, high)
            sign = judging.printed_sign(_paper(label)[low], _paper(label)[high])
            agree = float(np.mean(np.sign(b - a) == sign))
            yield label, low, high, judging.verdict(sign, judging.compare(a, b).sign), agree


def _comparisons(data: Figures) -> str:
    rows = []
    for label, low, high, verdict, agree in _judged(data):
        paper = _paper(label)
        sign = {-1: "less stable than", 0: "as stable as", 1: "more stable than"}
        claim = f"lambda = {high:g} is {sign[judging.printed_sign(paper[low], paper[high])]} lambda = {low:g}"
        gap = judging.compare(data.jaccard(label, low), data.jaccard(label, high))
        rows.append([label, claim, f"{gap.difference:+.3f} ± {gap.error:.3f}", f"{agree:.0%}", verdict])
    head = ["data", "printed", "our difference ± standard error", "samples with the printed sign", "verdict"]
    against = [row[4] for row in rows if row[1].endswith("lambda = 0")]
    told = f'"The regularised formulation improves the stability" (lambda > 0 against 0): {judging.counted(against)}.'
    return markdown(head, rows) + "\n" + told


def _differences(data: Figures) -> list[str]:
    texts = [_spread(data), *(_outside(data, label) for label in data.labels), _orders(data), _near_ties(data)]
    return [text for text in texts if text]


def _spread(data: Figures) -> str:
    widths = {(label, lam): float(np.ptp(data.jaccard(label, lam))) for label in data.labels for lam in LAMS}
    (label, lam), width = max(widths.items(), key=lambda item: item[1])
    inside = [
        data.jaccard(label, lam).min() <= _paper(label)[lam] <= data.jaccard(label, lam).max() for label, lam in widths
    ]
    return (
        f"- **One sample says little.** Over samples of rows the index varies by up to {width:.2f} ({label}, lambda = "
        f"{lam:g}). {sum(inside)} of {len(inside)} printed figures are inside the range of ours."
    )


def _outside(data: Figures, label: str) -> str:
    """Say by how much printed figures are outside the range of ours, and whether the choice of rows can explain it."""
    lines = []
    for lam in LAMS:
        ours, paper = data.jaccard(label, lam), _paper(label)[lam]
        if ours.min() <= paper <= ours.max():
            continue
        nearest = float(ours[np.abs(ours - paper).argmin()])
        lines.append(
            f"lambda = {lam:g}: printed {paper:.3f}, nearest of ours {nearest:.3f} (mean {ours.mean():.3f}, standard "
            f"deviation between {len(ours)} samples {_deviation(ours):.3f}), {_chance(data, label, lam)}"
            f"{_elsewhere(data, label, lam)}"
        )
    return f"- **{label}, outside of our range.** {'; '.join(lines)}." if lines else ""


def _deviation(ours: Array) -> float:
    return float(ours.std(ddof=1)) if len(ours) > 1 else float("inf")


def _chance(data: Figures, label: str, lam: float) -> str:
    """Say whether another sample of rows can bring the printed figure."""
    ours, further, paper = data.jaccard(label, lam), data.further(label, lam), _paper(label)[lam]
    if len(further):
        told = f"but (see Variants) {odds(further, paper)}"
        labelled = data.further(label, lam, DIGIT)
        return told if not len(labelled) else f"{told}; with the digit as a column it is {odds(labelled, paper)}"
    if len(ours) < FEW:
        return f"and {len(ours)} samples say little of the spread"
    if abs(paper - ours.mean()) > FAR * _deviation(ours):
        return f"more than {FAR:g} standard deviations, so that the choice of rows does not explain it"
    return "which another sample of rows can bring"


def _elsewhere(data: Figures, label: str, lam: float) -> str:
    """Name another lambda whose range holds the printed figure, when that is far from ours."""
    paper, here = _paper(label)[lam], data.jaccard(label, lam)
    if len(here) < FEW or abs(paper - here.mean()) <= FAR * here.std(ddof=1):
        return ""
    held = [x for x in LAMS if x != lam and data.jaccard(label, x).min() <= paper <= data.jaccard(label, x).max()]
    return f"; it is inside our range at lambda = {judging.listed([f'{x:g}' for x in held])}" if held else ""


def _orders(data: Figures) -> str:
    """Tell of printed orders that are not monotone in lambda."""
    lines = []
    for label in data.labels:
        paper = _paper(label)
        if label in PRINTED_AS or paper[10.0] >= paper[1.0]:
            continue
        one, ten = data.jaccard(label, 1.0), data.jaccard(label, 10.0)
        falls = one > ten
        lines.append(
            f"{label}: the printed index falls from {paper[1.0]:.3f} at lambda = 1 to {paper[10.0]:.3f} at lambda = "
            "10; "
            f"so it does in {falls.sum()} of our {len(falls)} samples, while the means go from {one.mean():.3f} to "
            f"{ten.mean():.3f}"
        )
    return f"- **Not monotone in lambda.** {'; '.join(lines)}." if lines else ""


def _near_ties(data: Figures) -> str:
    """Say how closely the index follows the pick at which noise first changes the selection."""
    found = []
    for label in data.labels:
        rows = data.of(label)
        start, index = (
            np.array([row[field] for row in rows], dtype=np.float64) for field in ("shared_start", "jaccard")
        )
        if len(rows) > MANY and np.ptp(start) > 0 and np.ptp(index) > 0:
            found.append((label, float(np.corrcoef(start / rows[0]["k"], index)[0, 1])))
    if not found:
        return ""
    least = min(r for _, r in found)
    told = ", ".join(f"{label} {r:.2f}" for label, r in found)
    why = "most of the variation comes from" if least > 0.6 else "part of the variation comes from"
    return (
        "- **Near ties.** Where two columns gain almost the same, noise decides between them, and all later picks "
        "differ. "
        "How many picks two selections share before they first differ goes with the index (correlation over samples "
        "and "
        f"lambdas: {told}): {why} the pick at which a sample has its first near tie, and that is chance."
    )


def _draw(data: Figures, path: Path) -> None:
    if not data.labels:
        return
    figure, axes = panels(len(data.labels))
    for axis, label in zip(axes, data.labels, strict=True):
        for at, lam in enumerate(LAMS):
            ours = data.jaccard(label, lam)
            axis.plot(np.full(len(ours), at), ours, "o", color="C0", ms=3, alpha=0.5)
            axis.plot([at - 0.15, at + 0.15], [ours.mean()] * 2, color="C0")
            axis.plot(at, _paper(label)[lam], "x", color="C3", ms=7)
        axis.axhline(data.of(label)[0]["expected"], color="grey", lw=0.8, ls=":")
        axis.set_xticks(range(len(LAMS)), [f"{lam:g}" for lam in LAMS])
        axis.set_ylim(0, 1.05)
        axis.set_title(label, fontsize=9)
    axes[0].set_ylabel("mean Jaccard index")
    figure.suptitle("by lambda; dots: our samples, bar: their mean, cross: printed, dotted: chance", fontsize=9)
    save(figure, path)

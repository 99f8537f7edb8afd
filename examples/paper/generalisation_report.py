"""The section on generalisation: relative improvement of the test loss, and whether it is what the paper says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.paper import judging
from examples.paper.figures import panels, save
from examples.paper.results import Row, Table, markdown

Array = NDArray[np.float64]
MODERATE = ("OnlineNews", "MNIST")  # "where the improvement was more moderate"
LEAST = 100 * judging.EQUAL  # improvements that differ by less, in per cent, are the same
AGAINST = {"gcss": "GCSS that stops at the rank", "filled": "GCSS filled with random columns"}


class Figures:
    """The CSV, by data set and share."""

    def __init__(self, out: Path) -> None:
        rows = Table(out, "generalisation").rows()
        self.names = list(dict.fromkeys(row["data"] for row in rows))
        self.shares = sorted({row["share"] for row in rows})
        self.ks = [int(key.split("_")[1]) for key in (rows[0] if rows else {}) if key.startswith("rgcss_")]
        self._rows: dict[tuple[str, float], list[Row]] = defaultdict(list)
        for row in rows:
            self._rows[row["data"], row["share"]].append(row)

    def of(self, name: str, share: float) -> list[Row]:
        return self._rows.get((name, share), [])

    def losses(self, name: str, share: float, way: str, k: int) -> Array:
        return np.array([row[f"{way}_{k}"] for row in self.of(name, share)])

    def ks_of(self, name: str) -> list[int]:
        """Return the k that are not more than the columns."""
        return [k for k in self.ks if not np.isnan(self.losses(name, self.shares[0], "rgcss", k)).any()]

    def improvement(self, name: str, share: float, k: int, way: str) -> judging.Comparison:
        """Return the paper's measure, 100 (L_N - L_R) / L_N with L_N and L_R averaged, and its standard error."""
        other, ours = (self.losses(name, share, w, k) for w in (way, "rgcss"))
        gap = judging.compare(ours, other)
        unit = 100.0 / float(other.mean())
        return judging.Comparison(unit * gap.difference, unit * gap.error, gap.sign)


def report(out: Path) -> str:
    """Return the section, and draw its figures."""
    data = Figures(out)
    for way in AGAINST:
        _draw(data, way, out / f"generalisation-{way}.png")
    parts = [
        "## Generalisation",
        "Relative improvement of the loss L(S) on test rows of RGCSS over GCSS, per cent, lambda = 1 in RGCSS and in "
        "the weights "
        "of both, as in the paper; columns picked on samples of the training rows. MNIST was read from Zarr through "
        "Dask. "
        "The paper shows this as figures only, so there are no printed numbers to compare with. Once its columns span "
        "the "
        "sample, GCSS has nothing left to choose by. The first figure in each cell is against GCSS that stops there, "
        "the "
        "second against GCSS that goes on with different columns at random; they differ where k is more than the "
        "rank. A star: not certain to 95 % (t test), or under half a per cent.",
        *(_table(data, name) for name in data.names),
        *(f"![Against {text}]({out.name}/generalisation-{way}.png)" for way, text in AGAINST.items()),
        "### The comparisons the paper draws",
        _verdicts(data),
        "### What differs and why",
        _beyond_rank(data),
    ]
    return "\n\n".join(part.strip() for part in parts)


def _table(data: Figures, name: str) -> str:
    ks, rows = data.ks_of(name), []
    for share in data.shares:
        found = data.of(name, share)
        if not found:
            continue
        rank = float(np.mean([row["rank"] for row in found]))
        known = f"{rank:.0f}" if rank < max(ks) else f"{max(ks)} or more"
        cells = [_cell(data, name, share, k) for k in ks]
        rows.append([f"{share:.0%}", found[0]["rows"], known, len(found), *cells])
    head = ["share", "rows", "rank", "repetitions", *(f"k = {k}" for k in ks)]
    return f"**{name}**\n\n" + markdown(head, rows)


def _cell(data: Figures, name: str, share: float, k: int) -> str:
    stop, filled = (data.improvement(name, share, k, way) for way in AGAINST)
    shown = [f"{one.difference:.1f}" + ("" if one.sign else "*") for one in (stop, filled)]
    return shown[0] if stop == filled else " / ".join(shown)


def _cases(data: Figures) -> list[tuple[str, float, int]]:
    return [(n, share, k) for n in data.names for share in data.shares if data.of(n, share) for k in data.ks_of(n)]


def _verdicts(data: Figures) -> str:
    words = {1: "confirmed", 0: "not confirmed: no clear difference", -1: "reversed"}
    rows = []
    for name in data.names:
        for way, text in AGAINST.items():
            signs = [data.improvement(*case, way).sign for case in _cases(data) if case[0] == name]
            rows.append([name, text, judging.counted(words[sign] for sign in signs)])
    table = markdown(["data", "RGCSS has the smaller test loss than", "cases (share and k)"], rows)
    return table + "\n" + "\n".join(f"- {line}" for line in (*_scarce(data), *_large(data), *_moderate(data)))


def _scarce(data: Figures) -> list[str]:
    """Judge "especially when training data are scarce": smallest against largest share, at the largest k."""
    lines = []
    for way, text in AGAINST.items():
        held = []
        for name in data.names:
            shares = [share for share in data.shares if data.of(name, share)]
            few, many = (
                data.improvement(name, share, data.ks_of(name)[-1], way).difference for share in (shares[0], shares[-1])
            )
            held.append((name, few > many + LEAST))
        lines.append(f'"Especially when training data are scarce" (largest k, against {text}): {_held(held)}.')
    return lines


def _large(data: Figures) -> list[str]:
    """Judge "and k is large": largest against smallest k, at the smallest share."""
    lines = []
    for way, text in AGAINST.items():
        held = []
        for name in data.names:
            ks, share = data.ks_of(name), data.shares[0]
            small, large = (data.improvement(name, share, k, way).difference for k in (ks[0], ks[-1]))
            held.append((name, large > small + LEAST))
        lines.append(f'"And k is large" (smallest share, against {text}): {_held(held)}.')
    return lines


def _held(held: list[tuple[str, bool]]) -> str:
    yes, no = ([name for name, true in held if true is wanted] for wanted in (True, False))
    if not yes or not no:
        return f"{'confirmed' if yes else 'not confirmed'} for {judging.listed(yes or no)}"
    return f"confirmed for {judging.listed(yes)}, not for {judging.listed(no)}"


def _moderate(data: Figures) -> list[str]:
    largest = {
        name: max(data.improvement(*case, "gcss").difference for case in _cases(data) if case[0] == name)
        for name in data.names
    }
    least = min((value for name, value in largest.items() if name not in MODERATE), default=float("nan"))
    shown = ", ".join(f"{name} {value:.1f}" for name, value in largest.items())
    held = [(name, largest[name] < least) for name in MODERATE if name in largest]
    return [
        f'"More moderate" for {judging.listed(list(MODERATE))}: {_held(held)} (largest improvement, per cent: {shown}).'
    ]


def _beyond_rank(data: Figures) -> str:
    """Say how much of the improvement is there only because GCSS has stopped."""
    cases = [(n, s, k) for n, s, k in _cases(data) if np.mean([row["rank"] for row in data.of(n, s)]) < k]
    if not cases:
        return "- No case has k above the rank of the sample."
    stop = [data.improvement(*case, "gcss") for case in cases]
    filled = [data.improvement(*case, "filled") for case in cases]
    within = [case for case in _cases(data) if case not in cases]
    inside = [data.improvement(*case, "gcss") for case in within]
    return (
        f"- **Beyond the rank.** In {len(cases)} cases k is more than the rank of the sample. There RGCSS improves on "
        "GCSS that stops by "
        f"{np.mean([one.difference for one in stop]):.1f} % on average, but on GCSS that goes on with different "
        "columns at random by "
        f"{np.mean([one.difference for one in filled]):.1f} % ({sum(one.sign > 0 for one in filled)} cases better, "
        f"{sum(one.sign < 0 for one in filled)} worse). The large gains are gains over a method that has run out of "
        "columns (or takes the same ones again, which the printed condition numbers show, see Conditioning), not over "
        f"other columns. In the {len(within)} cases with k up to the rank the improvement is "
        f"{np.mean([one.difference for one in inside]):.1f} % on average, at most "
        f"{max((one.difference for one in inside), default=float('nan')):.1f} %."
        "\n- **lambda.** The paper has lambda = 1 throughout, which is no penalty for thousands of rows and a strong "
        "one for ten. "
        "See [the tuning table](../tuning_table.md) for a cross-validated lambda."
    )


def _draw(data: Figures, way: str, path: Path) -> None:
    if not data.names:
        return
    figure, axes = panels(len(data.names))
    for axis, name in zip(axes, data.names, strict=True):
        ks = data.ks_of(name)
        for share in data.shares:
            if data.of(name, share):
                found = [data.improvement(name, share, k, way) for k in ks]
                axis.errorbar(
                    ks,
                    [one.difference for one in found],
                    [one.error for one in found],
                    marker="o",
                    ms=3,
                    lw=1,
                    label=f"{share:.0%}",
                )
        axis.axhline(0, color="grey", lw=0.8)
        axis.set_xscale("log", base=2)
        axis.set_title(name, fontsize=9)
    axes[0].legend(fontsize=7, title="rows", title_fontsize=7)
    axes[0].set_ylabel("improvement, %")
    figure.suptitle(f"RGCSS over {AGAINST[way]}: relative improvement of the test loss by k", fontsize=9)
    save(figure, path)

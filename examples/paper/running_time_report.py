"""What the running times say, beside what the paper says of its own; and the figure."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from examples.paper.printed import RUNNING_TIME_RATIO
from examples.paper.results import Row, Table, markdown

NAME = "running_time"
SWEEPS = {"m": "rows, n = 1000, k = 128", "n": "columns, m = 1000, k = 1", "k": "picks, m = 1000, n = 1024"}
mpl.use("Agg")


def report(out: Path) -> str:
    """Return the section of RESULTS.md."""
    rows = Table(out, NAME).rows()
    low, high = RUNNING_TIME_RATIO
    return "\n".join(
        [
            _head(rows),
            _table(rows),
            _unsteady(rows),
            f"![Times and ratio](results/{NAME}.png)\n",
            f"- *The ratio of the selections is lower than the paper's {low:g} to {high:g}*: {_against_paper(rows)}.",
            f"- *With respect to m and n both behave very similarly*: {_similar(rows)}.",
            f"- *For large k the regularised one takes noticeably longer*: {_longer(rows)}.",
            f"- *The ratio converges to a constant as k grows*: {_converges(rows)}.\n",
        ]
    )


def _head(rows: list[Row]) -> str:
    times = len({row["repetition"] for row in rows})
    low, high = RUNNING_TIME_RATIO
    return (
        "## Running time\n\n"
        'Matrices of standard normal numbers (the paper says "synthetic"), in memory. "Rows to moments" is the one '
        "pass both need; with fewer rows than columns nothing is formed and the rows are selected from as they are. "
        f"GCSS and RGCSS are timed in turns, {times} times each: median, and in brackets the smallest and largest. The "
        'ratio is of neighbours in time; "in all" counts the pass in both. Both run the same code, with lambda = 0 for '
        "GCSS, so there is a plain GCSS too: the recurrences of Farahat et al., which the paper timed, in NumPy, with "
        "one BLAS thread and no care for rounding. The paper's "
        f"ratio is in a figure, for growing k: about {low:g} to {high:g}. Its times are of other code on another "
        "machine and are not compared.\n"
    )


def _group(rows: list[Row]) -> dict[tuple[str, int, int, int], list[Row]]:
    groups: dict[tuple[str, int, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["sweep"], row["m"], row["n"], row["k"]), []).append(row)
    return groups


def ratios(rows: list[Row], *, whole: bool = False, to: str = "gcss") -> list[float]:
    """Return RGCSS over GCSS, ours or the plain one, for each repetition."""
    share = [row["source_s"] if whole else 0.0 for row in rows]
    return [(row["rgcss_s"] + s) / (row[f"{to}_s"] + s) for row, s in zip(rows, share, strict=True)]


def _table(rows: list[Row]) -> str:
    lines = []
    for (sweep, m, n, k), some in _group(rows).items():
        cells = [_spread([1000 * row[name] for row in some]) for name in ("source_s", "gcss_s", "rgcss_s", "plain_s")]
        picked = some[0]["gcss_picks"]
        k_text = f"{k:,}" if picked == k else f"{k:,} (GCSS {picked:,})"
        found = [ratios(some), ratios(some, whole=True), ratios(some, to="plain")]
        lines.append([SWEEPS[sweep].split(",")[0], f"{m:,}", f"{n:,}", k_text, *cells, *(_spread(r, 2) for r in found)])
    head = ["grows", "m", "n", "k", "rows to moments, ms", "GCSS, ms", "RGCSS, ms", "plain GCSS, ms"]
    return markdown([*head, "RGCSS / GCSS", "the same, in all", "RGCSS / plain GCSS"], lines)


def _spread(values: list[float], digits: int | None = None) -> str:
    def text(x: float) -> str:
        return f"{x:.{digits}f}" if digits is not None else f"{x:.3g}" if x < 1000 else f"{x:.0f}"

    return f"{text(float(np.median(values)))} ({text(min(values))} to {text(max(values))})"


def _medians(
    rows: list[Row], sweep: str, *, whole: bool = False, to: str = "gcss"
) -> dict[tuple[int, int, int], float]:
    groups = _group([row for row in rows if row["sweep"] == sweep])
    return {key[1:]: float(np.median(ratios(some, whole=whole, to=to))) for key, some in groups.items()}


def _against_paper(rows: list[Row]) -> str:
    texts = []
    for to, label in GCSS.items():
        found = _medians(rows, "k", to=to)
        verdict = "yes" if max(found.values()) < RUNNING_TIME_RATIO[0] else "not everywhere"
        texts.append(
            f"against {label} {verdict}, {min(found.values()):.2f} to {max(found.values()):.2f} over k (medians)"
        )
    return "; ".join(texts)


def _similar(rows: list[Row]) -> str:
    texts = []
    for sweep in ("m", "n"):
        found = _medians(rows, sweep, whole=True)
        near = max(found.values()) < 2.0
        state = "confirmed" if near else "not confirmed"
        texts.append(f"{state} for {sweep}, ratios in all from {min(found.values()):.2f} to {max(found.values()):.2f}")
    return "; ".join(texts)


GCSS = {"gcss": "our GCSS", "plain": "the plain one"}


def _longer(rows: list[Row]) -> str:
    texts = []
    for to, label in GCSS.items():
        k, ratio = max((key[2], value) for key, value in _medians(rows, "k", to=to).items())
        texts.append(
            f"{'confirmed' if ratio > 1.1 else 'not confirmed'} against {label}, {ratio:.2f} times at k = {k:,}"
        )
    return "; ".join(texts)


def _converges(rows: list[Row]) -> str:
    """Look at the last values of k, from half of the largest on: the ratio must stay within a fifth of its median."""
    texts = []
    for to, label in GCSS.items():
        found = sorted((key[2], value) for key, value in _medians(rows, "k", to=to).items())
        last = [(k, value) for k, value in found if k >= found[-1][0] / 2]
        middle = float(np.median([value for _, value in last]))
        within = max(abs(value / middle - 1) for _, value in last)
        state = "not tested" if len(last) < 2 else "confirmed" if within <= 0.2 else "not confirmed"
        ks = f"k = {last[0][0]:,} to {last[-1][0]:,}"
        texts.append(f"{state} against {label}, for {ks} within {100 * within:.0f} % of {middle:.2f}")
    return "; ".join(texts)


def _unsteady(rows: list[Row]) -> str:
    """Say how far equal measurements lie apart."""
    apart = [
        max(row[name] for row in some) / min(row[name] for row in some)
        for some in _group(rows).values()
        for name in ("gcss_s", "rgcss_s", "plain_s")
    ]
    middle = float(np.median(apart))
    busy = ", so the machine had other work to do: look at ratios, not at times" if middle > 1.2 else ""
    return f"The slowest of equal measurements takes {middle:.1f} times as long as the fastest (median){busy}.\n"


def draw(out: Path) -> None:
    """Draw both times over each parameter, and the ratio over k."""
    rows = Table(out, NAME).rows()
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    axes = figure.subplots(1, 4)
    for ax, sweep in zip(axes, SWEEPS, strict=False):
        groups = _group([row for row in rows if row["sweep"] == sweep])
        x = [key["smnk".index(sweep)] for key in groups]
        for name in ("gcss", "rgcss"):
            whole = [[row[f"{name}_s"] + row["source_s"] for row in some] for some in groups.values()]
            ax.plot(x, [np.median(times) for times in whole], marker=".", label=name.upper())
            ax.fill_between(x, [min(times) for times in whole], [max(times) for times in whole], alpha=0.2)
        ax.set(xscale="log", yscale="log", xlabel=f"{sweep} ({SWEEPS[sweep]})", ylabel="seconds, in all")
        ax.xaxis.label.set_size(7)
    axes[0].legend(fontsize=7)
    found = sorted((key[2], value) for key, value in _medians(rows, "k").items())
    axes[3].plot(*zip(*found, strict=True), marker=".", label="here")
    plain = sorted((key[2], value) for key, value in _medians(rows, "k", to="plain").items())
    axes[3].plot(*zip(*plain, strict=True), marker=".", label="here, to plain GCSS")
    axes[3].axhspan(*RUNNING_TIME_RATIO, alpha=0.2, color="grey", label="paper")
    axes[3].set(xscale="log", xlabel="k", ylabel="RGCSS / GCSS, selections", ylim=(0, None))
    axes[3].legend(fontsize=7)
    figure.savefig(out / f"{NAME}.png", dpi=90)

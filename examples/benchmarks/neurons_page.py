"""The page of the benchmark of neurons, and its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from examples.benchmarks.neurons_model import BATCH, LAM, LARGE, LAYERS, LENGTH, LOUD, OURS, RANDOM, WIDTH
from examples.benchmarks.tables import markdown
from rgcss_dask.core.downstream import standard_error

Row = dict[str, Any]
Left = Sequence[tuple[str, float, str]]  # way, share and rest that are not measured yet

TENTH, GOAL = 0.1, 0.99
TURN, IN_TURN = "ours, aimed in turn", "in turn"
CURVES = [(TURN, IN_TURN), (LARGE, IN_TURN), (OURS, "rebuilt"), (LARGE, "rebuilt"), (RANDOM, "rebuilt")]
REST = {
    "rebuilt": "rebuilt from the picked ones",
    "mean": "at their means",
    "zero": "at zero",
    IN_TURN: "what layers hand on rebuilt in turn",
}
DATA = """\
All {layers} x {width:,} neurons of all-MiniLM-L6-v2 were recorded on {tokens:,} tokens: of half of the {all_texts:,}
fortunes of Debian{glosses}. Of the other half, {texts:,} fortunes are embedded by the model with the picked
neurons as they are; the tables name how all other neurons are filled in. The cosine is that of the embedding with the
one of the whole model, mean and standard error over texts. *Nearest* is how often the nearest other text stays the
same.
"""
AT_ONCE = """\
All others are made of the picked ones of their layer by ridge regression on the tokens recorded (lambda {lam:g}), or
put at their means or at zero. *Explained* is the share of the variation of all neurons on the tokens recorded.
*{loud}*: the mean square of a neuron times the squared norm of its outgoing weights.
"""
TURNED = """\
A layer hands on the sum of what its neurons and its attention give. Here this sum is rebuilt, layer by layer, from the
picked neurons and the attention as they are behind the rebuilt layers before it, by ridge regression on {fitted:,} of
the tokens. So nothing but a tenth of the neurons is ever computed, and a layer makes up for some of what those before
it lost. *{turn}*: each layer is picked there too, for what the sum lacks. *Explained* is the share of the variation of
what the sum lacks without neurons. All others have the picks of the table above.
"""


def document(found: dict[str, Any], left: Left) -> str:
    """Return the page."""
    at_once, in_turn = (
        [row for row in found["rows"] if (row["rest"] == IN_TURN) is turned] for turned in (False, True)
    )
    tenth, turned = ([row for row in rows if row["share"] == TENTH] for rows in (at_once, in_turn))
    heads = ["picked by", "the others", "explained", "cosine", "a tenth of the texts is below", "nearest"]
    words = {"glosses": "", "all_texts": found["all texts"], "layers": LAYERS, "width": WIDTH}
    if found["glosses"]:
        words["glosses"] = f", and of {found['glosses']:,} definitions of WordNet"
    words |= {name: found[name] for name in ("tokens", "texts")}
    parts = [
        "# Neurons of a sentence model\n",
        "`python -m examples.benchmarks.neurons` wrote this page. "
        + ", ".join(f"{name} {number}" for name, number in found["versions"].items())
        + (". A quick run: it shows that everything works.\n" if found["quick"] else ".\n"),
        DATA.format(**words),
        *statements(tenth + turned),
        "## A tenth of the neurons, all layers at once\n",
        AT_ONCE.format(lam=LAM, loud=LOUD),
        markdown(heads, [_line(row) for row in _grouped(tenth)]),
        "## A tenth of the neurons, layer after layer\n",
        TURNED.format(fitted=found["fitted"], turn=TURN),
        markdown([heads[0], *heads[2:]], [_line(row)[:1] + _line(row)[2:] for row in _grouped(turned)]),
        "## Other shares\n",
        "![The cosine with the whole model over the share of neurons that are kept](neurons.png)\n",
        markdown(["share", *heads[:4], heads[5]], [_share_line(row) for row in _over_shares(found["rows"])]),
        *_layers(tenth),
        "## What was left out\n",
        *left_out(found, left),
    ]
    return "\n".join(parts)


def statements(tenth: Sequence[Row]) -> Iterator[str]:
    """Say whether the goal is met, and where ours is behind."""
    best = max(tenth, key=lambda row: row["cosine"])
    met = "That meets" if best["cosine"] >= GOAL else "That does not meet"
    yield f"- The best of a tenth is {best['way']}, {REST[best['rest']]}: {_cosine(best)}. {met} the goal of {GOAL:g}."
    for rest, words in REST.items():
        rows = _grouped([row for row in tenth if row["rest"] == rest])
        ours, peers = ([row for row in rows if row["way"].startswith(OURS) is own] for own in (True, False))
        if ours and peers:
            first, other = ours[0], peers[0]
            ahead = "ahead of" if first["cosine"] > other["cosine"] else "behind"
            yield (
                f"- {words[0].upper()}{words[1:]}: the best of ours ({first['way']}) is {ahead} the best of the others "
                f"({other['way']}), {_cosine(first)} and {_cosine(other)}."
            )
    yield ""


def left_out(found: dict[str, Any], left: Left) -> Iterator[str]:
    """Say what is not here, and what the run took."""
    seconds = found["seconds"]
    yield (
        f"- Recording took {seconds['record']:.0f} s of the processor, and the pass over the {WIDTH:,} neurons of each "
        f"layer {seconds['pass']:.0f} s. Texts are cut at {LENGTH} tokens; the model sees {BATCH} at once."
    )
    if found["together"] < found["tokens"]:
        yield (
            f"- Across layers, which takes the products of {LAYERS * WIDTH:,} neurons, {found['together']:,} of the "
            "tokens count, drawn at random."
        )
    if found["tokens"] < 1_000_000:
        yield f"- Tokens: {found['tokens']:,} and not a million."
    yield "- The explained shares are of the tokens fitted by, the cosines of other texts."
    yield (
        "- One half of the fortunes for picking, the other for embedding, drawn once; random picks are of "
        f"{found['seeds']} seeds. Definitions differ from fortunes: picks are made for a mixture of both."
    )
    if left:
        unmeasured = "; ".join(f"{way}, {REST[rest]}, {share:.0%}" for way, share, rest in dict.fromkeys(left))
        yield f"- Not measured, because the run was ended before; the same command goes on there: {unmeasured}."
    yield (
        "- That sums are rebuilt in turn, and not what neurons give alone, was settled on 10,000 tokens and 200 texts "
        "of another draw, which shares texts with these."
    )
    yield "- Nothing was trained by gradients after the picks. No probes, and no other method of pruning.\n"


def _grouped(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the seeds of random picks together."""
    apart = [row for row in rows if row["way"] != RANDOM]
    for share in dict.fromkeys(row["share"] for row in rows):
        drawn = [row for row in rows if (row["way"], row["share"]) == (RANDOM, share)]
        if drawn:
            mean = {name: float(np.mean([row[name] for row in drawn])) for name in ("cosine", "tenth", "nearest")}
            cosines = np.array([row["cosine"] for row in drawn])
            spread = standard_error(cosines) if len(drawn) > 1 else 0.0
            error = float(np.hypot(spread, np.mean([row["error"] for row in drawn])))
            explained = np.mean([row["explained"] for row in drawn], axis=0).tolist()
            apart.append({**drawn[0], **mean, "error": error, "explained": explained})
    return sorted(apart, key=lambda row: -row["cosine"])


def _over_shares(rows: Sequence[Row]) -> list[Row]:
    """Return the ways that were tried at every share, those of a share together."""
    found = [row for way, rest in CURVES for row in _of(rows, way, rest)]
    return sorted(found, key=lambda row: row["share"])


def _of(rows: Sequence[Row], way: str, rest: str) -> list[Row]:
    """Return what one way reached at each share."""
    own = [row for row in rows if (row["way"], row["rest"]) == (way, rest)]
    return [_grouped([row for row in own if row["share"] == share])[0] for share in sorted({r["share"] for r in own})]


def _cosine(row: Row) -> str:
    return f"{row['cosine']:.3f} ± {row['error']:.3f}"


def _line(row: Row) -> list[str]:
    explained = f"{np.mean(row['explained']):.1%}"
    return [row["way"], REST[row["rest"]], explained, _cosine(row), f"{row['tenth']:.3f}", f"{row['nearest']:.0%}"]


def _share_line(row: Row) -> list[str]:
    line = _line(row)
    return [f"{row['share']:.0%}", *line[:4], line[5]]


def _layers(tenth: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say how much of each layer is explained, and where picks across layers went."""
    rows = [row for row in _grouped(tenth) if row["rest"] == "rebuilt"]
    yield "## Layer by layer\n"
    yield "Explained by a tenth; in brackets how many were picked. Across layers, of this layer and those before it.\n"
    heads = ["picked by", *(str(number + 1) for number in range(LAYERS))]
    cells = [
        [row["way"], *(f"{e:.1%} ({k})" for e, k in zip(row["explained"], row["of layers"], strict=True))]
        for row in rows
    ]
    yield markdown(heads, cells)


def picture(found: dict[str, Any], path: Path) -> None:
    """Draw the cosine over the share of the neurons that are kept."""
    plt = import_module("matplotlib.pyplot")
    figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for way, rest in CURVES:
        rows = _of(found["rows"], way, rest)
        shares, cosines, errors = ([row[name] for row in rows] for name in ("share", "cosine", "error"))
        label = way if way == TURN else f"{way}, {'in turn' if rest == IN_TURN else 'at once'}"
        style = "-" if rest == IN_TURN else "--"
        ax.errorbar(100 * np.array(shares), cosines, errors, marker="o", linestyle=style, label=label)
    ax.set(xlabel="neurons kept, % of each layer", ylabel="cosine with the whole model")
    ax.legend(title="picked by, rebuilt", fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    plt.close(figure)

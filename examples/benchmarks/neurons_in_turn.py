"""A sentence model with few of its neurons, rebuilt layer by layer: each layer behind the rebuilt ones before it.

A layer hands on the sum of what its attention gives and what its neurons give. Behind rebuilt layers the attention is
not that of the whole model; the picked neurons of a layer are fitted to all that the sum of the whole model has and
this attention has not, so that a layer makes up for some of what those before it lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import rgcss_dask as rg
from examples.benchmarks.neurons_model import Array, Index, Sentences, ridge, unit

Pick = Callable[[int, rg.Moments], Index]  # from the number of a layer and the moments of its neurons and of what lacks


class Batch(NamedTuple):
    """Some texts on their way through the model."""

    states: Any  # (texts, tokens, width of what layers hand on)
    real: Any  # (texts, tokens) whether it is a token, and not padding
    added: Any  # what attention adds before its softmax: padding gets no weight


class InTurn:
    """The layers of the model one at a time, for some texts to fit by and others to embed."""

    def __init__(self, sentences: Sentences, learnt: Sequence[str], held_out: Sequence[str]) -> None:
        self.torch, self.model, self.batches = sentences.torch, sentences.model, sentences.batches
        self.layers = list(sentences.model.encoder.layer)
        self.learnt, self.held_out = self._begun(learnt), self._begun(held_out)
        self.sums = self._sums()

    @property
    def tokens(self) -> int:
        """How many tokens the layers are fitted by."""
        return sum(int(batch.real.sum()) for batch in self.learnt)

    def rebuilt(self, pick: Pick) -> tuple[Array, list[float], list[int]]:
        """Return the embeddings, what of each sum the picked neurons explain, and how many were picked."""
        learnt, held_out, explained, counts = self.learnt, self.held_out, [], []
        with self.torch.inference_mode():
            for number in range(len(self.layers)):
                seen = [self._attended(number, batch) for batch in learnt]
                moments = rg.scan(self._rows(number, seen), precision="single", progress=False)
                width = self.layers[number].intermediate.dense.out_features
                fitted = Fitted.of(moments, pick(number, moments), width)
                explained.append(fitted.explained)
                counts.append(len(fitted.picked))
                given = self._given(fitted)
                learnt = [self._passed(number, one, *both, given) for one, both in zip(learnt, seen, strict=True)]
                held_out = [self._passed(number, one, *self._attended(number, one), given) for one in held_out]
        return self._embedded(held_out), explained, counts

    def _begun(self, texts: Sequence[str]) -> list[Batch]:
        found = []
        with self.torch.inference_mode():
            for batch in self.batches(texts):
                mask = batch["attention_mask"]
                kinds = {name: batch[name] for name in ("input_ids", "token_type_ids")}
                added = (1.0 - mask[:, None, None, :].float()) * self.torch.finfo(self.torch.float32).min
                found.append(Batch(self.model.embeddings(**kinds), mask.bool(), added))
        return found

    def _sums(self) -> list[list[Any]]:
        """Return what the layers of the whole model hand on, before it is normalised, for the texts to fit by."""
        found: list[list[Any]] = []
        batches = self.learnt
        with self.torch.inference_mode():
            for number, layer in enumerate(self.layers):
                seen = [self._attended(number, batch) for batch in batches]
                found.append([layer.output.dense(neurons) + attention for attention, neurons in seen])
                normed = [layer.output.LayerNorm(one) for one in found[-1]]
                batches = [batch._replace(states=states) for batch, states in zip(batches, normed, strict=True)]
        return found

    def _attended(self, number: int, batch: Batch) -> tuple[Any, Any]:
        """Return what the attention of a layer gives, and its neurons."""
        attention = self.layers[number].attention(batch.states, batch.added)[0]
        return attention, self.layers[number].intermediate(attention)

    def _rows(self, number: int, seen: Sequence[tuple[Any, Any]]) -> NDArray[np.float32]:
        """Return the neurons of each token, and what its sum lacks without them."""
        rows = [
            self.torch.cat([neurons, whole - attention], dim=-1)[batch.real]
            for batch, whole, (attention, neurons) in zip(self.learnt, self.sums[number], seen, strict=True)
        ]
        return np.asarray(self.torch.cat(rows).numpy())

    def _given(self, fitted: Fitted) -> Any:
        tensor = lambda values: self.torch.tensor(values, dtype=self.torch.float32)  # noqa: E731
        picked, weights, start = fitted.picked, tensor(fitted.weights), tensor(fitted.start)
        return lambda neurons: neurons[..., picked] @ weights + start

    def _passed(self, number: int, batch: Batch, attention: Any, neurons: Any, given: Any) -> Batch:
        return batch._replace(states=self.layers[number].output.LayerNorm(given(neurons) + attention))

    def _embedded(self, batches: Sequence[Batch]) -> Array:
        means = []
        for batch in batches:
            real = batch.real.unsqueeze(-1)
            means.append(((batch.states * real).sum(1) / real.sum(1)).double().numpy())
        return unit(np.vstack(means))


class Fitted(NamedTuple):
    """What the picked neurons of a layer are multiplied with."""

    picked: Index
    weights: Array  # (picked, width of what layers hand on)
    start: Array  # added to it
    explained: float  # share of the variation of what lacks

    @classmethod
    def of(cls, moments: rg.Moments, picked: Index, width: int) -> Fitted:
        """Fit what lacks, which are the columns behind the neurons, by ridge regression."""
        gram, lacking = moments.gram(center=True), slice(width, moments.n)
        weights = ridge(gram, picked, lacking)
        left = 2.0 * gram[picked, lacking] - gram[np.ix_(picked, picked)] @ weights
        explained = float((weights * left).sum() / gram[lacking, lacking].trace())
        return cls(picked, weights, moments.mean[lacking] - moments.mean[picked] @ weights, explained)

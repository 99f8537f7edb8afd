"""Activations of a model, written to Zarr while it runs: a row for each token and a column for each neuron."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.rebuild import fitted
from rgcss_dask.core.words import listed
from rgcss_dask.io.matrix_writer import Told, checked_target, write_matrix

Keep = str | Callable[[Any], Any]
Taken = dict[str, list[NDArray[Any]]]  # outputs of the layers for one batch, each (rows, neurons)


def record_activations(
    model: Any,
    batches: Iterable[Any],
    path: str | Path,
    *,
    layers: str | Sequence[str],
    keep: Keep | None = None,
    axis: int = -1,
    dtype: DTypeLike = "float16",
    told: Told | None = None,
) -> int:
    """Run a PyTorch model and write the outputs of its layers to a Zarr array, out of core; return the number of rows.

    Each row is a token, or another position to which a layer is applied; each column is a neuron, named by its layer
    and its number. `scan` and `select` then find the neurons that explain the others. The array appears when it is
    complete; at most one batch is in memory. The model runs in evaluation mode, without gradients. PyTorch is needed,
    ``pip install 'rgcss-dask[torch]'``; this package itself never imports it.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    batches : iterable of mapping, tuple or tensor
        Inputs of the model, batch by batch: a mapping as keyword arguments, a tuple as arguments.
    path : str or Path
        Local path of the array to make.
    layers : str or sequence of str
        Names of modules as in ``model.named_modules()``, or patterns such as ``"encoder.layer.*.intermediate"``. Their
        outputs are recorded; if an output is a tuple, its first element.
    keep : str or callable, optional
        Which rows to keep: the key of the mask in a batch, such as ``"attention_mask"``, or a function that returns the
        mask of a batch. The mask has the shape of an output without the axis of neurons.
    axis : int, default=-1
        The axis of neurons in an output: 1 for the channels of images.
    dtype : dtype, default="float16"
        Type of the written values; a value that does not fit raises an error.
    told : callable, optional
        Called with the number of rows after each chunk is written.

    Returns
    -------
    int
        The number of rows written.

    Examples
    --------
    This example is not run here, because it needs PyTorch.

    >>> import torch  # doctest: +SKIP
    >>> import rgcss_dask as rg
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU())  # doctest: +SKIP
    >>> batches = (torch.randn(64, 4) for _ in range(10))  # doctest: +SKIP
    >>> rg.record_activations(model, batches, "neurons.zarr", layers="1")  # doctest: +SKIP
    640
    >>> rg.select("neurons.zarr", 8, center=True).names[:2]  # doctest: +SKIP
    ('1.17', '1.4')
    """
    written = np.dtype(dtype)
    if written.kind != "f":
        raise WrongKindError(
            f"activations are real numbers, so dtype must be a float such as 'float16'; got {dtype!r}."
        )
    checked_target(path)
    modules = _named(model, [layers] if isinstance(layers, str) else list(layers))
    with _recording(model, modules, axis, written) as taken:
        blocks = _blocks(model, batches, taken, keep)
        first = next(blocks, None)
        if first is None:
            raise ValueError("there must be batches to run the model on; there is none.")
        names = [f"{layer}.{i}" for layer, (block,) in taken.items() for i in range(block.shape[-1])]
        return write_matrix(
            path,
            lambda start: chain([first], blocks),
            len(names),
            written,
            made_from=lambda: None,  # it is unknown whether the model would give the same outputs again
            names=names,
            told=told,
        )


def _named(model: Any, patterns: Sequence[str]) -> dict[str, Any]:
    """Return the modules that match the patterns, in the order of the model."""
    if not all(hasattr(model, name) for name in ("named_modules", "train", "training")):
        raise WrongKindError(
            f"model must be a torch.nn.Module; got {type(model).__module__}.{type(model).__qualname__}."
        )
    there = {name: module for name, module in model.named_modules() if name}
    found = {name for pattern in patterns for name in there if fnmatchcase(name, pattern)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in there):
            near = difflib.get_close_matches(pattern, there, n=5)
            modules = f"Near it: {listed(near)}" if near else f"The modules are {listed(list(there))}"
            raise ValueError(f"each layer must be a module of the model; {pattern!r} matches none. {modules}.")
    if not found:
        raise ValueError("layers must name modules of the model; none was given.")
    return {name: module for name, module in there.items() if name in found}


@contextmanager
def _recording(model: Any, modules: dict[str, Any], axis: int, dtype: np.dtype[Any]) -> Iterator[Taken]:
    """Register hooks on modules, and remove them afterwards; in the meantime the model is in evaluation mode."""
    taken: Taken = {name: [] for name in modules}
    training = [(module, module.training) for _, module in model.named_modules()]
    hooks = []
    torch = sys.modules.get("torch")  # a model of PyTorch implies that PyTorch is imported
    try:
        model.train(False)
        for name, module in modules.items():
            hooks.append(module.register_forward_hook(partial(_take, taken[name], name, axis, dtype)))
        with nullcontext() if torch is None else torch.inference_mode():
            yield taken
    finally:
        for hook in hooks:
            hook.remove()
        for module, was in training:
            module.training = was


def _take(
    into: list[NDArray[Any]], name: str, axis: int, dtype: np.dtype[Any], module: Any, given: Any, output: Any
) -> None:
    """Store an output as rows of neurons; PyTorch calls this hook after a module has run."""
    output = output[0] if isinstance(output, tuple | list) and output else output
    if not hasattr(output, "detach") or output.ndim < 2:
        shape = f" of shape {tuple(output.shape)}" if hasattr(output, "shape") else ""
        raise WrongKindError(
            f"a layer must give a tensor of rows and neurons; {name} gives {type(output).__name__}{shape}."
        )
    values = output.detach().cpu()
    exact = values.double() if dtype.itemsize > 4 else values.float()  # NumPy has no bfloat16
    rows = np.moveaxis(exact.numpy(), axis, -1)
    try:
        into.append(fitted(rows, dtype))
    except ValueError as error:
        raise ValueError(f"layer {name}: {error}") from error


def _blocks(model: Any, batches: Iterable[Any], taken: Taken, keep: Keep | None) -> Iterator[NDArray[Any]]:
    """Yield the rows of each batch; the outputs of its layers are in ``taken`` at that time."""
    for number, batch in enumerate(batches):
        for outputs in taken.values():
            outputs.clear()
        if isinstance(batch, tuple | list):
            model(*batch)
        elif hasattr(batch, "keys"):
            model(**batch)
        else:
            model(batch)
        yield _beside(taken, None if keep is None else _mask(keep, batch), number)


def _mask(keep: Keep, batch: Any) -> NDArray[np.bool_]:
    found = batch[keep] if isinstance(keep, str) else keep(batch)
    return np.asarray(found.detach().cpu().numpy() if hasattr(found, "detach") else found).astype(bool)


def _beside(taken: Taken, mask: NDArray[np.bool_] | None, number: int) -> NDArray[Any]:
    """Concatenate the outputs of the layers of a batch, and leave out rows outside the mask."""
    for name, outputs in taken.items():
        if len(outputs) != 1:
            raise ValueError(
                f"each layer must run once in a batch; {name} ran {len(outputs)} times in batch {number}. Leave it out."
            )
    shapes = {name: outputs[0].shape[:-1] for name, outputs in taken.items()}
    wanted = next(iter(shapes.values())) if mask is None else mask.shape
    for name, shape in shapes.items():
        if shape != wanted:
            of = "the other layers" if mask is None else "what says which rows to keep"
            raise ValueError(
                f"all must have the same rows; in batch {number} layer {name} has {shape}, {of} {wanted}. Record such "
                "layers apart."
            )
    kept = slice(None) if mask is None else mask.ravel()
    return np.hstack([outputs[0].reshape(-1, outputs[0].shape[-1])[kept] for outputs in taken.values()])

"""Target columns next to the columns of a source: the same rows, read together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import plain
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.dask import DaskSource
from rgcss_dask.sources.row_vectors import StoredVector, is_dask_array
from rgcss_dask.sources.zarr import ZarrSource


@dataclass(frozen=True, eq=False)
class Targets:
    """Target columns, read in slices of rows: numbers, or an indicator of each class."""

    values: Any  # (m,) or (m, q): an array of NumPy or Dask, or stored in Zarr
    classes: NDArray[Any] | None  # one indicator each; None: the values are numbers
    names: tuple[str, ...]  # (q,)

    @classmethod
    def of(cls, y: Any, rows: int, classes: NDArray[Any] | None = None) -> Targets:
        """Open y; floats are numbers, values of any other type are classes.

        ``classes`` are the classes of an earlier fit; y may lack some of them.
        """
        names = tuple(str(name) for name in getattr(y, "columns", ())) or None
        values = _opened(y)
        if len(values.shape) not in (1, 2) or values.shape[0] != rows:
            raise ValueError(f"y must have one entry per row of X, {rows:,}; got shape {tuple(values.shape)}.")
        if np.dtype(values.dtype).kind == "f":
            return cls(values, None, names or _numbered("y", values.shape[1] if len(values.shape) == 2 else 1))
        if len(values.shape) == 2:
            raise ValueError("y of classes must have one column; give floats if its columns are numbers.")
        found = _classes(values, known=classes)
        return cls(values, found, tuple(f"y={label}" for label in found))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the columns."""
        return np.dtype(self.values.dtype) if self.classes is None else np.dtype(np.uint8)

    def columns(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the columns of some rows, (rows, q)."""
        if self.classes is None:
            return values.reshape(len(values), -1)
        return (values[:, None] == self.classes).astype(np.uint8)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the columns of rows start to stop."""
        return self.columns(np.asarray(self.values[start:stop]))


def _opened(y: Any) -> Any:
    """Return an object with a shape that can be sliced."""
    if isinstance(y, str | Path) or ZarrSource.takes(y):
        stored = ZarrSource.of(y, Reading())
        values: Any = StoredVector.of(stored)
        return values if len(values.shape) == 1 else stored.array
    if is_dask_array(y) or hasattr(y, "to_dask_array"):
        return y.to_dask_array(lengths=True) if hasattr(y, "to_dask_array") else y
    values = np.asarray(y) if np.asarray(y).dtype.kind in "OUS" else plain(y)
    if values.dtype.kind not in "biufOUS":
        raise WrongKindError(f"y must hold numbers or classes; got dtype {values.dtype}.")
    return values


def _classes(values: Any, *, known: NDArray[Any] | None) -> NDArray[Any]:
    """Return the classes, each of at least two rows, or the known classes."""
    step, counts = 2**22, dict[Any, int]()
    if is_dask_array(values):
        values = values.compute()
    for start in range(0, values.shape[0], step):
        found, sizes = np.unique(np.asarray(values[start : start + step]), return_counts=True)
        for label, count in zip(found.tolist(), sizes.tolist(), strict=True):
            counts[label] = counts.get(label, 0) + count
    if known is not None:
        others = [label for label in counts if label not in set(known.tolist())]
        if others:
            raise ValueError(
                f"y must have only the classes of fit; it also has {others[0]!r}. Leave out its rows, or fit again."
            )
        return known
    alone = [label for label, count in counts.items() if count < 2]
    if alone:
        raise ValueError(f"each class of y must have two rows or more; {alone[0]!r} has one. Leave that row out.")
    if len(counts) < 2:
        raise ValueError("y must have two classes or more; it has one. Give floats if y holds numbers.")
    return np.array(sorted(counts))


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}{i}" for i in range(count))


class BesideSource(Source):
    """The columns of a source, followed by target columns."""

    def __init__(self, source: Source, targets: Targets) -> None:
        self._source, self._targets = source, targets
        self.shape = (source.shape[0], source.shape[1] + len(targets.names))
        self.dtype = np.result_type(source.dtype, targets.dtype)
        self.names = beside_names(source.names, targets)
        self.address, self.waits, self.unguarded = source.address, source.waits, source.unguarded

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: users have no objects of this kind."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Return the source itself."""
        return thing

    @property
    def cuts(self) -> Cuts:
        """The cuts of the source."""
        return self._source.cuts

    @property
    def processes(self) -> bool:
        """Whether other processes can read the source."""
        return self._source.processes

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the source and the targets on this machine."""
        stored = self._targets.values
        return self._source.paths + (stored.source.paths if isinstance(stored, StoredVector) else ())

    @property
    def places(self) -> tuple[str, ...]:
        """Places of the source."""
        return self._source.places

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of the source that hold some of the rows."""
        return self._source.files(start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows of the source and the targets."""
        both = (self._source.read(start, stop), self._targets.read(start, stop))
        return np.concatenate(both, axis=1, dtype=self.dtype)

    def read_block(self, start: int, stop: int) -> NDArray[Any] | SparseRows:
        """Return rows of both, sparse where those of the source are."""
        block, targets = self._source.read_block(start, stop), self._targets.read(start, stop)
        if isinstance(block, SparseRows):
            return block.beside(targets, self.dtype)
        return np.concatenate((block, targets), axis=1, dtype=self.dtype)


def beside_names(names: tuple[str, ...] | None, targets: Targets) -> tuple[str, ...] | None:
    """Return the names of columns and targets; a target with the name of a column is renamed."""
    if names is None:
        return None
    return names + tuple(name if name not in names else f"target {name}" for name in targets.names)


def with_targets(source: Source, targets: Targets) -> Source:
    """Return a source of columns and targets; a Dask source if the columns are one."""
    if not isinstance(source, DaskSource):
        if is_dask_array(targets.values):
            targets = Targets(targets.values.compute(), targets.classes, targets.names)
        return BesideSource(source, targets)
    rows, q = source.array.chunks[0], len(targets.names)
    values = targets.values
    if not is_dask_array(values):
        values = da.from_array(np.asarray(values[:]), chunks=-1)  # type: ignore[no-untyped-call]
    values = values.rechunk({0: rows})
    made: Callable[[Any], Any] = targets.columns
    axes: dict[str, Any] = {"new_axis": 1} if values.ndim == 1 else {}
    columns = values.map_blocks(made, chunks=(rows, (q,)), dtype=targets.dtype, meta=np.empty((0, 0)), **axes)
    both = da.concatenate([source.array, columns], axis=1).rechunk({1: -1})  # type: ignore[no-untyped-call]
    return DaskSource(both, beside_names(source.names, targets))

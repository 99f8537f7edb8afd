"""Vectors with one number for each row, weights or a mask, in any storage and with any chunks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import compute, is_dask_collection, optimize
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import flawed_weight, plain
from rgcss_dask.core.partial_sums import weights_checksum
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.sources.base import Reading, crc32
from rgcss_dask.sources.packed_integers import decoded, digest, packing
from rgcss_dask.sources.zarr import ZarrSource


@dataclass(frozen=True)
class StoredVector:
    """A Zarr array of one number for each row; packed numbers are decoded after reading."""

    source: ZarrSource
    packing: dict[str, Any]

    @classmethod
    def of(cls, source: ZarrSource) -> StoredVector:
        """Wrap an array, with the packing of its numbers."""
        return cls(source, packing(source.array))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, (m,)."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype after decoding."""
        return self._decoded(np.empty(0, self.source.dtype)).dtype

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._decoded(np.asarray(self.source.array[rows]))

    def fingerprint(self, rows: int) -> str:
        """Identify the stored content and its packing."""
        stamps = self.source.stamps(np.array([0, rows])) or ()
        packed = (digest(self.packing),) if self.packing else ()
        return " ".join((str(self.source.array.store_path), str(self.source.dtype), *stamps, *packed))

    def _decoded(self, values: NDArray[Any]) -> NDArray[Any]:
        return decoded(values, self.packing, self.source.address) if self.packing else values


@dataclass(frozen=True)
class RowVector:
    """Weights or a mask: an array that is sent in slices, a Zarr array that is read, or a Dask array."""

    what: str
    values: Any
    fingerprint: str  # identifies the content at the time of planning

    @classmethod
    def of(cls, thing: Any, what: str, rows: int, reading: Reading) -> RowVector:
        """Open a vector, and check that it has one entry per row."""
        values: Any = thing
        if isinstance(thing, str | Path) or ZarrSource.takes(thing):
            values = StoredVector.of(ZarrSource.of(thing, reading))
        elif not is_dask_array(values):
            values = plain(thing)
        elif any(np.isnan(s) for s in values.shape):
            values = values.compute_chunk_sizes()
        if values.shape != (rows,):
            raise ValueError(f"{what} must have one entry per row; got shape {values.shape} for {rows:,} rows.")
        if isinstance(values, np.ndarray):
            checked_entries(what, values, 0)
            return cls(what, values, f"crc32 {crc32(values):08x}")
        _check_kind(what, values.dtype)
        stored = isinstance(values, StoredVector)
        return cls(what, values, values.fingerprint(rows) if stored else f"{values.name} {values.dtype}")

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of a Zarr array on this machine."""
        return self.values.source.paths if isinstance(self.values, StoredVector) else ()

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of this machine that hold the entries of some rows."""
        return self.values.source.files(start, stop) if isinstance(self.values, StoredVector) else []

    def checksums(self, edges: Cuts) -> list[int]:
        """Return the checksums of the weights of each row range, as a pass computes them."""
        slices = (self.values[int(a) : int(b)] for a, b in pairwise(edges))
        read = compute(*slices) if is_dask_array(self.values) else slices  # type: ignore[no-untyped-call]
        return [weights_checksum(np.asarray(one)) for one in read]

    def inputs(self, edges: Cuts) -> tuple[dict[Any, Any], list[Any]]:
        """Return a Dask graph and, for each row range, the input of its task: a key, a slice, or the Zarr array."""
        if isinstance(self.values, np.ndarray):
            return {}, [self.values[a:b] for a, b in pairwise(edges)]
        if isinstance(self.values, StoredVector):
            return {}, [self.values] * (len(edges) - 1)
        inner = self.values[int(edges[0]) : int(edges[-1])].rechunk((tuple(np.diff(edges).tolist()),))
        (array,) = optimize(inner)  # type: ignore[no-untyped-call]
        return dict(array.__dask_graph__()), array.__dask_keys__()


def is_dask_array(thing: Any) -> bool:
    """Recognise a Dask array without importing dask.array, which would double the import time on workers."""
    return is_dask_collection(thing) and hasattr(thing, "compute_chunk_sizes")


def checked_entries(what: str, values: NDArray[Any], start: int) -> NDArray[Any]:
    """Return the entries from row ``start`` on, or raise an error that names an invalid or missing entry."""
    flaw = None
    if values.dtype.kind == "f" and what == "rows" and np.isnan(values).any():
        row = start + int(np.argmax(np.isnan(values)))
        flaw = f"rows must be True or False for every row; row {row:,} is masked. Fill the gaps of the mask."
    elif values.dtype.kind in "biuf" and what == "weights":
        flaw = flawed_weight(values, start)
    if flaw is not None:
        raise ValueError(flaw)
    _check_kind(what, values.dtype)
    return values


def _check_kind(what: str, dtype: Any) -> None:
    if np.dtype(dtype).kind not in ("b" if what == "rows" else "biuf"):
        rule = "be a boolean mask, a slice or a fraction" if what == "rows" else "be real numbers"
        raise WrongKindError(f"{what} must {rule}; got dtype {dtype}.")

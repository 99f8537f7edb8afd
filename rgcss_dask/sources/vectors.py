"""One number for each row, weights or a mask, wherever it is kept and however it is chunked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import zarr
from dask.base import is_dask_collection, optimize
from numpy.typing import NDArray

from rgcss_dask.core.plan import Cuts
from rgcss_dask.sources.base import Reading, crc32
from rgcss_dask.sources.zarr import ZarrSource, local_paths


@dataclass(frozen=True)
class Vector:
    """Weights or a mask: an array that is sent in slices, a Zarr array that is read, or a Dask array."""

    what: str
    values: Any
    state: str = ""  # of the stored chunks when the pass was planned

    @classmethod
    def of(cls, thing: Any, what: str, rows: int, reading: Reading) -> Vector:
        """Open it, and check that it has one entry per row."""
        stored = ZarrSource.of(thing, reading) if ZarrSource.takes(thing) else None
        values: Any = thing if stored is None else stored.array
        if stored is None and not is_dask_array(values):
            values = np.asarray(values)
        if is_dask_array(values) and any(np.isnan(s) for s in values.shape):
            values = values.compute_chunk_sizes()
        if values.shape != (rows,):
            raise ValueError(f"{what} must have one entry per row; got shape {values.shape} for {rows:,} rows.")
        kinds = "b" if what == "rows" else "biuf"
        if np.dtype(values.dtype).kind not in kinds:
            rule = "be a boolean mask, a slice or a fraction" if what == "rows" else "be real numbers"
            raise TypeError(f"{what} must {rule}; got dtype {values.dtype}.")
        if isinstance(values, np.ndarray):
            checked_entries(what, values, 0)
        stamps = None if stored is None else stored.stamps(np.array([0, rows]))
        return cls(what, values, "" if stamps is None else stamps[0])

    @property
    def fingerprint(self) -> str:
        """Tell this vector from others."""
        if isinstance(self.values, np.ndarray):
            return f"crc32 {crc32(self.values):08x}"
        name = self.values.name if is_dask_array(self.values) else str(self.values.store_path)
        return f"{name} {self.values.dtype} {self.state}".rstrip()

    @property
    def paths(self) -> tuple[str, ...]:
        """Where a Zarr array is on this machine."""
        is_stored = isinstance(self.values, zarr.Array)
        return local_paths(self.values.store, self.values.path) if is_stored else ()

    def inputs(self, edges: Cuts) -> tuple[dict[Any, Any], list[Any]]:
        """Return a Dask graph, and for each row range what a task is given: a key, a slice, or the Zarr array."""
        if isinstance(self.values, np.ndarray):
            return {}, [self.values[a:b] for a, b in pairwise(edges)]
        if isinstance(self.values, zarr.Array):
            return {}, [self.values] * (len(edges) - 1)
        inner = self.values[int(edges[0]) : int(edges[-1])].rechunk((tuple(np.diff(edges).tolist()),))
        (array,) = optimize(inner)  # type: ignore[no-untyped-call]
        return dict(array.__dask_graph__()), array.__dask_keys__()


def is_dask_array(thing: Any) -> bool:
    """Recognise a Dask array without importing them: every worker loads this file, and that is half of the time."""
    return is_dask_collection(thing) and hasattr(thing, "compute_chunk_sizes")


def checked_entries(what: str, values: NDArray[Any], start: int) -> NDArray[Any]:
    """Return the entries from row ``start`` on, or say which of them is no weight."""
    if what == "weights":
        bad = ~((values >= 0) & np.isfinite(values))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise ValueError(f"weights must be finite and not negative; row {start + i:,} has {values[i]}.")
    return values

"""Rows in memory: NumPy arrays, SciPy sparse matrices and pandas data frames."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.missing import plain_dtype
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.base import (
    BLOCK_BYTES,
    Reading,
    Source,
    checksums,
    crc32,
    dense,
    even_cuts,
    frame_dtype,
    is_sparse,
    sparse_row_bytes,
)


class ArraySource(Source):
    """A NumPy array, a memory map, or any other array with fast access to rows."""

    in_memory = True

    def __init__(self, array: Any, names: tuple[str, ...] | None = None, address: str = "memory") -> None:
        self._array = array
        self.shape, self.dtype = array.shape, plain_dtype(array)
        self.names, self.address = names, address

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take NumPy arrays and memory maps."""
        return isinstance(thing, np.ndarray)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap the array."""
        return cls(thing, address=str(getattr(thing, "filename", None) or "memory"))

    @property
    def cuts(self) -> Cuts:
        """One cut per megabyte."""
        return even_cuts(self.shape[0], max(1, BLOCK_BYTES // max(1, self.shape[1] * self.dtype.itemsize)))

    @property
    def places(self) -> tuple[str, ...]:
        """The file of a memory map."""
        return () if self.address == "memory" else (self.address,)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows, usually as a view; masked arrays become floats in every block, so that all have one dtype."""
        return dense(self._array[start:stop]).astype(self.dtype, copy=False)

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Return checksums of the rows, which are fast to read."""
        return checksums(self, edges)


class SparseSource(ArraySource):
    """A SciPy sparse matrix; rows that are not multiplied as sparse become dense, a few megabytes at a time."""

    def read_block(self, start: int, stop: int) -> NDArray[Any] | SparseRows:
        """Return sparse rows."""
        return SparseRows(self._array[start:stop])

    @property
    def sparse_row_bytes(self) -> int:
        """What is stored, by the rows."""
        return sparse_row_bytes(self._array.nnz, self.shape[0], self.dtype)

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Return checksums of the stored values: dense rows may be a thousand times as large."""
        data, indices, pointers = self._array.data, self._array.indices, self._array.indptr
        stamps = []
        for start, stop in pairwise(edges):
            stored = slice(pointers[start], pointers[stop])
            crc = 0
            for part in (data[stored], indices[stored], pointers[start : stop + 1] - pointers[start]):
                crc = crc32(part, crc)
            stamps.append(f"{crc:08x}")
        return stamps

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take sparse matrices and arrays of SciPy."""
        return is_sparse(thing) and _package(thing) == "scipy"

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap the matrix in CSR format."""
        return cls(thing.tocsr())


class FrameSource(ArraySource):
    """A pandas data frame, with its column names."""

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take pandas data frames."""
        return _package(thing) == "pandas" and getattr(thing, "ndim", 0) == 2

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap the values."""
        dtype = frame_dtype(thing)
        return cls(thing.to_numpy(dtype=dtype), names=tuple(str(name) for name in thing.columns))


def _package(thing: Any) -> str:
    return type(thing).__module__.split(".")[0]

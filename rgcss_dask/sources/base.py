"""The interface of sources of rows, and helpers that every kind of source needs."""

from __future__ import annotations

import shlex
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.missing import plain
from rgcss_dask.core.pass_options import Cuts, Geometry
from rgcss_dask.core.spans import READ_BYTES, reads_between
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.io.files import is_url

BLOCK_BYTES = 2**20  # between the cuts of a matrix without chunks


@dataclass(frozen=True)
class Reading:
    """Options for reading sources."""

    missing: str = "raise"  # or "fill": read a missing chunk as the fill value
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)  # may contain passwords


class Source(ABC):
    """A matrix whose rows can be read, range by range, in any process it is sent to.

    A new kind is a subclass listed in `sources.registry`: ``takes`` tells which objects it handles, ``of`` wraps an
    object, ``at`` opens stored data at an address; ``shape``, ``dtype``, ``cuts`` and ``read`` give the matrix. The
    other members have defaults.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    names: tuple[str, ...] | None = None
    address: str = "memory"  # for messages and provenance
    in_memory: ClassVar[bool] = False  # belongs to this process: processed here, not sent to a cluster
    unguarded: str | None = None  # the codec of stored chunks, if they have no checksum
    waits: bool = False  # a read waits for a network, so the next one should be prefetched

    @classmethod
    @abstractmethod
    def takes(cls, thing: Any) -> bool:
        """Tell whether this kind handles the object."""

    @classmethod
    @abstractmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap the object."""

    @classmethod
    def at(cls, address: str, reading: Reading) -> Source | None:
        """Open stored data at a path or URL, or return None if it is not of this kind; most kinds have no addresses."""
        return None

    @property
    @abstractmethod
    def cuts(self) -> Cuts:
        """The first row, the rows where chunks begin, and the number of rows."""

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows as a dense array."""

    def read_block(self, start: int, stop: int) -> NDArray[Any] | SparseRows:
        """Return rows to be multiplied: sparse if they are stored so, else dense."""
        return self.read(start, stop)

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths that are read on this machine, which other machines may not have."""
        return ()

    @property
    def places(self) -> tuple[str, ...]:
        """Places that are read, on this machine or elsewhere; outputs must not be written there."""
        return self.paths or ((self.address,) if is_url(self.address) else ())

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of this machine that hold a range of rows; other machines may have other copies of them."""
        return []

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Describe the stored data of each row range without reading it, or return None if that is not possible.

        Equal stamps mean equal rows; different stamps may mean different rows.
        """
        return None

    def blocks(self, edges: Cuts) -> tuple[dict[Any, Any], list[list[Any]]]:
        """Return a Dask graph and, for each row range, the keys of the graph that its task needs."""
        return {}, [[] for _ in edges[1:]]

    def with_blocks(self, start: int, blocks: list[Any]) -> Source:
        """Return a source that reads the rows from ``start`` on from the results of these keys."""
        return self

    @property
    def processes(self) -> bool:
        """Whether other processes can read this source."""
        return not self.in_memory

    @property
    def geometry(self) -> Geometry:
        """Shape, dtype and cuts, for the plan."""
        return Geometry(self.shape[0], self.shape[1], self.dtype, self.cuts, sparse_bytes=self.sparse_row_bytes)

    @property
    def sparse_row_bytes(self) -> int:
        """Mean bytes of a sparse row, with values and column indices; 0 if rows are dense."""
        return 0

    def checked(self) -> Source:
        """Refuse everything but a matrix of real numbers with rows and columns."""
        if len(self.shape) != 2:
            raise ValueError(
                f"a matrix must have two dimensions; {self.address} has shape {self.shape}. Reshape it to rows by "
                f"columns{_by_command(self)}."
            )
        check_real(self.dtype)
        if 0 in self.shape:
            raise ValueError(
                f"a matrix must have rows and columns; {self.address} has shape {self.shape}. Give other data."
            )
        return self


def _by_command(source: Source) -> str:
    """Return the command that converts stored images to rows of pixels."""
    stored = len(source.shape) > 2 and source.places
    target = f"{source.address.rstrip('/').split('/')[-1].removesuffix('.zarr')}-rows.zarr"
    command = f"rgcss convert {shlex.quote(source.address)} {shlex.quote(target)}"
    return f", as {command} does with images" if stored else ""


def even_cuts(rows: int, step: int) -> Cuts:
    """Return 0, step, 2 step, ... and the number of rows."""
    return np.append(np.arange(0, rows, step, dtype=np.int64), rows)


def crc32(block: NDArray[Any], crc: int = 0) -> int:
    """Return the CRC-32 of the bytes of an array, continued from ``crc``."""
    return zlib.crc32(np.ascontiguousarray(block).data, crc)


def checksum(source: Source, start: int, stop: int) -> int:
    """Return the checksum of rows, read a few megabytes at a time."""
    step = max(1, READ_BYTES // max(1, source.shape[1] * source.dtype.itemsize))
    crc = 0
    for a, b in reads_between(source.cuts, start, stop, step):
        crc = crc32(source.read(a, b), crc)
    return crc


def checksums(source: Source, edges: Cuts) -> list[str]:
    """Return the checksums of the rows of each range."""
    return [f"{checksum(source, int(start), int(stop)):08x}" for start, stop in pairwise(edges)]


def is_sparse(block: Any) -> bool:
    """Recognise sparse matrices of SciPy and of the package sparse."""
    return hasattr(block, "nnz") and hasattr(block, "shape")


def sparse_row_bytes(stored: int, rows: int, dtype: np.dtype[Any]) -> int:
    """Return the mean bytes of a sparse row: its stored values, their column indices and a pointer."""
    return 16 + -(-stored * (dtype.itemsize + 8) // max(1, rows))


def dense(block: Any) -> NDArray[Any]:
    """Return the block as a NumPy array, with NaN for masked values."""
    if is_sparse(block):
        block = block.toarray() if hasattr(block, "toarray") else block.todense()
    return plain(block)


def frame_dtype(frame: Any) -> np.dtype[Any]:
    """Return a dtype that holds every column, or raise an error that names the columns without numbers."""
    kinds, wrong = [], []
    for i, (name, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        kind = getattr(dtype, "numpy_dtype", dtype)
        if not isinstance(kind, np.dtype) or kind.kind not in "biuf":
            wrong.append(f"column {name!r} has dtype {dtype}")
            continue
        masked = kind is not dtype
        kinds.append(np.dtype(np.float64) if masked and kind.kind != "f" and _may_have_gaps(frame, i) else kind)
    if wrong:
        them = "it" if len(wrong) == 1 else "them"
        raise WrongKindError(f"every column must hold real numbers; {', '.join(wrong)}. Leave {them} out.")
    if not kinds:
        raise ValueError("a matrix must have rows and columns; the data frame has no columns.")
    return np.result_type(*kinds)


def _may_have_gaps(frame: Any, column: int) -> bool:
    """Tell whether a column has gaps; a column that Dask has not computed yet may have some."""
    return hasattr(frame, "compute") or bool(frame.iloc[:, column].hasnans)

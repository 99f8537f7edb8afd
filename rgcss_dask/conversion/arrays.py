"""Tables read from files of one array, all of whose columns hold numbers."""

from __future__ import annotations

import gzip
import math
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rgcss_dask.conversion.asked import Asked, unique
from rgcss_dask.conversion.table import NUMBERS, Block, Column, Content, Table, Told, numbered
from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.io.matrix_writer import chunk_rows
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.zarr import ZarrSource, file_state, find_array

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class ArrayTable(Table):
    """A table whose columns have the same dtype."""

    dtype: np.dtype[Any]

    def _named(self, n: int, names: Sequence[str] | None = None) -> None:
        self.given = numbered(n) if names is None else tuple(names)
        self.names, self.named = unique(self.given), names is not None

    @abstractmethod
    def _whole(self, start: int) -> Iterator[Block]:
        """Yield blocks of whole rows from ``start`` on."""

    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Return numbers for all columns, without reading them."""
        if categories:
            raise ValueError(
                "indicators can be made only from columns of tables, such as .csv or .parquet; an array has numbers."
            )
        return {name: Content({NUMBERS}, self.dtype.newbyteorder("=")) for name in names}

    def blocks(self, start: int, columns: Sequence[Column], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Yield the columns, taken from blocks of whole rows."""
        index = [self.place[column.source] for column in columns]
        whole = index == list(range(self.n))
        for block in self._whole(start):
            yield (block if whole else block[:, index]).astype(dtype, copy=False)


class SourceTable(ArrayTable):
    """A table read from a source."""

    def __init__(self, source: Source, names: tuple[str, ...] | None = None) -> None:
        self._source = source.checked()
        self.rows, self.dtype = source.shape[0], source.dtype
        self._named(source.shape[1], names or source.names)

    def state(self, path: str) -> str | None:
        """Return the state of a file, or the stamps of the source for a folder or URL."""
        if Path(path).is_file():
            return file_state(path)
        stamps = self._source.stamps(np.array([0, self._source.shape[0]], dtype=np.int64))
        return None if stamps is None else f"{self._source.shape} {stamps[0]}"

    def _whole(self, start: int) -> Iterator[Block]:
        """Read the rows of one output chunk at a time."""
        step = chunk_rows(self.n, self.dtype)
        for first in range(start, self._source.shape[0], step):
            yield self._source.read(first, min(first + step, self._source.shape[0]))


class NpzTable(ArrayTable):
    """One matrix of a NumPy zip file, decompressed as a stream."""

    def __init__(self, path: str, asked: Asked) -> None:
        self._path = path
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for member in archive.namelist():
                with archive.open(member) as file:
                    shapes[member.removesuffix(".npy")] = _npy_header(file)
        matrices = [name for name, (shape, _, _) in shapes.items() if len(shape) >= 2]
        self._member = _chosen(matrices, asked.dataset, path)
        shape, fortran, self.dtype = shapes[self._member]
        if fortran:
            raise ValueError(
                f"{self._member} in {path} is stored in Fortran order; save it with np.ascontiguousarray first."
            )
        check_real(self.dtype)
        self.rows = shape[0]
        self._named(math.prod(shape[1:]))

    def _whole(self, start: int) -> Iterator[Block]:
        """Decompress from the beginning, and skip the rows before ``start``."""
        with zipfile.ZipFile(self._path) as archive, archive.open(f"{self._member}.npy") as file:
            _npy_header(file)
            yield from _stream(file, start, self.rows or 0, self.n, self.dtype)


class IdxTable(ArrayTable):
    """The IDX format of MNIST: a header and bytes; each item is one row."""

    def __init__(self, path: str, asked: Asked) -> None:
        self._path = path
        with self._open() as file:
            shape, self.dtype = self._header(file)
        self.rows = shape[0]
        self._named(math.prod(shape[1:]))

    def _open(self) -> IO[bytes]:
        return gzip.open(self._path) if self._path.endswith(".gz") else Path(self._path).open("rb")  # type: ignore[return-value]

    def _header(self, file: IO[bytes]) -> tuple[list[int], np.dtype[Any]]:
        zero, kind, dimensions = int.from_bytes(file.read(2)), *file.read(2)
        if zero != 0 or kind not in IDX_TYPES or dimensions < 2:
            raise ValueError(f"{self._path} is not an IDX file of a matrix or of images.")
        return [int.from_bytes(file.read(4)) for _ in range(dimensions)], np.dtype(IDX_TYPES[kind])

    def _whole(self, start: int) -> Iterator[Block]:
        """Read from the beginning, and skip the rows before ``start``."""
        with self._open() as file:
            self._header(file)
            native = self.dtype.newbyteorder("=")
            for block in _stream(file, start, self.rows or 0, self.n, self.dtype):
                yield block.astype(native, copy=False)


class _OpenDataset(Source):
    """A dataset of an open HDF5 file."""

    in_memory = True

    def __init__(self, data: Any, address: str, *, turned: bool) -> None:
        self._data, self._turned = data, turned
        shape = data.shape[::-1] if turned else data.shape
        self.shape = shape[0], math.prod(shape[1:])  # an image becomes a row of pixels
        self.dtype, self.address = data.dtype, address

    @classmethod
    def takes(cls, thing: Any) -> bool:
        return False

    @classmethod
    def of(cls, thing: Any, reading: Any) -> Source:
        raise TypeError("an HDF5 dataset is opened through its file.")

    @property
    def cuts(self) -> NDArray[np.int64]:
        return np.array([0, self.shape[0]], dtype=np.int64)

    def read(self, start: int, stop: int) -> Block:
        if self._turned:
            return np.ascontiguousarray(self._data[..., start:stop].T).reshape(stop - start, -1)
        return np.asarray(self._data[start:stop]).reshape(stop - start, -1)


class _Images(_OpenDataset):
    """A Zarr array of images; each image becomes a row of pixels."""

    def __init__(self, source: ZarrSource) -> None:
        super().__init__(source.array, source.address, turned=False)
        self._images = source

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Return the stamps of the array."""
        return self._images.stamps(edges)


def npy_table(path: str, asked: Asked) -> Table:
    """Map an .npy file into memory."""
    return SourceTable(open_source(_matrix(np.load(path, mmap_mode="r"), path)))


def zarr_table(path: str, asked: Asked) -> Table:
    """Open a Zarr array; images become rows of pixels, as with .npy files."""
    array = None if "*" in path else find_array(path, {})
    if array is None or array.ndim < 3:
        return SourceTable(open_source(path))
    return SourceTable(_Images(ZarrSource(array, path)))


def hdf5_or_mat(path: str, asked: Asked) -> Table:
    """Open an HDF5 or MATLAB file; MATLAB 7.3 files are HDF5 with rows and columns exchanged, older ones are not."""
    with Path(path).open("rb") as file:
        old = file.read(10).startswith(b"MATLAB 5.0")
    if path.lower().endswith(".mat") and old:
        import scipy.io  # noqa: PLC0415 (only old MATLAB files need it)

        content = {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}
        matrices = [k for k, v in content.items() if isinstance(v, np.ndarray) and min(v.shape, default=0) > 1]
        return SourceTable(open_source(content[_chosen(matrices, asked.dataset, path)]))
    file = imported("h5py", "hdf5").File(path, "r")
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if len(getattr(item, "shape", ())) >= 2 else None)
    found = [name for name in found if not name.startswith("#")]
    data = file[_chosen(found, asked.dataset, path)]
    return SourceTable(_OpenDataset(data, path, turned=path.lower().endswith(".mat")))


def _chosen(names: list[str], wanted: str | None, path: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        rule = "choose one with dataset=" if wanted is None else f"there is no {wanted!r}"
        raise ValueError(f"{path} holds the matrices {', '.join(names) or 'none'}; {rule}.")
    return wanted


def _stream(file: IO[bytes], start: int, rows: int, n: int, dtype: np.dtype[Any]) -> Iterator[Block]:
    """Read rows from a stream that cannot seek."""
    row_bytes = n * dtype.itemsize
    step = chunk_rows(n, dtype)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = file.read(count * row_bytes)
        if len(data) < count * row_bytes:
            raise ValueError(
                f"the file must hold the {rows:,} rows of its header; it ends after "
                f"{first + len(data) // row_bytes:,}. Copy it again."
            )
        if first + count > start:
            yield np.frombuffer(data, dtype).reshape(count, n)[max(0, start - first) :]


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    major, _ = npy.read_magic(file)
    return npy.read_array_header_1_0(file) if major == 1 else npy.read_array_header_2_0(file)


def _matrix(array: NDArray[Any], path: str) -> NDArray[Any]:
    """Reshape images to rows of pixels; refuse arrays with fewer than two dimensions."""
    if array.ndim < 2:
        raise ValueError(f"a matrix must have two dimensions; {path} has shape {array.shape}.")
    return array.reshape(len(array), -1)


def imported(module: str, extra: str) -> Any:
    """Import an optional package."""
    try:
        return __import__(module, fromlist=["_"])
    except ImportError as error:
        raise ImportError(f"this file needs {module.split('.')[0]}: pip install 'rgcss-dask[{extra}]'.") from error

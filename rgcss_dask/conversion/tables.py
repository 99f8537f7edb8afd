"""Files of rows of other kinds, each readable from any row on, in blocks."""

from __future__ import annotations

import gzip
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rgcss_dask.core.accumulate import check_real
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import is_url
from rgcss_dask.io.matrix_writer import chunk_rows
from rgcss_dask.sources.base import Source, frame_dtype
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.zarr import file_state

Block = NDArray[Any]  # of rows
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class Table(ABC):
    """A file of rows that can be read from any row on, in blocks."""

    n: int
    dtype: np.dtype[Any]
    names: tuple[str, ...] | None = None
    rows: int | None = None  # None: known when the blocks have come to their end

    @abstractmethod
    def blocks(self, start: int) -> Iterator[Block]:
        """Yield blocks of rows from ``start`` on."""

    def state(self, path: str) -> str | None:
        """Describe what is stored, without reading it, or return None if that cannot be told."""
        return file_state(path)


def open_table(path: str, dataset: str | None = None) -> Table:
    """Open a file by its name."""
    if is_url(path) or Path(path).is_dir():
        return SourceTable(open_source(path))
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}.")
    name = path.lower().removesuffix(".gz")
    for endings, opened in KINDS.items():
        if name.endswith(endings) or (opened is IdxTable and "-idx" in name):
            with reading(path):
                return opened(path, dataset)
    known = ", ".join(ending for endings in KINDS for ending in endings)
    raise ValueError(f"the kind of {path} is not known by its name; it must end in one of {known}, or be a folder.")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Name a damaged file: the library of each format has errors of its own for it, or stumbles over it."""
    try:
        yield
    except (ValueError, OSError, MemoryError, ImportError, WrongKindError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be whole, and of the kind that its name says; reading it ended with {type(error).__name__}: "
            f"{error}. Copy it again, or name it by its kind."
        ) from error


class SourceTable(Table):
    """Anything that is a source already."""

    def __init__(self, source: Source, names: tuple[str, ...] | None = None) -> None:
        self._source = source.checked()
        self.rows, self.n = source.shape
        self.dtype, self.names = source.dtype, names or source.names

    def state(self, path: str) -> str | None:
        """Ask the source: a folder or a URL says nothing of what is in it."""
        if Path(path).is_file():
            return file_state(path)
        stamps = self._source.stamps(np.array([0, self._source.shape[0]], dtype=np.int64))
        return None if stamps is None else f"{self._source.shape} {stamps[0]}"

    def blocks(self, start: int) -> Iterator[Block]:
        """Read a chunk's rows at a time."""
        step = chunk_rows(self.n, self.dtype)
        for first in range(start, self._source.shape[0], step):
            yield self._source.read(first, min(first + step, self._source.shape[0]))


class NpzTable(Table):
    """One matrix of a NumPy zip file, unpacked as a stream."""

    def __init__(self, path: str, dataset: str | None) -> None:
        self._path = path
        with zipfile.ZipFile(path) as archive:
            shapes = {}
            for member in archive.namelist():
                with archive.open(member) as file:
                    shapes[member.removesuffix(".npy")] = _npy_header(file)
        matrices = [name for name, (shape, _, _) in shapes.items() if len(shape) == 2]
        self._member = _chosen(matrices, dataset, path)
        shape, fortran, self.dtype = shapes[self._member]
        if fortran:
            raise ValueError(f"{self._member} in {path} is stored by columns; save it with np.ascontiguousarray first.")
        check_real(self.dtype)
        self.rows, self.n = shape

    def blocks(self, start: int) -> Iterator[Block]:
        """Unpack from the beginning; what was written before is passed over."""
        with zipfile.ZipFile(self._path) as archive, archive.open(f"{self._member}.npy") as file:
            _npy_header(file)
            yield from _stream(file, start, self.rows or 0, self.n, self.dtype)


class IdxTable(Table):
    """The format of MNIST: a header and bytes, each item one row."""

    def __init__(self, path: str, dataset: str | None = None) -> None:
        self._path = path
        with self._open() as file:
            shape, self.dtype = self._header(file)
        self.rows, self.n = shape[0], int(np.prod(shape[1:]))

    def _open(self) -> IO[bytes]:
        return gzip.open(self._path) if self._path.endswith(".gz") else Path(self._path).open("rb")  # type: ignore[return-value]

    def _header(self, file: IO[bytes]) -> tuple[list[int], np.dtype[Any]]:
        zero, kind, dimensions = int.from_bytes(file.read(2)), *file.read(2)
        if zero != 0 or kind not in IDX_TYPES or dimensions < 2:
            raise ValueError(f"{self._path} is not an IDX file of a matrix or of images.")
        return [int.from_bytes(file.read(4)) for _ in range(dimensions)], np.dtype(IDX_TYPES[kind])

    def blocks(self, start: int) -> Iterator[Block]:
        """Read from the beginning; what was written before is passed over."""
        with self._open() as file:
            self._header(file)
            native = self.dtype.newbyteorder("=")
            for block in _stream(file, start, self.rows or 0, self.n, self.dtype):
                yield block.astype(native, copy=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class CsvTable(Table):
    """A text table with a header line."""

    def __init__(self, path: str, dataset: str | None = None) -> None:
        self._path = path
        self._check_header()
        head = self._head()
        self.names = tuple(str(name) for name in head.columns)
        # A column that looks like integers may hold fractions further down.
        self.n, self.dtype = len(self.names), np.dtype(np.float64)
        frame_dtype(head)

    def _read(self, **options: Any) -> Any:
        import pandas  # noqa: PLC0415 (slow to import, and only tables need it)

        separator = "\t" if ".tsv" in self._path.lower() else ","
        # No column is taken for row names: it would be gone from the matrix without a word.
        return pandas.read_csv(self._path, sep=separator, index_col=False, **options)

    def _head(self) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names")  # pandas leaves out what has no name
            try:
                return self._read(nrows=1000)
            except Warning:
                raise ValueError(
                    f"every column of a text table must have a name; rows of {self._path} have more fields than its "
                    "first line. Name them all, or leave row names out of the file."
                ) from None

    def _check_header(self) -> None:
        """Refuse a first line of numbers.

        It may be a row in a file without a header, or a header of years or wavelengths. A guess would lose a row or
        invent one, and nobody would see it.
        """
        first = list(self._read(header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0])
        named = [field for field in first if field]
        if all(_is_number(field) for field in named) and named != [str(i) for i in range(len(named))]:  # as pandas does
            shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
            raise ValueError(
                f"the first line of a text table must name the columns; {self._path} begins with numbers ({shown}). "
                "Put a line of names before them, or, if they are names, give them a letter, such as x2024."
            )
        if len(named) < len(first):
            raise ValueError(
                f"every column of a text table must have a name; field {first.index('') + 1} of the first line of "
                f"{self._path} is empty. Name it, or, if it holds row numbers, write the table without them."
            )

    def blocks(self, start: int) -> Iterator[Block]:
        """Parse from the beginning; what was written before is passed over."""
        seen = 0
        with self._read(chunksize=chunk_rows(self.n, self.dtype)) as frames:
            for frame in frames:
                frame_dtype(frame)
                values = frame.to_numpy(dtype=np.float64)[max(0, start - seen) :]
                seen += len(frame)
                if len(values):
                    yield values
        self.rows = seen


class ParquetTable(Table):
    """A Parquet file, batch by batch."""

    def __init__(self, path: str, dataset: str | None = None) -> None:
        self._path = path
        self._file = _imported("pyarrow.parquet", "parquet").ParquetFile(path)
        empty = self._file.schema_arrow.empty_table().to_pandas()
        self.names = tuple(str(name) for name in empty.columns)
        self.n, self.dtype = len(self.names), frame_dtype(empty)
        self.rows = self._file.metadata.num_rows
        if self.dtype.kind != "f" and self._may_hold_nulls():
            self.dtype = np.dtype(np.float64)  # integers and bools have no NaN

    def _may_hold_nulls(self) -> bool:
        """Return False where the schema or the statistics of every column prove that there is no null."""
        metadata, schema = self._file.metadata, self._file.schema
        nullable = [i for i in range(len(schema)) if schema.column(i).max_definition_level > 0]
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        found = (group.column(i).statistics for group in groups for i in nullable)
        return any(one is None or not one.has_null_count or one.null_count > 0 for one in found)

    def blocks(self, start: int) -> Iterator[Block]:
        """Read batches; those written before are passed over."""
        seen = 0
        for batch in self._file.iter_batches(batch_size=chunk_rows(self.n, self.dtype)):
            self._check_nulls(batch)
            values = batch.to_pandas().to_numpy(dtype=self.dtype)[max(0, start - seen) :]
            seen += batch.num_rows
            if len(values):
                yield values

    def _check_nulls(self, batch: Any) -> None:
        """Statistics are what the writer of the file said: a null that they deny would become some integer."""
        if self.dtype.kind != "f":
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if column.null_count:
                    raise ValueError(
                        f"column {name!r} of {self._path} holds nulls where its statistics say that there are none. "
                        "Write the file anew, or without statistics."
                    )


class _OpenDataset(Source):
    """A dataset of an open HDF5 file."""

    in_memory = True

    def __init__(self, data: Any, address: str, *, turned: bool) -> None:
        self._data, self._turned = data, turned
        self.shape = data.shape[::-1] if turned else data.shape
        self.dtype, self.address = data.dtype, address

    @classmethod
    def takes(cls, thing: Any) -> bool:
        return False

    @classmethod
    def of(cls, thing: Any, reading: Any) -> Source:
        raise TypeError("an HDF5 dataset is opened by its file.")

    @property
    def cuts(self) -> NDArray[np.int64]:
        return np.array([0, self.shape[0]], dtype=np.int64)

    def read(self, start: int, stop: int) -> Block:
        return np.ascontiguousarray(self._data[:, start:stop].T) if self._turned else np.asarray(self._data[start:stop])


def _npy(path: str, dataset: str | None) -> Table:
    return SourceTable(open_source(_matrix(np.load(path, mmap_mode="r"), path)))


def _zipped_zarr(path: str, dataset: str | None) -> Table:
    return SourceTable(open_source(path))


def _hdf5_or_mat(path: str, dataset: str | None) -> Table:
    """MATLAB wrote its own format until 7.3, which is HDF5 with rows and columns exchanged."""
    with Path(path).open("rb") as file:
        old = file.read(10).startswith(b"MATLAB 5.0")
    if path.lower().endswith(".mat") and old:
        import scipy.io  # noqa: PLC0415 (only old MATLAB files need it)

        content = {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}
        matrices = [k for k, v in content.items() if isinstance(v, np.ndarray) and min(v.shape, default=0) > 1]
        return SourceTable(open_source(content[_chosen(matrices, dataset, path)]))
    file = _imported("h5py", "hdf5").File(path, "r")
    found: list[str] = []
    file.visititems(lambda name, item: found.append(name) if len(getattr(item, "shape", ())) == 2 else None)
    found = [name for name in found if not name.startswith("#")]
    data = file[_chosen(found, dataset, path)]
    return SourceTable(_OpenDataset(data, path, turned=path.lower().endswith(".mat")))


def _chosen(names: list[str], wanted: str | None, path: str) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted not in names:
        rule = "name one with dataset=" if wanted is None else f"there is no {wanted!r}"
        raise ValueError(f"{path} holds the matrices {', '.join(names) or 'none'}; {rule}.")
    return wanted


def _stream(file: IO[bytes], start: int, rows: int, n: int, dtype: np.dtype[Any]) -> Iterator[Block]:
    """Read rows from a stream that cannot go back."""
    row_bytes = n * dtype.itemsize
    step = chunk_rows(n, dtype)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = file.read(count * row_bytes)
        if len(data) < count * row_bytes:
            raise ValueError(
                f"the file ends early: {rows:,} rows were promised, {first + len(data) // row_bytes:,} found."
            )
        if first + count > start:
            yield np.frombuffer(data, dtype).reshape(count, n)[max(0, start - first) :]


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    major, _ = npy.read_magic(file)
    return npy.read_array_header_1_0(file) if major == 1 else npy.read_array_header_2_0(file)


def _matrix(array: NDArray[Any], path: str) -> NDArray[Any]:
    """Take images as rows of pixels; anything else must be a matrix."""
    if array.ndim < 2:
        raise ValueError(f"a matrix must have two dimensions; {path} has shape {array.shape}.")
    return array.reshape(len(array), -1)


def _imported(module: str, extra: str) -> Any:
    try:
        return __import__(module, fromlist=["_"])
    except ImportError as error:
        raise ImportError(f"this file needs {module.split('.')[0]}: pip install 'rgcss-dask[{extra}]'.") from error


KINDS: dict[tuple[str, ...], Callable[[str, str | None], Table]] = {
    (".npy",): _npy,
    (".npz",): NpzTable,
    (".csv", ".tsv"): CsvTable,
    (".parquet", ".pq"): ParquetTable,
    (".h5", ".hdf5", ".mat"): _hdf5_or_mat,
    ("-ubyte", ".idx"): IdxTable,
    (".zip",): _zipped_zarr,
}

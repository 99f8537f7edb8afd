"""Tables with one type per column, read by Arrow: Parquet files, and the base class of text tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rgcss_dask.conversion.asked import Asked, unique
from rgcss_dask.conversion.table import (
    DATES,
    FLAGS,
    IDENTIFIER,
    MOST_CATEGORIES,
    NOTHING,
    NUMBERS,
    OTHER,
    TEXT,
    Block,
    Column,
    Content,
    Table,
    Told,
)
from rgcss_dask.io.matrix_writer import chunk_rows
from rgcss_dask.sources.arrow import dtype_of, is_number, numbers

LARGEST = 2.0**53  # float64 cannot hold every whole number beyond this


class ColumnarTable(Table):
    """A table that is read in batches of Arrow."""

    _path: str

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Yield batches of rows of some columns, from the beginning."""

    @abstractmethod
    def _numbers(self, column: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values of a numeric column, with NaN for missing values."""

    def blocks(self, start: int, columns: Sequence[Column], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Read from the beginning, and skip the rows before ``start``."""
        names = list(dict.fromkeys(column.source for column in columns))
        places = {name: [j for j, column in enumerate(columns) if column.source == name] for name in names}
        seen = 0
        for batch in self._batches(names):
            count = len(batch[0])
            if seen + count > start:
                block = np.empty((count, len(columns)), dtype)
                for name, column in zip(names, batch, strict=True):
                    values = [columns[j].value for j in places[name]]
                    if values == [None]:
                        block[:, places[name][0]] = self._numbers(column, name, dtype)
                    else:
                        block[:, places[name]] = _indicators(column, values)
                yield block[max(0, start - seen) :]
            seen += count
        self.rows = seen


def _indicators(column: Any, values: Sequence[Any]) -> NDArray[Any]:
    """Return 1 where a column equals each value, 0 elsewhere, and NaN where the value is missing, (rows, values)."""
    text = as_text(column)
    codes = np.asarray(pc.fill_null(pc.index_in(text, value_set=pa.array(values, pa.string())), -1))
    if not text.null_count:
        return (codes[:, None] == np.arange(len(values))).astype(np.uint8)
    found = (codes[:, None] == np.arange(len(values))).astype(np.float64)
    found[np.asarray(text.is_null())] = np.nan
    return found


def as_text(column: Any) -> Any:
    """Return the values of a column as text, without surrounding blanks."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_string(column.type):
        column = pc.cast(column, pa.string())
    return pc.utf8_trim_whitespace(column)


def categories(column: Any) -> set[str] | None:
    """Return the distinct values of a column, or None if there are too many."""
    found = pc.unique(as_text(column).drop_null())
    return None if len(found) > MOST_CATEGORIES else set(found.to_pylist())


def identifies(different: int, count: int) -> bool:
    """Tell whether this number of distinct values among ``count`` values indicates an identifier, not categories."""
    least, share = IDENTIFIER
    return count >= least and different > share * count


class ParquetTable(ColumnarTable):
    """A Parquet file, read in batches."""

    def __init__(self, path: str, asked: Asked) -> None:
        self._path, self._file = path, pq.ParquetFile(path)
        self._schema = self._file.schema_arrow
        stored = self._schema.pandas_metadata or {}
        # The index of a pandas frame.
        index = {name for name in stored.get("index_columns", ()) if isinstance(name, str)}
        self._fields = [i for i, name in enumerate(self._schema.names) if name not in index]
        self.given = tuple(self._schema.names[i] for i in self._fields)
        self.names = unique(self.given)
        self.rows = self._file.metadata.num_rows

    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Return the types of the columns; read values only of columns that may become indicators."""
        found = {name: self._content(name) for name in names}
        self._look_for_identifiers(found)
        wanted = [name for name in names if name in categories]
        for name in wanted:
            found[name].values = set()
        for batch in self._batches(wanted) if wanted else ():
            for name, column in zip(wanted, batch, strict=True):
                add_values(found[name], column)
            told(len(batch[0]))
        return found

    def _look_for_identifiers(self, found: dict[str, Content]) -> None:
        """Compare the values of columns of text within the first batch of rows."""
        texts = [name for name, content in found.items() if content.kind == TEXT]
        for name, column in zip(texts, next(self._batches(texts), []) if texts else [], strict=False):
            values = as_text(column).drop_null()
            found[name].identifies = identifies(len(pc.unique(values)), len(values))

    def _content(self, name: str) -> Content:
        field = self._schema.field(self._fields[self.place[name]])
        nulls = self._nulls(name)
        if pa.types.is_null(field.type) or nulls == self.rows != 0:
            return Content({NOTHING}, gaps=True)
        if is_number(field.type):
            kind = FLAGS if pa.types.is_boolean(field.type) else NUMBERS
            return Content({kind}, dtype_of(field.type, nulls=False), gaps=nulls != 0)
        return Content({_kind(field.type)}, example=f"of type {field.type}", gaps=nulls != 0)

    def _leaves(self, name: str) -> list[int]:
        """Return the indices of the stored columns of a field; a list or record has several."""
        field = self._schema.names[self._fields[self.place[name]]]
        paths = (self._file.schema.column(i).path for i in range(len(self._file.schema)))
        return [i for i, path in enumerate(paths) if path == field or path.startswith(f"{field}.")]

    def _nulls(self, name: str) -> int | None:
        """Return the number of nulls of a column by its schema or statistics, or None if they do not give it."""
        metadata, total = self._file.metadata, 0
        for i in self._leaves(name):
            if self._file.schema.column(i).max_definition_level == 0:
                continue
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(i).statistics
                if statistics is None or not statistics.has_null_count:
                    return None
                total += statistics.null_count
        return total

    def _batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        index = [self._fields[self.place[name]] for name in names]
        fields = [self._schema.names[i] for i in index]
        twice = len(set(self._schema.names)) < len(self._schema.names)
        step = chunk_rows(len(names), np.dtype(np.float64))
        for batch in self._file.iter_batches(step, columns=None if twice else fields):
            yield [batch.column(i) for i in index] if twice else [batch.column(field) for field in fields]

    def _numbers(self, column: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        # The statistics may be wrong: a null that they do not count would become an arbitrary integer.
        if column.null_count and dtype.kind != "f":
            raise ValueError(
                f"column {name!r} of {self._path} holds nulls, although its statistics say that it has none. Write the "
                "file again with correct statistics, or without statistics."
            )
        values = numbers(column)
        if dtype == np.float64 and values.dtype.kind in "iu" and len(values) and _beyond(values):
            raise ValueError(
                f"column {name!r} of {self._path} holds whole numbers beyond 2^53, which float64 cannot hold beside "
                f"the other columns; leave it out with --drop (drop={[name]!r})."
            )
        return values


def _beyond(values: NDArray[Any]) -> bool:
    return bool(values.max() > LARGEST or values.min() < -LARGEST)


def _kind(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_temporal(kind):
        return DATES
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return TEXT if any(test(kind) for test in text) or is_number(kind) else OTHER


def add_values(content: Content, column: Any) -> None:
    """Add the values of one more batch; drop all values if there are too many, or if they cannot be text."""
    content.gaps = content.gaps or bool(column.null_count)
    if content.values is None or content.kind == OTHER:
        content.values = None
        return
    more = categories(column)
    joined = None if more is None else content.values | more
    content.values = None if joined is None or len(joined) > MOST_CATEGORIES else joined

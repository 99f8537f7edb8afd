"""Tables whose columns have types of their own, by Arrow: Parquet, and text tables once they are read."""

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

LARGEST = 2.0**53  # from here on float64 has not every whole number


class ColumnarTable(Table):
    """A table that is read in batches of Arrow."""

    _path: str

    @abstractmethod
    def _batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        """Yield some columns, a batch of rows at a time, from the beginning."""

    @abstractmethod
    def _numbers(self, column: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the values of a column that holds numbers, with NaN where there is none."""

    def blocks(self, start: int, columns: Sequence[Column], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Read from the beginning; what was written before is passed over."""
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
    """Return ones where a column is equal to each value, and NaN where it has none, (rows, values)."""
    text = as_text(column)
    codes = np.asarray(pc.fill_null(pc.index_in(text, value_set=pa.array(values, pa.string())), -1))
    if not text.null_count:
        return (codes[:, None] == np.arange(len(values))).astype(np.uint8)
    found = (codes[:, None] == np.arange(len(values))).astype(np.float64)
    found[np.asarray(text.is_null())] = np.nan
    return found


def as_text(column: Any) -> Any:
    """Write the values of a column, without blanks around them."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_string(column.type):
        column = pc.cast(column, pa.string())
    return pc.utf8_trim_whitespace(column)


def categories(column: Any) -> set[str] | None:
    """Return the values of a column, unless they are too many."""
    found = pc.unique(as_text(column).drop_null())
    return None if len(found) > MOST_CATEGORIES else set(found.to_pylist())


class ParquetTable(ColumnarTable):
    """A Parquet file, batch by batch."""

    def __init__(self, path: str, asked: Asked) -> None:
        self._path, self._file = path, pq.ParquetFile(path)
        self._schema = self._file.schema_arrow
        stored = self._schema.pandas_metadata or {}
        index = {name for name in stored.get("index_columns", ()) if isinstance(name, str)}  # row names of pandas
        self._fields = [i for i, name in enumerate(self._schema.names) if name not in index]
        self.given = tuple(self._schema.names[i] for i in self._fields)
        self.names = unique(self.given)
        self.rows = self._file.metadata.num_rows

    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Go by the types of the columns; only the values of what may become indicators are read."""
        found = {name: self._content(name) for name in names}
        wanted = [name for name in names if name in categories]
        for name in wanted:
            found[name].values = set()
        for batch in self._batches(wanted) if wanted else ():
            for name, column in zip(wanted, batch, strict=True):
                add_values(found[name], column)
            told(len(batch[0]))
        return found

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
        """Return which stored columns a field is; one of lists or records is several."""
        field = self._schema.names[self._fields[self.place[name]]]
        paths = (self._file.schema.column(i).path for i in range(len(self._file.schema)))
        return [i for i, path in enumerate(paths) if path == field or path.startswith(f"{field}.")]

    def _nulls(self, name: str) -> int | None:
        """Return how many nulls the schema or the statistics prove that a column has, or None if they do not say."""
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
        # Statistics are what the writer of the file said: a null that they deny would become some integer.
        if column.null_count and dtype.kind != "f":
            raise ValueError(
                f"column {name!r} of {self._path} holds nulls where its statistics say that there are none. "
                "Write the file anew, or without statistics."
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
    """Take the values of one more batch, unless they have become too many, or cannot be written as text."""
    content.gaps = content.gaps or bool(column.null_count)
    if content.values is None or content.kind == OTHER:
        content.values = None
        return
    more = categories(column)
    joined = None if more is None else content.values | more
    content.values = None if joined is None or len(joined) > MOST_CATEGORIES else joined

"""The interface of tables: the content of each column, and the rows in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.sources.zarr import file_state

Block = NDArray[Any]  # consecutive rows
Told = Callable[[int], None]

# What a column may hold. Numbers and flags (true and false) can be used without conversion.
NUMBERS, FLAGS, TEXT, DATES, NOTHING, LARGE, OTHER = "numbers", "flags", "text", "dates", "nothing", "large", "other"
USABLE = {NUMBERS, FLAGS}
FLOAT: np.dtype[Any] = np.dtype(np.float64)
MOST_COLUMNS = 2**20  # moments of 8 TiB; the header of a damaged file may give any number
IDENTIFIER = 20, 0.9  # values from which on, and share of them that differ, text is taken for an identifier
MOST_CATEGORIES = 1000  # of a column; a column with more values holds ids or free text


@dataclass
class Content:
    """The content of a column, as far as it was read."""

    kinds: set[str] = field(default_factory=set)
    dtype: np.dtype[Any] = FLOAT
    example: str = ""  # a value that is not a number, and its row
    odd: set[str] = field(default_factory=set)  # a few distinct values that are not numbers
    numeric: int = 0  # number of numeric values in a column of text
    values: set[str] | None = None  # distinct values; None if not asked for, or too many
    gaps: bool = False
    identifies: bool = False  # nearly all values of text are different, as those of an identifier

    def merge(self, other: Content) -> Content:
        """Return the content of both together."""
        values = None if self.values is None or other.values is None else self.values | other.values
        return Content(
            self.kinds | other.kinds,
            np.result_type(self.dtype, other.dtype),
            self.example or other.example,
            self.odd | other.odd,
            self.numeric + other.numeric,
            values,
            self.gaps or other.gaps,
            self.identifies or other.identifies,
        )

    @property
    def kind(self) -> str:
        """The kind of the whole column: of several kinds the unusable one; numbers mixed with flags are text."""
        found = self.kinds - {NOTHING}
        if len(found) < 2:
            return found.pop() if found else NOTHING
        return next((kind for kind in (OTHER, TEXT, DATES, LARGE) if kind in found), TEXT)


@dataclass(frozen=True)
class Column:
    """A column of the matrix: a column of the table, or an indicator of one of its values."""

    source: str
    value: str | None = None

    @property
    def name(self) -> str:
        """The name of the column; COLUMN=VALUE for an indicator."""
        return self.source if self.value is None else f"{self.source}={self.value}"


class Table(ABC):
    """A file of rows that can be read from any row on, in blocks."""

    given: tuple[str, ...]  # names as in the file, or generated
    names: tuple[str, ...]  # the same, made unique
    named: bool = True  # whether the names are those of the file
    rows: int | None = None  # None until the last block was read

    @property
    def n(self) -> int:
        """Number of columns of the file."""
        return len(self.names)

    @abstractmethod
    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Return the content of some columns, with the values of those that may become indicators."""

    @abstractmethod
    def blocks(self, start: int, columns: Sequence[Column], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Yield blocks of rows of these columns, from ``start`` on."""

    def state(self, path: str) -> str | None:
        """Identify the stored data without reading it, or return None if that is not possible."""
        return file_state(path)

    @cached_property
    def place(self) -> dict[str, int]:
        """The index of each column in the file."""
        return {name: i for i, name in enumerate(self.names)}


def numbered(n: int) -> tuple[str, ...]:
    """Return names for columns without names: c0, c1, ..."""
    if n > MOST_COLUMNS:
        raise ValueError(
            f"a matrix may have up to {MOST_COLUMNS:,} columns; by its header, the file has {n:,}. The file may be "
            "damaged, or its rows may be stored as columns: check it, or transpose it."
        )
    return tuple(f"c{i}" for i in range(n))

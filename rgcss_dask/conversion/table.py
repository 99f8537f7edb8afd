"""A file of rows as a table: what its columns hold, and its rows in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.sources.zarr import file_state

Block = NDArray[Any]  # of rows
Told = Callable[[int], None]

# What a column may hold. Numbers and flags (true and false) can be used as they are.
NUMBERS, FLAGS, TEXT, DATES, NOTHING, LARGE, OTHER = "numbers", "flags", "text", "dates", "nothing", "large", "other"
USABLE = {NUMBERS, FLAGS}
FLOAT: np.dtype[Any] = np.dtype(np.float64)
MOST_COLUMNS = 2**20  # of moments 8 TiB; the header of a damaged file may say any number
MOST_CATEGORIES = 1000  # of a column; more are ids or free text, and would be as many columns


@dataclass
class Content:
    """What a column was found to hold."""

    kinds: set[str] = field(default_factory=set)
    dtype: np.dtype[Any] = FLOAT
    example: str = ""  # of what is not a number, and where it stands
    odd: set[str] = field(default_factory=set)  # a few different ones of these
    numeric: int = 0  # how many values are numbers although others are not
    values: set[str] | None = None  # its categories; None if they were not asked for, or are too many
    gaps: bool = False

    def merge(self, other: Content) -> Content:
        """Return what both hold together."""
        values = None if self.values is None or other.values is None else self.values | other.values
        return Content(
            self.kinds | other.kinds,
            np.result_type(self.dtype, other.dtype),
            self.example or other.example,
            self.odd | other.odd,
            self.numeric + other.numeric,
            values,
            self.gaps or other.gaps,
        )

    @property
    def kind(self) -> str:
        """The one kind that it is: of several the one that cannot be used; both numbers and flags are text."""
        found = self.kinds - {NOTHING}
        if len(found) < 2:
            return found.pop() if found else NOTHING
        return next((kind for kind in (OTHER, TEXT, DATES, LARGE) if kind in found), TEXT)


@dataclass(frozen=True)
class Column:
    """A column of the matrix: one of the table, or whether that is equal to a value."""

    source: str
    value: str | None = None

    @property
    def name(self) -> str:
        """Its name: of an indicator COLUMN=VALUE."""
        return self.source if self.value is None else f"{self.source}={self.value}"


class Table(ABC):
    """A file of rows that can be read from any row on, in blocks."""

    given: tuple[str, ...]  # names as they stand in the file, or made up
    names: tuple[str, ...]  # the same, each once
    named: bool = True  # whether the file itself names them
    rows: int | None = None  # None: known when the blocks have come to their end

    @property
    def n(self) -> int:
        """How many columns the file has."""
        return len(self.names)

    @abstractmethod
    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Return what some columns hold, with the values of those that may become indicators."""

    @abstractmethod
    def blocks(self, start: int, columns: Sequence[Column], dtype: np.dtype[Any]) -> Iterator[Block]:
        """Yield blocks of rows of these columns, from ``start`` on."""

    def state(self, path: str) -> str | None:
        """Describe what is stored, without reading it, or return None if that cannot be told."""
        return file_state(path)

    @cached_property
    def place(self) -> dict[str, int]:
        """Where each column is in the file."""
        return {name: i for i, name in enumerate(self.names)}


def numbered(n: int) -> tuple[str, ...]:
    """Name columns that have no names: c0, c1, ..."""
    if n > MOST_COLUMNS:
        raise ValueError(
            f"a matrix may have up to {MOST_COLUMNS:,} columns; the file says that it has {n:,}. It may be damaged, or "
            "its rows may be columns."
        )
    return tuple(f"c{i}" for i in range(n))

"""Columns by index or name: the same ones in another order, and those that people write."""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.accumulate import is_whole

Names = Sequence[str] | None
LISTED = 3  # names in a message


def matching(known: Names, given: Names, holder: str) -> NDArray[np.intp] | None:
    """Return where each known column is among those given, or None if they are in that order already.

    Where either side has no names there is nothing to go by but the order, and the caller compares the numbers of
    columns. ``holder`` is who has the columns that are given, for the error if they are others.
    """
    if known is None or given is None or tuple(known) == tuple(given):
        return None
    lacking, besides = (list((Counter(a) - Counter(b)).keys()) for a, b in ((known, given), (given, known)))
    if lacking or besides:
        found = [f"{verb} {_listed(names)}" for verb, names in (("lacks", lacking), ("has", besides)) if names]
        also = " besides" if besides else ""
        raise ValueError(
            f"the columns must be those that were selected from, in any order; {holder} {' and '.join(found)}{also}. "
            "Give exactly those columns, or, if only the names are others, the values without names."
        )
    place = {name: i for i, name in enumerate(given)}
    if len(place) < len(given):
        twice, count = Counter(given).most_common(1)[0]
        raise ValueError(
            f"columns in another order are found by their names; {holder} has {count} columns called {twice!r}. Give "
            "the columns in the order of those that were selected from."
        )
    return np.array([place[name] for name in known], dtype=np.intp)


def in_order_of(values: NDArray[Any], index: NDArray[np.intp]) -> NDArray[Any]:
    """Put values of known columns in the order of those given, among which they are at ``index``."""
    placed = np.empty_like(values)
    placed[index] = values
    return placed


def as_written(texts: Sequence[str], names: Names) -> tuple[int | str, ...]:
    """Return the columns that texts stand for: a name, or several names or indices with commas between them.

    A text that is a name is that column, commas, quotes and all; in a list, a name with a comma stands in double
    quotes. Digits are an index unless they are a name.
    """
    known = set(names or ())
    parts = [part for text in texts for part in ([text] if text in known else _fields(text))]
    return tuple(int(part) if part not in known and part.lstrip("-").isdecimal() else part for part in parts)


def _fields(text: str) -> list[str]:
    try:
        fields = [part.strip() for line in csv.reader([text], skipinitialspace=True) for part in line]
    except csv.Error:  # a line break, which no list of names has
        return [text]
    return [part for part in fields if part]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(repr(name) for name in names[:LISTED]) + more


def column_indices(
    columns: Sequence[int] | Sequence[str] | NDArray[Any], n: int, names: tuple[str, ...] | None
) -> NDArray[np.intp]:
    """Turn column indices or names into indices, each valid and named once."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise ValueError(f"columns must be a list of indices or names; got {columns!r}. Put a single one in brackets.")
    places: dict[str, list[int]] = {}
    for i, name in enumerate(names or ()):
        places.setdefault(name, []).append(i)
    index = [_column_index(column, places) for column in columns]
    for i in index:
        if not 0 <= i < n:
            raise ValueError(f"a column index must be between 0 and {n - 1}; got {i}.")
    if len(set(index)) < len(index):
        twice = next(i for i in index if index.count(i) > 1)
        raise ValueError(f"a column must be given once; got {twice} {index.count(twice)} times.")
    return np.array(index, dtype=np.intp)


def _column_index(column: Any, places: dict[str, list[int]]) -> int:
    if is_whole(column):
        return int(column)
    if not isinstance(column, str):
        raise ValueError(
            f"a column must be given by its index, a whole number, or by its name; got {column!r}. "
            "Of a boolean mask give the places: np.flatnonzero(mask)."
        )
    found = places.get(column, [])
    if len(found) == 0:
        raise ValueError(f"column {column!r} is not there: {_like(column, places)}.")
    if len(found) > 1:
        raise ValueError(
            f"a name must stand for one column; {len(found)} are called {column!r}. Give the index instead."
        )
    return found[0]


def _like(column: str, places: dict[str, list[int]]) -> str:
    """Say that no column has a name, and which names are like it."""
    if not places:
        return "these columns have no names"
    folded = {name.casefold(): name for name in places}
    near = [repr(folded[name]) for name in difflib.get_close_matches(column.casefold(), folded)]
    return "no column has that name" + (f"; there is {', '.join(near)}" if near else "")

"""Columns by index or name: matching by name, and lists of columns written by users."""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.input_checks import is_whole

Names = Sequence[str] | None
LISTED = 3  # most names in a message


def matching(known: Names, given: Names, holder: str) -> NDArray[np.intp] | None:
    """Return the index of each known column among the given ones, or None if they have the same order.

    If either side has no names, only the order is left, and the caller compares the numbers of columns. ``holder``
    names the owner of the given columns, for the error.
    """
    if known is None or given is None or tuple(known) == tuple(given):
        return None
    lacking, besides = (list((Counter(a) - Counter(b)).keys()) for a, b in ((known, given), (given, known)))
    if lacking or besides:
        found = [f"{verb} {_listed(names)}" for verb, names in (("lacks", lacking), ("has", besides)) if names]
        also = " besides" if besides else ""
        raise ValueError(
            f"the columns must be those of the selection, in any order; {holder} {' and '.join(found)}{also}. "
            "Give exactly those columns, or, if only the names differ, the values without names."
        )
    place = {name: i for i, name in enumerate(given)}
    if len(place) < len(given):
        twice, count = Counter(given).most_common(1)[0]
        raise ValueError(
            f"columns in another order are matched by name; {holder} has {count} columns called {twice!r}. Give the "
            "columns in the order of the selection."
        )
    return np.array([place[name] for name in known], dtype=np.intp)


def in_order_of(values: NDArray[Any], index: NDArray[np.intp]) -> NDArray[Any]:
    """Put values of known columns in the order of those given, among which they are at ``index``."""
    placed = np.empty_like(values)
    placed[index] = values
    return placed


def as_written(texts: Sequence[str], names: Names) -> tuple[int | str, ...]:
    """Return the columns written in texts: a name, or several names or indices separated by commas.

    A text that is a name means that column, including commas and quotes; in a list, a name with a comma is put in
    double quotes. Digits are an index unless they are a name.
    """
    known = set(names or ())
    parts = [part for text in texts for part in ([text] if text in known else _fields(text))]
    return tuple(int(part) if part not in known and part.lstrip("-").isdecimal() else part for part in parts)


def _fields(text: str) -> list[str]:
    try:
        fields = [part.strip() for line in csv.reader([text], skipinitialspace=True) for part in line]
    except csv.Error:  # a line break: not a list of names
        return [text]
    return [part for part in fields if part]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(repr(name) for name in names[:LISTED]) + more


def column_indices(
    columns: Sequence[int] | Sequence[str] | NDArray[Any], n: int, names: tuple[str, ...] | None
) -> NDArray[np.intp]:
    """Convert column indices or names to indices; refuse invalid and repeated ones."""
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
            "Convert a boolean mask with np.flatnonzero(mask)."
        )
    found = places.get(column, [])
    if len(found) == 0:
        raise ValueError(f"column {column!r} does not exist: {_like(column, places)}.")
    if len(found) > 1:
        raise ValueError(f"a name must be unique; {len(found)} columns are called {column!r}. Give the index instead.")
    return found[0]


def _like(column: str, places: dict[str, list[int]]) -> str:
    """Say that no column has this name, and suggest similar names."""
    if not places:
        return "these columns have no names"
    folded = {name.casefold(): name for name in places}
    near = [repr(folded[name]) for name in difflib.get_close_matches(column.casefold(), folded)]
    return "no column has that name" + (f"; similar names: {', '.join(near)}" if near else "")

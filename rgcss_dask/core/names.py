"""Columns by their names: the same ones in another order, and those that people write."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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

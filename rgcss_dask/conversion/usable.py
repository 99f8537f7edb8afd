"""Which columns of the files can be used, and how; one error lists all that cannot be used."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from rgcss_dask.conversion.asked import LISTED, Asked, listed
from rgcss_dask.conversion.table import (
    DATES,
    FLAGS,
    LARGE,
    MOST_CATEGORIES,
    NOTHING,
    NUMBERS,
    OTHER,
    TEXT,
    USABLE,
    Column,
    Content,
    Table,
    Told,
)
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import in_order

WORDS = {
    DATES: "dates or times",
    LARGE: "whole numbers beyond 2^53, which float64 cannot hold",
    NOTHING: "no value at all",
    TEXT: "text",
}
COMMA = re.compile(r"[+-]?\d+,\d+$")
DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Layout:
    """The columns of the matrix that is written."""

    columns: list[Column]
    dtype: np.dtype[Any]
    named: bool

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


def laid_out(paths: list[str], tables: list[Table], asked: Asked, looked: Told, say: Callable[[str], None]) -> Layout:
    """Read the content of the files, and return the columns to write."""
    names = _common(paths, tables, asked)
    indicated = asked.indicated(tables[0].names, tables[0].given, paths[0])
    contents = _together(paths, tables, names, set(indicated) & set(names), looked)
    many = {name: c for name, c in contents.items() if name in indicated and (indicated[name] or c.kind == TEXT)}
    unusable = {name: c for name, c in contents.items() if not _fits(c, name in many)}
    if unusable and not (asked.numeric_only and len(unusable) < len(names)):
        raise _refused(paths, unusable, many)
    if unusable:
        say(f"left out {len(unusable):,} of {len(names):,} columns that hold no numbers: {listed(list(unusable))}.")
    columns = [one for name in names if name not in unusable for one in _columns(name, contents[name], name in many)]
    _check_unlike(columns)
    return Layout(columns, _dtype(columns, contents), tables[0].named or asked.picks or asked.numeric_only)


def _together(
    paths: list[str], tables: list[Table], names: list[str], categories: set[str], looked: Told
) -> dict[str, Content]:
    """Return the content of each column in all files together."""
    found = [table.contents(names, categories, looked) for table in tables]
    if not any(table.rows for table in tables):
        raise ValueError(f"a matrix must have rows; {', '.join(paths)} has none.")
    for path, contents in zip(paths, found, strict=True):
        for content in contents.values():
            content.example += f" of {path}" if content.example and len(paths) > 1 else ""
    return {name: reduce(Content.merge, (contents[name] for contents in found)) for name in names}


def _dtype(columns: list[Column], contents: dict[str, Content]) -> np.dtype[Any]:
    """Return a dtype that holds every column; with gaps a float, because integers and bools have no NaN."""
    flag = np.dtype(np.uint8)
    dtype = np.result_type(*{flag if one.value is not None else contents[one.source].dtype for one in columns})
    gaps = any(contents[column.source].gaps for column in columns)
    return np.dtype(np.float64) if gaps and dtype.kind != "f" else dtype


def _columns(name: str, content: Content, indicators: bool) -> list[Column]:
    return [Column(name, value) for value in in_order(content.values or ())] if indicators else [Column(name)]


def _fits(content: Content, indicators: bool) -> bool:
    return bool(content.values) if indicators else content.kind in USABLE


def _check_unlike(columns: list[Column]) -> None:
    """Refuse an indicator that has the name of another column."""
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise ValueError(
                f"columns must have different names; two would be called {column.name!r}, one of them an indicator. "
                "Leave one out with --drop (drop=)."
            )
        seen.add(column.name)


def _refused(paths: Sequence[str], unusable: dict[str, Content], indicators: dict[str, Content]) -> Exception:
    """Return an error that lists every unusable column, its content, and the options that help."""
    told = [f"{name!r} ({_held(content, name in indicators)})" for name, content in [*unusable.items()][:LISTED]]
    more = f" and {len(unusable) - LISTED:,} more" if len(unusable) > LISTED else ""
    files = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    drop = " ".join(f"--drop {shlex.quote(name)}" for name in [*unusable][:LISTED])
    way = f"Leave them out with {drop}" if not more else "Leave them out"
    ways = [f"{way}, or all such columns with --numeric-only"]
    text = {name: content for name, content in unusable.items() if content.kind == TEXT}
    commas = {name for name, content in text.items() if any(COMMA.match(one) for one in content.odd)}
    if commas:
        ways.append("read decimal commas with --decimal ,")
    words = {one for content in text.values() if _few_words(content) for one in content.odd}
    if words:
        ways.append(
            "read these words as missing values with " + " ".join(f"--na {shlex.quote(one)}" for one in sorted(words))
        )
    unlikely = {name for name, content in text.items() if content.identifies or _few_words(content)}
    categories = [name for name in text if name not in {*indicators, *commas, *unlikely}]
    if categories:
        ways.append(f"make 0/1 columns of categories with --indicators {shlex.quote(categories[0])}")
    if any(content.kind == DATES for content in unusable.values()):
        ways.append("write dates as numbers first, such as days since the first")
    return WrongKindError(
        f"every column must hold numbers; of {files} these do not: {', '.join(told)}{more}. {'; '.join(ways)}. In "
        "Python the options have the same names (drop=[...])."
    )


def _held(content: Content, indicators: bool) -> str:
    if indicators and content.kind not in (NOTHING, OTHER):
        return f"more than {MOST_CATEGORIES:,} different values: too many for indicators"
    if content.kind == TEXT and content.kinds == {NUMBERS, FLAGS}:
        return f"numbers, and true or false: {content.example}"
    example = f"such as {content.example}" if content.example and " in row " in content.example else content.example
    return f"{WORDS.get(content.kind, 'neither numbers nor text')}{', ' if example else ''}{example}"


def _few_words(content: Content) -> bool:
    """Tell whether all values but a few words are numbers, so that the words may mark missing values."""
    few = 0 < len(content.odd) <= 3 and content.numeric > 0
    return few and not any(DIGIT.search(one) or one.lower() in ("true", "false") for one in content.odd)


def _common(paths: list[str], tables: list[Table], asked: Asked) -> list[str]:
    """Return the chosen columns in the order of the first file; refuse files with different columns."""
    chosen = []
    for path, table in zip(paths, tables, strict=True):
        if table.n < 1:
            raise ValueError(f"a matrix must have columns; {path} has none.")
        chosen.append([table.names[i] for i in asked.chosen(table.names, table.given, path)])
    for path, table, names in zip(paths, tables, chosen, strict=True):
        if set(names) != set(chosen[0]) or table.named != tables[0].named:
            sides = _unlike(paths[0], tables[0], chosen[0], names, table.named)
            others = _unlike(path, table, names, chosen[0], tables[0].named)
            raise ValueError(
                f"files must have the same columns, in any order; {sides} and {others}. Make their columns the same, "
                "leave out the differing columns with --drop (drop=), or convert the files separately."
            )
    return chosen[0]


def _unlike(path: str, table: Table, names: list[str], others: list[str], others_named: bool) -> str:
    """Describe how many columns a file has, and which of its names the other file lacks."""
    has = f"{path} has {len(names)}"
    if table.named != others_named:
        return f"{has} with{'' if table.named else 'out'} names"
    own = [name for name in names if name not in set(others)] if table.named else []
    more = f" and {len(own) - 5} more" if len(own) > 5 else ""
    return f"{has} (differing: {', '.join(map(repr, own[:5]))}{more})" if own else has

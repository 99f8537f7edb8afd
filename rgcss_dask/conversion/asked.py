"""Options of a conversion: which columns are taken, and how text tables are read."""

from __future__ import annotations

import codecs
import csv
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

WILD = "*?["
LISTED = 50  # most names shown in a message


@dataclass(frozen=True)
class Asked:
    """The options of a conversion, with the names that they have in `convert`."""

    dataset: str | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    numeric_only: bool = False
    indicators: tuple[str, ...] = ()
    no_header: bool = False
    sep: str | None = None
    decimal: str = "."
    na: tuple[str, ...] = ()
    encoding: str | None = None

    @classmethod
    def of(cls, **options: Any) -> Asked:
        """Convert single strings to tuples, and refuse invalid values."""
        for name in ("columns", "drop", "indicators", "na"):
            given = options.get(name, ())
            options[name] = (given,) if isinstance(given, str) else tuple(str(one) for one in given)
        asked = cls(**options)
        if asked.sep is not None and len(asked.sep) != 1:
            raise ValueError(f"sep must be one character, such as ';', or a tab; got {asked.sep!r}.")
        if asked.decimal not in (".", ","):
            raise ValueError(f"decimal must be '.' or ','; got {asked.decimal!r}.")
        if asked.sep == asked.decimal:
            raise ValueError(f"sep and decimal must differ; both are {asked.sep!r}.")
        try:
            codecs.lookup(asked.encoding or "utf-8")
        except LookupError:
            raise ValueError(
                f"encoding must be known to Python, such as latin-1, cp1252 or utf-16; got {asked.encoding!r}."
            ) from None
        return asked

    @property
    def of_text(self) -> list[str]:
        """The given options that apply only to text tables."""
        texts = ("no_header", "sep", "decimal", "na", "encoding")
        return [one.name for one in fields(self) if one.name in texts and getattr(self, one.name) != one.default]

    @property
    def picks(self) -> bool:
        """Whether the options name columns."""
        return bool(self.columns or self.drop)

    def chosen(self, names: Sequence[str], given: Sequence[str], holder: str) -> list[int]:
        """Return the chosen columns in file order; ``given`` are the names before they were made unique."""
        kept = _found(self.columns, names, given, "columns", holder) if self.columns else set(range(len(names)))
        left = sorted(kept - _found(self.drop, names, given, "drop", holder))
        if not left:
            raise ValueError(f"a matrix must have columns; of the {len(names)} columns of {holder}, none is left.")
        return left

    def indicated(self, names: Sequence[str], given: Sequence[str], holder: str) -> dict[str, bool]:
        """Return the columns that may become indicators, and whether each was given by its name, not by a pattern."""
        found: dict[str, bool] = {}
        for one in self.indicators:
            places = _found((one,), names, given, "indicators", holder)
            exact = one in names or one in given or not _is_pattern(one)
            found |= {names[i]: exact or found.get(names[i], False) for i in places}
        return found


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Make names unique as pandas does: the second column of a name gets the suffix .1, the third .2."""
    names = list(names)
    taken, found = set(names), []
    counts: dict[str, int] = {}
    for name in names:
        own = name
        while counts.get(name) and own in taken:
            own = f"{name}.{counts[name]}"
            counts[name] += 1
        counts.setdefault(name, 1)
        taken.add(own)
        found.append(own)
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Format names for a message, at most the first `LISTED`."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(repr(name) for name in names[:LISTED]) + more


def _found(selectors: Sequence[str], names: Sequence[str], given: Sequence[str], option: str, holder: str) -> set[int]:
    """Return the indices of columns given by name, by a pattern, or as several separated by commas."""
    found, unknown = set(), []
    for selector in selectors:
        places = _matches(selector, names, given)
        if not places:
            parts = [part for line in csv.reader([selector], skipinitialspace=True) for part in line]
            each = [_matches(part, names, given) for part in parts]
            unknown += [part for part, some in zip(parts, each, strict=True) if not some] or [""] * (not parts)
            places = set().union(*each)
        found |= places
    if unknown:
        near = sorted({like for one in unknown for like in difflib.get_close_matches(one, names, 2)})
        instead = f"Similar names: {listed(near)}." if near else f"Its columns: {listed(names)}."
        raise ValueError(f"names in {option} must be columns of {holder}; it has no {listed(unknown)}. {instead}")
    return found


def _matches(selector: str, names: Sequence[str], given: Sequence[str]) -> set[int]:
    """Match an existing name exactly, even if it contains wildcards."""
    whole = {i for i, both in enumerate(zip(names, given, strict=True)) if selector in both}
    if whole or not _is_pattern(selector):
        return whole
    return {i for i, name in enumerate(names) if fnmatchcase(name, selector)}


def _is_pattern(selector: str) -> bool:
    return any(sign in selector for sign in WILD)

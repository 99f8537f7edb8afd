"""Options for what the picks must explain, and which columns may be picked; see `rgcss_dask.Aims`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

NAMES = (
    "column_weights",
    "targets",
    "target_share",
    "candidates",
    "penalties",
    "noise",
    "column_groups",
    "costs",
    "budget",
    "limits",
    "distance",
)

_OPTIONS = (
    click.option(
        "--column-weight",
        "column_weights",
        metavar="NAME=WEIGHT",
        multiple=True,
        help="Weight of a column in the loss (default 1), or 'latitude'; may be given several times.",
    ),
    click.option(
        "--target",
        "targets",
        metavar="COLUMNS",
        multiple=True,
        help="Columns that the others must explain, by name, pattern or index; targets are never picked.",
    ),
    click.option(
        "--target-share",
        type=click.FloatRange(0, 1, min_open=True),
        metavar="SHARE",
        help="Share of the targets in the loss (default 1); the other columns make up the rest.",
    ),
    click.option("--candidates", metavar="COLUMNS", multiple=True, help="The only columns that may be picked."),
    click.option(
        "--penalty",
        "penalties",
        metavar="NAME=FACTOR",
        multiple=True,
        help="Factor on lambda for a column (default 1).",
    ),
    click.option(
        "--noise",
        metavar="NAME=VARIANCE",
        multiple=True,
        help="Noise variance of a column (default 0), or 'rows' to estimate it from neighbouring rows; the picks then "
        "explain the signal without the noise.",
    ),
    click.option(
        "--column-group",
        "column_groups",
        metavar="COLUMNS",
        multiple=True,
        help="Columns that are picked together, separated by commas; may be given several times.",
    ),
    click.option("--cost", "costs", metavar="NAME=COST", multiple=True, help="Cost of a column (default 1)."),
    click.option("--budget", type=click.FloatRange(0, min_open=True), help="Limit on the total cost of the picks."),
    click.option(
        "--limit",
        "limits",
        metavar="NUMBER:COLUMNS",
        multiple=True,
        help="Pick at most NUMBER of these columns, such as 1:a,b; may be given several times.",
    ),
    click.option(
        "--distance",
        type=click.FloatRange(0, min_open=True),
        help="Minimum distance between picked columns; in km if the columns have latitude and longitude.",
    ),
)


def aims_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, and pass their values as one dictionary."""

    @wraps(command)
    def gathered(**given: Any) -> Any:
        aims = {name: given.pop(name) for name in NAMES}
        return command(aims={name: value for name, value in aims.items() if value not in (None, ())}, **given)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def aims_of(given: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Convert the options of the command line to keyword arguments of `Aims`, for columns of these names."""
    return {name: _READERS[name](value, names) if name in _READERS else value for name, value in given.items()}


def _columns(texts: Sequence[str], names: Sequence[str] | None) -> tuple[Any, ...]:
    from rgcss_dask.core.names import as_written

    return as_written(texts, names)


def _numbers(texts: Sequence[str], names: Sequence[str] | None) -> Any:
    """Return a number for each name, or a single word, such as latitude, unchanged."""
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[_columns([name], names)[0]] = float(number)
        except (ValueError, IndexError):
            raise click.UsageError(f"{text!r} is not a name and a number, such as a=2.") from None
    return found


def _groups(texts: Sequence[str], names: Sequence[str] | None) -> list[tuple[Any, ...]]:
    return [_columns([text], names) for text in texts]


def _limits(texts: Sequence[str], names: Sequence[str] | None) -> list[tuple[Any, int]]:
    pairs = [text.partition(":") for text in texts]
    for text, (most, _, columns) in zip(texts, pairs, strict=True):
        if not most.isdigit() or not columns:
            raise click.UsageError(f"{text!r} is not a number and columns, such as 1:a,b.")
    return [(_columns([columns], names), int(most)) for most, _, columns in pairs]


_READERS: dict[str, Callable[[Any, Sequence[str] | None], Any]] = {
    "column_weights": _numbers,
    "targets": _columns,
    "candidates": _columns,
    "penalties": _numbers,
    "noise": _numbers,
    "column_groups": _groups,
    "costs": _numbers,
    "limits": _limits,
}

"""Formatting of numbers and names for people: digits, plurals, bytes, and no control characters."""

from __future__ import annotations

from collections.abc import Iterable

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
NAME_LENGTH = 24  # maximum length of a name
LIST_LENGTH = 160  # maximum length of a list of names


def digits(lam: float) -> str:
    """Format a lambda, with the same number of digits everywhere."""
    return f"{lam:.4g}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun, in singular or plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage; a share below 1 is never rounded to 100 %."""
    rounded = f"{100 * share:.{digits}f}"
    if share < 1 and float(rounded) >= 100:
        return "more than 99.9 %" if digits == 1 else f"more than {100 - 10.0**-digits:.{digits}f} %"
    return f"{rounded} %"


def duration(seconds: float) -> str:
    """Write about how long something takes."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"


def printable(name: object) -> str:
    """Escape control characters and characters that change the direction of text."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "replace").decode("ascii", "replace") for c in str(name)
    )


def shortened(name: object) -> str:
    """Shorten a name to one short line."""
    text = printable(name)
    if len(text) <= NAME_LENGTH:
        return text
    end = NAME_LENGTH // 3  # names with the same beginning often differ at the end
    return text[: NAME_LENGTH - 1 - end] + ELLIPSIS + text[-end:]


def listed(names: Iterable[object], length: int = LIST_LENGTH) -> str:
    """List names, as many as fit, with the number of the others."""
    words = [shortened(name) for name in names]
    used, fit = 0, 0
    while fit < len(words) and (used := used + len(words[fit]) + 2) <= length:
        fit += 1
    left = len(words) - fit
    return ", ".join(words[:fit]) + (f", {ELLIPSIS} ({left:,} more)" if left else "")


def size(count: int) -> str:
    """Format a number of bytes for people."""
    # Dask's `format_bytes` is not used: the core must not import Dask, and budgets are given in GB, not GiB.
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"

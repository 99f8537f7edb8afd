"""Verdicts from numbers: which of two paired measurements is larger, and whether that is what the paper says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

# A difference counts when it is certain to this degree (Student's t, so that few samples prove little).
CERTAIN = 0.95
# Printed figures that agree to this share are called equal, as are means of ours.
EQUAL = 0.005


@dataclass(frozen=True)
class Comparison:
    """The mean of paired differences b - a, its standard error, and the sign that can be told: -1, 0 or 1."""

    difference: float
    error: float
    sign: int


def compare(a: ArrayLike, b: ArrayLike) -> Comparison:
    """Compare b with a, measured on the same samples; 0 when the difference is not certain to 95 %, or next to none."""
    gap = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    mean = float(gap.mean())
    if len(gap) < 2:
        return Comparison(mean, float("nan"), 0)  # one sample tells no error
    error = float(gap.std(ddof=1) / np.sqrt(len(gap)))
    needed = float(scipy.stats.t.ppf((1 + CERTAIN) / 2, len(gap) - 1))
    told = abs(mean) > needed * error and abs(mean) > EQUAL * float(np.mean(np.abs(a)))
    return Comparison(mean, error, int(np.sign(mean)) if told else 0)


def printed_sign(a: float, b: float) -> int:
    """Return the sign of b - a as printed; 0 when they agree to half a per cent."""
    return 0 if abs(b - a) <= EQUAL * abs(a) else int(np.sign(b - a))


def verdict(printed: int, ours: int) -> str:
    """Say whether a comparison the paper draws comes out here."""
    if printed == ours:
        return "confirmed"
    return (
        "not confirmed: no clear difference"
        if ours == 0
        else "not confirmed: a difference"
        if printed == 0
        else "reversed"
    )


def counted(verdicts: Iterable[str]) -> str:
    """Return "7 confirmed, 2 reversed"."""
    return ", ".join(f"{number} {word}" for word, number in Counter(verdicts).most_common())


def spread(values: ArrayLike) -> str:
    """Return "min / mean / max" in the paper's form."""
    x = np.asarray(values, dtype=np.float64)
    return " / ".join(number(value) for value in (x.min(), x.mean(), x.max()))


def shown(paper: Sequence[float]) -> str:
    """Return printed figures, minimum, mean and maximum, as they are."""
    return " / ".join(number(value) for value in paper)


def number(value: float) -> str:
    """Return two decimals, fewer for large numbers, and powers of ten for huge ones."""
    if not np.isfinite(value):
        return "∞"
    return f"{value:.2f}" if abs(value) < 1e4 else f"{value:.2e}"


def listed(words: Sequence[str]) -> str:
    """Return "a, b and c", or "none"."""
    if len(words) < 2:
        return words[0] if words else "none"
    return ", ".join(words[:-1]) + " and " + words[-1]

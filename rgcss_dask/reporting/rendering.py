"""Templates with automatic escaping of data; only `Markup`, such as our own figures, is inserted as HTML."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rgcss_dask.core.words import digits
from rgcss_dask.io.safe_text import shown
from rgcss_dask.reporting.drawing import short


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage."""
    return f"{100 * share:.{digits}f}\u202f%"


def signed(value: float) -> str:
    """Format a weight with its sign."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def thousands(count: int) -> str:
    """Format a count with thousands separators."""
    return f"{count:,}"


def _shown(value: Any) -> Any:
    """Remove secrets and control characters before escaping."""
    return value if hasattr(value, "__html__") else shown(value)


TEMPLATES = Environment(
    loader=PackageLoader("rgcss_dask.reporting"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {function.__name__: function for function in (digits, percent, short, shown, signed, thousands)}

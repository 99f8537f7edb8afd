"""Which few columns carry the rest: regularised greedy column subset selection for tall matrices."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Importing waits for the first use (PEP 562): Dask and
# scikit-learn take a second or more, and `rgcss --help` needs neither.
_HOME = {
    "Factor": "gram",
    "Moments": "moments",
    "Progress": "progress",
    "Selection": "selection",
    "Stop": "selection",
    "append": "grow",
    "load": "archive",
    "merge": "archive",
    "save": "archive",
    "scan": "one_pass",
    "select": "greedy",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"rgcss_dask.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""Which few columns carry the rest: regularised greedy column subset selection for tall matrices."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Importing waits for the first use (PEP 562): Dask and
# scikit-learn take a second or more, and `rgcss --help` needs neither.
_HOME = {
    "CrossValidation": "tuning",
    "Factor": "gram",
    "Field": "xarray_source",
    "GCSS": "estimator",
    "Moments": "moments",
    "Progress": "progress",
    "RGCSS": "estimator",
    "Refinement": "swaps",
    "Selection": "selection",
    "Stability": "subsets",
    "Stop": "selection",
    "append": "grow",
    "convert": "conversion",
    "choose_k": "tuning",
    "cross_validate": "tuning",
    "expected_jaccard": "subsets",
    "load": "archive",
    "load_result": "result",
    "merge": "archive",
    "refine": "swaps",
    "save": "archive",
    "scan": "one_pass",
    "select": "greedy",
    "stability": "subsets",
    "stability_under_noise": "subsets",
    "write_reconstruction": "apply",
    "write_reduced": "apply",
    "write_report": "report",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"rgcss_dask.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""Which few columns carry the rest: regularised greedy column subset selection for tall matrices."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> the module that defines it. Importing waits for the first use (PEP 562): Dask and
# scikit-learn take a second or more, and `rgcss --help` needs neither.
_HOME = {
    "CrossValidation": "core.tuning",
    "Factor": "core.solver.gram",
    "Field": "sources.xarray",
    "GCSS": "estimator",
    "Moments": "core.moments",
    "Progress": "cluster.progress",
    "RGCSS": "estimator",
    "Refinement": "core.refinement",
    "Selection": "core.selection",
    "Stability": "core.stability",
    "Stop": "core.selection",
    "append": "scanning.append",
    "convert": "conversion.convert",
    "choose_k": "core.tuning",
    "cross_validate": "questions",
    "expected_jaccard": "core.stability",
    "load": "archive.archive",
    "load_result": "archive.result_file",
    "merge": "archive.merging",
    "refine": "questions",
    "save": "archive.archive",
    "scan": "scanning.scan",
    "select": "questions",
    "stability": "questions",
    "stability_under_noise": "core.stability",
    "verify": "scanning.verify",
    "write_reconstruction": "conversion.apply_selection",
    "write_reduced": "conversion.apply_selection",
    "write_report": "report",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"rgcss_dask.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

"""Packages that are extras: imported when they are needed, or an error names the extra that brings them."""

from __future__ import annotations

import importlib
from types import ModuleType


def imported(module: str, *, extra: str, by: str) -> ModuleType:
    """Return a module of a package that need not be installed; ``by`` is what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        if (error.name or "").split(".")[0] != package:
            raise
        raise ImportError(
            f"{by} needs {package}, which is not installed: pip install 'rgcss-dask[{extra}]'.", name=error.name
        ) from error

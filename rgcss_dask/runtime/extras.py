"""Optional packages: imported when needed; the error for a missing package names its extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def imported(module: str, *, extra: str, by: str) -> ModuleType:
    """Import a module of an optional package; ``by`` names the feature that needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        if (error.name or "").split(".")[0] != package:
            raise
        raise ImportError(
            f"{by} needs {package}, which is not installed: pip install 'rgcss-dask[{extra}]'.", name=error.name
        ) from error

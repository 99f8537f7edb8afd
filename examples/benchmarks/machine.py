"""What was measured on: processor, memory, versions; nothing that names the machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rgcss_dask.runtime.cpus import available_cpus

DISTRIBUTIONS = (
    "rgcss-dask numpy scipy scikit-learn dask distributed dask-ml zarr numba "
    "skmatter python-sensors fastcan cubed scanpy scikit-learn-intelex"
).split()


def describe() -> dict[str, Any]:
    """Return a JSON-able description."""
    return {
        "processor": _processor(),
        "cores": available_cpus(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "blas": _blas(),
        "versions": {name: found for name in DISTRIBUTIONS if (found := _version(name))},
    }


def versions(*names: str) -> str:
    """Say with which versions of these distributions, and of this package, something was measured."""
    found = ((name, _version(name) or "not installed") for name in ("rgcss-dask", *names))
    return f"Measured with {', '.join(f'{name} {number}' for name, number in found)}."


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _blas() -> str:
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{found['name']} {found['version']}"

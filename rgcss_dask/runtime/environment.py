"""The software environment of results: versions, BLAS, and integer products."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

from threadpoolctl import threadpool_info

from rgcss_dask.runtime import integer_products
from rgcss_dask.runtime.cpus import available_cpus

PACKAGES = ("rgcss-dask", "numpy", "scipy", "dask", "zarr")
# In addition to those stored with archives.
_ALSO_SHOWN = ("distributed", "numba", "numcodecs", "scikit-learn", "threadpoolctl", integer_products.PACKAGE)


def versions() -> dict[str, Any]:
    """Return the versions of the packages that affect results, and the BLAS libraries."""
    return {**{name: metadata.version(name) for name in PACKAGES}, "blas": _blas()}


def show_versions() -> None:
    """Print the information that a report of a bug or of a speed should contain: versions, BLAS, processor.

    The line "integer products" says whether 8-bit and other small integers are multiplied by special instructions of
    the processor, or why not. The results have the same bits either way; only the time differs.

    Examples
    --------
    >>> import rgcss_dask as rg
    >>> rg.show_versions()  # doctest: +ELLIPSIS
    Python            ...
    processor         ...
    integer products  ...
    """
    blas = ", ".join(" ".join(str(value) for value in one.values() if value) for one in _blas())
    lines = {
        "Python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": f"{_processor()}, {available_cpus()} of {os.cpu_count()} threads",
        **{name: _version(name) for name in (*PACKAGES, *_ALSO_SHOWN)},
        "BLAS": blas or "none loaded",
        "integer products": integer_products.in_words(),
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:{width}s}  {value}")


def _blas() -> list[dict[str, Any]]:
    kept = ("internal_api", "version", "architecture")
    return [{k: info.get(k) for k in kept} for info in threadpool_info() if info.get("user_api") == "blas"]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or another format
        return platform.processor() or platform.machine()

"""How much memory a pass may use, when nobody says."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

SHARE = 0.6  # of what is free; also where Dask workers begin to spill


def default_budget() -> int:
    """Return a share of the memory that this machine, or the cgroup of this process, has free."""
    free = int(psutil.virtual_memory().available)
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        allowed, used = _number(Path("/sys/fs/cgroup", limit)), _number(Path("/sys/fs/cgroup", usage))
        if allowed is not None and used is not None:
            free = min(free, max(0, allowed - used))
    return int(SHARE * free)


def parse_memory(memory: int | float | str) -> int:
    """Read a number of bytes, given as a number or as text such as "4 GB"."""
    units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    units |= {f"{unit}i": 2 ** (10 * i) for i, unit in enumerate("kmgt", start=1)}
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?(?:ytes)?\s*", str(memory).replace("_", "").lower())
    if match is None or match[2] not in units or float(match[1]) <= 0:
        raise ValueError(f"memory must be a number of bytes such as 4e9 or '4 GB'; got {memory!r}.")
    return int(float(match[1]) * units[match[2]])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None

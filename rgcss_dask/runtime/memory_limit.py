"""How much memory a pass may use, when nobody says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

SHARE = 0.6  # of what is free; also where Dask workers begin to spill


def default_budget() -> int:
    """Return a share of the memory that this machine, or the cgroups of this process, have free."""
    return int(SHARE * unused_memory())


def unused_memory() -> int:
    """Return the bytes that this machine, or the cgroups of this process, have free."""
    return min([int(psutil.virtual_memory().available), *_free_in_groups(Path("/"))])


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left to each cgroup that limits this process: its own, and those above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        group = top / path.strip("/")
        while group.is_relative_to(top):
            limit, used = (_number(group / name) for name in names)
            if limit is not None and used is not None:
                yield max(0, limit - used + _reclaimable(group))
            group = group.parent


def _reclaimable(group: Path) -> int:
    """Count what the kernel gives up by itself: files that were read, and are not in use."""
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", text, re.M)
    return 0 if found is None else int(found[1])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None

"""The default memory budget of a pass."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil

SHARE = 0.6  # of the free memory; also the threshold at which Dask workers spill


def default_budget() -> int:
    """Return a share of the free memory of this machine, or of the cgroups of this process."""
    return int(SHARE * unused_memory())


def unused_memory() -> int:
    """Return the free memory of this machine, or of the cgroups of this process, in bytes."""
    return min([int(psutil.virtual_memory().available), *_free_in_groups(Path("/"))])


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the free memory of each cgroup that limits this process: its own, and its parents."""
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
    """Return the bytes that the kernel can reclaim: cached files that are not in use."""
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

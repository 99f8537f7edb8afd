"""The number of CPUs that this process may use."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from pathlib import Path


def available_cpus() -> int:
    """Return the number of CPUs of this process, by its affinity and the CPU quota of its container."""
    # Not `dask.system.cpu_count`, which rounds a quota of 2.5 CPUs up to 3 threads.
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, cpu_quota()))


@functools.cache
def cpu_quota(control: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the CPU quota of the control group, as set by Docker and Kubernetes.

    More threads than that would slow each other down.
    """
    quota, period = -1, 1
    with suppress(OSError, ValueError):  # without a limit the file says "max"
        quota, period = map(int, (control / "cpu.max").read_text().split())
    with suppress(OSError, ValueError):  # version 1 of control groups
        quota, period = (int((control / "cpu" / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period"))
    return sys.maxsize if quota < 0 or period < 1 else quota // period

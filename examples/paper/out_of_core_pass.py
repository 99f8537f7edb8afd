"""One pass over one archive, measured from inside: seconds, processor seconds and peak memory, as JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import numpy as np

import rgcss_dask as rg

K = 64


def peak() -> int:
    """Return the most memory this process has had; ru_maxrss would be the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def main(path: str, gram: str) -> None:
    rg.select(rg.scan(np.ones((100, 3), np.uint8)), 2)  # imports, and compiles
    before = peak()
    began, busy = time.perf_counter(), time.process_time()
    moments = rg.scan(path, progress=False)
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    above = peak() - before
    began = time.perf_counter()
    rg.select(moments, K, lam=1.0, scale=255.0)
    picking = time.perf_counter() - began
    np.save(gram, moments.gram())
    found = {"seconds": seconds, "cpu_seconds": cpu, "import_bytes": before, "above_bytes": above}
    print(json.dumps(found | {"select_seconds": picking, "k": K}))


if __name__ == "__main__":
    main(*sys.argv[1:])

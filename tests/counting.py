"""A Zarr source that writes down what it reads, and a process that scans it: for tests that kill processes."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from distributed import Client

import rgcss_dask as rg
from rgcss_dask.sources.zarr import ZarrSource, open_array


class CountingSource(ZarrSource):
    """Appends a line for each read to a log, and takes its time."""

    def __init__(self, path, log, pause):
        super().__init__(open_array(path), path)
        self._log, self._pause = log, pause

    def read(self, start, stop):
        line = f"{start} {stop}\n".encode()
        file = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line)  # one write of a short line is whole, whoever is killed
        os.close(file)
        time.sleep(self._pause)
        return super().read(start, stop)


def spans_read(log):
    """How many reads were begun, and of how many different spans."""
    lines = Path(log).read_text().split("\n")[:-1] if os.path.exists(log) else []
    return len(lines), len(set(lines))


ballast = []


def take_memory(count):
    """Take bytes of the process that this runs in, as a task of another user may."""
    ballast.append(np.ones(count, np.uint8))


def tell_the_end(kind, error, trace):
    """Mark the error that ends the process: what Dask logs, and what caused it, look the same."""
    sys.__excepthook__(kind, error, trace)
    print(f"ended by {kind.__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.excepthook = tell_the_end
    path, log, archive, pause, address = sys.argv[1:]
    client = Client(address) if address != "threads" else None
    rg.scan(CountingSource(path, log, float(pause)), archive=archive, folds=2)
    if client is not None:
        client.close()

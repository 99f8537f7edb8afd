"""Dask clusters for tests: processes to kill, stop and cut off, bare or supervised over TLS; and what to compare."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import psutil
import zarr
from counting import spans_read
from distributed import Client, Security

import rgcss_dask as rg

HERE = Path(__file__).parent
ROWS, COLUMNS = 2_000_000, 6
ROLES = ("scheduler", "worker", "client")
# Options of a LocalCluster that is all in this process. Any port for the scheduler's pages: another cluster on this
# machine may have the usual one.
IN_PROCESS = {
    "processes": False,
    "threads_per_worker": 1,
    "dashboard_address": None,
    "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
}


def stored_rows(folder, dtype):
    """Store rows in many spans that are each worth a checkpoint; return their path and their moments."""
    A = np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)
    A = A if dtype == "uint8" else A + 0.1
    zarr.create_array(folder / "a.zarr", data=A, chunks=(12_500, COLUMNS))
    return str(folder / "a.zarr"), rg.scan(folder / "a.zarr", folds=2)


def same_bits(got, wanted):
    for a, b in zip((got, *got.folds), (wanted, *wanted.folds), strict=True):
        assert a.rows == b.rows
        assert np.array_equal(a.product, b.product)
        assert np.array_equal(a.total, b.total)


def start(*arguments, log=None, prefix=(), settings=None, stdin=None):
    """Start Python with the arguments; what it says is appended to the log."""
    with open(log or os.devnull, "ab") as out:
        return subprocess.Popen(
            [*map(str, prefix), sys.executable, *map(str, arguments)],
            cwd=HERE,
            stdin=stdin,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(HERE), **(settings or {})},
        )


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def end(processes):
    """Kill the processes and all that they have started."""
    for process in processes:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        kill(process)
        for child in children:
            with suppress(psutil.NoSuchProcess):  # it may end by itself at any moment
                child.kill()


def slowness_now():
    """How many times longer than on a machine with nothing else to do a process takes to start, 1 at least.

    Time limits are multiplied by it: what is silent is to be given up, and what is slow is not.
    """
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import distributed"], check=True)
    return max(1.0, (time.monotonic() - began) / 1.5)


slowness = cache(slowness_now)  # where a rough figure will do


def wait_until(condition, what, timeout=60):
    timeout = timeout * slowness()
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what()} after {timeout:.0f} s"
        time.sleep(0.01)


def wait_for_reads(log, count, timeout=60):
    wait_until(lambda: spans_read(log)[0] >= count, lambda: f"{spans_read(log)[0]} of {count} reads", timeout)


@contextmanager
def bare_cluster(folder, *, scheduler=None, workers=({}, {})):
    """Run a scheduler and workers of one thread each on loopback, and yield its address and the processes.

    What is given for each of them goes to `start`.
    """
    file = folder / f"scheduler-{uuid.uuid4().hex}.json"
    common = ("--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", file)
    once = ("--nthreads", 1, "--nworkers", 1, "--memory-limit", 0, "--local-directory", folder)
    started = [start("-m", "distributed.cli.dask_scheduler", "--port", 0, *common, **(scheduler or {}))]
    try:
        wait_until(lambda: file.exists() and file.read_text(), lambda: "no scheduler")
        started += [start("-m", "distributed.cli.dask_worker", *once, *common, **options) for options in workers]
        yield json.loads(file.read_text())["address"], started
    finally:
        end(reversed(started))


class Supervised:
    """A Dask process under the supervisor of the recipes."""

    AGAIN = "supervise: exit code"

    def __init__(self, *arguments, log, **options):
        self._log = log
        # It ends when its standard input does: with this process, however that may end.
        self._supervisor = start(*arguments, log=log, **options, stdin=subprocess.PIPE)

    @property
    def process(self):
        """The process, if there is one at the moment."""
        return next(iter(_children(self._supervisor.pid, "distributed.cli")), None)

    def said(self, words):
        """How often it, what it started or its supervisor has said something."""
        return self._log.read_text().count(words)

    def end(self):
        end([self._supervisor])
        self._supervisor.stdin.close()


class Worker(Supervised):
    """A supervised `dask worker`: a nanny, and the process that works."""

    def __init__(self, name, *arguments, **options):
        self.name = name
        super().__init__(*arguments, "--name", name, **options)

    @property
    def working(self):
        """The process that works, if there is one at the moment."""
        nanny = self.process
        return None if nanny is None else next(iter(_children(nanny.pid, "spawn_main")), None)


def _children(pid, words):
    """List the living processes that a process has started, of those with certain words in their command."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()  # empty if it is dead, and a shell's before it has become what it will be
                if command[:1] == [sys.executable] and any(words in word for word in command):
                    found.append(child)
    return found


@dataclass(frozen=True)
class Host:
    """Where a process runs: the address it is reached at, and what its command begins with."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


class Cluster:
    """A scheduler and workers of one thread each, supervised, with certificates on every side.

    Limits are times in Dask's configuration.
    """

    def __init__(self, folder, scheduler, workers, *, limits=None, memory_limit="0"):
        self.folder, self.file = folder, folder / "scheduler.json"
        self.settings = {
            "DASK_CONFIG": str(certificates(folder / "certificates")),
            # Before a worker is known: importing stops its event loop for seconds, and it would be given up.
            "DASK_DISTRIBUTED__WORKER__PRELOAD": "['counting']",
            **{f"DASK_DISTRIBUTED__{name}": f"{seconds * slowness():.0f}s" for name, seconds in (limits or {}).items()},
        }
        self.scheduler = Supervised(*self._dask("scheduler", scheduler, "--port", 0), **self._options("s", scheduler))
        once = ("--nthreads", 1, "--nworkers", 1, "--memory-limit", memory_limit, "--local-directory", folder)
        self.workers = [
            Worker(
                f"w{i}",
                *self._dask("worker", host, *once, "--death-timeout", f"{60 * slowness():.0f}s"),
                **self._options(f"w{i}", host),
            )
            for i, host in enumerate(workers)
        ]

    def _dask(self, command, host, *more):
        common = ("--host", host.address, "--protocol", "tls", "--no-dashboard", "--scheduler-file", self.file)
        return "-m", f"distributed.cli.dask_{command}", *common, *more

    def _options(self, name, host):
        supervisor = (HERE.parent / "deploy" / "supervise.sh", "--while-stdin")
        log, prefix = self.folder / f"{name}.log", (*host.prefix, *supervisor)
        return {"log": log, "prefix": prefix, "settings": {**self.settings, "SUPERVISE_DELAY": "0.2"}}

    @property
    def address(self):
        """Where the scheduler of the moment is, once it is there."""
        wait_until(self.file.exists, lambda: "no scheduler")
        while not (written := self.file.read_text()):  # a scheduler that was started again is writing it
            time.sleep(0.01)
        return json.loads(written)["address"]

    def connect(self):
        """Return a client in this process."""
        return Client(self.address, security=security(self.folder / "certificates"))

    def kill_scheduler(self):
        """Kill it; nobody is to find the address of a dead one."""
        self.file.unlink()
        self.scheduler.process.kill()

    def end(self):
        for supervised in (*self.workers, self.scheduler):
            supervised.end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def certificates(folder):
    """Make certificates as the recipes do, and return the Dask configuration that uses them."""
    script = HERE.parent / "deploy" / "make_certificates.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder / "dask.yaml"


def security(folder):
    """Return Dask's settings for the certificates in a folder."""
    sides = {
        f"tls_{role}_{what}": str(folder / f"{role}{end}.pem")
        for role in ROLES
        for what, end in (("cert", ""), ("key", "-key"))
    }
    return Security(tls_ca_file=str(folder / "ca.pem"), require_encryption=True, **sides)

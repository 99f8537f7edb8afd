"""Start a Dask cluster of jobs of Slurm, PBS, LSF or Grid Engine, run one rgcss command on it, give the nodes back.

    export DASK_CONFIG=$PWD/cluster               # a folder with the certificates and slurm.yaml
    python on_slurm.py --jobs 10 scan data.zarr -o moments.zarr --folds 5

The scheduler runs in this process: on a login node, or itself in a job (sbatch --wrap "python on_slurm.py ...").
A job that is lost, preempted or at the end of its time is replaced by a new one until the command is finished. When
this process itself is killed, the same command goes on from the checkpoints.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dask_jobqueue import LSFCluster, PBSCluster, SGECluster, SLURMCluster
from dask_jobqueue.core import JobQueueCluster
from distributed import Security

# For each batch system its name, its cluster, and the command that shows which jobs wait.
SYSTEMS = {
    "slurm": ("Slurm", SLURMCluster, "squeue --me"),
    "pbs": ("PBS", PBSCluster, "qstat -u $USER"),
    "lsf": ("LSF", LSFCluster, "bjobs"),
    "sge": ("Grid Engine", SGECluster, "qstat"),
}


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=SYSTEMS, default="slurm", help="the batch system (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many jobs of workers (default: %(default)s)")
    parser.add_argument("--wait", type=float, help="seconds to wait for one to start (default: no limit)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of rgcss, and its options")
    given = parser.parse_args()
    if given.jobs < 1 or not given.command:
        parser.error("give --jobs of at least 1 and a command of rgcss, such as: scan data.zarr -o moments.zarr")
    signal.signal(signal.SIGTERM, _leave)  # at the end of its own time a job is asked first
    name, _, listing = SYSTEMS[given.system]
    with jobs(given.jobs, given.system) as cluster:
        say(f"Dask scheduler at {cluster.scheduler_address}, dashboard at {cluster.dashboard_link}")
        say(f"waiting for the first of {given.jobs} {name} jobs: {listing}")
        cluster.wait_for_workers(1, timeout=given.wait)
        command = [sys.executable, "-m", "rgcss_dask", *given.command, "--scheduler", cluster.scheduler_address]
        say("+ " + " ".join(["rgcss", *command[3:]]))
        return subprocess.run(command, check=False).returncode


@contextmanager
def jobs(count: int, system: str = "slurm") -> Iterator[JobQueueCluster]:
    """Keep so many jobs of workers alive."""
    security = Security()
    if not (security.require_encryption and security.tls_ca_file and security.tls_scheduler_cert):
        sys.exit(
            "error: no certificates. Make them with make_certificates.py and set DASK_CONFIG to their folder; without "
            "them anyone on the network could run code on the cluster."
        )
    with SYSTEMS[system][1](security=security) as cluster:
        # Plain scale() starts each job once; this also replaces those that end.
        cluster.adapt(minimum_jobs=count, maximum_jobs=count)
        yield cluster


def say(message: str) -> None:
    """Talk goes to stderr; results of rgcss go to stdout."""
    print(message, file=sys.stderr, flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

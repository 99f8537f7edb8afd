"""Run one command on a LocalCluster whose certificates exist in memory only.

python local_cluster.py --workers 2 -- rgcss scan data.zarr -o moments.zarr

The command runs in this process and finds the client that is active in it. Dask's nannies restart workers that die.
"""

from __future__ import annotations

import argparse
import sys

from distributed import Client, LocalCluster, Security

from rgcss_dask import cli


def main() -> None:
    """Start the cluster, run the command, stop the cluster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of each worker (default: %(default)s)")
    parser.add_argument("--memory", default="2GiB", help="of each worker (default: %(default)s)")
    parser.add_argument("--dashboard", default="127.0.0.1:0", help="address of the dashboard (default: %(default)s)")
    parser.add_argument("command", nargs="+", help="rgcss scan|batch ..., after --")
    given = parser.parse_args()
    if given.command[0] != "rgcss":
        parser.error(f"the command must be one of rgcss; got {given.command[0]!r}.")
    cluster = LocalCluster(
        n_workers=given.workers,
        threads_per_worker=given.threads,
        memory_limit=given.memory,
        host="127.0.0.1",
        protocol="tls://",
        security=Security.temporary(),
        dashboard_address=given.dashboard,
    )
    with cluster, Client(cluster):
        sys.argv = given.command
        cli.main()


if __name__ == "__main__":
    main()

"""Keep one worker by the recipe, have Slurm end its job, and wait for the next."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy" / "slurm"))

from distributed import Client
from machine import wait_until
from on_slurm import jobs


def workers(client):
    return set(client.scheduler_info(n_workers=-1)["workers"])


with jobs(1) as cluster, Client(cluster) as client:
    cluster.wait_for_workers(1, timeout=300)
    (first,) = workers(client)
    assert client.submit(sum, [1, 2], pure=False).result(timeout=300) == 3
    subprocess.run(["scancel", "--name=rgcss-worker"], check=True)
    wait_until(lambda: workers(client) - {first}, 300, "a worker in the place of the lost one")
    assert client.submit(sum, [3, 4], pure=False).result(timeout=300) == 7
print("replaced")

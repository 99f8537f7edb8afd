"""What tests of object stores share: a matrix in a bucket, the settings of a user, and a scan that is killed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import zarr

CHUNKS = r"/a\.zarr/c/"
PARTS = r"/checkpoints/\w+/.*\.part"


def put_matrix(fs, folder, rows, columns, chunk):
    """Make a matrix in a local folder, and copy it to the bucket."""
    A = np.random.default_rng(0).standard_normal((rows, columns))
    zarr.create_array(folder / "a.zarr", data=A, chunks=(chunk, columns), compressors=None)
    fs.mkdir("data")
    fs.put(str(folder / "a.zarr"), "data/a.zarr", recursive=True)


def set_up_user(patch, url, key, secret):
    """Set what a user sets, credentials and endpoint in the environment, and nothing else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": url,
    }.items():
        patch.setenv(name, value)


def kill_at_a_checkpoint(proxy, archive, *, after):
    """Start a scan that is held up after so many chunks, and kill it when it has written a checkpoint."""
    proxy.heal()
    proxy.fail("slow", path=CHUNKS, after=after, seconds=60)
    command = [sys.executable, "-m", "rgcss_dask", "scan", "s3://data/a.zarr", "-o", archive, "--folds", "2"]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 300
        while not proxy.answered("PUT", PARTS):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    proxy.heal()

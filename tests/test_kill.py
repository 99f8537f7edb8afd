"""Real SIGKILLs, at random times, again and again: the pass ends with the right bits, and little is read twice."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr
from counting import CountingSource, spans_read
from distributed import Client, LocalCluster

import rgcss_dask as rg

pytestmark = pytest.mark.integration

ROWS, COLUMNS, SPANS = 2_000_000, 6, 32
PAUSE = 0.15
HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["uint8", "float64"])
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    A = np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS), dtype=np.uint8)
    A = A if request.param == "uint8" else A + 0.1
    zarr.create_array(folder / "a.zarr", data=A, chunks=(12_500, COLUMNS))
    return str(folder / "a.zarr"), rg.scan(folder / "a.zarr", folds=2)


def same_bits(got, wanted):
    for a, b in zip((got, *got.folds), (wanted, *wanted.folds), strict=True):
        assert a.rows == b.rows
        assert np.array_equal(a.product, b.product)
        assert np.array_equal(a.total, b.total)


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for_reads(log, count, timeout=60):
    deadline = time.monotonic() + timeout
    while spans_read(log)[0] < count:
        assert time.monotonic() < deadline, f"{spans_read(log)[0]} of {count} reads after {timeout} s"
        time.sleep(0.01)


def test_a_killed_driver(data, tmp_path):
    path, wanted = data
    log, rng, kills = tmp_path / "log", random.Random(1), 0
    while True:
        process = start("counting.py", path, log, tmp_path / "m.zarr", PAUSE, "threads")
        if kills < 4:
            wait_for_reads(log, spans_read(log)[0] + rng.randint(3, 8))
            time.sleep(rng.random() * PAUSE)
            kill(process)
            kills += 1
        else:
            assert process.wait(120) == 0
            break
    same_bits(rg.load(tmp_path / "m.zarr"), wanted)
    begun, different = spans_read(log)
    assert different == SPANS
    in_flight = len(os.sched_getaffinity(0))
    assert begun - SPANS <= kills * in_flight, "only spans in flight are read again"


def test_killed_workers(data, tmp_path):
    path, wanted = data
    log, rng, kills = tmp_path / "log", random.Random(2), []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):

        def kill_some():
            for _ in range(3):
                wait_for_reads(log, spans_read(log)[0] + rng.randint(3, 6))
                pid = rng.choice(list(client.run(os.getpid).values()))
                os.kill(pid, signal.SIGKILL)
                kills.append(pid)

        killer = threading.Thread(target=kill_some)
        killer.start()
        got = rg.scan(CountingSource(path, log, PAUSE), archive=tmp_path / "m.zarr", folds=2)
        killer.join()
    assert len(kills) == 3
    same_bits(got, wanted)
    same_bits(rg.load(tmp_path / "m.zarr"), wanted)
    begun, different = spans_read(log)
    assert different == SPANS
    assert begun - SPANS <= len(kills), "one span was in flight on each"


@pytest.mark.parametrize("data", ["float64"], indirect=True)
def test_killed_workers_without_an_archive(data, tmp_path):
    path, wanted = data
    log = tmp_path / "log"
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        pid = next(iter(client.run(os.getpid).values()))
        killer = threading.Thread(target=lambda: (wait_for_reads(log, 15), os.kill(pid, signal.SIGKILL)))
        killer.start()
        same_bits(rg.scan(CountingSource(path, log, PAUSE), folds=2), wanted)
        killer.join()


def start_cluster(tmp_path, number):
    file = tmp_path / f"scheduler-{number}.json"
    processes = [
        start("-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", file)
    ]
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(2):
        processes.append(
            start(
                "-m", "distributed.cli.dask_worker", "--scheduler-file", file, "--nthreads", "1", "--no-dashboard",
                "--nworkers", "1", "--local-directory", tmp_path / "workers",
            )
        )  # fmt: skip
    return processes, json.loads(file.read_text())["address"]


def end(processes):
    for process in processes:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        kill(process)
        for child in children:
            child.kill() if child.is_running() else None


@pytest.mark.parametrize("data", ["float64"], indirect=True)
def test_a_killed_scheduler(data, tmp_path):
    path, wanted = data
    log, rng, kills = tmp_path / "log", random.Random(3), 0
    for number in range(3):
        processes, address = start_cluster(tmp_path, number)
        driver = start("counting.py", path, log, tmp_path / "m.zarr", PAUSE, address)
        try:
            if number < 2:
                wait_for_reads(log, spans_read(log)[0] + rng.randint(5, 10))
                kill(processes[0])
                kills += 1
                assert driver.wait(60) != 0, "the driver reports that the scheduler is gone"
            else:
                assert driver.wait(120) == 0
        finally:
            end([*processes, driver])
    same_bits(rg.load(tmp_path / "m.zarr"), wanted)
    begun, different = spans_read(log)
    assert different == SPANS
    assert begun - SPANS <= 2 * kills, "each of the two workers had a span in flight"

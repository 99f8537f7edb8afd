"""Real SIGKILLs, at random times, again and again: the pass ends with the right bits, and little is read twice."""

import os
import random
import signal
import threading
import time

import dask
import pytest
from counting import CountingSource, spans_read
from distributed import Client, LocalCluster
from processes import bare_cluster, end, kill, same_bits, start, stored_rows, wait_for_reads, wait_until

import rgcss_dask as rg

pytestmark = pytest.mark.integration

SPANS = 32
PAUSE = 0.15


@pytest.fixture(scope="module", params=["uint8", "float64"])
def data(request, tmp_path_factory):
    return stored_rows(tmp_path_factory.mktemp(request.param), request.param)


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
            assert process.wait(300) == 0
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


@pytest.mark.parametrize("data", ["float64"], indirect=True)
def test_a_span_whose_workers_die_is_given_up(data, tmp_path):
    """A span that does not fit kills one worker after the other: Dask tries it only so often."""
    path, wanted = data
    log, source = tmp_path / "log", CountingSource(path, tmp_path / "log", PAUSE)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        pid = next(iter(client.run(os.getpid).values()))
        killer = threading.Thread(target=lambda: (wait_for_reads(log, 9), os.kill(pid, signal.SIGKILL)))
        killer.start()
        with pytest.raises(RuntimeError, match=r"tried 1 times, and its worker died each time .* resumes from its"):
            rg.scan(source, archive=tmp_path / "m.zarr", folds=2)
        killer.join()
        same_bits(rg.scan(source, archive=tmp_path / "m.zarr", folds=2), wanted)
    begun, different = spans_read(log)
    assert different == SPANS
    assert begun - SPANS <= 2, "each of the two workers had a span in flight"


@pytest.mark.parametrize("data", ["float64"], indirect=True)
def test_a_killed_scheduler(data, tmp_path):
    path, wanted = data
    log, rng, kills = tmp_path / "log", random.Random(3), 0
    soon = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}  # the scheduler is looked for no longer
    for number in range(3):
        with bare_cluster(tmp_path) as (address, processes):
            driver = start("counting.py", path, log, tmp_path / "m.zarr", PAUSE, address, settings=soon)
            try:
                if number < 2:
                    wait_for_reads(log, spans_read(log)[0] + rng.randint(5, 10))
                    kill(processes[0])
                    kills += 1
                    assert driver.wait(300) != 0, "the driver reports that the scheduler is gone"
                else:
                    assert driver.wait(300) == 0
            finally:
                end([driver])
    same_bits(rg.load(tmp_path / "m.zarr"), wanted)
    begun, different = spans_read(log)
    assert different == SPANS
    assert begun - SPANS <= 2 * kills, "each of the two workers had a span in flight"


STOPPED = """
import os, time
from rgcss_dask.archive import archive
def stopped(group, moments, write=archive._write_moments):
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    return write(group, moments)
archive._write_moments = stopped
"""


@pytest.mark.parametrize("data", ["float64"], indirect=True)
def test_workers_that_outlive_a_killed_driver(data, tmp_path):
    """They stand still while one writes the archive, and go on after another process has finished it."""
    path, wanted = data
    log, here, go = tmp_path / "log", tmp_path / "m.zarr", tmp_path / "go"
    (tmp_path / "stopped.py").write_text(STOPPED.format(go=str(go)))
    settings = {"DASK_DISTRIBUTED__WORKER__PRELOAD": f"['{tmp_path}/stopped.py']"}
    with bare_cluster(tmp_path, workers=({"settings": settings},) * 2) as (address, _):
        driver = start("counting.py", path, log, here, 0, address)
        try:
            wait_until(lambda: list(here.glob("v*")), lambda: "no version of the archive")
        finally:
            kill(driver)
        same_bits(rg.scan(CountingSource(path, log, 0), archive=here, folds=2), wanted)
        (whole,) = here.glob("v*")
        go.touch()
        wait_until(lambda: len(list(here.glob("v*/folds/1/product/c/0/0"))) > 1, lambda: "nothing was written late")
        time.sleep(1)  # for whatever else it may do
        same_bits(rg.load(here), wanted)
        assert whole.exists()
        same_bits(rg.scan(CountingSource(path, log, 0), archive=here, folds=2), wanted)

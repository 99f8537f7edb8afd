"""Workers killed, stopped and out of memory, the scheduler killed, in run after run: the same bits."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import dask
import numpy as np
import psutil
import pytest
from counting import CountingSource, spans_read, take_memory
from processes import Cluster, Host, same_bits, slowness, stored_rows, wait_until

import rgcss_dask as rg

pytestmark = pytest.mark.integration

RUNS, WORKERS, PAUSE = 20, 4, 0.2
FREEZING = 10  # the run in which a worker falls silent
MEMORY_LIMIT = 600_000_000  # bytes; a worker that has loaded everything has some 160 million
LIMITS = {"SCHEDULER__WORKER_TTL": 12, "COMM__TIMEOUTS__CONNECT": 5}  # seconds until a silent worker is given up
OUT_OF_MEMORY, SILENT = "memory budget. Restarting", "failed to heartbeat"  # said by a nanny and by the scheduler


class Chaos:
    """Does damage at times that a seed decides, and counts what was really done."""

    def __init__(self, cluster, seed):
        self.cluster, self.rng, self.count = cluster, random.Random(seed), Counter()
        self.client, self.over = None, threading.Event()

    def strike(self, hits, log):
        """Do one damage after another, each some reads later, until the pass is over."""
        for hit in hits:
            wanted = spans_read(log)[0] + self.rng.randint(2, 6)
            wait_until(lambda n=wanted: self.over.is_set() or spans_read(log)[0] >= n, lambda: "no reads", 90)
            if self.over.wait(self.rng.random() * PAUSE):
                return
            while not self.done(hit):
                pass

    @staticmethod
    def done(hit):
        """Do the damage, unless its victim had just ended by itself."""
        try:
            hit()
        except psutil.NoSuchProcess:
            return False
        return True

    def victim(self):
        """Choose a worker that the scheduler knows; return it, its nanny, and the process that works."""
        while True:
            worker = self.rng.choice(self.cluster.workers)
            nanny, working = worker.process, worker.working
            if self.addresses(worker) and nanny is not None and working is not None:
                return worker, nanny, working
            time.sleep(0.01)

    def addresses(self, worker):
        """Where the scheduler knows a worker, if it does."""
        known = self.client.scheduler_info(n_workers=-1)["workers"]
        return [address for address, other in known.items() if other["name"] == worker.name]

    def kill(self):
        """Kill the process that works; its nanny starts another."""
        self.victim()[2].kill()
        self.count["workers killed"] += 1

    def kill_host(self):
        """Kill the nanny, and so what it guards; the supervisor starts both again."""
        self.victim()[1].kill()
        self.count["nannies killed"] += 1

    def kill_scheduler(self):
        self.cluster.kill_scheduler()
        self.count["schedulers killed"] += 1

    def pause(self):
        """Stop a worker for less time than the scheduler waits."""
        with stopped(self.victim()[2]):
            time.sleep(self.rng.uniform(0.5, 3))
        self.count["workers paused"] += 1

    def freeze(self):
        """Stop a worker and its nanny until the pass is over, and so for longer than the scheduler waits."""
        before = self.cluster.scheduler.said(SILENT)
        with stopped(*self.victim()[1:]):
            assert self.over.wait(90 * slowness()), "a pass waits for a worker that is silent"
        self.count["workers given up"] += self.cluster.scheduler.said(SILENT) - before

    def exhaust(self):
        """Fill the memory of a worker until its nanny kills it."""
        killed = False
        while not killed:
            victim, *_ = self.victim()
            before = victim.said(OUT_OF_MEMORY)
            # It may be killed before it can answer, or be dead already.
            self.client.run(take_memory, MEMORY_LIMIT, workers=self.addresses(victim), on_error="ignore")
            with suppress(AssertionError):
                wait_until(lambda v=victim, n=before: v.said(OUT_OF_MEMORY) > n, lambda: "still alive", 5)
            killed = victim.said(OUT_OF_MEMORY) > before
        self.count["workers out of memory"] += 1


@contextmanager
def stopped(*processes):
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # a nanny may have killed what did not answer
                process.resume()


@pytest.fixture(scope="module", autouse=True)
def _client_limits():
    """The client, which is in this process, looks for a lost scheduler no longer than the workers do."""
    with dask.config.set({"distributed.comm.timeouts.connect": LIMITS["COMM__TIMEOUTS__CONNECT"] * slowness()}):
        yield


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder, hosts = tmp_path_factory.mktemp("cluster"), [Host()] * WORKERS
    with Cluster(folder, Host(), hosts, limits=LIMITS, memory_limit=MEMORY_LIMIT) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return [stored_rows(tmp_path_factory.mktemp(dtype), dtype) for dtype in ("float64", "uint8")]


def hits_of(chaos, run):
    """Most runs have a kill and a pause, some more; what is rare comes early, while there is much left to read."""
    kill = chaos.kill_host if run % 7 == 3 else chaos.kill
    if run in (5, 14):
        return [kill, chaos.kill_scheduler]
    if run == FREEZING:
        return [kill, chaos.freeze]
    hits = [kill, chaos.pause] + [chaos.exhaust] * (run % 4 == 1)
    chaos.rng.shuffle(hits)
    return hits


def one_run(chaos, source, log, archive, hits):
    """Make the same call until it succeeds, amid damage; return the moments, and how often the call was made."""
    chaos.over.clear()
    with ThreadPoolExecutor(1) as pool:
        striking = pool.submit(chaos.strike, hits, log)
        try:
            for calls in (1, 2, 3):
                with chaos.cluster.connect() as chaos.client, suppress(SchedulerLostError):
                    got = scanned(source, archive)
                    chaos.over.set()
                    striking.result()  # while the client is there that it asks for the workers
                    return got, calls
        finally:
            chaos.over.set()
            striking.result()
    raise AssertionError("the pass never ended")


class SchedulerLostError(Exception):
    """The one error that a pass may end in."""


def scanned(source, archive):
    try:
        return rg.scan(source, archive=archive, folds=2).fetch()
    except ConnectionError as error:
        if "the Dask scheduler was lost" in str(error) and "make the same call" in str(error):
            raise SchedulerLostError from error
        raise


def test_twenty_runs(cluster, stored, tmp_path):
    chaos, began = Chaos(cluster, seed=7), time.monotonic()
    count, archives = chaos.count, []
    for run in range(RUNS):
        path, wanted = stored[run % 2]
        log, archive = tmp_path / f"{run}.log", tmp_path / f"{run}.zarr"
        # A worker can be given up only while it has something to read: in the one run that tries it, reads take longer.
        source = CountingSource(path, log, 5 * PAUSE if run == FREEZING else PAUSE)
        got, calls = one_run(chaos, source, log, archive, hits_of(chaos, run))
        same_bits(got, wanted)
        archives.append((archive, wanted))
        begun, different = spans_read(log)
        count["spans"] += different
        count["spans read again"] += begun - different
        count["runs that finished" if calls == 1 else "runs that were resumed"] += 1
    for archive, wanted in archives:  # only now: workers that were given up may have written later
        same_bits(rg.load(archive), wanted)
    print(", ".join(f"{name}: {number}" for name, number in sorted(count.items())), f"{time.monotonic() - began:.0f} s")
    assert count["runs that finished"] + count["runs that were resumed"] == RUNS
    assert count["workers killed"] >= RUNS / 2
    assert count["workers paused"] >= RUNS / 2
    rare = ("nannies killed", "workers out of memory", "workers given up", "schedulers killed")
    for what in (*rare, "spans read again"):
        assert count[what] >= 1, f"{what}: none, so nothing was tried"
    lost = sum(number for what, number in count.items() if what.startswith(("workers", "nannies")))
    assert count["spans read again"] <= lost + WORKERS * count["schedulers killed"], "one was in flight on each"


def test_moments_on_a_worker_that_stops(cluster, stored):
    """The scheduler gives it up, and the question goes on where the moments are made again."""
    path, wanted = stored[0]
    with cluster.connect() as client:
        client.wait_for_workers(WORKERS, timeout=60 * slowness())
        moments = rg.scan(path, folds=2)
        (address,) = moments.held.holders()
        name = client.scheduler_info(n_workers=-1)["workers"][address]["name"]
        (worker,) = (worker for worker in cluster.workers if worker.name == name)
        with stopped(worker.process, worker.working):
            picked = rg.select(moments, 3, where="scheduler")
            assert moments.held.holders() != [address]
    assert np.array_equal(picked.loss, rg.select(wanted, 3).loss)


def test_a_scheduler_that_is_lost_between_calls(cluster, stored):
    """One that stops and is killed, while a question is on its way to it, and before a pass."""
    path, _ = stored[0]
    with cluster.connect():
        moments = rg.scan(path, folds=2)
        cluster.scheduler.process.suspend()
        threading.Timer(2, cluster.kill_scheduler).start()
        with pytest.raises(ConnectionError, match=r"the Dask scheduler was lost .* make the same call"):
            rg.select(moments, 3)
        with pytest.raises(ConnectionError, match=r"the Dask scheduler was lost .* make the same call"):
            rg.scan(path, folds=2)

"""The pass as Dask sees it: where tasks go, what workers hold, what is done again, and workers that come and go."""

import collections
import math
import os
import pickle
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster, Scheduler, SpecCluster, Worker, get_worker
from distributed.diagnostics.plugin import SchedulerPlugin
from processes import IN_PROCESS, same_bits

import rgcss_dask as rg
from rgcss_dask.cluster.admission import MemoryGate
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import merge_tree, plan, spans
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.row_vectors import RowVector
from rgcss_dask.sources.zarr import ZarrSource

COLUMNS, SPAN = 20, 64
SPANS = 128


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    A = np.random.default_rng(0).normal(size=(SPANS * SPAN, COLUMNS)) + 3
    path = str(tmp_path_factory.mktemp("cluster") / "a.zarr")
    zarr.create_array(path, data=A, chunks=(SPAN, COLUMNS))
    return path


@pytest.fixture(autouse=True)
def _small_spans(monkeypatch):
    monkeypatch.setattr(spans, "SPAN_ROWS", SPAN)
    monkeypatch.setattr(spans, "SPAN_COUNT", SPANS)


@pytest.fixture
def wanted(stored, _small_spans):
    return rg.scan(stored, folds=2)


@pytest.fixture
def reading(monkeypatch):
    """Let every read take a while, and longer on the workers named; note who is at it."""
    state = {"pause": 0.01, "slow": {}, "active": collections.Counter(), "most": collections.Counter()}
    read, lock = ZarrSource.read, threading.Lock()

    def slowly(self, start, stop):
        try:
            name = get_worker().name
        except ValueError:  # not on a worker
            return read(self, start, stop)
        with lock:
            state["active"][name] += 1
            state["most"][name] = max(state["most"][name], state["active"][name])
        time.sleep(state["slow"].get(name, state["pause"]))
        with lock:
            state["active"][name] -= 1
        return read(self, start, stop)

    monkeypatch.setattr(ZarrSource, "read", slowly)
    return state


class Recorder(SchedulerPlugin):
    """Notes where tasks were sent and done, and how many results each worker held at most."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.done = []  # (kind, key, address of the worker)
        self.far = []  # merges sent to a worker that had none of their inputs
        self.held = collections.Counter()

    def transition(self, key, start, finish, *args, **details):
        kind = kind_of(key)
        task = self.scheduler.tasks.get(key)
        if finish == "processing" and kind == "merge":
            holders = {worker for dependency in task.dependencies for worker in dependency.who_has}
            if task.processing_on not in holders:
                self.far.append(key)
        if start == "processing" and finish == "memory":
            self.done.append((kind, key, details["worker"]))
        if finish == "memory":
            for worker in self.scheduler.workers.values():
                results = sum(kind_of(task.key) in ("span", "merge") for task in worker.has_what)
                self.held[worker.address] = max(self.held[worker.address], results)

    def counts(self, kind):
        """How many tasks of a kind each worker did, in falling order."""
        return sorted(collections.Counter(worker for k, _, worker in self.done if k == kind).values(), reverse=True)

    def times_done(self, kind):
        return collections.Counter(key for k, key, _ in self.done if k == kind)


def kind_of(key):
    name = key[0] if isinstance(key, tuple) else str(key)
    return name.split("-")[1] if name.startswith("rgcss-") else name


@contextmanager
def recorded(cluster):
    recorder = Recorder(cluster.scheduler)
    cluster.scheduler.add_plugin(recorder, name="recorder")
    try:
        yield recorder
    finally:
        cluster.scheduler.remove_plugin("recorder")


def await_spans(recorder, count):
    deadline = time.monotonic() + 300
    while sum(recorder.counts("span")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(("workers", "threads", "spans"), [(4, 1, 128), (8, 2, 32), (8, 1, 10)])
def test_spans_are_spread_evenly_however_few(stored, reading, workers, threads, spans):
    reading["pause"] = 0.05
    with LocalCluster(**{**IN_PROCESS, "threads_per_worker": threads}, n_workers=workers) as cluster, Client(cluster):
        with recorded(cluster) as recorder:
            rg.scan(stored, rows=slice(0, spans * SPAN))
    counts = recorder.counts("span")
    assert sum(counts) == spans
    assert len(counts) == workers
    assert counts[0] <= 1.5 * math.ceil(spans / workers) + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_what_workers_hold_is_bounded_and_merges_are_near(stored, reading, wanted, threads):
    here = {**IN_PROCESS, "threads_per_worker": threads}
    with LocalCluster(**here, n_workers=2) as cluster, Client(cluster), recorded(cluster) as recorder:
        same_bits(rg.scan(stored, folds=2), wanted)
    assert recorder.times_done("span").total() == SPANS
    assert recorder.times_done("merge").total() == SPANS - 1
    assert recorder.far == []
    most = max(recorder.held.values())
    print(f"{SPANS} spans on 2 workers of {threads} threads: at most {most} results on one at a time")
    assert most <= merge_tree.results_at_hand(SPANS, threads)


def test_names_that_the_dashboard_groups_by(stored, wanted):
    with LocalCluster(**IN_PROCESS, n_workers=2) as cluster, Client(cluster), recorded(cluster) as recorder:
        moments = rg.scan(stored)
        rg.select(moments, 3, where="worker")
    assert {kind for kind, _, _ in recorder.done} == {"job", "span", "merge", "moments", "head", "greedy"}


def test_only_what_a_lost_worker_had_is_done_again(stored, reading, wanted):
    with LocalCluster(**IN_PROCESS, n_workers=3) as cluster, Client(cluster), recorded(cluster) as recorder:
        lost, scheduler = set(), cluster.scheduler

        async def lose(address):
            lost.update(spans_with(scheduler, address))
            await scheduler.remove_worker(address, stimulus_id="test", safe=True)

        def lose_one():
            await_spans(recorder, SPANS // 2)
            cluster.loop.add_callback(lose, next(iter(scheduler.workers)))

        losing = threading.Thread(target=lose_one)
        losing.start()
        same_bits(rg.scan(stored, folds=2), wanted)
        losing.join()
    times = recorder.times_done("span")
    again = {key for key, count in times.items() if count > 1}
    assert len(times) == SPANS
    assert again <= lost
    assert max(times.values()) <= 2
    assert 0 < len(lost) < SPANS // 2 + 4


@pytest.mark.parametrize("options", [{"sketch": 8}, {"sketch": 8, "nan": "mean"}, {"candidates": [3, 7]}])
def test_sketches_and_bands_have_the_same_bits_though_a_worker_is_lost(stored, reading, options, monkeypatch):
    monkeypatch.setattr(spans, "SKETCH_SPAN", 0)
    wanted = rg.scan(stored, folds=2, **options)
    with LocalCluster(**IN_PROCESS, n_workers=3) as cluster, Client(cluster), recorded(cluster) as recorder:

        async def lose(address):
            await cluster.scheduler.remove_worker(address, stimulus_id="test", safe=True)

        def lose_one():
            await_spans(recorder, SPANS // 2)
            cluster.loop.add_callback(lose, next(iter(cluster.scheduler.workers)))

        losing = threading.Thread(target=lose_one)
        losing.start()
        same_bits(rg.scan(stored, folds=2, **options).fetch(), wanted)
        losing.join()
    assert sum(recorder.counts("span")) >= SPANS


def spans_with(scheduler, address):
    """Return the spans whose rows are nowhere else: read there now, or in a result that only this worker has."""
    found = {key for key in scheduler.tasks if kind_of(key) == "span" and on(scheduler.tasks[key], address)}
    held = [task for task in scheduler.tasks.values() if {w.address for w in task.who_has or ()} == {address}]
    while held:
        task = held.pop()
        if kind_of(task.key) == "span":
            found.add(task.key)
        elif kind_of(task.key) == "merge":
            held += task.dependencies
    return found


def on(task, address):
    return task.processing_on is not None and task.processing_on.address == address


def test_a_straggler_does_not_hold_up_the_others(stored, reading, wanted):
    reading["slow"] = {0: 1.0}
    with LocalCluster(**IN_PROCESS, n_workers=4) as cluster, Client(cluster), recorded(cluster) as recorder:
        same_bits(rg.scan(stored, folds=2), wanted)
    counts = recorder.counts("span")
    assert sum(counts) == SPANS
    assert len(counts) <= 3 or counts[-1] <= SPANS // 8, "half of an even share, on a machine that is itself slow"
    assert counts[2] >= SPANS // 5


def test_workers_come_and_go(stored, reading, wanted):
    reading["pause"] = 0.03
    with LocalCluster(**IN_PROCESS, n_workers=1) as cluster, Client(cluster), recorded(cluster) as recorder:

        def rescale():
            for done, workers in ((10, 4), (50, 1), (80, 3)):
                await_spans(recorder, done)
                cluster.scale(workers)

        scaling = threading.Thread(target=rescale)
        scaling.start()
        got = rg.scan(stored, folds=2)
        scaling.join()
        same_bits(got, wanted)
    assert len(recorder.counts("span")) >= 3


def test_an_adaptive_cluster_that_starts_with_nothing(stored, reading, wanted):
    with LocalCluster(**IN_PROCESS, n_workers=0) as cluster, Client(cluster):
        cluster.adapt(minimum=0, maximum=3, interval="100ms")
        same_bits(rg.scan(stored, folds=2), wanted)


def test_workers_with_different_threads_and_memory(stored, reading, wanted, monkeypatch):
    """Each takes as many spans at once as fit in its own memory, the one that joined later too."""
    monkeypatch.setattr(plan, "memory_need", lambda *what, concurrency, **more: concurrency * 10**9)
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}}
    sizes = {"small": (4, "4 GB"), "large": (4, "40 GB")}  # of which 60 % are for spans
    workers = {
        name: {"cls": Worker, "options": {"nthreads": threads, "memory_limit": memory, "dashboard": False}}
        for name, (threads, memory) in sizes.items()
    }
    reading["pause"] = 0.05
    with SpecCluster(scheduler=scheduler, workers=workers) as cluster, Client(cluster):
        cluster.new_spec = {"cls": Worker, "options": {"nthreads": 8, "memory_limit": "4 GB", "dashboard": False}}
        late = threading.Timer(0.3, lambda: cluster.scale(3))
        late.start()
        same_bits(rg.scan(stored, folds=2), wanted)
        late.join()
    most = reading["most"]
    assert most.pop("large") == 4
    assert len(most) == 2
    assert max(most.values()) == 2


def test_memory_is_shared_by_all_that_wait_for_it():
    gate, inside, most = MemoryGate(), 0, 0
    lock = threading.Lock()

    def work():
        nonlocal inside, most
        with gate.hold(30, 100):
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.01)
            with lock:
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3
    with gate.hold(500, 100):  # larger than all there is: alone
        pass


def test_two_at_once_with_the_same_and_with_other_options(stored, reading, wanted):
    """Keys do not collide, between threads of a client and between clients."""
    found = {}
    # as_current() changes a setting of the whole process, and threads that overlap leave it changed.
    untouched = dask.config.set(scheduler=None)
    with untouched, LocalCluster(**IN_PROCESS, n_workers=2) as cluster, recorded(cluster) as recorder:

        def work(i, folds):
            with Client(cluster, set_as_default=False) as client, client.as_current():
                found[i] = rg.scan(stored, folds=folds).fetch()

        asked = [2, 2, 3, None]
        threads = [threading.Thread(target=work, args=(i, folds)) for i, folds in enumerate(asked)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.times_done("span").total() == len(asked) * SPANS
    for i, folds in enumerate(asked):
        same_bits(found[i], rg.scan(stored, folds=folds))


def test_what_is_in_memory_is_worked_on_here(stored, wanted):
    A = zarr.open_array(stored, mode="r")[:]
    with LocalCluster(**IN_PROCESS, n_workers=1) as cluster, Client(cluster), recorded(cluster) as recorder:
        for source in (A, [stored, A]):
            assert not isinstance(rg.scan(source), RemoteMoments)
        assert recorder.done == []
        blocks = rg.scan(da.from_array(A, chunks=(1000, COLUMNS)))
        assert isinstance(blocks, RemoteMoments)
        np.testing.assert_allclose(blocks.gram(), wanted.gram(), rtol=1e-12)


def test_a_relative_path_is_whole_for_workers(stored, monkeypatch, tmp_path):
    """They may have been started in another folder."""
    for given in ("a.zarr", Path("a.zarr"), lambda: zarr.open_array("a.zarr", mode="r")):
        monkeypatch.chdir(Path(stored).parent)
        source = open_source(given() if callable(given) else given)
        zarr.create_array("w.zarr", data=np.ones(SPANS * SPAN), overwrite=True)
        weights = RowVector.of("w.zarr", "weights", SPANS * SPAN, Reading())
        assert source.paths == (stored,)
        assert weights.paths == (stored.replace("a.zarr", "w.zarr"),)
        sent = pickle.dumps(source)
        monkeypatch.chdir(tmp_path)
        assert pickle.loads(sent).read(0, 5).shape == (5, COLUMNS)


def test_timeout_of_the_configuration_is_checked(stored):
    with LocalCluster(**IN_PROCESS, n_workers=0) as cluster, Client(cluster):
        for wrong in (0, "-1 s", "soon", None):
            with dask.config.set({"rgcss.timeout": wrong}), pytest.raises(ValueError, match=r"rgcss.timeout .* got"):
                rg.scan(stored)


@pytest.mark.parametrize("archive", [False, True])
def test_ctrl_c_ends_the_pass_on_the_cluster_at_once(stored, reading, tmp_path, archive):
    """Though the traceback, which refers to the futures, is kept."""
    reading["pause"] = 0.05
    options = {"archive": tmp_path / "m.zarr"} if archive else {}
    with LocalCluster(n_workers=1, **IN_PROCESS) as cluster, Client(cluster):

        def press():
            while sum(reading["most"].values()) == 0:
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt) as kept:
            rg.scan(stored, **options)
        pressing.join()
        deadline = time.monotonic() + 20
        while left := [key for key in cluster.scheduler.tasks if "rgcss" in str(key)]:
            assert time.monotonic() < deadline, f"{len(left)} tasks are still there"
            time.sleep(0.05)
        assert kept.tb
        assert rg.scan(stored, **options).rows == SPANS * SPAN

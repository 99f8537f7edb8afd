"""Moments that stay on a cluster, and questions answered on the scheduler, on their worker or in this process."""

import gc
import inspect
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from processes import IN_PROCESS, bare_cluster, certificates, security, slowness_now

import rgcss_dask as rg
from rgcss_dask import Moments
from rgcss_dask.archive.archive import Draft
from rgcss_dask.cluster import placement, versions
from rgcss_dask.cluster import remote_moments as handle
from rgcss_dask.cluster import visibility as sight
from rgcss_dask.cluster.remote_moments import HeldOnCluster, RemoteMoments
from rgcss_dask.compat import dumps
from rgcss_dask.core import memory_needs

ROWS, COLUMNS, K = 6_000, 30, 8
PLACES = ("scheduler", "worker", "client")


def rows_like_factors(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 6)) @ rng.standard_normal((6, columns)) + rng.standard_normal((rows, columns)) + 3


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("placement") / "data.zarr"
    zarr.create_array(str(path), data=rows_like_factors(ROWS, COLUMNS), chunks=(500, COLUMNS))
    return str(path)


@pytest.fixture(scope="module")
def local(stored):
    return rg.scan(stored, folds=3, groups=12)


@pytest.fixture(scope="module")
def cluster():
    """Scheduler and workers in this process, so that what they are given can be looked at."""
    with LocalCluster(n_workers=2, **IN_PROCESS) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


@pytest.fixture
def placed(client, stored):
    moments = rg.scan(stored, folds=3, groups=12)
    assert isinstance(moments, RemoteMoments)
    return moments


@pytest.fixture
def fetched(monkeypatch):
    """Count the numbers that come to the client."""
    sizes = []
    fetch = HeldOnCluster.fetch

    def counted(self, path, name, n):
        array = fetch(self, path, name, n)
        sizes.append(array.size)
        return array

    monkeypatch.setattr(HeldOnCluster, "fetch", counted)
    return sizes


def same_bits(a, b):
    assert (a.rows, a.weight, a.n, a.exact, a.dropped, a.names) == (b.rows, b.weight, b.n, b.exact, b.dropped, b.names)
    for name in ("shift", "total", "product", "rounding"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    for kind in ("folds", "groups"):
        for x, y in zip(getattr(a, kind), getattr(b, kind), strict=True):
            same_bits(x, y)


def questions(where):
    """Return functions of moments, each asked at a place."""
    how = {"center": True, "scale": "std"}

    def refined(moments):
        picked = rg.select(moments, K, **how)
        return rg.refine(picked, moments, **place(moments)).selection

    def place(moments):
        return {"where": where} if isinstance(moments, RemoteMoments) else {}

    return {
        "select": lambda m: rg.select(m, K, lam=0.5, **how, **place(m)),
        "path": lambda m: rg.select(m, K, lam=[0.1, 10.0], bound=True, **place(m))[1],
        "cross_validate": lambda m: rg.cross_validate(m, K, lams=[0.1, 10.0], **how, **place(m)).selection,
        "refine": refined,
    }


@pytest.mark.parametrize("where", PLACES)
def test_answers_are_those_of_local_moments(placed, local, where):
    for name, question in questions(where).items():
        got, wanted = question(placed), question(local)
        assert np.array_equal(got.columns, wanted.columns), name
        assert np.array_equal(got.loss, wanted.loss), name
    got, wanted = (rg.stability(m, K, resamples=6, **more) for m, more in ((placed, {"where": where}), (local, {})))
    assert np.array_equal(got.frequency, wanted.frequency)


@pytest.mark.parametrize("where", [None, "scheduler", "worker"])
def test_no_gram_comes_to_the_client(placed, fetched, where):
    tuned = rg.cross_validate(placed, K, lams=[0.1, 10.0], where=where)
    rg.stability(placed, K, resamples=4, where=where)
    rg.refine(rg.select(placed, K, where=where), placed, where=where)
    fitted = rg.RGCSS(4, lam="cv", center=True, where=where).fit_moments(placed)
    assert fitted.coef_.shape == (4, COLUMNS)
    assert fitted.bound_path_.shape == (4,)
    assert tuned.k <= K
    assert max(fetched, default=0) <= COLUMNS


def test_at_the_client_the_gram_is_fetched_once(placed, fetched):
    for _ in range(2):
        rg.select(placed, K, where="client")
    assert fetched.count(COLUMNS**2) == 1


def test_numbers_are_known_without_a_transfer(placed, local, fetched):
    assert isinstance(placed, Moments)
    assert (placed.rows, placed.weight, placed.n, placed.dropped) == (ROWS, ROWS, COLUMNS, 0)
    assert (len(placed.folds), len(placed.groups)) == (3, 12)
    assert [fold.weight for fold in placed.folds] == [fold.weight for fold in local.folds]
    assert f"{ROWS:,} rows" in repr(placed)
    assert fetched == []


def test_a_handle_behaves_as_moments(placed, local, tmp_path):
    same_bits(placed, local)
    same_bits(placed.fetch(), local)
    assert np.array_equal(placed.gram(True, "std"), local.gram(True, "std"))
    assert np.array_equal(placed.mean, local.mean)
    same_bits(placed.take([3, 1]), local.take([3, 1]))
    same_bits(placed.merge(local), local.merge(local))
    same_bits(local.merge(placed), local.merge(local))
    same_bits(replace(placed, folds=placed.groups, groups=()), replace(local, folds=local.groups, groups=()))
    assert type(placed.take([0])) is Moments
    rg.save(placed, tmp_path / "saved.zarr")
    same_bits(rg.load(tmp_path / "saved.zarr"), local)


def test_a_handle_is_pickled_as_plain_moments(placed, local, client):
    copy = pickle.loads(pickle.dumps(placed))
    assert type(copy) is Moments
    same_bits(copy, local)
    assert client.submit(Moments.gram, placed, True).result().shape == (COLUMNS, COLUMNS)


def test_a_fold_can_be_asked_alone(placed, local):
    for where in PLACES:
        got = rg.select(placed.folds[1], 4, where=where)
        assert np.array_equal(got.loss, rg.select(local.folds[1], 4).loss)


def test_in_blocks(placed, local, monkeypatch):
    monkeypatch.setattr(handle, "BLOCK_BYTES", 8 * COLUMNS * 7)
    assert list(handle.blocks((COLUMNS, COLUMNS))) == [(0, 7), (7, 14), (14, 21), (21, 28), (28, 30)]
    assert np.array_equal(placed.product, local.product)
    assert np.array_equal(rg.select(placed, K).loss, rg.select(local, K).loss)


def test_errors_and_warnings_arrive(placed):
    for where in ("scheduler", "worker"):
        with pytest.raises(ValueError, match="k must be a whole number from 1 to 30"):
            rg.select(placed, 31, where=where)
        with pytest.warns(UserWarning, match="regularises nothing"):
            rg.select(placed, 2, lam=1e-300, where=where)
        with pytest.raises(ValueError, match="differ; got 1 more than once"):
            rg.cross_validate(placed, 2, lams=[1, 1], where=where)


def test_a_place_that_there_is_not(placed, local):
    with pytest.raises(ValueError, match=r"where must be None or one of .* got 'moon'"):
        rg.select(placed, 3, where="moon")
    for ask in (rg.select, rg.cross_validate, rg.stability):
        with pytest.raises(ValueError, match="where='worker' needs moments that scan left on a cluster"):
            ask(local, 3, where="worker")
    with pytest.raises(ValueError, match="where='scheduler' needs moments"):
        rg.refine(rg.select(local, 3), np.eye(COLUMNS), where="scheduler")
    with pytest.raises(ValueError, match="where='scheduler' needs moments"):
        rg.RGCSS(3, where="scheduler").fit(np.eye(5))


@pytest.mark.parametrize("asking", [rg.select, rg.cross_validate, rg.stability, rg.refine])
def test_a_question_takes_a_place_and_describes_every_option(asking):
    parameters = inspect.signature(asking).parameters.values()
    described = inspect.getdoc(asking)
    options = re.search(r"\nParameters\n-+\n((.+\n)+)", described)[1]
    for one in parameters:
        assert re.search(rf"^(\w+, )*(\*\*)?{one.name}\b", options, re.MULTILINE), f"{one.name} is not described"
    *_, where = (one for one in parameters if one.kind is not one.VAR_KEYWORD)
    assert (where.name, where.default) == ("where", None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lamb'"):
        asking(rg.select(np.eye(3), 1) if asking is rg.refine else np.eye(3), np.eye(3), lamb=1)


@pytest.mark.parametrize(("found", "words"), [("0.0.7", "it is 0.0.7"), (None, "it is not installed")])
def test_another_version_is_named(placed, stored, monkeypatch, found, words):
    async def probe(version, memory=True):
        return {"version": found, "free": 0}

    monkeypatch.setattr(placement, "make_probe", lambda: probe)
    monkeypatch.setattr(versions, "make_probe", lambda: probe)
    for where, place in (("scheduler", "scheduler"), ("worker", "worker")):
        with pytest.raises(RuntimeError, match=f"this process has {rg.__version__}, on the {place} .* {words}"):
            rg.select(placed, 3, where=where)
    with pytest.raises(RuntimeError, match=f"on the scheduler .* {words}"):
        rg.scan(stored)


def test_another_version_on_a_worker_is_named(client, stored, monkeypatch):
    async def probe(version, memory=True, dask_worker=None):
        return {"version": "0.0.7" if hasattr(dask_worker, "memory_manager") else version, "free": 0}

    monkeypatch.setattr(versions, "make_probe", lambda: probe)
    with pytest.raises(RuntimeError, match=f"this process has {rg.__version__}, on the worker .* it is 0.0.7"):
        rg.scan(stored)


def test_another_version_on_a_worker_that_joined_later_is_named(client, stored, monkeypatch):
    monkeypatch.setattr(sight, "VERSION", "0.0.7")  # what a worker that was not there to be asked says of itself
    with pytest.raises(RuntimeError, match=f"this process has {rg.__version__}, on the worker .* it is 0.0.7"):
        rg.scan(stored)


def test_the_probe_is_sent_by_value_and_needs_no_package():
    code = (
        "import asyncio, pickle, sys\n"
        "sys.modules['rgcss_dask'] = None\n"
        "probe = pickle.loads(sys.stdin.buffer.read())\n"
        "print(asyncio.run(probe('1'))['version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], input=dumps(versions.make_probe()), capture_output=True)
    assert done.stdout.split() == [b"None"], done.stderr


def test_too_little_memory_on_the_scheduler_leads_to_a_worker(placed, local, monkeypatch):
    def free(limit=None):
        return 1000 if limit is None else 10**9

    monkeypatch.setattr(placement, "free_memory", free)
    monkeypatch.setattr(placement, "on_scheduler", None)
    with pytest.warns(UserWarning, match=r"scheduler may use .* and this takes .* runs on the worker"):
        got = rg.select(placed, K)
    assert np.array_equal(got.loss, rg.select(local, K).loss)


def test_too_little_memory_on_the_worker_is_refused(placed, monkeypatch):
    monkeypatch.setattr(placement, "process_bytes", lambda: 10**18)
    with pytest.raises(MemoryError, match=r"may use 0 .* use where='client'"):
        rg.select(placed, K, where="worker")


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_bytes_planned_are_bytes_used(dtype):
    n, k, how = 400, 30, {"center": True, "scale": "std"}
    parts = tuple(Moments.of((100 + 9 * rows_like_factors(150, n, seed)).astype(dtype)) for seed in range(5))
    moments = replace(reduce(Moments.merge, parts), folds=parts, groups=parts)
    picked = rg.select(moments, k)
    for question, need in (
        (lambda: rg.select(moments, k, bound=True), memory_needs.select_need(n, k, bound=True)),
        (lambda: rg.select(moments, k, lam=[1.0, 2.0, 3.0], **how), memory_needs.select_need(n, k, 3)),
        (lambda: rg.cross_validate(moments, k, lams=[1.0, 9.0], **how), memory_needs.tune_need(n, k, 2, 5)),
        (lambda: rg.refine(picked, moments), memory_needs.refine_need(n, k)),
        (lambda: rg.stability(moments, k, resamples=6, **how), memory_needs.stability_need(n, k, 5, None)),
    ):
        question()  # what Numba takes to compile is not part of it
        tracemalloc.start()
        question()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= need.work


def test_moments_are_forgotten_with_the_last_handle(client, stored):
    moments = rg.scan(stored, folds=2)
    fold, key = moments.folds[0], moments.held.future.key

    def has(dask_scheduler):
        return key in dask_scheduler.tasks

    del moments
    gc.collect()
    assert client.run_on_scheduler(has)
    del fold
    gc.collect()
    deadline = time.monotonic() + 10
    while client.run_on_scheduler(has):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_after_the_cluster_is_closed(cluster, stored):
    with Client(cluster):
        moments = rg.scan(stored)
        kept = rg.RGCSS(3, where="client").fit(stored)
    for use in (lambda: moments.product, lambda: rg.select(moments, 3), lambda: rg.select(moments, 3, where="worker")):
        with pytest.raises(ConnectionError, match="left on a Dask cluster that no longer answers"):
            use()
    assert kept.moments_.gram().shape == (COLUMNS, COLUMNS)


def test_archives_are_written_and_loaded_by_workers(client, stored, local, tmp_path, fetched):
    path = tmp_path / "moments.zarr"
    made = rg.scan(stored, folds=3, groups=12, archive=path)
    again = rg.scan(stored, folds=3, groups=12, archive=path)
    assert isinstance(made, RemoteMoments)
    assert isinstance(again, RemoteMoments)
    assert not (path / "checkpoints").exists()
    assert fetched == []
    for moments in (made, again, rg.load(path)):
        same_bits(moments, local)


def test_an_archive_outlives_the_cluster(cluster, stored, local, tmp_path):
    with Client(cluster):
        moments = rg.scan(stored, folds=3, groups=12, archive=tmp_path / "moments.zarr")
    assert np.array_equal(rg.select(moments, K).loss, rg.select(local, K).loss)
    same_bits(moments, local)
    with pytest.raises(ConnectionError, match="no longer answers"):
        rg.select(moments, K, where="worker")


def test_an_archive_that_only_the_client_sees(client, stored, local, tmp_path, monkeypatch):
    def blind(*args):
        raise FileNotFoundError("not here")

    path = tmp_path / "moments.zarr"
    elsewhere = Draft(f"v{0:012x}", {}, 9)  # which a worker wrote on a machine of its own
    monkeypatch.setattr(handle, "_write", lambda *args: elsewhere)
    made = rg.scan(stored, folds=3, groups=12, archive=path)
    monkeypatch.setattr(handle, "_read", blind)
    again = rg.scan(stored, folds=3, groups=12, archive=path)
    assert type(again) is Moments
    for moments in (made, again):
        same_bits(moments, local)


def test_two_at_once(client, stored):
    """Scans and selections overlap."""
    found = {}

    def work(i):
        moments = rg.scan(stored, folds=2 + i)
        found[i] = [rg.select(moments, K, where=where).loss for where in ("scheduler", "worker")]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = [rg.select(rg.scan(stored, folds=2 + i).fetch(), K).loss for i in range(4)]
    for i in range(4):
        assert np.array_equal(found[i], [wanted[i]] * 2)


def test_the_estimator_on_a_cluster(client, stored, fetched):
    with_cluster = rg.RGCSS("cv", lam=0, cv=3, refine=True, where="worker").fit(stored)
    score = with_cluster.score(stored)
    assert max(fetched, default=0) <= COLUMNS
    here = rg.RGCSS("cv", lam=0, cv=3, refine=True, where="client").fit(stored)
    assert np.array_equal(with_cluster.selected_, here.selected_)
    assert np.array_equal(with_cluster.coef_, here.coef_)
    assert score == pytest.approx(here.score(stored), rel=1e-12)


def beat(address, ended, gaps, ages):
    """Be another client: run one small task after the other, and ask how long ago workers were heard of."""

    def age(dask_scheduler):
        return max(time.time() - worker.last_seen for worker in dask_scheduler.workers.values())

    with Client(address, set_as_default=False) as other:
        other.submit(int, 0, pure=False).result()
        last = time.monotonic()
        while not ended.is_set():
            other.submit(int, 1, pure=False).result()
            now = time.monotonic()
            gaps.append(now - last)
            last = now
            ages.append(other.run_on_scheduler(age))


@pytest.mark.integration
@pytest.mark.parametrize("where", ["scheduler", "worker"])
def test_the_cluster_goes_on_during_a_large_selection(tmp_path, where):
    n, k = 4096, 400
    path = str(tmp_path / "wide.zarr")
    zarr.create_array(path, data=rows_like_factors(5_000, n).astype(np.float32), chunks=(500, n))
    slow = slowness_now()
    with bare_cluster(tmp_path) as (address, _), Client(address):
        moments = rg.scan(path)
        ended, gaps, ages = threading.Event(), [], []
        other = threading.Thread(target=beat, args=(address, ended, gaps, ages))
        other.start()
        began = time.monotonic()
        picked = rg.select(moments, k, where=where)
        seconds = time.monotonic() - began
        ended.set()
        other.join()
        print(
            f"{where}: {seconds:.1f} s for n = {n}, k = {k}; {len(gaps)} small tasks meanwhile, longest gap "
            f"{max(gaps):.2f} s, median {np.median(gaps) * 1000:.1f} ms; heartbeats at most {max(ages):.2f} s old"
        )
        assert picked.k == k
        assert max(gaps) < 1.0 * slow
        assert max(ages) < 5.0 * slow
        assert len(gaps) > 10 * seconds / slow


@pytest.mark.integration
def test_four_clients_select_at_once_on_one_scheduler(tmp_path):
    """Their answers are right, and the scheduler answers others meanwhile."""
    n, k, lams = 800, 60, [0.1, 1.0]
    path = str(tmp_path / "wide.zarr")
    zarr.create_array(path, data=rows_like_factors(2_000, n), chunks=(500, n))
    wanted, slow = rg.select(rg.scan(path), k, lam=lams), slowness_now()

    scanned = threading.Barrier(5)

    def ask(address):
        with Client(address, set_as_default=False) as client, client.as_current():
            moments = rg.scan(path)
            rg.select(moments, k, where="scheduler")  # so that all is loaded
            scanned.wait(300)
            return [rg.select(moments, k, lam=lams, where="scheduler") for _ in range(4)]

    with bare_cluster(tmp_path) as (address, _), ThreadPoolExecutor(4) as callers:
        asked = [callers.submit(ask, address) for _ in range(4)]
        ended, gaps, ages = threading.Event(), [], []
        other = threading.Thread(target=beat, args=(address, ended, gaps, ages))
        scanned.wait(300)
        other.start()
        found = [paths for answers in asked for paths in answers.result()]
        ended.set()
        other.join()
    assert len(found) == 16
    for paths in found:
        for got, want in zip(paths, wanted, strict=True):
            assert np.array_equal(got.columns, want.columns)
            np.testing.assert_allclose(got.loss, want.loss, rtol=1e-9)
    assert max(gaps) < 1.0 * slow


@pytest.mark.integration
def test_processes_and_a_lost_worker(tmp_path, stored, local):
    """The worker that has the moments is killed: they are made again, or loaded from the archive."""
    with bare_cluster(tmp_path) as (address, _), Client(address) as client:
        client.wait_for_workers(2)
        for where in ("scheduler", "worker"):
            archive = tmp_path / "kept.zarr" if where == "worker" else None
            moments = rg.scan(stored, folds=3, groups=12, archive=archive)
            assert np.array_equal(rg.select(moments, K, where=where).loss, rg.select(local, K).loss)
            client.run(os._exit, 1, workers=moments.held.holders(), on_error="ignore")
            assert np.array_equal(rg.select(moments, K, where=where).loss, rg.select(local, K).loss)
            same_bits(moments, local)


@pytest.mark.integration
def test_over_tls(stored, local, fetched, tmp_path):
    shown = security(certificates(tmp_path / "certificates").parent)
    options = {"n_workers": 2, "protocol": "tls://", **IN_PROCESS, "processes": True}
    with LocalCluster(**options, security=shown) as cluster, Client(cluster, security=shown):
        moments = rg.scan(stored, folds=3, groups=12)
        for where in ("scheduler", "worker"):
            assert np.array_equal(rg.select(moments, K, where=where).loss, rg.select(local, K).loss)
        assert fetched == []
        same_bits(moments, local)

"""The threads of a selection: the same bits however many there are; none is left behind, and none disturbs another."""

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rgcss_dask import Factor, select
from rgcss_dask.core import memory_needs
from rgcss_dask.core.solver import greedy, pool
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.solver.pool import Pool

N, K = 800, 70  # large enough for products in parts


def block(rows):
    rng = np.random.default_rng(rows)
    low = rng.standard_normal((rows, 40)) @ rng.standard_normal((40, N))
    return low + 0.1 * rng.standard_normal((rows, N))


def with_cpus(monkeypatch, count):
    monkeypatch.setattr(pool, "available_cpus", lambda: count)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("objective", ["unselected", "all"])
def test_the_same_bits_for_any_number_of_threads(monkeypatch, wide, objective):
    with_cpus(monkeypatch, 1)
    given = Factor(block(500)) if wide else block(900).T @ block(900)
    alone = select(given, K, lam=0.1, objective=objective)
    assert alone.refreshes > 0, "refreshes must be among what is compared"
    for count in (2, 3, 8, 11):
        with_cpus(monkeypatch, count)
        together = select(given, K, lam=0.1, objective=objective)
        assert np.array_equal(together.columns, alone.columns)
        assert np.array_equal(together.loss, alone.loss)


@pytest.mark.parametrize("wide", [False, True])
def test_the_same_bits_for_several_lambdas_in_step(monkeypatch, wide):
    given, lams = Factor(block(500)) if wide else block(900).T @ block(900), np.logspace(-3, 3, 7)
    with_cpus(monkeypatch, 1)
    alone = select(given, K, lam=lams)
    assert any(path.refreshes for path in alone), "refreshes must be among what is compared"
    for count in (2, 3, 8, 11):
        with_cpus(monkeypatch, count)
        for path, wanted in zip(select(given, K, lam=lams), alone, strict=True):
            assert np.array_equal(path.columns, wanted.columns)
            assert np.array_equal(path.loss, wanted.loss)


@pytest.mark.parametrize("vectors", [1, 2, 5, 6, 40])
@pytest.mark.parametrize("wide", [False, True])
def test_products_are_those_of_the_matrix(wide, vectors):
    A, X = block(900), np.random.default_rng(0).standard_normal((vectors, N))
    base = Factor(A[:500]) if wide else Gram(A.T @ A)
    G = base.matrix.T @ base.matrix if wide else base.matrix
    with Pool() as some:
        np.testing.assert_allclose(base.multiply(X, some), X @ G, rtol=1e-9, atol=1e-6)


def test_no_thread_is_left_after_an_error_in_the_middle_of_a_selection(monkeypatch):
    with_cpus(monkeypatch, 3)
    monkeypatch.setattr(Gram, "gain_terms", lambda *_: 1 / 0)  # the first refresh
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        select(block(900).T @ block(900), K, lam=0.1)
    assert threading.active_count() == before


def test_small_selections_start_no_threads(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a thread costs more than all of this")

    with_cpus(monkeypatch, 4)
    monkeypatch.setattr(threading.Thread, "start", fail)
    select(np.eye(100), 10, lam=1.0)


def test_map_keeps_the_order_and_nests():
    with Pool() as some:
        got = some.map(lambda i: sum(some.map(lambda j: i * j, ((j,) for j in range(5)))), ((i,) for i in range(20)))
    assert got == [10 * i for i in range(20)]


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_map_raises_what_a_job_raised_when_all_have_ended(jobs):
    ended = []

    def job(i):
        if i == jobs - 1:
            raise LookupError("the last one")
        ended.append(i)

    with Pool() as some, pytest.raises(LookupError, match="the last one"):
        some.map(job, ((i,) for i in range(jobs)))
    assert sorted(ended) == list(range(jobs - 1))


def test_an_error_in_one_path_ends_the_others(monkeypatch):
    """Ctrl-C is such an error: nobody wants to wait for what is thrown away."""
    with_cpus(monkeypatch, 2)
    picks, real = [], greedy._Path.advance

    def advance(path, *args):
        if path.lam == 1.0:
            raise KeyboardInterrupt
        picks.append(path.lam)
        time.sleep(0.01)
        return real(path, *args)

    monkeypatch.setattr(greedy._Path, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        select(np.diag(np.arange(1.0, 400.0)), 300, lam=np.arange(1.0, 30.0))
    assert len(picks) < 300, "not even one of the other paths was walked to its end"


def test_interrupted_while_it_waits_map_lets_no_further_job_be_taken(monkeypatch):
    with_cpus(monkeypatch, 2)
    done, caller = [], threading.current_thread()

    def job(i):
        if threading.current_thread() is caller:
            while not done:  # the other one has a job, too
                time.sleep(0.001)
            raise KeyboardInterrupt
        done.append(i)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt), Pool() as some:
        some.map(job, ((i,) for i in range(1000)))
    assert len(done) < 100


def test_where_no_thread_can_be_started_one_does_it_all(monkeypatch):
    want = select(block(900).T @ block(900), 10, lam=[0.1, 1.0])

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with_cpus(monkeypatch, 4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for got, wanted in zip(select(block(900).T @ block(900), 10, lam=[0.1, 1.0]), want, strict=True):
        assert np.array_equal(got.loss, wanted.loss)


@pytest.mark.parametrize(("n", "k", "lams"), [(700, 650, 1), (600, 5, 20), (600, 33, 8)])
def test_no_more_memory_than_is_planned_for(n, k, lams):
    A = np.random.default_rng(0).standard_normal((n + 100, n)) * np.logspace(0, -3, n)
    G, values = A.T @ A, np.logspace(-1, 1, lams)
    select(G, 1, lam=values)
    tracemalloc.start()
    try:
        select(G, k, lam=values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= memory_needs.select_need(n, k, lams).work - 2 * G.nbytes, (
        "besides the two Grams, which were there before"
    )


def test_map_of_nothing_is_nothing():
    with Pool() as some:
        assert some.map(print, ()) == []


def test_selections_side_by_side_do_not_disturb_each_other():
    """A Factor is given by the caller, who may give it to several threads."""
    wide = Factor(block(700))
    want = [picked.loss for picked in select(wide, 30, lam=[0.1, 1.0])]
    with Pool() as some:
        some.count = 4
        for got in some.map(lambda _: select(wide, 30, lam=[0.1, 1.0]), ((i,) for i in range(8))):
            for picked, loss in zip(got, want, strict=True):
                assert np.array_equal(picked.loss, loss)


def test_many_selections_at_once_in_threads_of_one_process():
    """Each has its own few threads; none spins, none waits for another's, and all have the bits that one alone has."""
    rng = np.random.default_rng(0)
    given = [block(900).T @ block(900), Factor(block(500)), np.diag(rng.random(N)) + 1.0]
    lams = np.logspace(-2, 1, 3)
    wanted = [select(source, 20, lam=lams) for source in given]
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda i: select(given[i % 3], 20, lam=lams), range(50)))
    for i, paths in enumerate(found):
        for got, want in zip(paths, wanted[i % 3], strict=True):
            assert np.array_equal(got.columns, want.columns)
            assert np.array_equal(got.loss, want.loss)

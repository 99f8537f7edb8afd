"""The threads of a selection: the same bits however many there are, however late they come; none is left behind."""

import threading
import time
import tracemalloc

import numpy as np
import pytest

from rgcss_dask import Factor, select
from rgcss_dask.core import greedy, steps, workers
from rgcss_dask.core import memory_needs as needs
from rgcss_dask.core.gram import Gram
from rgcss_dask.core.workers import Workers

N, K = 800, 70  # large enough for a team, and for rows of the factors that widen twice


def block(rows):
    rng = np.random.default_rng(rows)
    low = rng.standard_normal((rows, 40)) @ rng.standard_normal((40, N))
    return low + 0.1 * rng.standard_normal((rows, N))


def with_cpus(monkeypatch, count):
    monkeypatch.setattr(workers, "available_cpus", lambda: count)


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
    monkeypatch.setattr(greedy, "_LARGE", 0)
    given, lams = Factor(block(500)) if wide else block(900).T @ block(900), np.logspace(-3, 3, 7)
    with_cpus(monkeypatch, 1)
    alone = select(given, K, lam=lams)
    assert any(path.refreshes for path in alone), "refreshes must be among what is compared"
    for count in (2, 3, 8, 11):
        with_cpus(monkeypatch, count)
        for path, wanted in zip(select(given, K, lam=lams), alone, strict=True):
            assert np.array_equal(path.columns, wanted.columns)
            assert np.array_equal(path.loss, wanted.loss)


def product(threads, board=None, vectors=2, wide=False):
    """Return the products of a Gram with some vectors, taken by the first of so many threads."""
    A = block(900)
    state = steps.State.of(A if wide else A.T @ A, 0, vectors=vectors)
    state.masked[:] = np.random.default_rng(0).standard_normal((vectors, N))
    step = steps.FACTOR_PRODUCT if wide else steps.PRODUCT
    steps.take(steps.board() if board is None else board, 0, threads, step, state, False)
    return state


@pytest.mark.parametrize("vectors", [2, 6])
@pytest.mark.parametrize("wide", [False, True])
def test_products_are_those_of_the_matrix(wide, vectors):
    state = product(threads=1, vectors=vectors, wide=wide)
    G = state.matrix.T @ state.matrix if wide else state.matrix
    np.testing.assert_allclose(state.product, state.masked @ G, rtol=1e-9, atol=1e-6)


def test_threads_that_never_come_are_not_waited_for():
    assert np.array_equal(product(threads=8).product, product(threads=1).product)


def test_a_thread_that_comes_after_the_end_leaves_at_once_and_changes_nothing():
    board = steps.board()
    state = product(threads=2, board=board)
    before = state.product.copy()
    steps.end(board)
    steps.take(board, 1, 2, steps.NONE, state, False)
    assert np.array_equal(state.product, before)


def test_a_thread_that_comes_late_finds_what_it_was_to_do_done_and_joins_the_next_step():
    board = steps.board()
    state = product(threads=2, board=board)
    want = state.product.copy()
    late = threading.Thread(target=steps.take, args=(board, 1, 2, steps.NONE, state, False))
    late.start()
    try:
        for _ in range(300):
            state.product[:] = 0.0
            steps.take(board, 0, 2, steps.PRODUCT, state, False)
            assert np.array_equal(state.product, want)
    finally:
        steps.end(board)
        late.join()


def test_no_thread_is_left_after_an_error_in_the_middle_of_a_selection(monkeypatch):
    with_cpus(monkeypatch, 3)
    monkeypatch.setattr(Gram, "sums", lambda *_: 1 / 0)  # the first refresh
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        select(block(900).T @ block(900), K, lam=0.1)
    assert threading.active_count() == before


def test_small_selections_start_no_threads(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a thread costs more than all of this")

    with_cpus(monkeypatch, 4)
    monkeypatch.setattr(workers.threading, "Thread", fail)
    select(np.eye(100), 10, lam=1.0)


def test_map_keeps_the_order_and_nests():
    with Workers() as some:
        got = some.map(lambda i: sum(some.map(lambda j: i * j, ((j,) for j in range(5)))), ((i,) for i in range(20)))
    assert got == [10 * i for i in range(20)]


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_map_raises_what_a_job_raised_when_all_have_ended(jobs):
    ended = []

    def job(i):
        if i == jobs - 1:
            raise LookupError("the last one")
        ended.append(i)

    with Workers() as some, pytest.raises(LookupError, match="the last one"):
        some.map(job, ((i,) for i in range(jobs)))
    assert sorted(ended) == list(range(jobs - 1))


def test_an_error_in_one_path_ends_the_others(monkeypatch):
    """Ctrl-C is such an error: nobody wants to wait for what is thrown away."""
    with_cpus(monkeypatch, 2)
    picks, real = [], greedy._Path.pick

    def pick(path, *args):
        if path.lam == 1.0:
            raise KeyboardInterrupt
        picks.append(path.lam)
        time.sleep(0.01)
        return real(path, *args)

    monkeypatch.setattr(greedy._Path, "pick", pick)
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

    with pytest.raises(KeyboardInterrupt), Workers() as some:
        some.map(job, ((i,) for i in range(1000)))
    assert some.failed
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
@pytest.mark.parametrize("in_step", [False, True])
def test_no_more_memory_than_is_planned_for(monkeypatch, n, k, lams, in_step):
    monkeypatch.setattr(greedy, "_LARGE", 0 if in_step else 2**60)
    A = np.random.default_rng(0).standard_normal((n + 100, n)) * np.logspace(0, -3, n)
    G, values = A.T @ A, np.logspace(-1, 1, lams)
    select(G, 1, lam=values)
    tracemalloc.start()
    try:
        select(G, k, lam=values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= needs.select_need(n, k, lams).work - 2 * G.nbytes, "besides the two Grams, which were there before"


def test_map_of_nothing_is_nothing():
    with Workers() as some:
        assert some.map(print, ()) == []


def test_selections_side_by_side_do_not_disturb_each_other():
    """A Factor is given by the caller, who may give it to several threads."""
    wide = Factor(block(700))
    want = [picked.loss for picked in select(wide, 30, lam=[0.1, 1.0])]
    with Workers() as some:
        some.count = 4
        for got in some.map(lambda _: select(wide, 30, lam=[0.1, 1.0]), ((i,) for i in range(8))):
            for picked, loss in zip(got, want, strict=True):
                assert np.array_equal(picked.loss, loss)

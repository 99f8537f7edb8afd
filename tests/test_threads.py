"""What the threads of a process share: BLAS at one thread, and memory that is kept for the next of its size."""

import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import rgcss_dask as rg
from rgcss_dask.runtime import cpus as cpu_counts
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import cpu_quota
from rgcss_dask.runtime.page_pool import _rows, _sums, empty_rows, empty_sums, freed_memory_kept, keep_memory_only_for
from rgcss_dask.runtime.shared_context import SharedContext

SHAPE = (600, 600)


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_blas_is_at_one_thread_until_the_last_caller_has_left():
    before = blas_threads()
    first, second = single_threaded_blas(), single_threaded_blas()
    with first:
        second.__enter__()
        assert blas_threads() == {1}
    assert blas_threads() == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def until_memory_is_given_back():
    deadline = time.monotonic() + 60
    while not empty_sums(SHAPE).flags.owndata:
        assert time.monotonic() < deadline, "memory is kept for ever"
        time.sleep(0.05)


def test_who_comes_soon_finds_everything_as_it_was_left():
    """Spans come one by one to a worker; no pass says there that it is over."""
    threads = threading.active_count()
    with freed_memory_kept().and_after(3):
        place = empty_sums(SHAPE).ctypes.data
    for _ in range(20):
        with freed_memory_kept().and_after(0.1):
            assert empty_sums(SHAPE).ctypes.data == place
    assert threading.active_count() <= threads + 1
    until_memory_is_given_back()


def test_one_who_comes_in_the_moment_of_leaving_leaves_too():
    class Lock:
        """Lets somebody in as soon as the thread that waits has let go of it."""

        def __init__(self):
            self.lock, self.left = threading.Lock(), 0

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *error):
            self.lock.release()
            if threading.current_thread().name == "rgcss-leave" and not state._leaving and not self.left:
                self.left = 1
                with state.and_after(0.1):
                    pass

    state = SharedContext(lambda end: None)
    state._lock = Lock()
    with state.and_after(0.01):
        pass
    deadline = time.monotonic() + 60
    while state._callers or not state._lock.left:
        assert time.monotonic() < deadline, "somebody is still inside"
        time.sleep(0.01)


def test_memory_is_not_kept_for_other_work():
    with freed_memory_kept():
        keep_memory_only_for("a pass")
        place = empty_sums(SHAPE).ctypes.data
        keep_memory_only_for("a pass")
        assert empty_sums(SHAPE).ctypes.data == place
        keep_memory_only_for("another pass")
        assert _sums._free == _rows._free == []


def test_memory_is_given_back_at_once_where_no_thread_can_wait(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with freed_memory_kept().and_after(5):
        assert not empty_sums(SHAPE).flags.owndata
    assert empty_sums(SHAPE).flags.owndata


def test_an_array_gets_the_memory_of_one_that_is_gone_with_all_its_views():
    with freed_memory_kept():
        gone = empty_sums(SHAPE)
        place, view = gone.ctypes.data, gone[5:].T
        del gone
        other = empty_sums(SHAPE)
        assert other.ctypes.data != place
        view += 1  # still its own
        del view
        assert empty_sums(SHAPE).ctypes.data == place


def test_fewer_rows_lie_in_the_memory_of_more_and_sums_do_not():
    with freed_memory_kept():
        places = {}
        for rows in (2_000, 700, 600):
            places[rows] = empty_rows((rows, 600), np.float64).ctypes.data
        assert places == dict.fromkeys(places, places[2_000])
        large = empty_rows((2_000, 600), np.float64)
        small = empty_rows((600, 600), np.float64)
        assert large.ctypes.data == places[2_000] != small.ctypes.data
        place = small.ctypes.data
        del large, small
        assert empty_rows((500, 600), np.float64).ctypes.data == place  # the smallest that is large enough
        gone = empty_sums((700, 600)).ctypes.data
        assert empty_sums((600, 600)).ctypes.data not in (gone, place, places[2_000])


def test_freed_rows_too_small_for_the_next_ones_are_given_back():
    """Else a pass whose reads grow holds the largest of each size beside the rows in use."""
    with freed_memory_kept():
        for rows in (500, 700, 900, 300):
            block = empty_rows((rows, 600), np.float64)
            del block
            assert [len(free) for free in _rows._free] == [8 * 600 * (900 if rows == 300 else rows)]


def test_an_array_outlives_the_pass_it_was_made_in():
    with freed_memory_kept():
        kept = empty_sums(SHAPE, np.float32)
        kept.fill(3)
    assert kept.sum() == 3 * kept.size
    assert np.array_equal(pickle.loads(pickle.dumps(kept)), kept)
    with freed_memory_kept():
        place = kept.ctypes.data
        del kept
        assert empty_sums(SHAPE, np.float32).ctypes.data == place  # a later pass may have it


def test_outside_of_a_pass_memory_is_as_ever():
    assert empty_sums(SHAPE).flags.owndata


def test_two_passes_at_once_do_not_share_what_is_in_use():
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(3_000, 400)) for _ in range(2)]
    got = [None, None]

    def run(i):
        got[i] = rg.scan(blocks[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for block, moments in zip(blocks, got, strict=True):
        np.testing.assert_allclose(moments.gram(), block.T @ block, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "50000 100000\n"}, 0),
        ({}, None),
    ],
)
def test_a_containers_share_of_the_cpus_is_known(tmp_path, files, cpus):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == (sys.maxsize if cpus is None else cpus)


@pytest.mark.parametrize(("quota", "cpus"), [(0, 1), (1, 1), (sys.maxsize, None)])
def test_there_is_always_a_cpu_and_never_more_than_the_quota(monkeypatch, quota, cpus):
    monkeypatch.setattr(cpu_counts, "cpu_quota", lambda: quota)
    assert cpu_counts.available_cpus() == (cpus or len(os.sched_getaffinity(0)))


BITS = """
import hashlib, warnings
import numpy as np
import rgcss_dask as rg
from threadpoolctl import threadpool_info

warnings.simplefilter("ignore")
A = np.random.default_rng(0).standard_normal((400, 300)) * np.geomspace(1, 1e-3, 300)
G = np.floor(2.0**18 * A.T) @ np.floor(2.0**18 * A)  # whole numbers below 2^53: exact whoever adds them up
picked = rg.select(G, 100, lam=0.0, bound=True)
wide = rg.select(rg.Factor(A[:80]), 40, bound=True)
tall = rg.select(rg.Factor(A), 40)
refined = rg.refine(rg.select(G, 40, include=range(10)), G)
for value in (
    G, picked.loss, picked.bound, picked.weights(G), wide.loss, wide.bound, tall.loss,
    refined.before, refined.after, refined.selection.loss, rg.RGCSS(30).fit(A).coef_,
):
    print(hashlib.sha256(np.asarray(value).tobytes()).hexdigest())
print(max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"))
"""


def test_selections_bounds_and_weights_have_the_same_bits_for_any_number_of_threads_of_blas():
    def told(threads):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        run = subprocess.run([sys.executable, "-c", BITS], capture_output=True, text=True, check=True, env=environment)
        return run.stdout.split()

    one, two = told(1), told(2)
    assert one[:-1] == two[:-1]
    assert (one[-1], two[-1]) == ("1", "2"), "or there is nothing to compare"

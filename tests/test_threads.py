"""What the threads of a process share: BLAS at one thread, and memory that is kept for the next of its size."""

import pickle
import threading

import numpy as np
from threadpoolctl import threadpool_info

import rgcss_dask as rg
from rgcss_dask.core.threads import freed_memory_kept, lasting, single_threaded_blas

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


def test_an_array_gets_the_memory_of_one_that_is_gone_with_all_its_views():
    with freed_memory_kept():
        gone = lasting(SHAPE)
        place, view = gone.ctypes.data, gone[5:].T
        del gone
        other = lasting(SHAPE)
        assert other.ctypes.data != place
        view += 1  # still its own
        del view
        assert lasting(SHAPE).ctypes.data == place


def test_an_array_takes_the_smallest_block_that_is_free_and_not_one_far_too_large():
    with freed_memory_kept():
        places = {}
        for rows in (2_000, 700, 650):
            array = lasting((rows, 600))
            places[rows] = array.ctypes.data
            del array
            lasting((rows, 600))  # would be made anew, were it not the one just freed
        assert len(set(places.values())) == 2  # 650 rows went where 700 had been
        small = lasting((600, 600))
        assert small.ctypes.data == places[700]
        assert lasting((600, 600)).ctypes.data not in places.values()
        assert lasting((1_100, 600)).ctypes.data == places[2_000]


def test_an_array_outlives_the_pass_it_was_made_in():
    with freed_memory_kept():
        kept = lasting(SHAPE, np.float32)
        kept.fill(3)
    assert kept.sum() == 3 * kept.size
    assert np.array_equal(pickle.loads(pickle.dumps(kept)), kept)
    with freed_memory_kept():
        place = kept.ctypes.data
        del kept
        assert lasting(SHAPE, np.float32).ctypes.data == place  # a later pass may have it


def test_outside_of_a_pass_memory_is_as_ever():
    assert lasting(SHAPE).flags.owndata


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

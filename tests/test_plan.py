import heapq
import random
import time

import numpy as np
import pytest
from dask.order import order
from hypothesis import given, settings
from hypothesis import strategies as st

from rgcss_dask.core.merge_tree import LONG_RUN, _stack, is_chain, levels, results_alive, results_at_hand
from rgcss_dask.core.pass_options import Geometry, Options, check_counts
from rgcss_dask.core.plan import make_plan
from rgcss_dask.core.spans import SPAN_ROWS
from rgcss_dask.core.words import size
from rgcss_dask.sources.base import even_cuts

GB = 10**9


def geometry(rows, columns, chunk, dtype="f8"):
    return Geometry(rows, columns, np.dtype(dtype), even_cuts(rows, chunk))


def plan(rows, columns, chunk, dtype="f8", *, budget=16 * GB, threads=2, **options):
    return make_plan(geometry(rows, columns, chunk, dtype), Options(**options), budget=budget, threads=threads)


@given(
    rows=st.integers(1, 10**7),
    columns=st.integers(1, 12_000),
    chunk=st.integers(1, 10**5),
    dtype=st.sampled_from(["u1", "f4", "f8"]),
)
@settings(max_examples=60, deadline=None)
def test_every_row_is_read_once_and_merged_once(rows, columns, chunk, dtype):
    chunk = max(chunk, rows // 1000)
    made = plan(rows, columns, chunk, dtype, budget=10**15)
    spans = [made.nodes[i] for i in made.spans]
    assert [s.start for s in spans] == [0, *[s.stop for s in spans[:-1]]]
    assert spans[-1].stop == rows
    reads = [r for s in spans for r in made.reads(s)]
    assert [a for a, _ in reads] == [0, *[b for _, b in reads[:-1]]]
    assert all(a % chunk == 0 for a, _ in reads)
    assert sum(p is None for p in made.parents) == 1
    assert made.parents[-1] is None
    for node in made.nodes:
        if node.left is not None:
            assert made.nodes[node.left].stop == made.nodes[node.right].start


@pytest.mark.parametrize("rows", [10**6, 10**8, 10**10])
def test_the_graph_stays_small(rows):
    """A hundred thousand chunks and more; planning is quick, and the tasks are few."""
    began = time.perf_counter()
    made = plan(rows, 100, rows // 100_000, "u1")
    list(made.reads(made.nodes[0]))
    assert len(made.nodes) + 2 <= 10_000
    assert time.perf_counter() - began < 3


def test_workers_and_budget_change_nothing_but_how_many_run():
    small, large = plan(10**6, 784, 1000, budget=GB, threads=1), plan(10**6, 784, 1000, threads=64)
    assert small.nodes == large.nodes
    assert small.read_rows == large.read_rows
    assert (small.concurrency, large.concurrency) == (1, len(large.spans))


def test_a_budget_for_some_of_the_threads():
    all_of_them = plan(10**6, 2000, 1000, threads=8, budget=100 * GB)
    some = plan(10**6, 2000, 1000, threads=8, budget=all_of_them.memory // 2)
    assert 1 <= some.concurrency < 8
    assert some.memory <= all_of_them.memory // 2


def most_held(nodes, threads, spread, seed, *, making=False):
    """Follow a pass in Dask's order, with spans that take from 1 to many times as long, and count results at hand.

    With ``making`` those that are being made too.
    """
    rng, parents = random.Random(seed), {i: p for p, node in enumerate(nodes) for i in (node.left, node.right)}
    graph = {i: (max, node.left, node.right) if node.left is not None else (int,) for i, node in enumerate(nodes)}
    priority = order(graph)
    ready = [(priority[i], i) for i, node in enumerate(nodes) if node.left is None]
    heapq.heapify(ready)
    running, done, clock, held, most = [], set(), 0.0, 0, 0
    while ready or running:
        while ready and len(running) < threads:
            _, i = heapq.heappop(ready)
            takes = 1 + spread * rng.expovariate(1) if nodes[i].left is None else 0.02
            heapq.heappush(running, (clock + takes, i))
        if making:
            most = max(most, held + sum(nodes[j].left is None for _, j in running))
        clock, i = heapq.heappop(running)
        done.add(i)
        held += 1 if nodes[i].left is None else -1
        most = max(most, held)
        above = parents.get(i)
        if above is not None and {nodes[above].left, nodes[above].right} <= done:
            heapq.heappush(ready, (priority[above], above))
    return most


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("spread", [0.05, 0.5, 2.0])
def test_results_at_hand_are_as_few_as_planned_and_hardly_more_for_more_rows(threads, spread):
    held = {}
    for spans in (32, 79, 292, 2920):
        nodes = plan(spans * SPAN_ROWS, 784, SPAN_ROWS, "u1").nodes
        held[spans] = max(most_held(nodes, threads, spread, seed) for seed in range(3))
        assert held[spans] <= results_at_hand(spans, threads)
    if spread < 1:  # nearly a hundred times the rows: a result for each more level, and what stragglers leave behind
        assert held[2920] <= held[32] + levels(2920) - levels(32) + threads


def test_twenty_thousand_columns_use_one_accumulator_and_all_threads():
    made = plan(10**6, 20_000, 500, budget=12 * GB, threads=8)
    assert made.concurrency == 1
    assert made.tile_threads == 8
    assert made.memory <= 12 * GB
    spans = [made.nodes[i].start for i in made.spans]
    starts = {node.start for node in made.nodes if node.left is not None}
    assert starts == set(spans[::LONG_RUN]), "merged one after another in long runs, so that three matrices are alive"
    assert made.memory <= 3.3 * 8 * 20_000**2


def test_folds_of_eleven_thousand_columns_fit_where_twelve_matrices_do():
    made = plan(200_000, 11_000, 500, budget=13 * GB, threads=2, folds=5)
    assert made.concurrency == 1
    assert made.tile_threads == 2


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_ten_thousand_columns_take_less_than_four_matrices_whatever_the_threads(threads):
    assert plan(10**5, 10_000, 500, budget=1000 * GB, threads=threads).memory <= 4 * 8 * 10_000**2


@given(
    rows=st.sampled_from([10**4, 10**5, 10**6]),
    columns=st.lists(st.integers(100, 24_000), min_size=2, max_size=2),
    folds=st.sampled_from([0, 5]),
    groups=st.sampled_from([0, 20]),
    dtype=st.sampled_from(["u1", "f4", "f8"]),
    cluster=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_more_columns_take_more_memory(rows, columns, folds, groups, dtype, cluster):
    """What one span at a time needs, by which a pass is refused; but for the change to long runs, which spare some."""
    options = Options(folds=folds, groups=groups)
    few, many = (
        make_plan(geometry(rows, n, 100, dtype), options, budget=10**15, threads=1, cluster=cluster)
        for n in sorted(columns)
    )
    if is_chain(few.geometry, options) == is_chain(many.geometry, options):
        assert few.memory <= many.memory * 1.1  # spans of fewer rows may have one group less in them


@given(
    rows=st.sampled_from([10**4, 10**5, 10**6]),
    columns=st.integers(100, 24_000),
    folds=st.lists(st.integers(2, 20), min_size=2, max_size=2),
    threads=st.lists(st.integers(1, 64), min_size=2, max_size=2),
    dtype=st.sampled_from(["u1", "f4", "f8"]),
    cluster=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_more_folds_and_more_threads_take_more_memory(rows, columns, folds, threads, dtype, cluster):
    of, many = geometry(rows, columns, 100, dtype), max(threads)

    def need(folds, threads):
        made = make_plan(of, Options(folds=folds), budget=10**15, threads=threads, cluster=cluster)
        chain = is_chain(of, made.options)
        return made.memory, (chain, levels(len(made.spans), chain=chain))

    # Spans of fewer folds may be shorter, so that there are more of them, and a result for one more level of merges.
    (less, tree), (more, alike) = need(min(folds), many), need(max(folds), many)
    if tree == alike:
        assert less <= more * 1.1
    assert need(folds[0], min(threads))[0] <= need(folds[0], many)[0]


def most_alive(nodes, threads, seed):
    """Count the results that are there or in the making, as `most_held` does, of spans that take about as long."""
    return most_held(nodes, threads, 0.5, seed, making=True)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("chain", [False, True])
def test_results_alive_are_as_few_as_planned(threads, chain):
    for spans in (2, 9, 79, 292):
        nodes = _stack(np.arange(spans + 1), chain=chain)
        most = max(most_alive(nodes, 1 if chain else threads, seed) for seed in range(3))
        planned = results_alive(spans, 1 if chain else threads, chain=chain, cluster=False)
        assert most <= planned
        assert planned <= 2 * most


def test_too_little_memory_is_refused_with_the_least_that_works():
    with pytest.raises(MemoryError, match=r"784 columns need at least .* there are 50 MB\. Give at least memory=") as e:
        plan(10**6, 784, 1000, budget=50 * 10**6)
    least = int(str(e.value).split("memory=")[1].split(" ")[0].replace("_", ""))
    assert plan(10**6, 784, 1000, budget=least).concurrency == 1
    with pytest.raises(MemoryError, match="at least"):
        plan(10**6, 784, 1000, budget=least - 1)


def test_a_matrix_that_cannot_fit_is_refused():
    with pytest.raises(MemoryError, match=r"200,000 columns need 320 GB .* Keep fewer columns.*Factor"):
        plan(10**6, 200_000, 100)


def test_folds_and_huge_chunks_are_named_in_the_refusal():
    with pytest.raises(MemoryError, match="keep fewer parts apart"):
        plan(10**6, 784, 1000, budget=10**8, folds=50)
    with pytest.raises(MemoryError, match=r"smaller chunks \(now 8 GB of rows\)"):
        plan(10**7, 100, 10**7, budget=GB)


def test_saved_nodes_stand_for_all_below():
    made = plan(10**8, 100, 10_000, "u1")
    top = [i for i, node in enumerate(made.nodes) if node.saved]
    assert top
    for i in top:
        below = made.saved_below(i)
        assert len(below) <= 2 * 8
    # Every span lies under a saved node, and few bytes are written: about one checkpoint for each.
    for i in made.spans:
        assert any(made.nodes[up].saved for up in made.path_up(i))
    assert len(top) <= 1.2 * len(made.spans)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"folds": 1}, "folds must be between 2 and the number of rows, 10; got 1"),
        ({"folds": 11}, "folds must be between 2 and the number of rows, 10; got 11"),
        ({"folds": -1}, "got -1"),
        ({"groups": 99}, "groups must be between"),
        ({"folds": 2.0}, "folds must be a whole number; got 2.0"),
        ({"fraction": 0.0}, "above 0 and at most 1; got 0.0"),
        ({"fraction": 1.5}, "got 1.5"),
        ({"nan": "skip"}, "nan must be one of 'raise', 'drop', 'mean'; got 'skip'"),
        ({"precision": "half"}, "precision must be one of 'double', 'single'; got 'half'"),
    ],
)
def test_options_are_checked(options, match):
    with pytest.raises(ValueError, match=match):
        check_counts(10, Options(**options))


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (1_500, "1.5 kB"), (3_200_000_000, "3.2 GB")])
def test_sizes_are_written_for_people(count, text):
    assert size(count) == text

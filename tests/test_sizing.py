"""The model of how large a cluster should be, and the tables that are made with it."""

import json
from pathlib import Path

import numpy as np
import pytest
from distributed.scheduler import heartbeat_interval

import rgcss_dask as rg
from deploy import sizing
from deploy.sizing import (
    UNLIMITED,
    Constants,
    Machines,
    Matrix,
    Speed,
    estimate,
    heartbeats,
    planned,
    result_bytes,
)
from examples.benchmarks import cluster
from rgcss_dask.core.pass_options import Geometry, Options
from rgcss_dask.core.plan import make_plan
from rgcss_dask.core.spans import READ_BYTES, SPAN_BYTES, SPAN_LIMIT

DEPLOY = Path(__file__).parents[1] / "deploy"
FREE = Constants({"uint8": Speed(0.0, 1e-9)}, 1.0, 0.0, 1e30, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # all but the products
DEAR = Constants({"uint8": Speed(1e-9, 1e-11)}, 1.1, 0.5, 1e9, 1e-3, 1e-3, 1e-4, 1e-3, 0.01, 1e4)


def test_the_readme_has_the_tables_that_the_model_prints():
    text = (DEPLOY / "README.md").read_text()
    measured = json.loads((DEPLOY / "measured.json").read_text())
    assert sizing.filled(text, measured) == text, "python deploy/sizing.py --write"
    assert all(table in text for table in sizing.tables(measured).values())


def test_a_readme_without_a_place_for_a_table_is_refused():
    measured = json.loads((DEPLOY / "measured.json").read_text())
    with pytest.raises(ValueError, match="has no place for measured"):
        sizing.filled("# Deploying\n", measured)


@pytest.mark.parametrize(
    ("text", "rows", "columns", "dtype"),
    [("1e9x784:uint8", 10**9, 784, "uint8"), ("5000x20:float64", 5000, 20, "float64")],
)
def test_a_matrix_on_the_command_line(text, rows, columns, dtype):
    assert sizing.matrix(text) == Matrix(rows, columns, dtype)


def test_a_matrix_that_is_not_one():
    with pytest.raises(sizing.argparse.ArgumentTypeError, match="ROWSxCOLUMNS:DTYPE"):
        sizing.matrix("784")


def test_heartbeats_come_as_dask_asks_for_them():
    for workers in (1, 10, 11, 49, 50, 199, 200, 1000, 5000):
        assert heartbeats(workers) == workers / heartbeat_interval(workers)


def test_one_thread_with_nothing_else_to_do_takes_the_time_of_the_products():
    assert estimate(Matrix(10**6, 100, "uint8"), Machines(1, 1), FREE).seconds == pytest.approx(10**6 * 1e-9 * 100**2)


def test_threads_beyond_the_spans_have_no_work():
    made = estimate(Matrix(10**7, 100, "uint8"), Machines(1000, 8, network=1e30), FREE)
    assert made.threads == made.spans < 8000
    assert made.seconds == pytest.approx(10**7 / made.spans * 1e-9 * 100**2)


def test_the_scheduler_is_what_many_workers_wait_for():
    made = estimate(Matrix(10**12, 784, "uint8"), Machines(200, 8), DEAR)
    assert made.scheduler_share == pytest.approx(1)
    assert made.scheduler_seconds > estimate(Matrix(10**12, 784, "uint8"), Machines(1, 8), DEAR).spans * 2e-3


@pytest.mark.parametrize("columns", [2, 784, 12_000])  # the last are merged one after another
def test_more_rows_take_longer_and_more_workers_no_longer_unless_the_scheduler_is_in_the_way(columns):
    for rows in (10**6, 10**9, 10**12):
        times = [estimate(Matrix(rows, columns, "uint8"), Machines(w, 2), DEAR) for w in (2, 4, 8)]
        assert times[0].seconds >= times[1].seconds >= times[2].seconds or times[2].scheduler_share > 0.99
        longer = estimate(Matrix(2 * rows, columns, "uint8"), Machines(2, 2), DEAR)
        assert longer.seconds > times[0].seconds


def test_a_plan_of_more_rows_than_are_looked_at_is_the_same_plan():
    rows, chunk = 3 * SPAN_LIMIT * (SPAN_BYTES // 784), READ_BYTES // 784
    cuts = np.append(np.arange(0, rows, chunk), rows)
    asked, geometry = Options(folds=5), Geometry(rows, 784, np.dtype("uint8"), cuts)
    whole = make_plan(geometry, asked, budget=UNLIMITED, threads=8, cluster=True)
    made = planned(Matrix(rows, 784, "uint8", Options(folds=5)), 8)
    assert len(made.spans) == pytest.approx(len(whole.spans), rel=0.01)
    assert made.memory == pytest.approx(whole.memory, rel=0.05)


@pytest.mark.parametrize(("folds", "groups"), [(0, 0), (3, 0), (0, 4)])
def test_the_bytes_of_a_result_are_those_of_its_arrays(folds, groups):
    moments = rg.scan(np.random.default_rng(0).normal(size=(400, 30)), folds=folds or None, groups=groups or None)
    parts = moments.folds or moments.groups or (moments,)
    held = sum(part.scatter.nbytes + part.mean.nbytes for part in parts)
    told = result_bytes(Matrix(400, 30, "float64", Options(folds=folds, groups=groups)))
    assert held <= told <= held + 8 * 31 * 30  # groups are kept beside the rows themselves


def test_the_bare_loop_does_the_work_of_a_pass(tmp_path):
    path = cluster.make_array(tmp_path / "a.zarr", 40_000, 20, "uint8", chunk=1_000)
    parts, moments = cluster.bare_loop(path, threads=2), rg.scan(path)
    assert np.array_equal(parts.moments(Options(), None).scatter, moments.scatter)
    assert moments.rows == 40_000


def test_the_fit_finds_the_constants_it_was_made_of():
    points = {n: 2e-9 * n + 3e-11 * n**2 for n in cluster.COLUMNS}
    assert cluster.fit(points) == pytest.approx([2e-9, 3e-11])


def test_what_is_measured_again_replaces_what_was_kept(tmp_path):
    cluster.keep(tmp_path / "kept.json", {"a": 1, "b": 2, "c": {"x": 1, "y": 2}})
    cluster.keep(tmp_path / "kept.json", {"b": 3, "c": {"y": 4}})
    assert json.loads((tmp_path / "kept.json").read_text()) == {"a": 1, "b": 3, "c": {"x": 1, "y": 4}}

"""A stopping rule ends a selection in the same place, whoever asks: Python, the estimator, a command, a batch."""

import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import cli

K, N = 12, 20
AS_PICKED = ["--no-refine"]  # one by one, so that the first columns of more are those of fewer


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.standard_normal((300, 5)) @ rng.standard_normal((5, N)) + 0.3 * rng.standard_normal((300, N))


@pytest.fixture
def data(tmp_path, rows):
    zarr.create_array(tmp_path / "a.zarr", data=rows, chunks=(100, N))
    return tmp_path / "a.zarr"


def answers(data, rows, rule):
    """Ask at every door for K columns with lambda 1, but to stop by the rule."""
    options = ["--lam", "1", f"--stop-{rule[0]}", str(rule[1]), *AS_PICKED]
    done = CliRunner().invoke(cli, ["select", str(data), "-k", str(K), *options, "--json"])
    assert done.exit_code == 0, done.stderr
    jobs = data.with_name("jobs.toml")
    jobs.write_text(
        f'[[jobs]]\ndata = "a.zarr"\nk = {K}\nlam = 1.0\nreport = ""\nrefine = false\nstop_{rule[0]} = {rule[1]}\n'
    )
    (job,) = run_batch(jobs, say=lambda line: None)["jobs"]
    assert job["status"] == "done", job
    stop, moments = rg.Stop(**dict([rule])), rg.Moments.of(rows)
    return {
        "command": json.loads(done.stdout)["columns"],
        "batch": rg.load_result(data.with_name("a.json")).selection.columns.tolist(),
        "function": rg.select(moments, K, stop=stop).columns.tolist(),
        "estimator": rg.RGCSS(K, stop=stop, refine=False).fit(rows).selected_.tolist(),
    }


@pytest.mark.parametrize("rule", [("loss", 0.1), ("bound", 1.6)])
def test_every_door_stops_at_the_same_place(data, rows, rule):
    whole = rg.select(rg.Moments.of(rows), K, bound=True)
    limit = rule[1] * whole.start if rule[0] == "loss" else rule[1] * whole.bound
    stops = 1 + int(np.argmax(whole.loss <= limit))
    assert stops < K, "so that it is seen to stop"
    for door, columns in answers(data, rows, rule).items():
        assert columns == whole.columns[:stops].tolist(), door


def test_fewer_rows_than_columns_stop_too(rows):
    stopped = rg.RGCSS(K, stop=rg.Stop(loss=0.1)).fit(rows[:15])
    assert 1 < len(stopped.selected_) < K
    assert stopped.loss_path_[-1] <= 0.1 * stopped.selection_.start < stopped.loss_path_[-2]


def test_paths_that_are_compared_go_to_the_end(rows):
    moments = rg.scan(rows, folds=3, groups=6, progress=False)
    stopped = rg.RGCSS(K, lam="cv", stop=rg.Stop(loss=0.1)).fit_moments(moments)
    assert stopped.cv_results_.held_out_loss.shape[1] == K
    assert len(stopped.selected_) < K


def test_a_stopping_rule_that_is_none_is_refused(rows):
    with pytest.raises(ValueError, match=r"stop must be None or a Stop, such as Stop\(loss=0.05\); got 0.1"):
        rg.RGCSS(3, stop=0.1).fit(rows)
    done = CliRunner().invoke(cli, ["select", "nothing.zarr", "--stop-bound", "0.5"])
    assert done.exit_code == 2
    assert "is not in the range x>=1" in done.stderr

"""The Slurm recipe: its own commands, on a real Slurm of one node."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from slurm import machine, recipe

import rgcss_dask as rg

pytest.importorskip("dask_jobqueue", reason="needs the extra 'test-deploy': pip install -e '.[test-deploy]'")

HELPERS = Path(__file__).parent / "slurm"
ON_SLURM = recipe.ROOT / "deploy" / "slurm" / "on_slurm.py"
ARRAY = ON_SLURM.with_name("array.sbatch")


@pytest.fixture(scope="module")
def env():
    missing = machine.missing()
    if missing:
        pytest.skip(f"no Slurm here ({', '.join(missing)}): apt-get install slurm-wlm munge")
    with machine.slurm() as env:
        yield env


@pytest.fixture
def folder(tmp_path, env):
    subprocess.run([sys.executable, str(HELPERS / "make_data.py")], cwd=tmp_path, check=True)
    return tmp_path


def jobs(env):
    """Return the names and states of all jobs so far."""
    listed = machine.asked(["squeue", "-h", "-t", "all", "-o", "%i %j %T"], env)
    return [line.split() for line in listed.splitlines()]


@pytest.mark.integration
def test_scan_and_select_on_workers_that_slurm_starts(env, folder):
    done = recipe.run(recipe.block("cluster"), folder, env, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Dask scheduler at tls://127.0.0.1:" in done.stderr
    assert "200,000 rows x 64 columns (exact integers) in moments.zarr" in done.stdout
    workers = [state for _, name, state in jobs(env) if name == "rgcss-worker"]
    assert len(workers) == 2
    assert "RUNNING" not in workers, "the jobs must be given back"

    here, there = rg.scan(str(folder / "data.zarr"), folds=5), rg.load(folder / "moments.zarr")
    assert np.array_equal(here.scatter, there.scatter)
    assert all(np.array_equal(a.scatter, b.scatter) for a, b in zip(here.folds, there.folds, strict=True))
    assert rg.load_result(folder / "result.json").k == 8


@pytest.mark.integration
def test_an_array_of_shares_and_the_summary_after_it(env, folder):
    done = recipe.run(recipe.block("array"), folder, env, capture_output=True, timeout=machine.LIMIT)
    assert done.returncode == 0, done.stderr
    machine.wait_until(
        lambda: not [1 for _, _, state in jobs(env) if state in ("PENDING", "RUNNING", "COMPLETING")],
        2 * machine.LIMIT,
        "the array to end",
    )
    logs = "\n".join(path.read_text() for path in (folder / "rgcss-logs").iterdir())
    ended = [state for _, name, state in jobs(env) if name == "rgcss-batch"]
    assert ended == ["COMPLETED"] * 4, logs
    shares = [json.loads((folder / f"summary-{i}-of-3.json").read_text())["jobs"] for i in (1, 2, 3)]
    assert sorted(job["number"] for share in shares for job in share) == [1, 2, 3, 4, 5]
    assert {job["status"] for share in shares for job in share} == {"done"}, logs
    last = json.loads((folder / "summary.json").read_text())["jobs"]
    assert [job["status"] for job in last] == ["kept"] * 5
    assert all(rg.load_result(folder / job["result"]).k == 8 for job in last)
    assert all((folder / job["report"]).exists() for job in last)


@pytest.mark.integration
def test_a_job_that_is_lost_is_replaced(env, tmp_path):
    env = env | {"DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1s"}
    commands = "\n".join([*recipe.block("cluster").splitlines()[:3], f"python {HELPERS / 'lose_a_job.py'}"])
    done = recipe.run(commands, tmp_path, env, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("replaced\n")


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"SLURM_MEM_PER_NODE": "8192"}, "--memory 7680MiB"),
        ({"SLURM_MEM_PER_CPU": "1024"}, "--memory 3584MiB"),  # --mem-per-cpu
        ({"SLURM_MEM_PER_NODE": "0"}, ""),  # --mem=0
        ({"SLURM_MEM_PER_NODE": "512"}, ""),
        ({}, ""),
        ({"SLURM_MEM_PER_NODE": "1024", "SLURM_ARRAY_TASK_ID": "2"}, "--only 2/3 --memory 512MiB"),
    ],
)
def test_a_share_takes_the_memory_that_slurm_gives(tmp_path, given, options):
    (tmp_path / "rgcss").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "rgcss").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "4", **given}
    done = subprocess.run(["bash", ARRAY, "jobs.toml", "3"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["batch", "jobs.toml", *options.split()]


@pytest.fixture
def on_slurm(monkeypatch):
    monkeypatch.syspath_prepend(str(ON_SLURM.parent))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["on_slurm.py", *arguments])
        return importlib.import_module("on_slurm").main()

    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


def test_without_certificates_nothing_is_started(on_slurm):
    with pytest.raises(SystemExit, match=r"error: no certificates. Make them with make_certificates.py"):
        on_slurm("--jobs", "1", "scan", "data.zarr", "-o", "m.zarr")


@pytest.mark.parametrize("arguments", [("--jobs", "0", "scan"), ("--jobs", "2")])
def test_wrong_usage(on_slurm, capsys, arguments):
    with pytest.raises(SystemExit) as left:
        on_slurm(*arguments)
    assert left.value.code == 2
    assert "give --jobs of at least 1 and a command of rgcss" in capsys.readouterr().err

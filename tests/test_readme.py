"""What the README shows is run, block by block, on a small matrix."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import zarr

import rgcss_dask as rg
from rgcss_dask.cli import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
# First lines of the blocks that are not run here, each for its reason. All others are.
NOT_RUN = {
    "python3 -m venv .venv && .venv/bin/pip install": "installs, as has been done to run this",
    "pip install 'rgcss-dask[s3]'": "installs, and needs somebody's credentials; tests/test_object_store.py has stores",
    "error: rows 98,304 to 106,495 of s3://data": "what is printed when a store fails",
    "@article{ordozgoiti2018regularized,": "a citation",
}
ROWS, COLUMNS = 400, 70


def blocks(kind):
    """Return the blocks of a kind that are to be run."""
    return [text for found, text in BLOCKS if found == kind and not any(text.startswith(start) for start in NOT_RUN)]


def some_rows(seed, count=ROWS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)) @ rng.normal(size=(5, COLUMNS)) + 0.1 * rng.normal(size=(count, COLUMNS))


def stored(path, seed=0):
    return zarr.create_array(path, data=some_rows(seed), chunks=(100, COLUMNS))


def grow(path):
    array = zarr.open_array(path, mode="r+")
    array.resize((ROWS + 50, COLUMNS))
    array[ROWS:] = some_rows(9, 50)


def test_every_block_is_run_or_said_not_to_be():
    run = [text for kind in ("bash", "python", "toml") for text in blocks(kind)]
    left = [text for _, text in BLOCKS if text not in run]
    assert len(run) == 5
    assert all(any(text.startswith(start) for start in NOT_RUN) for text in left)
    for start in NOT_RUN:
        assert any(text.startswith(start) for text in left), f"{start} is no longer in the README"


def test_the_commands(tmp_path, monkeypatch, capsys):
    """One after the other, in one process; the matrix has grown when that is said of it."""
    monkeypatch.chdir(tmp_path)
    names = ",".join(f"c{i}" for i in range(COLUMNS))
    np.savetxt("table.csv", some_rows(0), delimiter=",", header=names, comments="")
    survey = "".join(f"{i},{i % 5 or '?'},{('Rome', 'Oslo')[i % 2]}\n" for i in range(ROWS))
    Path("survey.csv").write_text(f"id,age,city\n{survey}")
    for year in (2024, 2025):
        rg.scan(some_rows(year), archive=f"{year}.zarr")
    Path("archives").mkdir()
    stored("archives/one.zarr", seed=1)
    stored("special.zarr", seed=2)
    (jobs,) = blocks("toml")
    Path("jobs.toml").write_text(jobs)
    (commands,) = blocks("bash")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "rgcss"
        if "--append" in arguments:
            grow("data.zarr")
        assert not cli.main(arguments, standalone_mode=False), capsys.readouterr().out
    assert f"{ROWS + 50} rows x {COLUMNS} columns in moments.zarr" in capsys.readouterr().out
    assert zarr.open_array("survey.zarr", mode="r").attrs["column_names"] == ["age", "city=Oslo", "city=Rome"]
    moments = rg.load("moments.zarr")
    assert (moments.rows, len(moments.folds), len(moments.groups)) == (ROWS + 50, 5, 45)
    assert rg.load("both.zarr").rows == 2 * ROWS
    for made in ("report.html", "reduced.zarr", "tuned.json", "summary.json", "out/one.html", "out/special.json"):
        assert Path(made).exists(), made


def test_the_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored("data.zarr")
    table = pd.DataFrame(some_rows(3)).rename(columns="column {}".format)
    names = {"X": some_rows(3), "frame": table[:300], "test_frame": table[300:]}
    short, first, second = blocks("python")
    assert len([line for line in short.splitlines() if line]) == 3
    exec(short, names)
    assert names["picked"].explained[-1] >= 0.9
    assert "100 rows given with the report" in Path("report.html").read_text()
    before, appended, after = first.partition("rg.append(")
    exec(before, names)
    grow("data.zarr")
    exec(appended + after, names)
    assert rg.load("moments.zarr").rows == ROWS + 50
    assert names["picked"].k == 64
    exec(second, names)
    assert names["X64"].shape == (ROWS, 64)
    np.testing.assert_allclose(names["X_again"], names["X"], atol=0.5)

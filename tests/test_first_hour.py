"""The first hour of somebody with an ordinary table, at each door: names hold, and every step says the next one."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import main
from rgcss_dask.core.names import as_written

NAMES = ["Größe, cm", 'the "old" one', "<b>bold</b>", "1", "温度", "a=b", "weight", "year 2"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command as a shell would, and return what it prints: the result, or what it says of a mistake."""

    def ran(*arguments, code=0, talk=False):
        monkeypatch.setattr(sys, "argv", ["rgcss", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.err
        return printed.err if code or talk else printed.out

    return ran


def table(m=240, seed=0):
    """Columns of like size that hang together, with awkward names."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(m, 3)) @ np.random.default_rng(1).normal(size=(3, len(NAMES)))
    return pd.DataFrame(factors + 0.3 * rng.normal(size=factors.shape) + 5.0, columns=NAMES)


def stored(path, frame):
    rows = zarr.create_array(path, data=frame.to_numpy(), chunks=(60, frame.shape[1]))
    rows.attrs["column_names"] = list(frame.columns)


@pytest.mark.parametrize("share", [0.8, 0.95])
@pytest.mark.parametrize("lam", [1.0, "cv"])
def test_a_share_takes_the_same_columns_at_every_door(run, share, lam):
    frame = table()
    stored("a.zarr", frame)
    folds = ["--folds", 5] if lam == "cv" else []
    run("scan", "a.zarr", "-o", "m.zarr", *folds)
    found = rg.select("m.zarr", explained=share, lam=lam, center=True)
    assert found.explained[-1] >= share > found.explained[-2]
    options = ["--explained", share, "--lam", lam, "--center", "--json"]
    assert json.loads(run("select", "m.zarr", *options))["names"] == list(found.names)
    assert json.loads(run("select", "a.zarr", *options))["names"] == list(found.names)
    Path("jobs.toml").write_text(
        f'[[jobs]]\ndata = "a.zarr"\nfolds = 5\ncenter = true\nreport = ""\n'
        f"explained = {share}\nlam = {json.dumps(lam)}\n"
    )
    (job,) = run_batch("jobs.toml", say=lambda line: None)["jobs"]
    assert job["status"] == "done", job
    assert rg.load_result("a.json").names == tuple(NAMES)
    assert rg.load_result("a.json").selection.names == found.names
    assert rg.RGCSS(share, lam=lam, center=True).fit(frame).selection_.names == found.names


@pytest.mark.filterwarnings("always")
def test_a_share_that_so_few_columns_cannot_explain_is_said(run):
    stored("a.zarr", table())
    rule = "1 column, the most that were allowed, explains"
    with pytest.warns(UserWarning, match=rule):
        rg.select("a.zarr", 1, explained=0.99, center=True)
    assert rule in run("select", "a.zarr", "-k", 1, "--explained", 0.99, "--center", talk=True)


def test_more_columns_than_there_are_is_refused_alike_at_every_door(run):
    frame = table()
    stored("a.zarr", frame)
    rule = "from 1 to 8, the columns that may be picked; got 9"
    for asked in (lambda: rg.select(frame, 9), lambda: rg.cross_validate(rg.scan(frame, folds=3), 9)):
        with pytest.raises(ValueError, match=rule):
            asked()
    with pytest.raises(ValueError, match=r"n_features_to_select must be at most n_features=8; got 9"):
        rg.RGCSS(9).fit(frame)
    assert rule in run("select", "a.zarr", "-k", 9, code=1)
    assert rule in run("tune", "a.zarr", "-k", 9, code=1)
    Path("jobs.toml").write_text('[[jobs]]\ndata = "a.zarr"\nk = 9\n')
    (job,) = run_batch("jobs.toml", say=lambda line: None)["jobs"]
    assert rule in job["words"]
    for command in ("select", "tune"):  # nobody said how many: as many as there are
        run(command, "a.zarr")


def test_columns_are_found_as_people_write_them(run):
    stored("a.zarr", table())
    given = ["--include", "Größe, cm", "--include", 'the "old" one', "--exclude", "1,<b>bold</b>"]
    content = json.loads(run("select", "a.zarr", "-k", 4, "--lam", 1, *given, "--json"))
    assert content["names"][:2] == ["Größe, cm", 'the "old" one']
    assert not {"1", "<b>bold</b>"} & set(content["names"])
    assert "there is 'weight'" in run("select", "a.zarr", "--include", "Weigth", code=1)


@pytest.mark.parametrize(
    ("texts", "columns"),
    [
        (["a=b,weight"], ("a=b", "weight")),
        (["a=b , weight", "year 2"], ("a=b", "weight", "year 2")),
        (["Größe, cm"], ("Größe, cm",)),
        (['"Größe, cm",weight'], ("Größe, cm", "weight")),
        (["1,2,-3"], ("1", 2, -3)),
        (["line\nbreak\rand more"], ("line\nbreak\rand more",)),
        ([""], ()),
    ],
)
def test_lists_of_columns(texts, columns):
    assert as_written(texts, NAMES) == columns

"""The first hour of somebody with an ordinary table, at each door: names hold, and every step says the next one."""

import html
import json
import re
import sys
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import main
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.names import as_written
from rgcss_dask.reporting.layout import named_layout

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
    plain = rg.select("m.zarr", explained=share, lam=lam, center=True)
    assert plain.explained[-1] >= share > plain.explained[-2]
    found = rg.select("m.zarr", explained=share, lam=lam, center=True, refine=True)
    assert len(found) == len(plain)
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
    rule = "1 column, the maximum allowed, explains"
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
    assert "no column has that name; similar names: 'weight'" in run("select", "a.zarr", "--include", "Weigth", code=1)


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


def test_what_is_given_for_something_else_is_met_by_its_name(run):
    stored("a.zarr", table())
    run("scan", "a.zarr", "-o", "m.zarr", "--folds", 3)
    run("select", "m.zarr", "-k", 3, "--lam", 1, "-o", "r.json")
    for command in (["select", "r.json"], ["tune", "r.json"], ["scan", "r.json", "-o", "x.zarr"]):
        assert "rows are needed; r.json is a result: show it with rgcss report r.json" in run(*command, code=1)
    assert "rows are needed; m.zarr holds moments" in run("scan", "m.zarr", "-o", "x.zarr", code=1)
    for command in ("report", "apply"):
        rest = ["a.zarr", "-o", "x"] if command == "apply" else ["-o", "x.html"]
        assert "m.zarr holds moments: pick columns from them with rgcss select m.zarr" in run(
            command, "m.zarr", *rest, code=1
        )
        assert "a result is needed; a.zarr holds rows" in run(command, "a.zarr", *rest, code=1)
    assert "a.zarr holds rows: make moments from them" in run("merge", "a.zarr", "m.zarr", "-o", "x.zarr", code=1)
    assert "it is a folder that contains a.zarr, m.zarr" in run("scan", ".", "-o", "x.zarr", code=1)
    Path("notes").write_text("no data")
    assert "it is a file of another format" in run("select", "notes", code=1)
    with pytest.raises(WrongKindError, match=r"moments are needed; .*r\.json is a result"):
        rg.load("r.json")
    with pytest.raises(WrongKindError, match=r"load_result\('r\.json'\)"):
        rg.report("r.json", "r.html")
    assert not list(Path().glob("x*"))


def test_a_gap_ends_in_words_that_lead_on(run):
    frame = table()
    frame.iloc[130, 4] = np.nan
    stored("a.zarr", frame)
    said = run("scan", "a.zarr", "-o", "m.zarr", code=1)
    assert "row 130, column 4 of a.zarr holds nan; the column is called '温度'" in said
    assert "Use --nan drop to leave out such rows, or --nan mean to fill gaps" in said
    assert "nan='" not in said
    run("scan", "a.zarr", "-o", "m.zarr", "--nan", "mean")  # the pass before kept nothing that would be lost
    run("scan", "a.zarr", "-o", "n.zarr", code=1)
    assert "239 rows, 1 dropped" in run("scan", "a.zarr", "-o", "n.zarr", "--nan", "drop")
    for nan in ("drop", "mean"):
        asked = ("-k", 3, "--lam", 1, "--center", "--json")
        stored_names = json.loads(run("select", {"drop": "n", "mean": "m"}[nan] + ".zarr", *asked))["names"]
        assert json.loads(run("select", "a.zarr", "--nan", nan, *asked))["names"] == stored_names
        assert list(rg.select(frame, 3, center=True, nan=nan).names) == stored_names
    with pytest.raises(ValueError, match=r"called '温度'\. .*nan='drop' \(--nan drop\)"):
        rg.select(frame, 3)


def test_inspect_shows_names_and_says_what_it_leaves_out(run):
    stored("a.zarr", table())
    said = run("inspect", "a.zarr")
    assert all(repr(name) in said for name in NAMES)
    stored("wide.zarr", pd.DataFrame(np.ones((3, 45)), columns=[f"c{i}" for i in range(45)]))
    assert "'c39' and 5 more (--json has all)" in run("inspect", "wide.zarr")
    assert len(json.loads(run("inspect", "wide.zarr", "--json"))["names"]) == 45
    run("select", "a.zarr", "-k", 2, "--lam", 0.123456789, "-o", "r.json")
    assert "0.1235\n" in run("inspect", "r.json")


def test_the_dtype_of_a_reconstruction_is_an_option(run):
    stored("a.zarr", table())
    run("select", "a.zarr", "-k", 3, "--lam", 1, "--center", "-o", "r.json")
    for options, dtype in (([], "float32"), (["--dtype", "float64"], "float64"), (["--dtype", "int16"], "int16")):
        run("apply", "r.json", "a.zarr", "--reconstruct", *options, "-o", f"{dtype}.zarr")
        assert zarr.open_array(f"{dtype}.zarr", mode="r").dtype == dtype
    assert "leave out --dtype" in run("apply", "r.json", "a.zarr", "--dtype", "int16", "-o", "x.zarr", code=2)


def test_all_columns_that_hold_no_numbers_are_named_at_every_door(run):
    frame = table().assign(id=[f"n{i}" for i in range(240)], day=pd.date_range("2024-01-01", periods=240))
    for door in (rg.scan, lambda rows: rg.select(rows, 3), lambda rows: rg.RGCSS(3).fit(rows)):
        with pytest.raises(TypeError, match=r"column 'id' has dtype \w+, column 'day' has dtype datetime64"):
            door(frame)
    frame.to_csv("t.csv", index=False)
    said = run("convert", "t.csv", "t.zarr", code=1)
    assert "'id' (text" in said
    assert "'day' (dates" in said


def dated(frame):
    return frame.set_axis(pd.date_range("2024-01-01", periods=len(frame)), axis=0)


@pytest.mark.parametrize("given", ["frame", "reordered", "wide"])
def test_the_report_of_a_table(given):
    pytest.importorskip("matplotlib")
    frame = dated(table())
    first, rest = frame[:120], frame[120:] if given != "wide" else frame[120:126]
    picked = rg.select(rg.scan(first, folds=3), 3, lam="cv", center=True)
    written = rg.report(picked, "r.html", rows=rest[rest.columns[::-1]] if given == "reordered" else rest)
    page = Path("r.html").read_text()
    for words in ("<pre>", "(logarithmic)", "Explained of rows given", "What cross-validation found", "2024-"):
        assert words in page
    assert "Left in new rows" not in page
    assert "<b>bold</b>" not in page
    assert json.loads(re.search("<pre>(.*?)</pre>", html.unescape(page))[1]) == list(picked.names)

    X, S = (rest - first.mean()).to_numpy(), picked.columns
    weights = np.linalg.solve(
        (first - first.mean()).to_numpy()[:, S].T @ (first - first.mean()).to_numpy()[:, S] + picked.lam * np.eye(3),
        (first - first.mean()).to_numpy()[:, S].T @ (first - first.mean()).to_numpy(),
    )
    losses, norms = ((X - X[:, S] @ weights) ** 2).sum(axis=0), (X**2).sum(axis=0)
    free = np.setdiff1d(np.arange(8), S)
    assert written.score == pytest.approx(1 - losses[free].sum() / norms.sum())
    for share in (1 - losses[free] / norms[free]) * 100:
        assert f">{share:.1f}\u202f%</td>" in page


def test_the_report_of_a_field_shows_places_and_dates():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(60, 12))
    coordinates = {
        "time": pd.date_range("2024-01-01", periods=60),
        "lat": [50.0, 52.5, 55.0],
        "lon": [5.0, 7.5, 10.0, -3],
    }
    field = xr.DataArray(values.reshape(60, 3, 4), dims=("time", "lat", "lon"), coords=coordinates)
    rg.report(rg.select(field, 3, center=True), "map.html", rows=field[40:])
    page = Path("map.html").read_text()
    for words in ("The picked places", "Row 2024-02-11, original", "lon 7.5, lat 5"):
        assert words in page
    layout = named_layout(rg.scan(field).names)
    assert [value.tolist() for value in layout.axes or (layout.x[:4], layout.y[::4])] == [
        [5, 7.5, 10, -3],
        [50, 52.5, 55],
    ]
    assert named_layout(("a=1, b=2", "a=1, c=3")) is None
    assert named_layout(("a=1, b=2", "weight")) is None
    assert named_layout(("a=1, b=2", "a=2, b=5")).x.tolist() == [2, 5]


def test_a_command_scores_rows_where_that_is_asked_for(run):
    pytest.importorskip("matplotlib")
    frame = table()
    frame.iloc[[7, 130], 2] = np.nan
    stored("a.zarr", frame[:120])
    stored("b.zarr", frame[120:][frame.columns[::-1]])
    run("scan", "a.zarr", "-o", "m.zarr", "--nan", "drop")
    for data, options in (("m.zarr", []), ("a.zarr", ["--nan", "drop"])):
        run("select", data, *options, "-k", 3, "--lam", 1, "--center", "-o", "r.json")
        wanted = rg.report(
            rg.select(frame[:120], 3, center=True, nan="drop"), "p.html", rows=frame[120:], overwrite=True
        )
        found = json.loads(run("report", "r.json", "-o", "r.html", "--rows", "b.zarr", "--score", "--json"))
        assert found["score"] == pytest.approx(wanted.score)
    assert "score" not in json.loads(run("report", "r.json", "-o", "r.html", "--rows", "b.zarr", "--json"))
    assert "leave out --score" in run("report", "r.json", "-o", "r.html", "--score", code=2)


def test_a_demo_that_could_not_end_does_not_begin(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'rgcss-dask[report]'" in run("demo", "--folder", "demo", code=1)
    assert not Path("demo").exists()


def polars_frame(frame):
    return pytest.importorskip("polars").DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def labelled(frame):
    return xr.DataArray(frame.to_numpy(), dims=("row", "column"), coords={"column": list(frame.columns)})


FRAMES = {
    "pandas": lambda frame: frame,
    "polars": polars_frame,
    "Arrow": pa.Table.from_pandas,
    "Dask": lambda frame: dd.from_pandas(frame, npartitions=2),
    "Xarray": labelled,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_from_a_frame_to_a_report_in_three_lines(kind):
    pytest.importorskip("matplotlib")
    whole = table()
    frame, test_frame = FRAMES[kind](whole[:150]), FRAMES[kind](whole[150:])
    picked = rg.select(frame, explained=0.9, lam="cv", center=True, scale="std")
    written = rg.report(picked, "report.html", rows=test_frame)
    wanted = rg.select(whole[:150], explained=0.9, lam="cv", center=True, scale="std")
    names = [name.removeprefix("column=") for name in picked.names]
    assert names == list(wanted.names)
    assert written.score == pytest.approx(rg.report(wanted, "w.html", rows=whole[150:]).score, rel=1e-9)
    assert "90 rows given with the report" in Path("report.html").read_text()


@pytest.mark.parametrize("kind", ["pandas", "Arrow", "Dask"])
def test_new_rows_with_their_columns_in_another_order_are_appended_by_name(kind):
    frame = table()
    rg.scan(FRAMES[kind](frame[:120]), archive="m.zarr", folds=3, groups=2)
    grown = rg.append("m.zarr", FRAMES[kind](frame[frame.columns[::-1]]))
    assert grown.names == tuple(NAMES)
    np.testing.assert_allclose(grown.gram(), frame.to_numpy().T @ frame.to_numpy(), rtol=1e-12)
    other = frame.rename(columns={"weight": "mass"})
    with pytest.raises(ValueError, match=r"lacks 'weight' and has 'mass' besides"):
        rg.append("m.zarr", FRAMES[kind](other))
    changed = frame[frame.columns[::-1]].copy()
    changed.iloc[3, 0] += 1.0
    with pytest.raises(ValueError, match="row"):
        rg.append("m.zarr", FRAMES[kind](changed))

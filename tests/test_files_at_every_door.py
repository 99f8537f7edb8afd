"""Tables and files given to the doors as they are: what is taken, and what is said of the others, to the last step."""

import datetime
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.cli import cli, main

NAN = np.nan


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_a_scan_of_images_says_the_command(kind):
    source, values = f"x.{kind}", np.arange(24).reshape(4, 2, 3)
    if kind == "npy":
        np.save(source, values)
    else:
        zarr.create_array(source, data=values, chunks=(3, 2, 2))
    with pytest.raises(
        (TypeError, ValueError), match=r"must have two dimensions; .*has shape \(4, 2, 3\).*rgcss convert"
    ) as e:
        rg.scan(source)
    run_said_command(str(e.value))


def run_said_command(said):
    """Run the command that an error gives, and return where it wrote."""
    command = shlex.split(said[said.index("rgcss convert") :].split(" does with")[0].split(" (in Python")[0])
    assert not cli.main(command[1:], standalone_mode=False)
    return command[-1]


@pytest.mark.parametrize("kind", ["npz", "parquet", "csv", "h5"])
@pytest.mark.parametrize("asked", ["scan", "select", "python"])
def test_files_that_are_no_archives_bring_the_command_that_converts_them(kind, asked, monkeypatch, capsys):
    Path("my data").mkdir()
    source, values = f"my data/it's.{kind}", np.random.default_rng(0).normal(size=(20, 3))
    if kind == "npz":
        np.savez(source, values)
    elif kind == "h5":
        with pytest.importorskip("h5py").File(source, "w") as file:
            file["x"] = values
    elif kind == "parquet":
        pq.write_table(pa.table({f"x{i}": values[:, i] for i in range(3)}), source)
    else:
        np.savetxt(source, values, delimiter=",", header="a,b,c", comments="")
    if asked == "python":
        with pytest.raises(TypeError, match=r"rgcss convert .*\(in Python rgcss_dask\.convert\)") as refused:
            rg.scan(source)
        said = str(refused.value)
    else:
        arguments = [asked, source, *(["-o", "m.zarr"] if asked == "scan" else ["-k", "2"])]
        monkeypatch.setattr(sys, "argv", ["rgcss", *arguments])
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1, said
    assert rg.scan(run_said_command(said)).rows == 20


def test_patterns_of_files_and_files_that_are_not_there():
    for i in range(2):
        Path(f"day-{i}.csv").write_text("a,b\n1,2\n2,5\n")
    with pytest.raises(TypeError, match=r"rgcss convert 'day-\*\.csv' day\.zarr") as refused:
        rg.scan("day-*.csv")
    assert rg.scan(run_said_command(str(refused.value))).rows == 4
    with pytest.raises(FileNotFoundError, match=r"there is no file none\.csv"):
        rg.scan("none.csv")


def test_an_npy_is_scanned_as_it_is(capsys):
    A = np.random.default_rng(0).normal(size=(60, 4))
    np.save("x.npy", A)
    assert np.array_equal(rg.scan("x.npy").gram(), rg.scan(A).gram())
    assert not cli.main(["scan", "x.npy", "-o", "m.zarr", "--folds", "3"], standalone_mode=False)
    assert not cli.main(["select", "x.npy", "-k", "2", "--lam", "1", "--json"], standalone_mode=False)
    picked = json.loads(capsys.readouterr().out.splitlines()[-1])["columns"]
    assert picked == rg.select(rg.load("m.zarr"), 2, lam=1.0, refine=True).columns.tolist()
    Path("x.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match=r"x\.npy must be a complete array"):
        rg.scan("x.npy")


def test_tables_of_arrow_are_scanned_as_they_are():
    table = pa.table({"a": [1, 2, None], "b": pa.array([1.5, 2.5, 3.5], pa.float32()), "c": [True, False, True]})
    moments = rg.scan(table, nan="drop")
    assert (moments.names, moments.rows, moments.dropped) == (("a", "b", "c"), 2, 1)
    whole = rg.scan(table.drop_columns("a"))
    assert np.array_equal(
        whole.gram(), np.array([[1.5, 2.5, 3.5], [1, 0, 1]]) @ np.array([[1.5, 2.5, 3.5], [1, 0, 1]]).T
    )
    assert rg.scan(pa.table({"a": [1, 2], "b": [3, 5]})).exact == rg.scan(np.array([[1, 3], [2, 5]])).exact
    with pytest.raises(TypeError, match=r"these do not: 's' \(string\), 't' \(date32\[day\]\)\. Leave them out"):
        rg.scan(pa.table({"a": [1], "s": ["x"], "t": [datetime.date(2024, 1, 1)]}))
    with pytest.raises(TypeError, match=r"must be a table of columns; got pyarrow\.lib\.ChunkedArray"):
        rg.scan(pa.chunked_array([[1, 2]]))
    with pytest.raises(ValueError, match="the table has no columns"):
        rg.scan(pa.table({}))


def test_frames_of_polars_are_scanned_as_they_are():
    polars = pytest.importorskip("polars")
    A = np.random.default_rng(0).normal(size=(50, 3))
    frame = polars.DataFrame({name: A[:, i] for i, name in enumerate("abc")})
    moments = rg.scan(frame, folds=3)
    assert moments.names == ("a", "b", "c")
    assert np.array_equal(moments.gram(), rg.scan(A, folds=3).gram())
    with pytest.raises(TypeError, match=r"these do not: 's'"):
        rg.scan(frame.with_columns(s=polars.lit("x")))


def test_all_columns_of_a_pandas_frame_that_cannot_be_used_are_named():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"column 's' has dtype object, column 'c' has dtype category\. Leave them out"):
        rg.scan(pandas.DataFrame({"s": [object()], "a": [1], "c": pandas.Categorical(["x"])}))


AWKWARD = (
    "Probe-Nr;Datum;Größe <b>cm</b>;Masse, kg;Ort;a=b;leer\n"
    + "".join(
        f"{i};0{i % 9 + 1}.02.2024;{(7 * i) % 11},5;{'?' if i == 4 else (i * i) % 13};"
        f"{('München', 'Oslo', '<i>Rom</i>')[i % 3]};{(i * 5) % 17};\n"
        for i in range(60)
    )
).encode("latin-1")
OPTIONS = ["--encoding", "latin-1", "--decimal", ",", "--na", "?", "--indicators", "Ort"]
OPTIONS += ["--drop", "Probe-Nr", "--drop", "Dat*", "--drop", "leer"]


def test_an_awkward_table_from_csv_to_report_and_apply(monkeypatch, capsys):
    """The first hour, as somebody has it: each error names what to do next, and names hold to the end."""
    pytest.importorskip("matplotlib")
    Path("probe.csv").write_bytes(AWKWARD)

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["rgcss", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.err
        return printed.err if code else printed.out

    assert "rgcss convert probe.csv probe.zarr" in run("scan", "probe.csv", "-o", "m.zarr", code=1)
    assert "--encoding" in run("convert", "probe.csv", "probe.zarr", code=1)
    said = run("convert", "probe.csv", "probe.zarr", "--encoding", "latin-1", code=1)
    for one in ("'Datum' (dates", "--decimal ,", "--na '?'", "--indicators Ort", "'leer' (no value", "--drop Datum"):
        assert one in said
    run("convert", "probe.csv", "probe.zarr", *OPTIONS)
    names = ["Größe <b>cm</b>", "Masse, kg", "Ort=<i>Rom</i>", "Ort=München", "Ort=Oslo", "a=b"]
    assert zarr.open_array("probe.zarr", mode="r").attrs["column_names"] == names
    run("scan", "probe.zarr", "-o", "m.zarr", "--nan", "drop", "--folds", 3)
    run("select", "m.zarr", "-k", 3, "--lam", 1, "--scale", "std", "--center", "-o", "r.json")
    run("report", "r.json", "-o", "r.html")
    assert "<i>Rom</i>" not in Path("r.html").read_text()

    header, *lines = [line.split(";")[::-1] for line in AWKWARD.decode("latin-1").splitlines()]
    Path("other.csv").write_bytes("\n".join(";".join(line) for line in [header, *lines]).encode("latin-1"))
    run("convert", "other.csv", "other.zarr", *OPTIONS)
    assert zarr.open_array("other.zarr", mode="r").attrs["column_names"] == [names[-1], *names[2:5], *names[1::-1]]
    for source in ("probe", "other"):
        run("apply", "r.json", f"{source}.zarr", "-o", f"{source}-picked.zarr")
    first, second = (zarr.open_array(f"{source}-picked.zarr", mode="r") for source in ("probe", "other"))
    assert first.attrs["column_names"] == second.attrs["column_names"]
    assert set(first.attrs["column_names"]) <= set(names)
    np.testing.assert_array_equal(first[:], second[:])


def test_the_command_takes_the_options_of_the_function(capsys):
    Path("x.txt").write_bytes('a\t"b,c"\td\té\n1\t?\tx\t1\n2\t3\ty\t2\n'.encode("utf-16"))
    arguments = ["convert", "x.txt", "out.zarr", "--sep", "tab", "--na", "?", "--na", "-9", "--encoding", "utf-16"]
    arguments += ["--columns", "b,c", "--columns", "[ad]", "--columns", "é", "--drop", "a", "--numeric-only"]
    assert not cli.main(arguments, standalone_mode=False)
    printed = capsys.readouterr()
    assert "left out 1 of 3 columns that hold no numbers: 'd'" in printed.err
    assert printed.out == "2 rows x 2 columns in out.zarr\n"
    array = zarr.open_array("out.zarr", mode="r")
    assert array.attrs["column_names"] == ["b,c", "é"]
    np.testing.assert_array_equal(array[:], [[NAN, 1], [3, 2]])


@pytest.mark.parametrize("options", [["--sep", "::"], ["--decimal", "x"]])
def test_wrong_usage_of_the_command(options, monkeypatch, capsys):
    Path("x.csv").write_text("a,b\n1,2\n")
    monkeypatch.setattr(sys, "argv", ["rgcss", "convert", "x.csv", "out.zarr", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert not Path("out.zarr").exists()

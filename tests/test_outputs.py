"""An output is never what is read, nor around or within it; files of others are replaced only when asked."""

import os
import shutil

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import cli
from rgcss_dask.io.outputs import Places, refuse_inputs

INPUT = "must not be overwritten: the output .* which is an input. Give another path"
OTHERS = r"exists already, and is not a \w+ written by this package.*--overwrite"


def rgcss(*arguments):
    return cli.main([str(argument) for argument in arguments], standalone_mode=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    A = np.random.default_rng(0).normal(size=(60, 4))
    zarr.create_array(folder / "d.zarr", data=A, chunks=(20, 4))
    with zarr.storage.ZipStore(folder / "d.zip", mode="w") as store:
        zarr.create_array(store, data=A, chunks=(20, 4))
    np.save(folder / "d.npy", A)
    rg.scan(folder / "d.zarr", archive=folder / "m.zarr")
    rgcss("select", folder / "m.zarr", "-k", 2, "-o", folder / "r.json")
    rgcss("report", folder / "r.json", "-o", folder / "r.html")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    os.symlink("d.zarr", "link.zarr")
    os.symlink("r.json", "link.json")
    return tmp_path / "here"


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        ["report", "r.json", "-o", "r.json"],
        ["report", "r.json", "-o", "link.json"],
        ["report", "link.json", "-o", "../here/r.json"],
        ["report", "r.json", "-o", "x/../d.zarr/r.html", "--rows", "d.zarr"],
        ["select", "d.zip", "-k", 1, "-o", "d.zip"],
        ["select", "d.zarr", "-k", 1, "-o", "d.zarr/zarr.json"],
        ["select", "d.zarr", "-k", 1, "-o", "link.zarr/new.json"],
        ["select", "link.zarr", "-k", 1, "-o", "d.zarr/new.json"],
        ["select", "*.zip", "-k", 1, "-o", "d.zip"],
        ["select", "m.zarr", "-k", 1, "--lam", "1,2", "-o", "m.zarr/new.json"],
        ["tune", "d.zarr", "-k", 2, "-o", "file://{here}/d.zarr/new.json"],
        ["scan", "d.zarr", "-o", "d.zarr/m"],
        ["scan", "d.zip", "-o", "link.zarr/../d.zip/m"],
        ["scan", "d.zarr", "-o", "d.zarr/c/0/m"],
        ["convert", "d.npy", "d.npy/out.zarr"],
        ["convert", "d.zarr", "d.zarr/out.zarr"],
        ["convert", "*.npy", "d.npy"],
        ["apply", "r.json", "d.zarr", "-o", "d.zarr/out.zarr"],
        ["apply", "r.json", "d.zarr", "-o", "r.json", "--reconstruct"],
    ],
)
def test_no_command_writes_over_what_it_reads(here, command):
    before = contents(here)
    command = [str(word).replace("{here}", str(here)) for word in command]
    for more in ([], ["--overwrite"]):
        if more and command[0] not in ("report", "select", "tune"):
            continue
        with pytest.raises(FileExistsError, match=INPUT):
            rgcss(*command, *more)
    assert contents(here) == before


def test_functions_keep_the_rule_too(here):
    A, result = np.load("d.npy", mmap_mode="r"), rg.load_result("r.json")
    for function in (
        lambda: rg.scan(["d.zarr", "link.zarr"], archive="d.zarr/m"),
        lambda: rg.scan("m.zarr/../d.zarr", archive="."),
        lambda: rg.write_reduced([1], A, "d.npy"),
        lambda: rg.write_report(result, "d.npy", rows=A),
        lambda: rg.convert("d.zarr", "."),
    ):
        with pytest.raises(FileExistsError, match=f"{INPUT}|path to itself"):
            function()
    with pytest.raises(FileExistsError, match=OTHERS):
        save_result(result, "d.zarr/zarr.json")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["report", "r.json", "-o", "thesis.html"], "thesis.html"),
        (["report", "r.json", "-o", "other.json"], "other.json"),  # a result, but not a report
        (["select", "m.zarr", "-k", 1, "-o", "r.html"], "r.html"),
        (["select", "m.zarr", "-k", 1, "--lam", "1,2", "-o", "t.json"], "t-2.json"),
        (["tune", "d.zarr", "-k", 1, "-o", "d.npy"], "d.npy"),
        (["batch", "jobs.toml", "--summary", "d.npy"], "d.npy"),
    ],
)
def test_files_of_others_are_replaced_when_asked(here, command, name):
    shutil.copy("r.json", "other.json")
    (here / "jobs.toml").write_text('[[jobs]]\ndata = "d.zarr"\nk = 1\nlam = 1.0\n')
    if not (here / name).exists():
        (here / name).write_text("mine")
    before = contents(here)
    with pytest.raises(FileExistsError, match=OTHERS):
        rgcss(*command)
    assert contents(here) == before
    rgcss(*command, "--overwrite")
    after = (here / name).read_bytes()
    assert after != before[here / name]
    rgcss(*command)  # by now it was made here


def test_what_is_no_file_is_not_replaced(here):
    for output in ("m.zarr", "/dev/null"):
        with pytest.raises(FileExistsError, match="must be a regular file; it is a folder or a device"):
            rgcss("report", "r.json", "-o", output, "--overwrite")


@pytest.mark.parametrize(
    "line",
    [
        'result = "d.zarr/{stem}.json"',
        'result = "link.zarr/{stem}.json"',
        'report = "jobs.toml"',
        'moments = "d.zarr/c/m"',
        'moments = "."',
        'moments = "out"\nresult = "out/r.json"',
    ],
)
def test_a_batch_writes_nothing_into_data_or_over_its_list(here, line):
    (here / "jobs.toml").write_text(f'[[jobs]]\ndata = "d.zarr"\nk = 1\nlam = 1.0\n{line}\n')
    before = contents(here)
    with pytest.raises(ValueError, match=r"(must not be overwritten|would write)"):
        run_batch("jobs.toml", overwrite=True, say=lambda line: None)
    assert contents(here) == before


def test_a_batch_replaces_files_of_others_when_asked(here):
    (here / "jobs.toml").write_text('[[jobs]]\ndata = "d.zarr"\nk = 1\nlam = 1.0\nresult = "mine.json"\n')
    (here / "mine.json").write_text('{"mine": 1}')
    (job,) = run_batch("jobs.toml", say=lambda line: None)["jobs"]
    assert job["status"] == "failed"
    assert "is not a result written by this package" in job["words"]
    assert (here / "mine.json").read_text() == '{"mine": 1}'
    (job,) = run_batch("jobs.toml", overwrite=True, say=lambda line: None)["jobs"]
    assert job["status"] == "done"


def test_lambdas_that_are_written_alike_have_results_of_their_own(here):
    rgcss("select", "m.zarr", "-k", 1, "--lam", "1.0000001,1.0000002", "-o", "t.json")
    lams = [rg.load_result(f"t-{lam}.json").selection.lam for lam in ("1.0000001", "1.0000002")]
    assert lams == [1.0000001, 1.0000002]
    with pytest.raises(ValueError, match="each lambda must be given once"):
        rgcss("select", "m.zarr", "-k", 1, "--lam", "2,2.0", "-o", "t.json")


@pytest.mark.parametrize(
    ("output", "there", "touched"),
    [
        ("s3://b/a/x.json", "s3://b/a", "lies within"),
        ("s3a://b/a/", "s3://b//a", "is"),
        ("s3://b", "s3://b/a/c", "contains"),
        ("s3://b/ab", "s3://b/a", ""),
        ("s3://b/a/../c", "s3://b/a", ""),
        ("s3://c/a", "s3://b/a", ""),
        ("s3://b/c.zip", "zip://inner::s3://b/c.zip", "is"),
        ("simplecache::s3://b/a/x", "s3://b/a", "lies within"),
        ("file:///data/a", "/data/a", "is"),
        ("/data/a/x", "local:///data/a", "lies within"),
    ],
)
def test_addresses_of_the_same_place(output, there, touched):
    assert Places([there]).touched(output) == (touched and f"{touched} {there}")


def test_a_link_within_what_is_read_is_not_replaced(here):
    (here / "d.zarr/out.json").symlink_to(here / "elsewhere.json")
    with pytest.raises(FileExistsError, match=r"lies within d.zarr"):
        refuse_inputs("d.zarr/out.json", ["d.zarr"])

"""Matrices that do not fit into memory are kept on a disk: the same bits in little memory, and nothing left behind."""

import errno
import json
import re
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from processes import same_bits

import rgcss_dask as rg
from rgcss_dask.archive import archive as archives
from rgcss_dask.cli import main
from rgcss_dask.core import merge_tree, plan, spans
from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.pass_options import Geometry, Options
from rgcss_dask.runtime import disk_matrices
from rgcss_dask.runtime.disk_matrices import copied, empty_like, folder_of, matrices_on_disk, zero_matrix

N, M = 1000, 6000
MEMORY = "150 MB"  # less than five folds of 1,000 columns take


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Name a folder, let small matrices go there too, and cut the rows into a dozen spans."""
    for module in (disk_matrices, plan):
        monkeypatch.setattr(module, "LEAST", 2**20)
    monkeypatch.setattr(merge_tree, "CHAIN_BYTES", 2**20)
    monkeypatch.setattr(spans, "SPAN_ROWS", 2**9)
    folder = tmp_path / "scratch"
    folder.mkdir()
    with dask.config.set({"rgcss.scratch": str(folder)}):
        yield folder


@pytest.fixture(scope="module", params=["f4", "u1"])
def data(request, tmp_path_factory):
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(M, 12)) @ draw.normal(size=(12, N)) + 0.5 * draw.normal(size=(M, N))
    path = str(tmp_path_factory.mktemp("disk") / "a.zarr")
    zarr.create_array(path, data=(8 * rows + 100).clip(0, 255).astype(request.param), chunks=(500, N))
    return path


def test_the_same_bits_on_a_disk_and_in_memory(data, scratch):
    on_disk = rg.scan(data, folds=5, memory=MEMORY)
    in_memory = rg.scan(data, folds=5, memory="2 GB")
    assert [folder_of(part.product) for part in (on_disk, *on_disk.folds)] == [scratch] * 6
    assert [folder_of(part.product) for part in (in_memory, *in_memory.folds)] == [None] * 6
    same_bits(on_disk, in_memory)
    assert list(scratch.iterdir()) == [], "files without names: nothing is left if the process is killed"


def test_questions_have_the_same_answers(data, scratch):
    on_disk, in_memory = (rg.scan(data, folds=5, memory=memory) for memory in (MEMORY, "2 GB"))
    how = {"center": True, "scale": "std"}
    for ask in (
        lambda moments: rg.select(moments, 8, **how),
        lambda moments: rg.select(moments, 8, refine=True, **how),
        lambda moments: rg.cross_validate(moments, 8, **how).selection,
    ):
        one, other = ask(on_disk), ask(in_memory)
        assert one.columns.tolist() == other.columns.tolist()
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-12)  # BLAS may round otherwise at other addresses
    W = (rg.select(moments, 8, **how).weights(moments) for moments in (on_disk, in_memory))
    np.testing.assert_allclose(*W, rtol=1e-9, atol=1e-12)


def test_moments_are_loaded_onto_the_disk_where_memory_lacks(data, scratch, tmp_path, monkeypatch):
    kept = rg.scan(data, folds=5, memory=MEMORY, archive=tmp_path / "m.zarr")
    monkeypatch.setattr(archives, "default_budget", lambda: 10**7)
    loaded = rg.load(tmp_path / "m.zarr")
    assert {folder_of(part.product) for part in (loaded, *loaded.folds)} == {scratch}
    same_bits(loaded, kept)
    with dask.config.set({"rgcss.scratch": None}):
        assert folder_of(rg.load(tmp_path / "m.zarr").product) is None


def test_a_disk_that_cannot_hold_an_archive_does_not_make_it_damaged(data, scratch, tmp_path, monkeypatch):
    rg.scan(data, archive=tmp_path / "m.zarr")
    monkeypatch.setattr(archives, "default_budget", lambda: 10**6)

    def full(*what):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_matrices.os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=r"a matrix of 0.008 GB must fit on the disk of"):
        rg.load(tmp_path / "m.zarr")
    with (
        dask.config.set({"rgcss.scratch": str(tmp_path / "nowhere")}),
        pytest.raises(NotADirectoryError, match=r"rgcss.scratch must be a folder"),
    ):
        rg.load(tmp_path / "m.zarr")


def test_a_pass_that_was_interrupted_goes_on(data, scratch, tmp_path, monkeypatch):
    monkeypatch.setattr(merge_tree, "SAVE_ROWS", 1)

    class CalledOffError(Exception):
        pass

    def call_off(progress):
        if progress.rows >= M // 2:
            raise CalledOffError

    with pytest.raises(CalledOffError):
        rg.scan(data, folds=5, memory=MEMORY, archive=tmp_path / "m.zarr", progress=call_off)
    assert list((tmp_path / "m.zarr").rglob("*.part"))
    told = []
    again = rg.scan(data, folds=5, memory=MEMORY, archive=tmp_path / "m.zarr", progress=told.append)
    assert told[-1].resumed_rows > 0
    assert folder_of(again.product) == scratch
    same_bits(again, rg.scan(data, folds=5, memory="2 GB"))


def test_it_works_on_the_command_line(data, scratch, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rgcss", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    scan = ("scan", data, "-o", tmp_path / "m.zarr", "--folds", 5, "--memory", MEMORY)
    with dask.config.set({"rgcss.scratch": None}):
        code, _, words = run(*scan)
        assert code == 1
        assert "name a folder in rgcss.scratch" in words
    assert run(*scan)[0] == 0
    code, content, _ = run("select", tmp_path / "m.zarr", "-k", 8, "--json")
    assert code == 0
    wanted = rg.select(tmp_path / "m.zarr", 8, lam="cv", refine=True)
    assert json.loads(content)["columns"] == wanted.columns.tolist()


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(data, scratch, monkeypatch):
    monkeypatch.setattr("rgcss_dask.scanning.request.free_bytes", lambda folder: 10**7)
    with pytest.raises(
        TooManyColumnsError, match=r"1,000 columns need \d+ MB and 10 MB are free.*now 5, each with its"
    ):
        rg.scan(data, folds=5, memory=MEMORY)


def test_a_disk_that_fills_up_is_an_error_and_not_the_end(scratch, monkeypatch):
    def full(*what):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_matrices.os, "posix_fallocate", full, raising=False)
    with matrices_on_disk(scratch), pytest.raises(OSError, match=r"a matrix of 0.008 GB must fit on the disk of"):
        zero_matrix((N, N))


@pytest.mark.parametrize("given", ["missing", "file"])
def test_the_setting_must_be_a_folder(data, tmp_path, given):
    (tmp_path / "file").touch()
    with (
        dask.config.set({"rgcss.scratch": str(tmp_path / given)}),
        pytest.raises(NotADirectoryError, match=rf"rgcss.scratch must be a folder .* got '.*{given}'"),
    ):
        rg.scan(data)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (Options(), {"cluster": True}),  # workers count mapped files as memory of their own
        (Options(nan="mean"), {}),
        (Options(sketch=90_000), {}),
        (Options(candidates=tuple(range(90_000))), {}),
    ],
)
def test_what_cannot_be_on_a_disk_is_refused_as_before(options, where):
    geometry = Geometry(10**6, 100_000, np.dtype("f8"), np.arange(0, 10**6 + 1, 1000))
    with pytest.raises(MemoryError):
        plan.make_plan(geometry, options, budget=10**9, threads=2, free_disk=10**15, **where)


def test_spans_do_not_depend_on_where_matrices_are():
    geometry = Geometry(10**6, 20_000, np.dtype("f4"), np.arange(0, 10**6 + 1, 1000))
    on_disk = plan.make_plan(geometry, Options(), budget=3 * 10**9, threads=2, free_disk=10**15)
    in_memory = plan.make_plan(geometry, Options(), budget=10**12, threads=2, free_disk=10**15)
    assert on_disk.nodes == in_memory.nodes
    assert in_memory.disk == 0
    assert on_disk.memory + on_disk.disk == in_memory.memory


def test_copies_stay_where_they_are(scratch):
    with matrices_on_disk(scratch):
        matrix = zero_matrix((N, N))
        assert folder_of(zero_matrix((10, 10))) is None  # small
    assert not matrix.any()
    matrix[3, 4] = 5.0
    copy = copied(matrix[:, :])
    assert folder_of(copy) == folder_of(empty_like(matrix)) == scratch
    copy[3, 4] = 6.0
    assert matrix[3, 4] == 5.0
    assert folder_of(matrix + 1.0) is None
    assert folder_of(zero_matrix((N, N))) is None


MEASURED = """
import re, sys, threading, time
from pathlib import Path
import dask, numpy as np, rgcss_dask as rg

def held():  # without pages of files, which the system can drop
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1000

rg.select(rg.scan(np.random.default_rng(0).normal(size=(999, 50)).astype("f4")), 3)  # compiles
before, most = held(), [0]
def watch():
    while True:
        most[0] = max(most[0], held() - before)
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
with dask.config.set({"rgcss.scratch": sys.argv[2]}):
    rg.select(rg.scan(sys.argv[1], missing="fill", memory="500 MB"), 4)
print(most[0])
"""


@pytest.mark.integration
def test_memory_stays_within_the_plan(tmp_path):
    n = 8192  # a matrix of 537 MB
    zarr.create_array(tmp_path / "a.zarr", shape=(2000, n), chunks=(100, n), dtype="f4", fill_value=1)
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "a.zarr"), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"\d+", ran.stdout.strip())
    assert int(ran.stdout) < 500 * 10**6, "no n x n matrix in memory"
    assert [path.name for path in Path(tmp_path).iterdir()] == ["a.zarr"]

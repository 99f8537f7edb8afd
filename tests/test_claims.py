"""Claims: one writer at a time, known by its process or its signs of life, and nothing else removed for one."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

import rgcss_dask as rg
from rgcss_dask.archive import archive as module
from rgcss_dask.cli import cli
from rgcss_dask.io import claim
from rgcss_dask.io.files import Folder
from rgcss_dask.runtime import process_identity as process


def rows(count):
    return np.random.default_rng(0).standard_normal((count, 8))


def holder(**changes):
    """Return the claim of a living process of this machine, with some of it changed."""
    claimant = {
        "id": f"{1:032x}",
        "machine": process.machine(),
        "namespace": process.namespace(),
        "host": "here",
        "pid": os.getppid(),
        "born": process.born(os.getppid()),
        "beat": 0,
        "seen": "2999-01-01",  # clocks differ: nothing goes by this
    }
    return {**claimant, **changes}


@pytest.fixture
def impatient(monkeypatch):
    """Wait a moment for a sign of life instead of a minute."""
    monkeypatch.setattr(claim, "DEAD", 0.3)
    monkeypatch.setattr(claim, "LOOK", 0.03)


@contextmanager
def beating(path, **changes):
    """Keep a claim alive, as its holder does."""
    stop = threading.Event()

    def beat():
        for count in itertools.count(1):
            Folder(str(path.parent)).write(path.name, json.dumps(holder(beat=count, **changes)).encode())
            if stop.wait(0.05):
                break

    thread = threading.Thread(target=beat)
    thread.start()
    while not path.exists():
        time.sleep(0.01)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_an_archive_that_is_being_written_is_refused(tmp_path):
    here = tmp_path / "m.zarr"
    here.mkdir()
    (here / claim.NAME).write_text(json.dumps(holder()))
    with pytest.raises(
        claim.ArchiveBusyError, match=f"one writer at a time.*process {os.getppid()} on.*writer.json says"
    ):
        rg.save(rg.Moments.of(rows(10)), here)


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": "another", "host": "elsewhere"},
        {"machine": "another"},  # which has the same host name, and perhaps a process of the same number
        {"namespace": 1, "pid": 2**22 + 1},  # a container, in which the process has a number that means nothing here
    ],
)
def test_one_that_writes_elsewhere_is_known_by_its_signs_of_life(tmp_path, impatient, monkeypatch, changes):
    """Whatever the clocks say: only whether the claim changes counts."""
    monkeypatch.setattr(claim, "DEAD", 30.0)  # a busy machine may be slow to beat
    here = tmp_path / "m.zarr"
    here.mkdir()
    with (
        beating(here / claim.NAME, **changes),
        pytest.warns(UserWarning, match=r"Process \d+ on .* claims .*writer.json.*Waiting up to"),
        pytest.raises(claim.ArchiveBusyError, match="is being written by process"),
    ):
        rg.save(rg.Moments.of(rows(10)), here)


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"born": 0.0}, {"machine": "another"}, {"namespace": 1}])
@pytest.mark.filterwarnings("ignore:Process .* claims")
def test_a_claim_of_the_dead_does_not_count(tmp_path, impatient, changes):
    here = tmp_path / "m.zarr"
    here.mkdir()
    (here / claim.NAME).write_text(json.dumps(holder(**changes)))
    rg.save(rg.Moments.of(rows(10)), here)
    assert rg.load(here).rows == 10
    assert not (here / claim.NAME).exists()


def test_a_process_that_ended_and_was_not_asked_how_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert process.born(child.pid) is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert process.born(child.pid) is None
    finally:
        child.wait()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"id": "0000'])
def test_a_claim_that_was_cut_off_does_not_count(tmp_path, impatient, content):
    (tmp_path / claim.NAME).write_bytes(content)
    with pytest.warns(UserWarning, match="A truncated file claims"), claim.claimed(Folder(str(tmp_path))):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"my novel", b"[1]", b'{"mine": 1}'])
def test_a_file_in_the_place_of_the_claim_is_left_alone(tmp_path, content):
    (tmp_path / claim.NAME).write_bytes(content)
    with (
        pytest.raises(FileExistsError, match=r"writer.json must be the claim of the writing process; it is something"),
        claim.claimed(Folder(str(tmp_path))),
    ):
        pass
    assert (tmp_path / claim.NAME).read_bytes() == content


@pytest.mark.parametrize("made_up", ["/../../victim.txt", "../victim.txt", "x", 1, None, ["a"], "A" * 32])
def test_the_id_of_a_claim_is_no_path(tmp_path, impatient, made_up):
    """A claim of a dead process is removed together with a file named after its id."""
    (tmp_path / "victim.txt").write_text("all of it")
    here = tmp_path / "deep/m.zarr"
    rg.save(rg.Moments.of(rows(10)), here)
    (here / "writer.json.").mkdir()
    (here / claim.NAME).write_text(json.dumps(holder(id=made_up, born=0.0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rg.save(rg.Moments.of(rows(10)), here)
        except FileExistsError as error:
            assert "writer.json must be the claim of the writing process" in str(error)  # noqa: PT017
    assert (tmp_path / "victim.txt").read_text() == "all of it"


def test_a_link_that_leads_nowhere_is_named(tmp_path, monkeypatch):
    (tmp_path / claim.NAME).symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(FileExistsError, match=r"writer.json can be neither read nor written.*Remove this file"),
        claim.claimed(Folder(str(tmp_path))),
    ):
        pass


def test_what_a_claim_needed_goes_with_it(tmp_path):
    spade = f"{claim.NAME}.{1:032x}"
    (tmp_path / spade).write_text("")  # of one that was killed while it buried another
    script = "from rgcss_dask.runtime.process_identity import token; print(token(), end='')"
    dead = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    (tmp_path / f"{spade}.{2:032x}.{dead}.draft").write_text("")  # of one that was killed while it began to
    with claim.claimed(Folder(str(tmp_path))):
        assert [path.name for path in tmp_path.iterdir()] == [claim.NAME]
    with claim.claimed(Folder(str(tmp_path / "new"))):
        pass
    assert not list(tmp_path.iterdir())


def test_a_claim_shows_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "BEAT", 0.01)
    with claim.claimed(Folder(str(tmp_path))):
        first = json.loads((tmp_path / claim.NAME).read_text())["beat"]
        time.sleep(0.2)
        assert json.loads((tmp_path / claim.NAME).read_text())["beat"] > first


def in_one_instant(count, function):
    """Call a function from threads that begin together, and return what each call returned or raised."""
    together = threading.Barrier(count)

    def call(_):
        together.wait()
        try:
            return function()
        except claim.ArchiveBusyError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(call, range(count)))


@pytest.mark.parametrize(("left", "times"), [(None, 50), ({"born": 0.0}, 50), ({"machine": "another"}, 5)])
@pytest.mark.filterwarnings("ignore:Process .* claims")
def test_of_several_that_claim_at_once_one_succeeds(tmp_path, impatient, left, times):
    """Also where the claim of a dead process is taken over."""
    entered = threading.Barrier(4)  # that nobody gives up the claim before all have tried

    def hold():
        try:
            with claim.claimed(Folder(str(here))):
                inside.append(1)
                entered.wait()
        except claim.ArchiveBusyError:
            entered.wait()
            raise

    for i in range(times):
        here, inside = tmp_path / str(i), []
        here.mkdir()
        if left is not None:
            (here / claim.NAME).write_text(json.dumps(holder(**left)))
        results = in_one_instant(4, hold)
        assert len(inside) == 1, f"{len(inside)} hold the claim"
        assert all(isinstance(result, claim.ArchiveBusyError) for result in results if result is not None)
        assert not list(here.iterdir())


def test_a_file_is_created_once(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path / "new"))
    assert sorted(in_one_instant(8, lambda: folder.create("a", b"1"))) == [False] * 7 + [True]

    def no_links(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert sorted(in_one_instant(8, lambda: folder.create("b", b"1"))) == [False] * 7 + [True]
    assert folder.names() == ["a", "b"]


@pytest.mark.parametrize(("status", "created"), [(412, False), (501, True)])
def test_a_store_that_answers_conditions_in_its_own_way(status, created):
    class Store:
        protocol = "s3"
        files: ClassVar = {}

        def cat_file(self, path):
            raise FileNotFoundError(path)

        def pipe_file(self, path, content, mode=None):
            if mode == "create":
                raise OSError("no") from ClientError(status)
            self.files[path] = content

    class ClientError(Exception):
        def __init__(self, status):
            self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}

    folder = Folder("s3://data/m.zarr")
    folder.__dict__["_where"] = Store(), "data/m.zarr"
    assert folder.create("a", b"1") is created
    assert Store.files == ({"data/m.zarr/a": b"1"} if created else {})


def test_a_claim_that_was_taken_over_stays_with_the_other(tmp_path, monkeypatch):
    """A process that stood still for minutes finds another one writing."""
    monkeypatch.setattr(claim, "BEAT", 0.01)
    here = tmp_path / "m.zarr"

    def taken_over(state):
        if not there:
            there.update(holder(machine="another", host="elsewhere"))
            (here / claim.NAME).write_text(json.dumps(there))
            time.sleep(0.2)

    there = {}
    with pytest.raises(claim.ArchiveBusyError, match=r"was taken over by process \d+ on elsewhere.*same call again"):
        rg.scan(rows(3_000), archive=here, progress=taken_over)
    assert json.loads((here / claim.NAME).read_text()) == there
    assert module.read_record(Folder(str(here))) is None
    (here / claim.NAME).unlink()
    with claim.claimed(Folder(str(here))):
        (here / claim.NAME).unlink()
        with pytest.raises(claim.ArchiveBusyError, match=r"m.zarr/writer.json, was removed"):
            module.write(Folder(f"file://{here}"), rg.Moments.of(rows(10)), module.Record.empty("late"))


@pytest.mark.parametrize("forced", [False, True])
def test_a_claim_from_elsewhere_is_taken_over_at_once_where_the_user_says_so(tmp_path, impatient, forced):
    np.save(tmp_path / "x.npy", rows(50))
    (tmp_path / "m.zarr").mkdir()
    (tmp_path / "m.zarr" / "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
    )
    (tmp_path / "m.zarr" / "writer.json").write_text(json.dumps(holder(machine="another", host="elsewhere")))
    looks = []
    waiting = claim.time.sleep
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        patch.setattr(claim.time, "sleep", lambda seconds: (looks.append(seconds), waiting(0))[1])
        options = ["--force-unlock"] if forced else []
        done = CliRunner().invoke(cli, ["scan", str(tmp_path / "x.npy"), "-o", str(tmp_path / "m.zarr"), *options])
    assert done.exit_code == 0, done.output
    assert rg.load(tmp_path / "m.zarr").rows == 50
    assert (claim.LOOK in looks) is not forced
    words = "taken over, as requested" if forced else "give --force-unlock"
    assert any(words in str(one.message) for one in told)
    assert not claim.force_unlock.get()


def test_the_claim_of_a_living_process_is_not_taken_over(tmp_path):
    np.save(tmp_path / "x.npy", rows(50))
    (tmp_path / "m.zarr").mkdir()
    (tmp_path / "m.zarr" / "writer.json").write_text(json.dumps(holder()))
    done = CliRunner().invoke(cli, ["scan", str(tmp_path / "x.npy"), "-o", str(tmp_path / "m.zarr"), "--force-unlock"])
    assert isinstance(done.exception, claim.ArchiveBusyError)

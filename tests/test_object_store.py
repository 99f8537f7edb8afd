"""Object stores over HTTP: matrices, moments, checkpoints and results in S3, before and behind a faulty network."""

import json
import pickle
import re
import subprocess
import sys
import time

import dask
import fsspec
import numpy as np
import pytest
import zarr
from buckets import CHUNKS, PARTS, kill_at_a_checkpoint, put_matrix, set_up_user
from distributed import Client, LocalCluster
from faulty_proxy import FaultyProxy, forget_sessions
from processes import same_bits
from zarr.storage import FsspecStore

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import cli
from rgcss_dask.io.files import Folder
from rgcss_dask.io.retry import Retry, StoreError
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.registry import open_source

pytest.importorskip("moto", reason="needs the extra 'test-cloud': pip install -e '.[test-cloud]'")

ROWS, COLUMNS, CHUNK = 65_536, 6, 4_096  # spans of two chunks, and a checkpoint for every eight
TRIES = 3


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A moto server, and the proxy before it."""
    log = tmp_path_factory.mktemp("moto") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=file, stderr=file
        )
    try:
        deadline = time.monotonic() + 300
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with FaultyProxy(("127.0.0.1", int(found[1]))) as proxy:
            yield proxy
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def stored(proxy, tmp_path_factory):
    """A folder with the matrix, which is in the store too; its moments with folds; its moments without."""
    folder = tmp_path_factory.mktemp("local")
    fs = fsspec.filesystem("s3", key="maker", secret="s", endpoint_url=proxy.url)
    put_matrix(fs, folder, ROWS, COLUMNS, CHUNK)
    yield folder, rg.scan(folder / "a.zarr", folds=2), rg.scan(folder / "a.zarr")
    forget_sessions()


@pytest.fixture
def user(proxy, monkeypatch):
    """What a user sets: credentials and endpoint in the environment; and fewer, quicker tries."""
    set_up_user(monkeypatch, proxy.url, "from-environment", "s")
    proxy.heal()
    with dask.config.set({"rgcss.store.tries": TRIES, "rgcss.store.wait": 0.05}):
        yield monkeypatch
    proxy.heal()


def command(*arguments):
    cli.main([str(argument) for argument in arguments], standalone_mode=False)


def test_the_whole_way_on_the_command_line(stored, user, place, capsys):
    folder, wanted, _ = stored
    command("scan", "s3://data/a.zarr", "-o", f"{place}/m.zarr", "--folds", 2)
    same_bits(rg.load(f"{place}/m.zarr"), wanted)
    capsys.readouterr()
    command("select", f"{place}/m.zarr", "-k", 3, "-o", f"{place}/r.json", "--json")
    picked = json.loads(capsys.readouterr().out)["columns"]
    command("select", folder / "a.zarr", "-k", 3, "--folds", 2, "-o", folder / "r.json", "--json")
    assert picked == json.loads(capsys.readouterr().out)["columns"]
    command("select", f"{place}/m.zarr", "-k", 2, "--lam", "1,10", "-o", f"{place}/each.json", "--json")
    command("report", f"{place}/r.json", "-o", f"{place}/r.html", "--rows", "s3://data/a.zarr")
    command("apply", f"{place}/r.json", "s3://data/a.zarr", "-o", folder / "reduced.zarr")
    assert zarr.open_array(folder / "reduced.zarr").shape == (ROWS, 3)
    fs = fsspec.filesystem("s3")
    assert b"</html>" in fs.cat_file(f"{place}/r.html")
    names = {name.rsplit("/", 1)[-1] for name in fs.ls(place)}
    assert names == {"m.zarr", "r.json", "r.html", "each-1.json", "each-10.json"}
    assert not fs.exists(f"{place}/m.zarr/writer.json")
    assert not fs.exists(f"{place}/m.zarr/checkpoints")


def test_what_a_user_may_set(proxy, stored, user, tmp_path):
    """Credentials and endpoint come from the environment, a profile, fsspec's configuration or storage_options."""

    def key_used(**options):
        forget_sessions()
        proxy.heal()
        assert rg.scan("s3://data/a.zarr", rows=slice(0, CHUNK), **options).rows == CHUNK
        (key,) = {request.key for request in proxy.log}
        return key

    assert key_used() == "from-environment"
    given = {"key": "from-options", "secret": "s", "endpoint_url": proxy.url}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        user.delenv(name)
    assert key_used(storage_options=given) == "from-options"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(fsspec.config.conf, "s3", {**given, "key": "from-fsspec"})
        assert key_used() == "from-fsspec"
    profile = tmp_path / "config"
    profile.write_text(
        f"[profile lab]\nendpoint_url = {proxy.url}\naws_access_key_id = from-profile\naws_secret_access_key = s\n"
    )
    user.setenv("AWS_CONFIG_FILE", str(profile))
    user.setenv("AWS_PROFILE", "lab")
    assert key_used() == "from-profile"


def test_a_batch_over_a_pattern_of_archives(proxy, stored, user, place, tmp_path):
    fs = fsspec.filesystem("s3")
    for name in ("one", "two"):
        fs.copy("data/a.zarr", f"{place}/in/{name}.zarr", recursive=True)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f'[defaults]\nk = 2\nlam = 1.0\nmoments = "{place}/{{stem}}.zarr"\nresult = "{place}/{{stem}}.json"\n'
        f'report = ""\n[[jobs]]\ndata = "{place}/in/*.zarr"\n'
    )
    done = run_batch(jobs, summary=f"{place}/summary.json", say=lambda line: None)
    assert [(job["status"], job["data"]) for job in done["jobs"]] == [
        ("done", f"{place}/in/one.zarr"),
        ("done", f"{place}/in/two.zarr"),
    ], done
    assert json.loads(fs.cat_file(f"{place}/summary.json")) == done
    proxy.heal()
    again = run_batch(jobs, summary=f"{place}/summary.json", say=lambda line: None)
    assert [job["status"] for job in again["jobs"]] == ["kept", "kept"]
    assert not proxy.asked("GET", "/c/"), "nothing is read again"


def test_a_killed_scan_goes_on(proxy, stored, user, place):
    kill_at_a_checkpoint(proxy, f"{place}/m.zarr", after=15)
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2), stored[1])
    assert 0 < len(proxy.asked("GET", CHUNKS)) <= 8, "a checkpoint of eight chunks is taken up"
    same_bits(rg.load(f"{place}/m.zarr"), stored[1])


SOME = slice(6 * CHUNK, 8 * CHUNK)
# What is slow takes four times as long as a read may: a busy machine must not pass for a slow store.
IMPATIENT, SECONDS = {"config_kwargs": {"read_timeout": 5}}, 20


@pytest.mark.parametrize("kind", [503, 500, "drop", "truncate", "slow"])
def test_reads_are_tried_again_with_back_off(proxy, stored, user, kind):
    options = IMPATIENT if kind == "slow" else {}
    fault = proxy.fail(kind, path=CHUNKS + "7/", times=TRIES - 1, seconds=SECONDS)
    same_bits(rg.scan("s3://data/a.zarr", folds=2, storage_options=options), stored[1])
    assert fault.done == TRIES - 1
    asked = [request.at for request in proxy.asked("GET", CHUNKS + "7/")]
    assert np.all(np.diff(asked)[: TRIES - 1] >= [0.025, 0.05][: len(asked) - 1]) or kind == "drop"
    assert len(proxy.asked("GET", CHUNKS)) <= 16 + fault.done, "no other chunk is asked for twice"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (503, "Please reduce your request rate"),
        (500, "internal error"),
        ("drop", "Connection was closed"),
        ("truncate", "payload is not completed"),
        ("slow", "Read timeout"),
    ],
)
def test_reads_that_always_fail_are_an_error_with_the_place(proxy, stored, user, kind, message):
    options = IMPATIENT if kind == "slow" else {}
    proxy.fail(kind, path=CHUNKS + "7/", seconds=SECONDS)
    with pytest.raises(StoreError, match=rf"s3://data/a.zarr/c/7/0 could not be read; tried 3 times.*{message}.*again"):
        rg.scan("s3://data/a.zarr", rows=SOME, storage_options=options)
    asked = len(proxy.asked("GET", CHUNKS + "7/"))
    # A connection that was kept open and has died is opened again by aiohttp, once, before that counts as an answer.
    assert asked == TRIES if kind != "drop" else asked <= 2 * TRIES


@pytest.mark.parametrize("missing", ["raise", "fill"])
@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (403, PermissionError, "c/7/0 could not be read: access was refused"),
        (
            404,
            (MissingChunkError, StoreError),
            "has no chunk c/7/0|lists c/7/0 .* then answers that the chunk does not exist",
        ),
        (500, StoreError, "c/7/0 could not be read; tried 3 times"),
    ],
)
def test_an_error_is_never_taken_for_the_fill_value(proxy, stored, user, kind, error, message, missing):
    proxy.fail(kind, path=CHUNKS + "7/")
    with pytest.raises(error, match=message):
        rg.scan("s3://data/a.zarr", rows=SOME, missing=missing)
    assert len(proxy.asked("GET", CHUNKS + "7/")) == (TRIES if kind == 500 else 1)


def test_a_chunk_that_is_not_there_is_filled_if_asked(stored, user, place):
    fs = fsspec.filesystem("s3")
    fs.copy("data/a.zarr", f"{place}/a.zarr", recursive=True)
    fs.rm(f"{place}/a.zarr/c/7/0")
    with pytest.raises(MissingChunkError, match=r"has no chunk c/7/0 \(rows 28,672 to 32,767\)"):
        rg.scan(f"{place}/a.zarr")
    A = zarr.open_array(stored[0] / "a.zarr")[:]
    A[7 * CHUNK : 8 * CHUNK] = 0
    np.testing.assert_allclose(rg.scan(f"{place}/a.zarr", missing="fill").gram(), A.T @ A, rtol=1e-12)


@pytest.mark.parametrize("kind", [503, "drop", "cut", "lost"])
def test_checkpoints_are_written_again(proxy, stored, user, place, kind):
    fault = proxy.fail(kind, method="PUT", path=PARTS, times=TRIES - 1)
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr"), stored[2])
    assert fault.done == TRIES - 1
    same_bits(rg.load(f"{place}/m.zarr"), stored[2])


@pytest.mark.parametrize(
    ("kind", "path", "read_again"),
    [
        (503, PARTS, 16),  # no checkpoint was ever written
        ("drop", PARTS, 16),
        ("cut", "/m.zarr/v[0-9a-f]{12}/product/c/", 0),  # the pass was over: its sum is a checkpoint
        (503, "/m.zarr/zarr.json", 0),
    ],
)
def test_writes_that_always_fail_leave_what_the_next_call_goes_on_from(
    proxy, stored, user, place, kind, path, read_again
):
    proxy.fail(kind, method="PUT", path=path)
    with pytest.raises(StoreError, match=rf"{place}/m\.zarr/.* could not be written; tried 3 times"):
        rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr")
    proxy.heal()
    with pytest.raises(FileNotFoundError, match="no finished archive"):
        rg.load(f"{place}/m.zarr")
    proxy.heal()
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr"), stored[2])
    assert len(proxy.asked("GET", CHUNKS)) == read_again
    same_bits(rg.load(f"{place}/m.zarr"), stored[2])


def test_a_failed_save_leaves_the_archive_that_was_there(proxy, stored, user, place):
    wanted = stored[1]
    rg.save(wanted, f"{place}/m.zarr")
    rg.save(rg.Moments.of(np.eye(5)), f"{place}/m.zarr")
    proxy.fail(503, method="PUT", path="/folds/1/")
    with pytest.raises(StoreError, match="could not be written"):
        rg.save(wanted.merge(wanted), f"{place}/m.zarr")
    proxy.heal()
    assert rg.load(f"{place}/m.zarr").n == 5
    rg.save(wanted, f"{place}/m.zarr")
    same_bits(rg.load(f"{place}/m.zarr"), wanted)
    versions = [name for name in fsspec.filesystem("s3").ls(f"{place}/m.zarr") if "/v" in name]
    assert len(versions) == 1, "what the failed call left is removed"


def test_a_store_that_does_not_answer_while_loading_is_not_a_damaged_archive(proxy, stored, user, place):
    rg.save(stored[1], f"{place}/m.zarr")
    fault = proxy.fail("truncate", method="GET", path="product/c/0", times=1)
    same_bits(rg.load(f"{place}/m.zarr"), stored[1])
    assert fault.done == 1
    proxy.fail(503, path="/m.zarr/")
    with pytest.raises(StoreError, match=rf"{place}/m\.zarr/\S+ could not be read; tried 3 times"):
        rg.load(f"{place}/m.zarr")
    with pytest.raises(StoreError, match="tried 3 times"):
        command("select", f"{place}/m.zarr", "-k", 2)


def test_addresses_at_which_there_is_nothing(proxy, stored, user):
    with pytest.raises(FileNotFoundError, match=r"no Zarr array at s3://data/nothing.zarr"):
        rg.scan("s3://data/nothing.zarr")
    with pytest.raises(FileNotFoundError, match=r"no Zarr array at s3://nobody/a.zarr"):
        rg.scan("s3://nobody/a.zarr")
    forget_sessions()
    with pytest.raises(StoreError, match=r"s3://data/a.zarr/\S+ could not be read; tried 3 times.*EndpointConnection"):
        rg.scan("s3://data/a.zarr", storage_options={"endpoint_url": "http://127.0.0.1:9"})
    forget_sessions()


def test_an_array_of_the_users_own_is_asked_as_it_was_made(proxy, stored, user):
    proxy.fail(500, path=CHUNKS + "7/")
    options = {"max_concurrency": 1, "config_kwargs": {"retries": {"max_attempts": 1}}}  # of botocore: once more
    array = zarr.open_array(FsspecStore.from_url("s3://data/a.zarr", options), mode="r")
    with pytest.raises(StoreError, match=r"s3://data/a\.zarr/c/7/0 could not be read; tried once.*internal error"):
        rg.scan(array, rows=slice(7 * CHUNK, 8 * CHUNK))
    assert len(proxy.asked("GET", CHUNKS + "7/")) == 2


def test_settings_of_tries(user):
    assert Retry.configured() == Retry(tries=TRIES, wait=0.05)
    with dask.config.set({"rgcss.store.tries": 0}), pytest.raises(ValueError, match=r"tries of 1 or more.*'tries': 0"):
        Retry.configured()


def test_options_and_tries_travel_with_a_source_and_a_folder(proxy, stored, user, place):
    given = {"key": "from-options", "secret": "s", "endpoint_url": proxy.url}
    source = open_source("s3://data/a.zarr", storage_options=given)
    folder = Folder(place, given)
    folder.write("file", b"content")
    sent = pickle.dumps((source, folder))
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        user.delenv(name)
    forget_sessions()  # as in a process that has none yet
    proxy.heal()
    proxy.fail(503, path=CHUNKS + "7/")
    with dask.config.set({"rgcss.store.tries": 1}):
        source, folder = pickle.loads(sent)
        assert folder.read("file") == b"content"
        with pytest.raises(StoreError, match="tried 3 times"):
            source.read(7 * CHUNK, 8 * CHUNK)
    assert {request.key for request in proxy.log} == {"from-options"}
    assert len(proxy.asked("GET", CHUNKS + "7/")) == TRIES


@pytest.mark.integration
def test_on_a_cluster_options_and_tries_reach_the_workers(proxy, stored, user, place):
    given = {"key": "from-options", "secret": "s", "endpoint_url": proxy.url}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        user.delenv(name)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        proxy.fail(503, path=CHUNKS + "14/", behind=PARTS)
        with pytest.raises(StoreError, match=r"s3://data/a.zarr/c/14/0 could not be read; tried 3 times"):
            rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2, storage_options=given)
        assert len(proxy.asked("GET", CHUNKS + "14/")) == TRIES, "as often as this process was told, not the workers"
        proxy.heal()
        got = rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2, storage_options=given)
        assert len(proxy.asked("GET", CHUNKS)) <= 8, "what the checkpoints have is not read again"
        assert {request.key for request in proxy.log} == {"from-options"}
        same_bits(got, stored[1])
    same_bits(rg.load(f"{place}/m.zarr", storage_options=given), stored[1])

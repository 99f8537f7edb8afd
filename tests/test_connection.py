"""Reaching a cluster: over TLS, within a time limit, with an error in one line for whatever is wrong."""

import gc
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import dask
import numpy as np
import pytest
import zarr
from cryptography.hazmat.primitives import serialization
from distributed import Client, LocalCluster, get_worker
from processes import IN_PROCESS, bare_cluster, security

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import main
from rgcss_dask.cli.talk import connected as connected_by_command
from rgcss_dask.cluster import connection
from rgcss_dask.cluster import visibility as sight
from rgcss_dask.cluster import waiting as presence
from rgcss_dask.cluster.connection import Cluster, connected
from rgcss_dask.scanning import scan as one_pass


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two folders of certificates, and files that are none."""
    path = Path(__file__).parents[1] / "deploy" / "make_certificates.py"
    spec = importlib.util.spec_from_file_location("make_certificates", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "other"):
        script.make(folder / name)
    (folder / "text.pem").write_text("no certificate")
    (folder / "locked.pem").write_bytes(locked(folder / "ours" / "client-key.pem"))
    (folder / "half.json").write_text('{"addr')
    return folder


def locked(key):
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    password = serialization.BestAvailableEncryption(b"secret")
    return loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)


def options(folder, **others):
    files = {"ca": folder / "ca.pem", "cert": folder / "client.pem", "key": folder / "client-key.pem", **others}
    return {f"tls_{name}": str(path) for name, path in files.items()}


@pytest.fixture(scope="module")
def encrypted(made):
    with LocalCluster(n_workers=1, protocol="tls://", security=security(made / "ours"), **IN_PROCESS) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def plain():
    with LocalCluster(n_workers=0, protocol="tcp://", host="127.0.0.1", **IN_PROCESS) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def mute():
    """A socket that takes connections and says nothing."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def chatty():
    """Something else than a scheduler."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk():
            while True:
                try:
                    caller, _ = listening.accept()
                except OSError:
                    return
                caller.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                caller.close()

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("connection") / "a.zarr")
    zarr.create_array(path, data=np.random.default_rng(0).normal(size=(3000, 8)), chunks=(100, 8))
    return path


def reach(said=None, **asked):
    """Connect as a command does, and return the address of the scheduler."""
    with connected(Cluster(**{"timeout": 10, **asked}), (said if said is not None else []).append):
        return Client.current().scheduler.address


def test_over_tls(encrypted, made, stored, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": encrypted}))
    given = options(made / "ours")
    assert reach(scheduler=encrypted, **given) == encrypted
    assert reach(scheduler=encrypted.removeprefix("tls://"), **given) == encrypted
    assert reach(scheduler_file=str(file), **given) == encrypted
    with dask.config.set({"distributed.comm.tls.ca-file": given["tls_ca"]}):
        assert reach(scheduler=encrypted, **{**given, "tls_ca": None}) == encrypted
    side = {"distributed.comm.tls.client.cert": given["tls_cert"], "distributed.comm.tls.client.key": given["tls_key"]}
    with dask.config.set({"distributed.comm.tls.ca-file": given["tls_ca"], **side}):
        assert reach(scheduler=encrypted) == encrypted


def test_certificates_that_do_not_fit(encrypted, plain, made):
    ours, other = made / "ours", made / "other"
    one_authority = r"must come from one authority; they do not match \(.+\)\. .*--tls-ca"
    with pytest.raises(ConnectionError, match=one_authority):
        reach(scheduler=encrypted, **options(other))
    with pytest.raises(ConnectionError, match=one_authority):
        reach(scheduler=encrypted, **options(ours, cert=other / "client.pem", key=other / "client-key.pem"))
    with pytest.raises(ValueError, match=r"needs certificates; tls://.* is encrypted: give --tls-ca"):
        reach(scheduler=encrypted)
    with pytest.raises(ConnectionError, match=r"closed the connection .* If it needs TLS, write tls://127"):
        reach(scheduler=encrypted.replace("tls", "tcp"))
    with pytest.raises(ValueError, match=r"encryption is required, .* tcp://127.* has none. Write .* tls://"):
        reach(scheduler=encrypted.replace("tls", "tcp"), **options(ours))
    with pytest.raises(ConnectionError, match=r"does not speak TLS like a Dask scheduler .* tcp://"):
        reach(scheduler=plain.replace("tcp", "tls"), **options(ours))


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({"ca": "nothing.pem"}, OSError, r"TLS file .*nothing.pem cannot be read: No such file"),
        ({"cert": "nothing.pem"}, OSError, r"TLS file .*nothing.pem cannot be read: No such file"),
        ({"ca": "text.pem"}, ValueError, r"authority must be a certificate in PEM form; .*text.pem is not"),
        ({"cert": "text.pem"}, ValueError, r"certificate and its key must .* belong together; .*text.pem"),
        ({"key": "text.pem"}, ValueError, r"certificate and its key must .* belong together; .*text.pem"),
        ({"key": "other/client-key.pem"}, ValueError, r"belong together; .* \(KEY_VALUES_MISMATCH\)"),
        ({"key": "locked.pem"}, ValueError, r"must not have a password, .*; give a key without one"),
    ],
)
def test_files_that_are_no_certificates(encrypted, made, wrong, kind, message):
    with pytest.raises(kind, match=message):
        reach(scheduler=encrypted, **options(made / "ours", **{name: made / file for name, file in wrong.items()}))


def test_what_does_not_go_together(made):
    given = options(made / "ours")
    with pytest.raises(click.UsageError, match="--tls-cert is not given"):
        reach(scheduler="tls://127.0.0.1:1", tls_ca=given["tls_ca"])
    with pytest.raises(click.UsageError, match="--tls-ca is not given"):
        reach(scheduler="tls://127.0.0.1:1", tls_cert=given["tls_cert"], tls_key=given["tls_key"])
    with pytest.raises(click.UsageError, match="go with --scheduler or --scheduler-file"):
        reach(workers=2, **given)
    with pytest.raises(click.UsageError, match="give one of --scheduler, --scheduler-file and --workers"):
        reach(workers=2, scheduler="tcp://127.0.0.1:1")


@pytest.mark.parametrize("address", ["", "127.0.0.1", "foo://127.0.0.1:1", "tcp://127.0.0.1:port"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match=r"is not the address of a scheduler: .* Write it as tls://host:8786"):
        reach(scheduler=address, timeout=2)


# Dask leaves the socket of an attempt that was given up to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_answers_in_time(mute, chatty, made, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "SILENT_FOR", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    file, missing = tmp_path / "stale.json", tmp_path / "missing.json"
    file.write_text(json.dumps({"address": nobody}))
    for asked, message in (
        ({"scheduler": nobody}, r"no Dask scheduler answers at tcp://.* within 1 s: .*Connection refused.* --timeout"),
        ({"scheduler_file": str(file)}, r"answers at tcp://.*, the address in .*stale.json, within 1 s: .*refused"),
        ({"scheduler": mute}, r"within 1 s: it does not answer. Check that it runs"),
        ({"scheduler": mute.replace("tcp", "tls"), **options(made / "ours")}, r"within 1 s: it does not answer"),
        (
            {"scheduler_file": str(missing)},
            r"no scheduler wrote .*missing.json within 1 s: the file does not exist. St",
        ),
        ({"scheduler_file": str(made / "half.json")}, r"half.json within 1 s: it is not a valid scheduler file"),
    ):
        said, began = [], time.monotonic()
        with pytest.raises(OSError, match=message):
            reach(said, timeout=1, **asked)
        assert time.monotonic() - began < 30  # most of it is the load of the machine
        assert len(said) == 1
        assert said[0].startswith("waiting for the scheduler")
        assert "at most 1 s (--timeout)" in said[0]
    with pytest.raises(ConnectionError, match=r"is not a Dask scheduler \(.*\). If it needs TLS, write tls://"):
        reach(scheduler=chatty, timeout=5)
    gc.collect()


def test_a_scheduler_file_that_is_written_later(encrypted, made, tmp_path):
    file = tmp_path / "later.json"
    writing = threading.Timer(0.5, lambda: file.write_text(json.dumps({"address": encrypted})))
    writing.start()
    assert reach(scheduler_file=str(file), **options(made / "ours")) == encrypted
    writing.join()


def test_no_workers(plain, stored, caplog, capsys, monkeypatch, tmp_path):
    message = r"the work needs at least one worker; the cluster at tcp://127.* has had none for 1 s. .* --timeout"
    with Client(plain), dask.config.set({"rgcss.timeout": "1 s"}), pytest.raises(TimeoutError, match=message):
        rg.scan(stored)
    assert "has no workers; waiting at most 1 s for one" in caplog.text
    caplog.clear()
    given = ["--scheduler", plain, "--timeout", "1"]
    monkeypatch.setattr(sys, "argv", ["rgcss", "scan", stored, "-o", str(tmp_path / "m.zarr"), *given])
    with caplog.at_level(logging.WARNING), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "error: the work needs at least one worker" in capsys.readouterr().err
    assert "waiting at most" in caplog.text
    assert not (tmp_path / "m.zarr").exists()
    assert dask.config.get("rgcss.timeout", None) is None


def test_no_workers_end_a_batch_and_not_only_a_job(plain, stored, tmp_path):
    outputs = 'moments = "{stem}.m.zarr"\nresult = "{stem}.json"\n'
    for name in ("a", "b"):
        (tmp_path / f"{name}.zarr").symlink_to(stored)
    (tmp_path / "jobs.toml").write_text(f"[defaults]\n{outputs}[[jobs]]\ndata = '*.zarr'\n")
    said = []
    with Client(plain), dask.config.set({"rgcss.timeout": 1}), pytest.raises(TimeoutError, match="at least one worker"):
        run_batch(tmp_path / "jobs.toml", say=said.append)
    assert said == []


def test_a_worker_that_comes_later(stored):
    wanted = rg.scan(stored)
    with LocalCluster(n_workers=0, **IN_PROCESS) as cluster, Client(cluster):
        coming = threading.Timer(1, lambda: cluster.scale(1))
        coming.start()
        got = rg.scan(stored)
        coming.join()
        assert np.array_equal(got.product, wanted.product)


def test_workers_that_are_gone_for_good(stored, tmp_path, monkeypatch):
    """The pass, and a question about its moments, are given up; later the pass goes on."""
    monkeypatch.setattr(presence, "LOOK", 0.2)
    wanted = rg.scan(stored)
    with (
        LocalCluster(n_workers=1, **IN_PROCESS) as cluster,
        Client(cluster) as client,
        dask.config.set({"rgcss.timeout": 1}),
    ):
        moments = rg.scan(stored)
        (worker,) = cluster.scheduler.workers
        cluster.sync(cluster.scheduler.remove_worker, worker, stimulus_id="test")
        for where in ("scheduler", "worker"):
            with pytest.raises(TimeoutError, match="needs at least one worker"):
                rg.select(moments, 2, where=where)
        with pytest.raises(TimeoutError, match="needs at least one worker"):
            rg.scan(stored, archive=tmp_path / "m.zarr")
        cluster.scale(2)
        client.wait_for_workers(1)
        got = rg.scan(stored, archive=tmp_path / "m.zarr")
        assert np.array_equal(got.product, wanted.product)


@pytest.mark.parametrize(
    ("address", "open_to_others"),
    [
        ("tcp://10.0.0.5:8786", True),
        ("tcp://[2001:db8::1]:8786", True),
        ("ws://node:8786", True),
        ("tls://10.0.0.5:8786", False),
        ("wss://10.0.0.5:8786", False),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://127.9.9.9:8786", False),
        ("tcp://[::1]:8786", False),
        ("tcp://localhost:8786", False),
        ("inproc://10.0.0.5/1/1", False),
    ],
)
def test_an_open_scheduler_brings_a_warning_once(address, open_to_others, monkeypatch, recwarn):
    monkeypatch.setattr(presence, "address", lambda client: address)
    monkeypatch.setattr(presence, "_warned", set())
    words = r"scheduler at .* is not encrypted: anyone who can reach it can run code .* TLS certificates"
    if open_to_others:
        with pytest.warns(UserWarning, match=words):
            presence.warn_if_open(None)
    presence.warn_if_open(None)  # a second warning would be an error


def test_the_page_on_security_shows_what_is_said(encrypted, made, monkeypatch):
    page = (Path(__file__).parents[1] / "deploy" / "security.md").read_text()
    monkeypatch.setattr(presence, "address", lambda client: "tcp://10.0.0.5:8786")
    monkeypatch.setattr(presence, "_warned", set())
    with pytest.warns(UserWarning, match="not encrypted") as warned:
        presence.warn_if_open(None)
    with pytest.raises(ConnectionError) as refused:
        reach(scheduler=encrypted, **options(made / "other"))
    assert f"\nwarning: {warned[0].message}\n" in page
    assert f"\nerror: {refused.value}\n".replace(encrypted, "tls://10.0.0.5:8786") in page


def test_the_warning_reaches_whoever_scans(stored, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(presence, "address", lambda client: "tcp://10.0.0.5:8786")
    monkeypatch.setattr(presence, "_warned", set())
    with LocalCluster(n_workers=1, protocol="tcp://", host="127.0.0.1", **IN_PROCESS) as cluster:
        with Client(cluster), pytest.warns(UserWarning, match="10.0.0.5:8786 is not encrypted"):
            rg.scan(stored)
        presence._warned.clear()
        given = ["--scheduler", cluster.scheduler_address, "-o", str(tmp_path / "m.zarr")]
        monkeypatch.setattr(sys, "argv", ["rgcss", "scan", stored, *given])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.filters", [])
            with pytest.raises(SystemExit) as ended:
                main()
    printed = capsys.readouterr().err
    assert ended.value.code == 0, printed
    warned = [line for line in printed.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1
    assert "anyone who can reach it can run code" in warned[0]


@pytest.mark.parametrize("debug", [False, True])
def test_what_the_client_logs_of_a_lost_scheduler_is_for_debugging(plain, debug, monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["rgcss", *["--debug"] * debug, "scan"])
    cluster = {name: None for name in Cluster.__dataclass_fields__} | {"scheduler": plain, "timeout": 10}
    logger = logging.getLogger("distributed.client")
    monkeypatch.setattr(logger, "propagate", True)
    with connected_by_command(cluster):
        logger.error("Failed to reconnect")
    assert ("Failed to reconnect" in caplog.text) == debug
    logger.error("afterwards as before")
    assert "afterwards as before" in caplog.text


def test_what_is_seen_at_a_path(stored, tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    seen = sight.look([stored, str(tmp_path / "file"), str(tmp_path / "nothing")])
    assert list(seen.values())[1:] == ["a file of 3 bytes", "nothing"]
    sight.compare(seen, dict(seen), "tcp://w")
    for there, words in (("nothing", "finds nothing at"), ("a folder with the metadata 00", "finds something else")):
        with pytest.raises(FileNotFoundError, match=rf"the worker tcp://w {words}.*{stored}.* URL such as s3"):
            sight.compare(seen, {**seen, stored: there}, "tcp://w")
    assert len(sight.look([f"{tmp_path}/{i}" for i in range(1000)])) <= sight.MOST


def test_a_worker_that_joins_late_and_does_not_see_the_source(stored, monkeypatch):
    """It was not asked before the pass: its first span finds out."""
    look = sight.look
    monkeypatch.setattr(sight, "check_visible", lambda *asked: True)
    monkeypatch.setattr("rgcss_dask.scanning.scan.check_visible", lambda *asked: True)

    def blind(paths):
        try:
            get_worker()
        except ValueError:  # not on a worker
            return look(paths)
        return dict.fromkeys(paths, "nothing")

    monkeypatch.setattr(sight, "look", blind)
    with LocalCluster(n_workers=1, **IN_PROCESS) as cluster, Client(cluster):
        with pytest.raises(FileNotFoundError, match=rf"the worker inproc://.* finds nothing at {stored}"):
            rg.scan(stored)


@pytest.fixture
def blind_worker(tmp_path, stored):
    """A scheduler and a worker, as processes; the worker's mounts hide a folder of the caller's."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', str(hidden)]
    if os.geteuid() != 0 or subprocess.run([*mount, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to have mounts of its own")
    with bare_cluster(tmp_path, workers=[{"prefix": mount}]) as (address, _), Client(address):
        yield hidden


@pytest.mark.integration
def test_a_worker_whose_copy_is_of_yesterday(stored, tmp_path):
    here, yesterday = tmp_path / "here", tmp_path / "yesterday"
    for folder in (here, yesterday):
        folder.mkdir()
        zarr.create_array(folder / "a.zarr", data=zarr.open_array(stored, mode="r")[:], chunks=(100, 8))
    bound = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(yesterday), str(here)]
    if os.geteuid() != 0 or subprocess.run([*bound, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to have mounts of its own")
    with bare_cluster(tmp_path, workers=[{"prefix": bound}]) as (address, _), Client(address):
        assert rg.scan(here / "a.zarr").rows > 0  # a copy with other dates
        rewritten(here / "a.zarr")
        with pytest.raises(ValueError, match=r"on the worker tcp://127.* rows 0 to .* another copy"):
            rg.scan(here / "a.zarr")


@pytest.mark.integration
def test_a_worker_on_another_file_system(blind_worker, stored):
    hidden = blind_worker
    data = zarr.open_array(stored, mode="r")[:]
    zarr.create_array(str(hidden / "a.zarr"), data=data, chunks=(100, 8))
    with pytest.raises(FileNotFoundError, match=rf"the worker tcp://127.* finds nothing at {hidden}/a.zarr"):
        rg.scan(hidden / "a.zarr")
    with pytest.raises(FileNotFoundError, match=rf"finds nothing at {hidden}/a.zarr"):
        rg.scan([stored, str(hidden / "a.zarr")])
    with pytest.warns(UserWarning, match=rf"cannot write to {hidden}/m.zarr as seen .* no checkpoints"):
        moments = rg.scan(stored, archive=hidden / "m.zarr")
    assert np.array_equal(rg.load(hidden / "m.zarr").product, moments.product)
    assert np.array_equal(rg.select(moments, 3).columns, rg.select(rg.Moments.of(data), 3).columns)


def rewritten(path):
    """Store other values in the place of those at a path: equal shapes, names and metadata."""
    array = zarr.open_array(path, mode="r+")
    array[:] = array[:] + 1


def zipped(path, values):
    with zarr.storage.ZipStore(path, mode="w") as inside:
        zarr.create_array(inside, data=values, chunks=(100, 8), compressors=None)


@pytest.mark.parametrize("what", ["rows", "stack", "weights", "zip"])
def test_a_worker_with_another_copy_is_refused(stored, monkeypatch, tmp_path, what):
    """It reads what is there when it comes to it: here the copy is changed once the caller has looked at its own."""
    data = zarr.open_array(stored, mode="r")[:]
    zarr.create_array(tmp_path / "a.zarr", data=data, chunks=(100, 8), compressors=None)
    zarr.create_array(tmp_path / "w.zarr", data=np.ones(len(data)), chunks=(100,), compressors=None)
    source, options, change = str(tmp_path / "a.zarr"), {}, lambda: rewritten(tmp_path / "a.zarr")
    if what == "weights":
        options, change = {"weights": str(tmp_path / "w.zarr")}, lambda: rewritten(tmp_path / "w.zarr")
    elif what == "stack":
        source = [stored, source]
    elif what == "zip":
        source, change = str(tmp_path / "a.zip"), lambda: zipped(tmp_path / "a.zip", data + 1)
        zipped(tmp_path / "a.zip", data)
    with LocalCluster(n_workers=1, **IN_PROCESS) as cluster, Client(cluster):
        wanted = rg.scan(source, archive=tmp_path / "m.zarr", **options)
        assert wanted.rows == len(data) * (1 + (what == "stack"))
        build = one_pass.build_graph
        monkeypatch.setattr(one_pass, "build_graph", lambda *a: (change(), build(*a))[1])
        with pytest.raises(ValueError, match=r"read the same data; on the worker .* rows [\d,]+ to .*another copy, or"):
            rg.scan(source, **options)


@pytest.fixture
def other_package(tmp_path):
    """Settings of a process that finds this package in another version, or broken, as if it were not installed."""

    def settings(content):
        package = tmp_path / "other" / "rgcss_dask"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(content)
        return {"settings": {"PYTHONPATH": str(package.parent)}}

    return settings


@pytest.mark.integration
@pytest.mark.parametrize(
    ("content", "words"), [('__version__ = "0.0.7"', "it is 0.0.7"), ("raise ImportError", "it is not installed")]
)
@pytest.mark.parametrize("role", ["scheduler", "worker"])
def test_a_process_with_another_version_or_none(other_package, stored, tmp_path, role, content, words):
    other = other_package(content)
    odd = {"scheduler": other} if role == "scheduler" else {"workers": [other]}
    with bare_cluster(tmp_path, **{"workers": [{}], **odd}) as (address, _), Client(address):
        told = rf"this process has {rg.__version__}, on the {role} tcp://127.* {words}"
        with pytest.raises(RuntimeError, match=told):
            rg.scan(stored)


def test_workers_of_a_command_are_out_of_reach_for_others(stored):
    with connected(Cluster(workers=1), lambda message: None):
        address = Client.current().scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match=r"Timed out|TLS|closed"):
            Client(address.replace("tls://", "tcp://"), timeout=5)
        assert rg.scan(stored).n == zarr.open_array(stored).shape[1]


def test_workers_are_never_started_without_encryption(monkeypatch):
    def missing():
        raise ImportError("cryptography")

    monkeypatch.setattr(connection.Security, "temporary", missing)
    with pytest.raises(ImportError, match=r"--workers needs a package .* pip install cryptography"):
        with connected(Cluster(workers=1), lambda message: None):
            pass

"""What is shown and kept: nothing steers a terminal, and no password of an address is left in a file or a message."""

import json
import os
import re

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from test_cli import rgcss

import rgcss_dask as rg
from rgcss_dask.archive.archive import folder_of
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.cli import say
from rgcss_dask.core.result import make_result
from rgcss_dask.io.files import Folder
from rgcss_dask.io.retry import Retry, StoreError
from rgcss_dask.io.safe_text import kept, plain, shown, without_secrets
from rgcss_dask.sources.base import Reading

STEERING = ["\x00", "\x07", "\x1b", "\x7f", "\x9b", "\r", "\u202e", "\u2066", "\u2028", "\ud800"]
ADDRESSES = [
    ("http://user:PASSWORD@host/a.zarr", "http://host/a.zarr"),
    ("https://user:PASS@WORD@host:8080/a.zarr", "https://host:8080/a.zarr"),
    ("https://TOKEN_PASSWORD@host/a.zarr", "https://host/a.zarr"),
    ("simplecache::ftp://user:PASSWORD@host/a", "simplecache::ftp://host/a"),
    ("https://b.s3.org/a?X-Amz-Signature=PASSWORD&part=2", "https://b.s3.org/a?X-Amz-Signature=...&part=2"),
    ("https://x.net/a?sv=1&sig=PASSWORD%2B&se=3", "https://x.net/a?sv=1&sig=...&se=3"),
    ("https://x.net/a?access_token=PASSWORD", "https://x.net/a?access_token=..."),
    ("https://x.net/a?AWSAccessKeyId=PASSWORD", "https://x.net/a?AWSAccessKeyId=..."),
    ("s3://bucket/a@b.zarr", "s3://bucket/a@b.zarr"),
    ("/data/me@here/a.zarr", "/data/me@here/a.zarr"),
    ("memory://a.zarr", "memory://a.zarr"),
]


@pytest.mark.parametrize(("given", "clean"), ADDRESSES)
def test_secrets_of_addresses(given, clean):
    assert without_secrets(given) == clean
    assert without_secrets(f"could not read {given}, twice") == f"could not read {clean}, twice"
    assert kept({"a": [given, {"b": given}], "c": 1.5}) == {"a": [clean, {"b": clean}], "c": 1.5}


@given(st.text())
def test_nothing_that_is_shown_steers_a_terminal(text):
    assert not set(re.findall(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", plain(text)))
    shown(text).encode()
    harmless = re.sub(r"[^\w ]", "", text)
    assert plain(harmless) == harmless


def test_steering_characters_are_written_by_their_numbers(capsys):
    say("".join(STEERING) + "温度 \N{SLIGHTLY SMILING FACE}")
    told = capsys.readouterr().err
    assert told == ("\\x00\\x07\\x1b\\x7f\\x9b\\r\\u202e\\u2066\\u2028?温度 \N{SLIGHTLY SMILING FACE}\n")


def hostile(folder):
    """Make a matrix with a name and columns that would clear the screen and write another error."""
    path = folder / "a\x1b[2Jb.zarr"
    rows = np.random.default_rng(0).normal(size=(200, 4))
    array = zarr.create_array(path, data=rows, chunks=(100, 4))
    array.attrs["column_names"] = ["\x1b]0;owned\x07", "two\nerror: not true", "\x9b31m\u202e", "\x00null"]
    return path


def test_names_and_paths_on_the_terminal_and_in_a_report(tmp_path):
    path = hostile(tmp_path)
    told = []
    for command in (
        ("scan", path, "-o", tmp_path / "m.zarr"),
        ("inspect", path),
        ("inspect", tmp_path / "m.zarr"),
        ("select", tmp_path / "m.zarr", "-k", 3, "-o", tmp_path / "r.json"),
        ("report", tmp_path / "r.json", "-o", tmp_path / "r.html"),
    ):
        done = rgcss(*command)
        told.append(done.stdout + done.stderr)
    told.append(rgcss("inspect", f"{path}x", code=1).stderr)
    told.append((tmp_path / "r.html").read_text())
    for i, text in enumerate(told):
        assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        assert i == len(told) - 1 or "\nerror: not true" not in text
    assert "\\x1b[2J" in told[0]
    assert "\\x1b]0;owned\\x07" in told[-1]


def test_no_password_is_left_anywhere(tmp_path, monkeypatch):
    """Through a file system that takes the user and password of a URL, as those of web servers do."""
    address = "memory://user:PASSWORD@host/a.zarr"
    rows = np.random.default_rng(0).normal(size=(200, 4))
    zarr.create_array(zarr.storage.FsspecStore.from_url(address), data=rows, chunks=(100, 4))
    for archive in (str(tmp_path / "m.zarr"), "memory://user:PASSWORD@host/m.zarr"):
        moments = rg.scan(address, archive=archive)
        rg.append(archive, address)
    rg.merge([archive, archive], tmp_path / "both.zarr")
    picked = rg.select(moments, 2)
    result = make_result(moments, picked, provenance={"address": address, "moments": archive, "more": [address]})
    save_result(result, tmp_path / "r.json")
    rg.write_report(result, tmp_path / "r.html")
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                assert b"PASSWORD" not in file.read(), name
    assert json.loads((tmp_path / "r.json").read_text())["provenance"]["address"] == "memory://host/a.zarr"


@pytest.mark.parametrize(
    "mistake",
    [
        lambda url: rg.load(f"{url}/none"),
        lambda url: rg.load_result(f"{url}/none.json"),
        lambda url: rg.scan(f"{url}/none"),
        lambda url: rg.scan(f"{url}/none-*.zarr"),
        lambda url: rg.verify(np.eye(3), f"{url}/none"),
        lambda url: rg.append(f"{url}/none", np.eye(3)),
    ],
)
def test_no_password_is_told_in_an_error(mistake):
    with pytest.raises((OSError, ValueError)) as caught:
        mistake("memory://user:PASSWORD@host")
    assert "host/" in str(caught.value)
    assert "PASSWORD" not in str(caught.value)


def test_no_password_in_what_a_store_says():
    def ask():
        raise OSError("no answer from http://user:PASSWORD@host/a")

    with pytest.raises(StoreError, match=r"http://host/a could not be read.*no answer from http://host/a\.") as caught:
        Retry(tries=1)("read", "http://user:PASSWORD@host/a", ask)
    assert "PASSWORD" not in str(caught.value)


def test_no_secret_in_a_representation():
    secret = {"key": "PASSWORD", "secret": "PASSWORD"}
    for thing in (
        Folder("http://user:PASSWORD@host/a", secret),
        folder_of("s3://bucket/a", secret),
        Reading("raise", secret),
    ):
        assert "PASSWORD" not in repr(thing)
        assert "PASSWORD" not in str(thing)

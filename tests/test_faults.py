"""What users can mend is told in one line; what only we can mend is a traceback that asks to be reported."""

import gzip
import json
import random
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import zarr

import rgcss_dask
from rgcss_dask import batch
from rgcss_dask.cli import cli, main
from rgcss_dask.conversion.convert import convert
from rgcss_dask.core.errors import HinderedError, WrongKindError
from rgcss_dask.core.moments import Moments
from rgcss_dask.faults import is_bug, one_line
from rgcss_dask.io.claim import ArchiveBusyError
from rgcss_dask.sources.registry import open_source

ASKED = f"This is a bug in rgcss_dask {rgcss_dask.__version__}, not a mistake of yours: please report it"


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["rgcss", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("x"), TypeError("x"), RuntimeError("x"), AttributeError("x"), IndexError("x"), AssertionError("x")),
        *(ZeroDivisionError("x"), RecursionError("x"), NotImplementedError("x"), Exception("x")),
    ],
)
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_bug_ends_with_a_traceback_and_is_to_be_reported(error, debug, monkeypatch, capsys):
    def fail(**given):
        raise error

    monkeypatch.setattr(cli.commands["inspect"], "callback", fail)
    code, said = run(monkeypatch, capsys, *debug, "inspect", "a.zarr")
    assert code == 1
    assert said.startswith("Traceback")
    assert "in fail" in said
    assert f"{type(error).__name__}: " in said
    assert ASKED in said.splitlines()[-1]
    assert not any(line.startswith("error:") for line in said.splitlines())


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("x"), OSError("x"), ConnectionError("x"), TimeoutError("x"), MemoryError("x"), ImportError("x")),
        *(WrongKindError("x"), HinderedError("x"), ArchiveBusyError("x"), OverflowError("x")),
    ],
)
def test_what_users_can_mend_is_one_line(error, monkeypatch, capsys):
    def fail(**given):
        raise error

    monkeypatch.setattr(cli.commands["inspect"], "callback", fail)
    assert run(monkeypatch, capsys, "inspect", "a.zarr") == (1, "error: x\n")


def test_a_traceback_shows_no_secrets(monkeypatch, capsys):
    def fail(**given):
        raise KeyError("https://me:word@host/a.zarr?token=abc")

    monkeypatch.setattr(cli.commands["inspect"], "callback", fail)
    said = run(monkeypatch, capsys, "inspect", "a.zarr")[1]
    assert "word" not in said.replace("password", "")
    assert "abc" not in said


def test_a_batch_shows_where_a_bug_is_and_goes_on(tmp_path, monkeypatch):
    for name in "ab":
        zarr.create_array(tmp_path / f"{name}.zarr", data=np.random.default_rng(0).random((40, 4)), chunks=(10, 4))
    (tmp_path / "jobs.toml").write_text('[defaults]\nk = 2\n[[jobs]]\ndata = "a.zarr"\n[[jobs]]\ndata = "b.zarr"\n')
    answered = batch.answer

    def answer(moments, question, provenance, say):
        if "a.zarr" in str(provenance):
            raise KeyError("out of nowhere")
        return answered(moments, question, provenance, say)

    monkeypatch.setattr(batch, "answer", answer)
    lines = []
    done = batch.run_batch(tmp_path / "jobs.toml", say=lines.append)["jobs"]
    assert [job["status"] for job in done] == ["failed", "done"]
    assert done[0]["words"] == "a bug in rgcss_dask: KeyError: 'out of nowhere'"
    assert sum(ASKED in line and "Traceback" in line for line in lines) == 1


def test_kinds_that_are_not_taken_are_no_bugs():
    for wrong in (lambda: open_source(5), lambda: Moments.of(np.array([["a", "b"]]))):
        with pytest.raises(TypeError) as caught:
            wrong()
        assert not is_bug(caught.value)


def damaged(content, rng):
    """Yield a file cut short, with one bit turned near its beginning, and with one bit turned anywhere."""
    yield content[: rng.randrange(len(content))]
    for most in (min(400, len(content)), len(content)):
        bits = bytearray(content)
        bits[rng.randrange(most)] ^= 1 << rng.randrange(8)
        yield bytes(bits)


@pytest.mark.parametrize(
    "name",
    ["a.npy", "a.npz", "packed.npz", "a.csv", "a.csv.gz", "a-ubyte", "a-ubyte.gz", "a.h5", "a.mat", "a.parquet"],
)
def test_damaged_files_are_no_bugs(tmp_path, name):
    rng, X = random.Random(0), np.random.default_rng(0).integers(0, 9, (50, 6)).astype(np.uint8)
    whole = tmp_path / name
    write_file(whole, X)
    content = whole.read_bytes()
    for i in range(15):
        for j, wrong in enumerate(damaged(content, rng)):
            whole.write_bytes(wrong)
            try:
                convert(whole, tmp_path / f"{i}-{j}.zarr")
            except Exception as error:
                assert not is_bug(error), f"{name} {i} {j}: {one_line(error)}"  # noqa: PT017


def write_file(path, X):
    name = path.name
    if name.endswith(".npy"):
        np.save(path, X)
    elif name.endswith(".npz"):
        (np.savez_compressed if name.startswith("packed") else np.savez)(path, x=X)
    elif ".csv" in name:
        text = "\n".join([",".join("abcdef"), *(",".join(map(str, row)) for row in X)]).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    elif "ubyte" in name:
        data = bytes([0, 0, 8, 2]) + b"".join(n.to_bytes(4) for n in X.shape) + X.tobytes()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    elif name.endswith(".h5"):
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["x"] = X
    elif name.endswith(".mat"):
        pytest.importorskip("scipy.io").savemat(path, {"x": X})
    else:
        frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abcdef"))
        frame.to_parquet(path)


def test_a_file_without_columns_is_refused(tmp_path):
    (tmp_path / "a-ubyte").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match=r"a matrix must have columns; .*a-ubyte has none"):
        convert(tmp_path / "a-ubyte", tmp_path / "a.zarr")


def places(content, path=()):
    yield path
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from places(value, (*path, key))


def test_metadata_of_any_content_are_no_bugs(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", data=np.zeros((20, 4)), chunks=(10, 4))
    file = tmp_path / "a.zarr" / "zarr.json"
    whole = file.read_text()
    for path in places(json.loads(whole)):
        for value in (None, [], {}, "x", -1, 10**30):
            content = outer = {"": json.loads(whole)}
            for key in ("", *path)[:-1]:
                outer = outer[key]
            outer[("", *path)[-1]] = value
            file.write_text(json.dumps(content[""]))
            try:
                open_source(tmp_path / "a.zarr").read(0, 5)
            except Exception as error:
                assert not is_bug(error), f"{path} = {value}: {one_line(error)}"  # noqa: PT017


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk"])
def test_a_broken_zip_file_is_no_bug(tmp_path, content):
    (tmp_path / "a.zip").write_bytes(content)
    assert not zipfile.is_zipfile(tmp_path / "a.zip")
    with pytest.raises((ValueError, OSError)):
        open_source(tmp_path / "a.zip")


def test_the_rule_needs_nothing_heavy():
    code = "import sys, rgcss_dask.faults; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "dask", "zarr"} & set(loaded)

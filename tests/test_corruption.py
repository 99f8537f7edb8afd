"""Every flipped bit in what the package keeps is an error in one line that names the file, or does no harm."""

import json
import subprocess
from dataclasses import fields

import numpy as np
import pytest
import zarr
from corruption import outcomes

import rgcss_dask as rg
from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.core.result import Trust, Tuning, make_result
from rgcss_dask.io import claim as claim_module
from rgcss_dask.io.claim import claimed

SOME = 150  # flips of each kind of file in the default suite
MANY, FEW = 1500, 250  # in `integration`, 5,000 in all; a pass or a claim for each takes longer
COUNTS = [SOME, pytest.param(MANY, marks=pytest.mark.integration)]


def equal(a, b):
    """Compare values of any depth, bit for bit."""
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@pytest.fixture
def data(tmp_path):
    """A matrix that takes several spans to read."""
    rows = np.random.default_rng(0).normal(size=(400_000, 4))
    zarr.create_array(tmp_path / "data.zarr", data=rows, chunks=(10_000, 4))
    return tmp_path / "data.zarr"


@pytest.mark.parametrize("count", COUNTS)
def test_results(tmp_path, count):
    A = np.random.default_rng(0).normal(size=(80, 70)) + 3
    moments = rg.Moments.of(A, names=[f"column {i}" for i in range(70)])
    picked = rg.select(moments, 5, lam=2.0, center=True, scale="std")
    tuning = Tuning(np.array([1.0, 2.0]), np.ones((2, 5)), np.zeros((2, 5)), 4, 2.0, 5, "words")
    trust = Trust(np.linspace(0, 1, 70), 0.5, 0.1, 100, "words")
    path = tmp_path / "result.json"
    save_result(make_result(moments, picked, tuning=tuning, trust=trust), path)
    result = rg.load_result(path)
    counts = outcomes([path], count, lambda: rg.load_result(path), lambda found: equal(found, result), str(path))
    print(f"results: {counts}")
    assert counts["told"] > 0.5 * count


@pytest.mark.parametrize("count", COUNTS)
def test_archives(tmp_path, count):
    rows = np.random.default_rng(0).normal(size=(2000, 12))
    path = tmp_path / "moments.zarr"
    rg.scan(rows, archive=path, folds=2, progress=False)
    folder = archives.folder_of(path)
    whole = archives.read(folder)
    files = [file for file in path.rglob("*") if file.is_file()]
    counts = outcomes(files, count, lambda: archives.read(folder), lambda found: equal(found, whole), str(path))
    print(f"archives: {counts}")
    assert counts["told"] > 0.5 * count


@pytest.fixture
def unfinished(tmp_path, data):
    """An archive whose pass was interrupted, with checkpoints."""
    path = tmp_path / "unfinished.zarr"

    def interrupt(_):
        if any(path.rglob("*.part")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.scan(data, archive=path, progress=interrupt)
    return path


@pytest.mark.parametrize("count", COUNTS)
def test_checkpoints(unfinished, count):
    part = next(unfinished.rglob("*.part"))
    checkpoints = Checkpoints(archives.folder_of(part.parent))
    whole = checkpoints.load(part.stem)
    counts = outcomes([part], count, lambda: checkpoints.load(part.stem), lambda found: equal(found, whole), str(part))
    print(f"checkpoints: {counts}")
    assert counts["told"] > 0.9 * count


@pytest.mark.parametrize("count", [40, pytest.param(FEW, marks=pytest.mark.integration)])
def test_a_pass_that_goes_on(unfinished, data, tmp_path, count):
    """Every file of an unfinished pass: the claim that its process left, the record of the pass, the checkpoints."""
    whole = rg.scan(data, archive=tmp_path / "whole.zarr", progress=False)
    files = [file for file in unfinished.rglob("*") if file.is_file()]
    counts = outcomes(
        files,
        count,
        lambda: rg.scan(data, archive=unfinished, progress=False),
        lambda found: equal(found, whole),
        unfinished.name,
        fresh=unfinished,
    )
    print(f"unfinished passes: {counts}")
    assert counts["told"] > 0


@pytest.mark.parametrize("count", [50, pytest.param(FEW, marks=pytest.mark.integration)])
@pytest.mark.filterwarnings("ignore:.*Waiting up to:UserWarning")
def test_claims(tmp_path, count, monkeypatch):
    """A claim that a killed process left: a flip leaves it as dead as it was, or it is told whose it seems to be."""
    monkeypatch.setattr(claim_module, "DEAD", 0.001)
    monkeypatch.setattr(claim_module, "LOOK", 0.001)
    path = tmp_path / "moments.zarr"
    moments = rg.Moments.of(np.eye(4))
    rg.save(moments, path)
    folder = archives.folder_of(path)
    with claimed(folder):
        claim = path / "writer.json"
        content = claim.read_text()
    pid = json.loads(content)["pid"]
    dead = subprocess.Popen(["true"])
    dead.wait()
    claim.write_text(content.replace(str(pid), str(dead.pid)))

    def read():
        rg.save(moments, path)
        return rg.load(path)

    counts = outcomes([claim], count, read, lambda found: equal(found, moments), str(path), fresh=path)
    print(f"claims: {counts}")
    assert counts["harmless"] > 0

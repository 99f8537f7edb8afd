"""Nothing unpickles files: data, archives, checkpoints and results from strangers run no code."""

import ast
import io
import json
import pickle
import warnings
from pathlib import Path

import anndata
import numpy as np
import pytest
import scipy.sparse
import zarr

import rgcss_dask as rg
from rgcss_dask.conversion.convert import convert

PACKAGE = Path(rg.__file__).parent
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.fixture
def marker(tmp_path):
    """The file that a trap makes; the trap works."""
    marker = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(marker))).close()
    assert marker.exists()
    marker.unlink()
    yield marker
    assert not marker.exists()


def array_with(path, codec, place, content):
    """Make a Zarr array of format 2 whose only chunk is decoded by the codec."""
    zarr.create_array(path, shape=(4, 3), chunks=(4, 3), dtype="f8", zarr_format=2, compressors=None)
    metadata = json.loads((path / ".zarray").read_text())
    metadata[place] = codec if place == "compressor" else [codec]
    (path / ".zarray").write_text(json.dumps(metadata))
    (path / "0.0").write_bytes(content)


def test_no_module_can_unpickle():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not UNPICKLERS & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call):
                assert "allow_pickle" not in {keyword.arg for keyword in node.keywords}, path
            if isinstance(node, ast.ImportFrom) and node.module == "distributed.protocol.pickle":
                assert [alias.name for alias in node.names] == ["dumps"], path


@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_a_matrix_whose_codec_unpickles(tmp_path, marker, place):
    array_with(tmp_path / "a.zarr", {"id": "pickle", "protocol": 5}, place, pickle.dumps(Trap(marker)))
    with pytest.raises(ValueError, match="pickle"):
        rg.scan(tmp_path / "a.zarr")


def test_names_whose_codec_unpickles(tmp_path, marker):
    path = tmp_path / "cells.zarr"
    made = anndata.AnnData(scipy.sparse.csr_matrix(np.eye(4, 3)))
    with warnings.catch_warnings(), anndata.settings.override(zarr_write_format=2):
        warnings.simplefilter("ignore")  # that format 2 is old
        made.write_zarr(path)
    (path / ".zmetadata").unlink()  # a copy of what is changed here
    index = path / "var" / json.loads((path / "var" / ".zattrs").read_text())["_index"]
    if not (index / ".zarray").exists():  # strings that may be missing, of newer versions
        index = index / "values"
    metadata = json.loads((index / ".zarray").read_text())
    (index / ".zarray").write_text(json.dumps({**metadata, "compressor": {"id": "pickle", "protocol": 5}}))
    (index / "0").write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(Exception, match="pickl"):
        rg.scan(path)


def test_files_to_convert(tmp_path, marker):
    objects = np.array([[Trap(marker)] * 2] * 2, dtype=object)
    np.save(tmp_path / "a.npy", objects)
    np.savez(tmp_path / "b.npz", a=objects)
    content = io.BytesIO()
    pickle.dump(Trap(marker), content)
    (tmp_path / "c.npy").write_bytes(content.getvalue())
    for name in ("a.npy", "b.npz", "c.npy"):
        with pytest.raises((ValueError, TypeError)):
            convert([str(tmp_path / name)], str(tmp_path / "out.zarr"))


def test_archives_checkpoints_and_results(tmp_path, marker):
    content = pickle.dumps(Trap(marker))
    rng = np.random.default_rng(0)
    data, archive = tmp_path / "a.zarr", tmp_path / "m.zarr"
    zarr.create_array(data, data=rng.normal(size=(400_000, 4)), chunks=(10_000, 4))
    rg.scan(data, archive=archive)
    for chunk in [path for path in archive.rglob("*") if path.is_file() and path.name != "zarr.json"]:
        chunk.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        rg.load(archive)

    interrupted = tmp_path / "n.zarr"

    def interrupt(_):
        if any(interrupted.rglob("*.part")):  # however long another thread takes to write the first one
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.scan(data, archive=interrupted, progress=interrupt)
    parts = list(interrupted.rglob("*.part"))
    assert parts
    for part in parts:
        part.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint .* is damaged"):
        rg.scan(data, archive=interrupted)

    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(ValueError, match="is not a result"):
        rg.load_result(tmp_path / "r.json")

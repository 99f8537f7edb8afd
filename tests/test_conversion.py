"""Every kind of file becomes the same Zarr matrix, and an interrupted conversion goes on."""

import gzip
import shutil

import numpy as np
import pytest
import scipy.io
import zarr

import rgcss_dask as rg
from rgcss_dask.storage import convert as conversion
from rgcss_dask.storage import writer
from rgcss_dask.storage.convert import convert

rng = np.random.default_rng(0)
X = rng.integers(0, 200, (1000, 6)).astype(np.uint8)
NAMES = ["a", "b", "c", "d", "e", "f"]


def idx(path, array):
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + b"".join(int(x).to_bytes(4) for x in array.shape) + array.tobytes())


def frame():
    return pytest.importorskip("pandas").DataFrame(X, columns=NAMES)


def hdf5(path, name, values):
    with pytest.importorskip("h5py").File(path, "w") as file:
        file[name] = values


def gzipped_idx(path):
    idx(path.with_suffix(""), X.reshape(1000, 2, 3))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


# Kind -> file name, and how to write X to it.
WRITERS = {
    "npy": ("x.npy", lambda path: np.save(path, X)),
    "npz": ("x.npz", lambda path: np.savez_compressed(path, X=X, y=np.arange(5))),
    "csv": ("x.csv", lambda path: frame().to_csv(path, index=False)),
    "tsv": ("x.tsv", lambda path: frame().to_csv(path, index=False, sep="\t")),
    "csv.gz": ("x.csv.gz", lambda path: frame().to_csv(path, index=False)),
    "parquet": ("x.parquet", lambda path: frame().to_parquet(path, row_group_size=100)),
    "h5": ("x.h5", lambda path: hdf5(path, "group/X", X)),
    "mat": ("x.mat", lambda path: scipy.io.savemat(path, {"X": X, "label": np.zeros((1, 5))})),
    "mat73": ("x.mat", lambda path: hdf5(path, "X", X.T)),  # as MATLAB stores it
    "idx": ("x-images-idx3-ubyte", lambda path: idx(path, X.reshape(1000, 2, 3))),
    "idx.gz": ("x-images-idx3-ubyte.gz", gzipped_idx),
    "zarr": ("x.zarr", lambda path: zarr.create_array(path, data=X, chunks=(77, 4))),
}


def make(kind, folder):
    """Write X as a file of that kind and return its path."""
    name, write = WRITERS[kind]
    write(folder / name)
    return folder / name


KINDS = list(WRITERS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_becomes_the_same_matrix(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    source = make(kind, tmp_path)
    assert convert(source, tmp_path / "out.zarr") == 1000
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(array[:], X)
    assert array.chunks[1] == 6
    assert "crc32c" in str(array.metadata.to_dict())
    names = rg.scan(str(tmp_path / "out.zarr")).names
    assert names == (tuple(NAMES) if kind in ("csv", "tsv", "csv.gz", "parquet") else None)
    assert array.dtype == (np.float64 if "csv" in kind or kind == "tsv" else np.uint8)
    assert not (tmp_path / "out.zarr.draft").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_conversion_goes_on_where_it_ended(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    source = make(kind, tmp_path)
    told = []

    def interrupt(rows):
        told.append(rows)
        if sum(told) > 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.zarr", told=interrupt)
    assert not (tmp_path / "out.zarr").exists()
    again = []
    convert(source, tmp_path / "out.zarr", told=again.append)
    assert again[0] == sum(told)  # what was there is told first, and not written again
    assert sum(again) == 1000
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X)


def test_a_draft_of_other_rows_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    source = make("npy", tmp_path)

    def interrupt(rows):
        if rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.zarr", told=interrupt)
    np.save(source, X[::-1])
    convert(source, tmp_path / "out.zarr")
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X[::-1])


def test_several_files_are_stacked_in_order(tmp_path):
    for i, part in enumerate(np.array_split(X, 3)):
        np.save(tmp_path / f"day-{i}.npy", part)
    assert convert(str(tmp_path / "day-*.npy"), tmp_path / "out.zarr") == 1000
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X)


def test_one_of_several_matrices(tmp_path):
    np.savez(tmp_path / "two.npz", train=X, test=X[:10])
    assert convert(tmp_path / "two.npz", tmp_path / "out.zarr", dataset="test") == 10
    with pytest.raises(ValueError, match="holds the matrices train, test; name one with dataset="):
        convert(tmp_path / "two.npz", tmp_path / "other.zarr")
    with pytest.raises(ValueError, match="there is no 'valid'"):
        convert(tmp_path / "two.npz", tmp_path / "other.zarr", dataset="valid")


def test_bad_input_leaves_nothing_behind(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "narrow.npy", X[:, :2])
    (tmp_path / "x.xyz").touch()
    (tmp_path / "words.csv").write_text("a,b\n1,x\n")
    idx(tmp_path / "short-ubyte", X)
    short = (tmp_path / "short-ubyte").read_bytes()[:-10]
    (tmp_path / "short-ubyte").write_bytes(short)
    shutil.copytree(tmp_path, tmp_path / "taken.zarr")
    for source, target, error, message in [
        ("nothing.npy", "o", FileNotFoundError, "there is no file"),
        ("no-*.npy", "o", FileNotFoundError, "no file matches"),
        ("x.xyz", "o", ValueError, "the kind of .* is not known by its name"),
        ("*.npy", "o", ValueError, "files must have the same columns"),
        ("words.csv", "o", TypeError, "column 'b' has dtype"),
        ("short-ubyte", "o", ValueError, "the file ends early: 1,000 rows were promised, 998 found"),
        ("x.npy", "taken.zarr", FileExistsError, "is there already"),
        ("x.npy", "no/folder", FileNotFoundError, "the folder .* is not there"),
    ]:
        with pytest.raises(error, match=message):
            convert(str(tmp_path / source), tmp_path / target)
        assert not (tmp_path / "o").exists()
    with pytest.raises(ValueError, match="the target must be a local path"):
        convert(str(tmp_path / "x.npy"), "s3://bucket/x")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py: pip install 'rgcss-dask\[hdf5\]'"):
        conversion._imported("h5py", "hdf5")


def test_chunks_of_zeros_are_written(tmp_path, monkeypatch):
    """A chunk that is left out because it is empty could not be told from one that was lost."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    np.save(tmp_path / "zeros.npy", np.zeros((500, 6), np.uint8))
    convert(tmp_path / "zeros.npy", tmp_path / "out.zarr")
    assert rg.scan(str(tmp_path / "out.zarr")).rows == 500

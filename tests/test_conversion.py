"""Every kind of file becomes the same Zarr matrix, and an interrupted conversion goes on."""

import gzip
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import zarr

import rgcss_dask as rg
from rgcss_dask.conversion import arrays, columnar
from rgcss_dask.conversion.convert import convert
from rgcss_dask.io import claim
from rgcss_dask.io import matrix_writer as writer
from rgcss_dask.io.claim import ArchiveBusyError

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


def stopped_after(count):
    """Return what is told of rows and dies after so many of them."""
    seen = []

    def told(rows):
        seen.append(rows)
        if sum(seen) >= count:
            raise KeyboardInterrupt

    return told


def test_a_folder_that_was_written_anew_is_not_gone_on_with(tmp_path, monkeypatch):
    """The time of a folder does not tell: what is in it does."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    source = tmp_path / "x.zarr"
    zarr.create_array(source, data=X, chunks=(100, 6))
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.zarr", told=stopped_after(300))
    zarr.open_array(source)[:] = X[::-1]
    convert(source, tmp_path / "out.zarr")
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X[::-1])


def test_rows_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    source = tmp_path / "x.zarr"
    array = zarr.create_array(source, data=X, chunks=(100, 6))

    def told(rows, seen=[]):  # noqa: B006 (counts over calls)
        seen.append(rows)
        if len(seen) == 5:
            array[:] = X[::-1]

    with pytest.raises(ValueError, match="the rows must not change while they are written"):
        convert(source, tmp_path / "out.zarr", told=told)
    assert not (tmp_path / "out.zarr").exists()
    convert(source, tmp_path / "out.zarr")
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X[::-1])


@pytest.mark.parametrize("step", ["_finish", "_Draft.publish", "_Draft.remove", "shutil.rmtree"])
def test_a_conversion_that_died_at_its_end_is_finished(tmp_path, monkeypatch, step):
    source, dies = make("npy", tmp_path), Exception("died")

    def die(*args, **more):
        raise dies

    with monkeypatch.context() as patch:
        patch.setattr(f"rgcss_dask.io.matrix_writer.{step}", die)
        with pytest.raises(Exception, match="died"):
            convert(source, tmp_path / "out.zarr")
    assert convert(source, tmp_path / "out.zarr") == 1000
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out.zarr"}


@pytest.mark.parametrize("left", ["draft", "draft of other rows", "claim", "claim on a claim"])
def test_what_lies_beside_a_target_that_is_whole_is_removed(tmp_path, left):
    """Of a process that was killed in the last steps."""
    source, target, ended = make("npy", tmp_path), tmp_path / "out.zarr", subprocess.Popen(["true"])
    ended.wait()
    convert(source, target)
    if left.startswith("draft"):
        (tmp_path / "out.zarr.draft").mkdir()
    if left == "draft of other rows":
        record = {"rgcss_dask_draft": 1, "rows": 9, "made_from": "else"}
        (tmp_path / "out.zarr.draft" / "draft.json").write_text(json.dumps(record))
    if left.startswith("claim"):
        mine = claim.Claim.mine()
        name = "out.zarr.writer.json" + (f".{mine.id}" if left.endswith("on a claim") else "")
        (tmp_path / name).write_bytes(replace(mine, pid=ended.pid).signed(0))
    with pytest.raises(FileExistsError, match=r"out\.zarr exists already"):
        convert(source, target)
    assert {path.name for path in tmp_path.iterdir()} == {source.name, "out.zarr"}
    assert np.array_equal(zarr.open_array(target, mode="r")[:], X)


def test_two_at_once_do_not_mix_their_rows(tmp_path, monkeypatch):
    """The second is refused, and what the first writes is not touched."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[::-1])

    def meanwhile(rows):
        with pytest.raises(ArchiveBusyError, match=r"one writer at a time; .*/out.zarr is being written by process"):
            convert(tmp_path / "b.npy", tmp_path / "out.zarr")

    assert convert(tmp_path / "a.npy", tmp_path / "out.zarr", told=meanwhile) == 1000
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X)


def test_several_files_are_stacked_in_order(tmp_path):
    for i, part in enumerate(np.array_split(X, 3)):
        np.save(tmp_path / f"day-{i}.npy", part)
    assert convert(str(tmp_path / "day-*.npy"), tmp_path / "out.zarr") == 1000
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], X)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("stop", [10, 20, 30, 40, 50, 60])
def test_an_interrupted_stack_of_files_goes_on_where_it_ended(kind, stop, tmp_path, monkeypatch):
    """Also where it ended behind a file whose number of rows is not known beforehand."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 10 * 6 * 8)
    whole = X[:63].astype(np.float64)
    for i, part in enumerate(np.split(whole, [15, 22, 55])):
        path = tmp_path / f"day-{i}.{kind}"
        if kind == "npz":
            np.savez(path, part)
        else:
            table = pytest.importorskip("pandas").DataFrame(part, columns=NAMES)
            table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    told = []

    def interrupt(rows):
        told.append(rows)
        if sum(told) >= stop:
            raise KeyboardInterrupt

    pattern = str(tmp_path / f"day-*.{kind}")
    with pytest.raises(KeyboardInterrupt):
        convert(pattern, tmp_path / "out.zarr", told=interrupt)
    assert convert(pattern, tmp_path / "out.zarr") == 63
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr", mode="r")[:], whole)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ("a,x\n1,2\n", r"a\.csv has 2 \(differing: 'b'\) and c\.csv has 2 \(differing: 'x'\)"),
        ("z,a,b\n1,2,3\n", r"a\.csv has 2 and c\.csv has 3 \(differing: 'z'\)"),
        (
            "p,q,r,s,t,u\n1,2,3,4,5,6\n",
            r"a\.csv has 2 \(differing: 'a', 'b'\) and c\.csv has 6 \(differing: 'p', 'q', 'r', 's', 't' and 1 more\)",
        ),
    ],
)
def test_names_that_differ_are_said(other, difference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("a,b\n1,2\n")
    Path("c.csv").write_text(other)
    with pytest.raises(
        ValueError, match=rf"same columns, in any order; {difference}\..*or convert the files separately"
    ):
        convert(["a.csv", "c.csv"], "out.zarr")


def test_files_with_and_without_names_are_not_stacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame().to_csv("a.csv", index=False)
    np.save("b.npy", X)
    with pytest.raises(ValueError, match=r"a\.csv has 6 with names and b\.npy has 6 without names"):
        convert(["a.csv", "b.npy"], "out.zarr")


@pytest.mark.parametrize("first", ["0.1257,-1.3", "0.5,0.5", "3,", "1e3,nan", '"1","2"'])
def test_a_first_line_of_numbers_is_no_header(first, tmp_path):
    (tmp_path / "x.csv").write_text(f"{first}\n0.5,2\n3,4\n")
    with pytest.raises(
        ValueError, match=r"must name the columns; .*x\.csv begins with numbers \(.*Insert a line of names"
    ):
        convert(tmp_path / "x.csv", tmp_path / "out.zarr")


def test_every_field_has_a_name(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2,3\n4,5,6\n")  # with row names, or so pandas would take it
    with pytest.raises(ValueError, match=r"must have a name; rows of .*x\.csv have more fields than its first line"):
        convert(path, tmp_path / "out.zarr")
    frame().to_csv(path)  # with row numbers
    with pytest.raises(ValueError, match=r"field 1 of the first line of .*x\.csv is empty.*row numbers"):
        convert(path, tmp_path / "out.zarr")
    assert [file.name for file in tmp_path.iterdir()] == ["x.csv"]


def test_columns_may_be_numbered_as_pandas_does(tmp_path):
    pytest.importorskip("pandas").DataFrame(X).to_csv(tmp_path / "x.csv", index=False)
    convert(tmp_path / "x.csv", tmp_path / "out.zarr")
    moments = rg.scan(str(tmp_path / "out.zarr"))
    assert moments.names == tuple(str(i) for i in range(X.shape[1]))
    assert moments.rows == len(X)


def test_a_header_may_hold_some_numbers(tmp_path):
    (tmp_path / "x.csv").write_text("mass,2024\n1,2\n")
    convert(tmp_path / "x.csv", tmp_path / "out.zarr")
    assert rg.scan(str(tmp_path / "out.zarr")).names == ("mass", "2024")


def parquet(path, columns, *, schema=None, **options):
    table = pytest.importorskip("pyarrow").table(columns, schema=schema)
    pytest.importorskip("pyarrow.parquet").write_table(table, path, **options)
    return path


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_of_parquet_become_nan(statistics, tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_BYTES", 2 * 16)  # the first chunk has no null
    pa = pytest.importorskip("pyarrow")
    columns = {
        "count": pa.array([1, 2, 3, None, 5], pa.int64()),
        "flag": pa.array([True, False, True, True, None], pa.bool_()),
    }
    source = parquet(tmp_path / "x.parquet", columns, row_group_size=2, write_statistics=statistics)
    convert(source, tmp_path / "out.zarr")
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert array.dtype == np.float64
    np.testing.assert_array_equal(array[:], [[1, 1], [2, 0], [3, 1], [np.nan, 1], [5, np.nan]])


def test_nulls_of_nullable_pandas_columns_become_nan(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": pandas.array([1, None], "Int64"), "b": pandas.array([None, True], "boolean")})
    table.to_parquet(tmp_path / "x.parquet")
    convert(tmp_path / "x.parquet", tmp_path / "out.zarr")
    values = zarr.open_array(tmp_path / "out.zarr", mode="r")[:]
    np.testing.assert_array_equal(values, [[1, np.nan], [np.nan, 1]])


def test_integers_of_parquet_stay_exact_where_there_is_no_null(tmp_path):
    """Either the statistics say so, or the schema."""
    pa = pytest.importorskip("pyarrow")
    exact = [2**53 + 1, -1]
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    counted = parquet(tmp_path / "counted.parquet", {"a": pa.array(exact)})
    promised = parquet(tmp_path / "promised.parquet", {"a": exact}, schema=required, write_statistics=False)
    assert convert([str(counted), str(promised)], tmp_path / "out.zarr") == 4
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert array.dtype == np.int64
    assert array[:, 0].tolist() == exact * 2


def test_floats_of_parquet_keep_their_precision_with_nulls(tmp_path):
    pa = pytest.importorskip("pyarrow")
    columns = {"a": pa.array([1.5, None], pa.float32()), "b": pa.array([None, 7], pa.int8())}
    convert(parquet(tmp_path / "x.parquet", columns), tmp_path / "out.zarr")
    array = zarr.open_array(tmp_path / "out.zarr", mode="r")
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array[:], [[1.5, np.nan], [np.nan, 7]])


def test_nulls_that_the_statistics_deny_are_an_error(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    source = parquet(tmp_path / "x.parquet", {"a": pa.array([1, 2]), "b": pa.array([3, None])})
    monkeypatch.setattr(columnar.ParquetTable, "_nulls", lambda self, name: 0)
    with pytest.raises(ValueError, match=r"column 'b' of .*x\.parquet holds nulls, .*Write the file again"):
        convert(source, tmp_path / "out.zarr")


def test_one_of_several_matrices(tmp_path):
    np.savez(tmp_path / "two.npz", train=X, test=X[:10])
    assert convert(tmp_path / "two.npz", tmp_path / "out.zarr", dataset="test") == 10
    with pytest.raises(ValueError, match="holds the matrices train, test; choose one with dataset="):
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
        ("x.xyz", "o", ValueError, "a file must have a name that ends in one of"),
        ("*.npy", "o", ValueError, "files must have the same columns"),
        ("words.csv", "o", TypeError, r"'b' \(text, such as 'x' in row 1\)"),
        ("short-ubyte", "o", ValueError, "must hold the 1,000 rows of its header; it ends after 998"),
        ("x.npy", "taken.zarr", FileExistsError, "exists already"),
        ("x.npy", "no/folder", FileNotFoundError, "the folder .* does not exist"),
    ]:
        with pytest.raises(error, match=message):
            convert(str(tmp_path / source), tmp_path / target)
        assert not (tmp_path / "o").exists()
    with pytest.raises(ValueError, match="the target must be a local path"):
        convert(str(tmp_path / "x.npy"), "s3://bucket/x")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"needs h5py: pip install 'rgcss-dask\[hdf5\]'"):
        arrays.imported("h5py", "hdf5")


def test_chunks_of_zeros_are_written(tmp_path, monkeypatch):
    """A chunk that is left out because it is empty could not be told from one that was lost."""
    monkeypatch.setattr(writer, "CHUNK_BYTES", 6 * 64)
    np.save(tmp_path / "zeros.npy", np.zeros((500, 6), np.uint8))
    convert(tmp_path / "zeros.npy", tmp_path / "out.zarr")
    assert rg.scan(str(tmp_path / "out.zarr")).rows == 500

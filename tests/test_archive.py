import json
import shutil
import uuid
import zlib

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.archive import archive as module
from rgcss_dask.archive import merging
from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.archive.inspection import describe
from rgcss_dask.cluster import remote_moments as handle
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.gaps import Gaps
from rgcss_dask.core.partial_sums import PartialSums, Read
from rgcss_dask.io.claim import ArchiveBusyError
from rgcss_dask.io.files import Folder
from rgcss_dask.scanning import scan as one_pass
from rgcss_dask.workflow import open_moments

N = 8


def rows(count, seed=0, dtype=np.float64):
    A = np.random.default_rng(seed).standard_normal((count, N)) * 20 + 100
    return A.clip(0, 255).astype(dtype)


def stored(path, A, chunk=500):
    array = zarr.create_array(path, shape=A.shape, chunks=(chunk, N), dtype=A.dtype)
    array[:] = A
    return array


def same(a, b):
    for name in ("rows", "weight", "exact", "dropped", "names"):
        assert getattr(a, name) == getattr(b, name)
    for name in ("shift", "total", "product", "rounding"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    for kind in ("folds", "groups"):
        for x, y in zip(getattr(a, kind), getattr(b, kind), strict=True):
            same(x, y)


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    if request.param == "local":
        yield str(tmp_path / "m.zarr")
        return
    url = f"memory://{uuid.uuid4().hex}/m.zarr"
    yield url
    Folder(url).remove()


def test_saved_moments_come_back_bit_for_bit(place):
    A = rows(3_000)
    moments = rg.scan(A, folds=3, groups=2, nan="drop")
    named = rg.Moments.of(A, names="abcdefgh")
    rg.save(moments, place)
    same(rg.load(place), moments)
    rg.save(named, place)
    same(rg.load(place), named)
    assert len([n for n in Folder(place).names() if n.startswith("v")]) == 1, "the old version is gone"


def test_an_archive_from_before_rounding_was_kept_is_read(tmp_path, monkeypatch):
    A = rows(300) + 7.0
    A[:, 1] = 0.1
    bytes_too = (rows(300) * 10).astype(np.int8)
    for moments in (rg.Moments.of(A), rg.Moments.of(bytes_too)):
        with monkeypatch.context() as patch:
            patch.setattr(rg.Moments, "ARRAYS", ("shift", "total", "product"))
            rg.save(moments, tmp_path / "m.zarr")
        back = rg.load(tmp_path / "m.zarr")
        assert np.array_equal(back.product, moments.product)
        assert np.array_equal(back.gram(True, "std"), moments.gram(True, "std"))
        assert np.array_equal(back.spread == 0, moments.spread == 0)


def test_an_archive_is_a_zarr_group_with_provenance(tmp_path):
    stored(tmp_path / "a.zarr", rows(2_000))
    rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr", folds=2)
    group = zarr.open_group(tmp_path / "m.zarr", mode="r")
    head = group.attrs["rgcss_dask"]
    assert head["format"] == 1
    assert head["record"]["source"] == {
        "address": str(tmp_path / "a.zarr"),
        "shape": [2_000, N],
        "dtype": "float64",
    }
    assert head["record"]["options"]["folds"] == 2
    assert {"rgcss-dask", "numpy", "zarr", "blas"} <= set(head["versions"])
    assert head["date"].startswith("20")
    product = group[head["current"]]["product"]
    assert "crc32c" in json.dumps(product.metadata.to_dict()["codecs"])
    kept = [p for p in (tmp_path / "m.zarr").rglob("*") if p.is_file()]
    assert all(p.name == "zarr.json" or "c" in p.parts for p in kept), "only Zarr is left when all is done"


def test_damage_is_found(tmp_path):
    rg.save(rg.Moments.of(rows(500)), tmp_path / "m.zarr")
    (chunk,) = (tmp_path / "m.zarr").glob("v*/product/c/0/0")
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:40] + bytes([whole[40] ^ 4]) + whole[41:])
    with pytest.raises(ValueError, match="is damaged"):
        rg.load(tmp_path / "m.zarr")
    chunk.unlink()
    with pytest.raises(ValueError, match="is incomplete"):
        rg.load(tmp_path / "m.zarr")
    rg.save(rg.Moments.of(rows(500)), tmp_path / "m.zarr")
    head = tmp_path / "m.zarr" / "zarr.json"
    head.write_text(head.read_text().replace('"rows": 500', '"rows": 501'))
    with pytest.raises(ValueError, match="the checksum of its attributes is wrong"):
        rg.load(tmp_path / "m.zarr")


def test_other_formats_and_nothing_at_all(tmp_path):
    rg.save(rg.Moments.of(rows(500)), tmp_path / "m.zarr")
    head = tmp_path / "m.zarr" / "zarr.json"
    head.write_text(head.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match="has format 2; this version of the package reads format 1"):
        rg.load(tmp_path / "m.zarr")
    with pytest.raises(FileNotFoundError, match="no finished archive of moments at"):
        rg.load(tmp_path / "nothing.zarr")


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_ten_appends_equal_one_scan(tmp_path, dtype):
    A = rows(40_000, dtype=dtype)
    first = 13_777  # in the middle of a chunk
    array = stored(tmp_path / "a.zarr", A[:first])
    rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr", folds=3)
    for stop in np.linspace(first, len(A), 11)[1:].astype(int):
        seen = array.shape[0]
        array.resize((int(stop), N))
        array[seen:] = A[seen:stop]
        got = rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr")
    same(rg.load(tmp_path / "m.zarr"), got)
    whole = rg.scan(tmp_path / "a.zarr", folds=3)
    for a, b in zip((got, *got.folds), (whole, *whole.folds), strict=True):
        assert a.rows == b.rows
        if dtype == np.uint8:
            assert np.array_equal(a.gram(), b.gram())
        else:
            np.testing.assert_allclose(a.gram(), b.gram(), rtol=1e-13)


def test_an_append_reads_only_new_rows(tmp_path, monkeypatch):
    A = rows(20_000)
    array = stored(tmp_path / "a.zarr", A[:10_000])
    rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr")
    array.resize((20_000, N))
    array[10_000:] = A[10_000:]
    seen = []
    read = one_pass.open_source(tmp_path / "a.zarr").__class__.read
    monkeypatch.setattr(
        "rgcss_dask.sources.zarr.ZarrSource.read",
        lambda self, start, stop: seen.append((start, stop)) or read(self, start, stop),
    )
    rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr")
    assert min(start for start, _ in seen) == 10_000
    seen.clear()
    rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr")  # nothing new
    assert seen == []


def test_old_rows_that_changed_are_refused_and_a_copy_is_not(tmp_path):
    A = rows(20_000)
    array = stored(tmp_path / "a.zarr", A[:10_000])
    rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr")
    array.resize((20_000, N))
    array[10_000:] = A[10_000:]
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "copy.zarr", copy_function=shutil.copyfile)
    array[4_321, 3] += 1e-9
    with pytest.raises(ValueError, match=r"rows 4,000 to 7,999 of .*a.zarr changed since they were scanned"):
        rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr")
    got = rg.append(tmp_path / "m.zarr", tmp_path / "copy.zarr")  # other files with the same rows
    np.testing.assert_allclose(got.gram(), A.T @ A, rtol=1e-13)


def test_appends_that_cannot_be_right_are_refused(tmp_path):
    A = rows(3_000)
    array = stored(tmp_path / "a.zarr", A)
    here = tmp_path / "m.zarr"
    rg.scan(A, archive=here)
    with pytest.raises(ValueError, match=r"columns of the archive, 8 of float64; .* has 3 of float64"):
        rg.append(here, A[:, :3])
    with pytest.raises(ValueError, match=r"must have grown since it was scanned with 3,000 rows"):
        rg.append(here, A[:100])
    with pytest.raises(ValueError, match="weights must be given if and only if"):
        rg.append(here, np.vstack([A, A]), weights=np.ones(6_000))
    for i, options in enumerate(({"rows": slice(5, 3_000)}, {"rows": np.arange(3_000) > 9})):
        rg.scan(array, archive=tmp_path / f"{i}.zarr", **options)
        with pytest.raises(ValueError, match="its slice or mask"):
            rg.append(tmp_path / f"{i}.zarr", array)
    rg.scan(array, archive=tmp_path / "filled.zarr", nan="mean")
    with pytest.raises(ValueError, match="gaps were filled with the means of its own rows"):
        rg.append(tmp_path / "filled.zarr", array)
    with pytest.raises(ValueError, match="gaps were filled"):
        rg.merge([here, tmp_path / "filled.zarr"])
    rg.save(rg.Moments.of(A), tmp_path / "saved.zarr")
    with pytest.raises(ValueError, match="no record of its rows"):
        rg.append(tmp_path / "saved.zarr", array)


def test_weights_and_fractions_carry_over_to_appended_rows(tmp_path):
    A, w = rows(20_000), np.random.default_rng(1).random(20_000)
    rg.scan(A[:12_000], archive=tmp_path / "m.zarr", weights=w[:12_000], rows=0.5, seed=3)
    got = rg.append(tmp_path / "m.zarr", A, weights=w)
    whole = rg.scan(A, weights=w, rows=0.5, seed=3)
    assert got.rows == whole.rows
    np.testing.assert_allclose(got.gram(), whole.gram(), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_merged_archives_equal_one_scan(tmp_path, dtype):
    A = rows(9_000, dtype=dtype)
    for i, part in enumerate(np.split(A, [2_000, 5_500])):
        rg.scan(part, archive=tmp_path / f"{i}.zarr", folds=2)
    got = rg.merge([tmp_path / f"{i}.zarr" for i in range(3)], tmp_path / "all.zarr")
    same(rg.load(tmp_path / "all.zarr"), got)
    assert got.rows == 9_000
    if dtype == np.uint8:
        assert np.array_equal(got.gram(), rg.scan(A).gram())
    np.testing.assert_allclose(got.gram(), rg.scan(A).gram(), rtol=1e-13)
    rg.scan(A[:, :3], archive=tmp_path / "narrow.zarr", folds=2)
    with pytest.raises(ValueError, match="different columns: 8 and 3"):
        rg.merge([tmp_path / "0.zarr", tmp_path / "narrow.zarr"])
    with pytest.raises(ValueError, match="at least one archive"):
        rg.merge([])


def three(tmp_path):
    """Scan three days, each on its own."""
    days = [stored(tmp_path / f"day{i}.zarr", rows(1_000, seed=i)) for i in range(3)]
    return [rg.scan(day, archive=tmp_path / f"{name}.zarr") for name, day in zip("abc", days, strict=True)]


def test_an_archive_is_merged_onto_another_once(tmp_path, monkeypatch):
    a, b, c = three(tmp_path)
    A, B, C = (tmp_path / f"{name}.zarr" for name in "abc")
    with monkeypatch.context() as patch:
        patch.setattr(merging, "write", interrupted_after(merging.write))
        with pytest.raises(InterruptedPassError):
            rg.merge([A, B], A)
    same(rg.merge([A, B], A), a.merge(b))  # what was killed after the last step is done
    same(rg.load(A), a.merge(b))
    (tmp_path / "link.zarr").symlink_to(A)
    same(rg.merge([B, tmp_path / "link.zarr"], A), a.merge(b))
    with pytest.raises(ValueError, match=r"rows must be counted once; some or all rows of .*b.zarr are in .*a.zarr"):
        rg.merge([A, B, C], A)
    same(rg.merge([A, C], A), a.merge(b).merge(c))
    with pytest.raises(ValueError, match=r"must be given once; got .*a.zarr 2 times"):
        rg.merge([A, A], A)


def interrupted_after(function):
    def interrupted(*args):
        function(*args)
        raise InterruptedPassError

    return interrupted


def test_an_archive_that_grew_is_not_merged_again(tmp_path):
    three(tmp_path)
    A, B = tmp_path / "a.zarr", tmp_path / "b.zarr"
    rg.merge([A, B], A)
    day = zarr.open_array(tmp_path / "day1.zarr")
    day.append(rows(500, seed=7))
    rg.append(B, day)
    with pytest.raises(ValueError, match="rows must be counted once"):
        rg.merge([A, B], A)


def test_rows_are_appended_to_an_archive_onto_which_others_were_merged(tmp_path):
    a, b, _ = three(tmp_path)
    A, day = tmp_path / "a.zarr", zarr.open_array(tmp_path / "day0.zarr")
    rg.merge([A, tmp_path / "b.zarr"], A)
    with pytest.raises(ValueError, match=r"other options \(merged: "):
        rg.scan(day, archive=A)
    more = rows(500, seed=7)
    day.append(more)
    got = rg.append(A, day)
    wanted = a.merge(b).merge(rg.Moments.of(more))
    assert got.rows == 2_500
    np.testing.assert_allclose(got.gram(), wanted.gram(), rtol=1e-12)


def test_two_that_merge_onto_one_do_not_lose_a_day(tmp_path, monkeypatch):
    a, b, c = three(tmp_path)
    A, B, C = (tmp_path / f"{name}.zarr" for name in "abc")
    read = merging.read

    def meanwhile(folder):
        monkeypatch.setattr(merging, "read", read)
        with pytest.raises(ArchiveBusyError, match="one writer at a time"):
            rg.merge([A, C], A)
        return read(folder)

    monkeypatch.setattr(merging, "read", meanwhile)
    rg.merge([A, B], A)
    same(rg.merge([A, C], A), a.merge(b).merge(c))


def test_the_same_call_again_loads_and_another_is_refused(tmp_path, monkeypatch):
    array = stored(tmp_path / "a.zarr", rows(3_000))
    first = rg.scan(array, archive=tmp_path / "m.zarr", folds=2)
    with monkeypatch.context() as patch:
        patch.setattr("rgcss_dask.sources.zarr.ZarrSource.read", lambda *a: pytest.fail("nothing is to be read"))
        same(rg.scan(array, archive=tmp_path / "m.zarr", folds=2), first)
    with pytest.raises(ValueError, match=r"other data or with other options \(folds: 2 there, 3 asked for\)"):
        rg.scan(array, archive=tmp_path / "m.zarr", folds=3)
    array[7, 7] = 5
    with pytest.raises(ValueError, match=r"other data or with other options \(contents: "):
        rg.scan(array, archive=tmp_path / "m.zarr", folds=2)


class InterruptedPassError(Exception):
    pass


def interrupted_scan(array, place, after_rows, **options):
    def stop(state):
        if state.rows - state.resumed_rows >= after_rows:
            raise InterruptedPassError

    with pytest.raises(InterruptedPassError):
        rg.scan(array, archive=place, progress=stop, **options)


@pytest.mark.parametrize("options", [{}, {"folds": 2}, {"nan": "mean"}, {"groups": 3}])
def test_an_interrupted_pass_resumes_with_the_same_bits(tmp_path, place, monkeypatch, options):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 8_192)
    A = rows(200_000)
    A[5, 5] = np.nan if "nan" in options else 1.0
    array = stored(tmp_path / "a.zarr", A, chunk=1_000)
    whole = rg.scan(array, **options)
    interrupted_scan(array, place, 60_000, **options)
    (name,) = (n for n in Folder(place).within("checkpoints").names() if n != "pass.json")
    assert Checkpoints(Folder(place).within(f"checkpoints/{name}")).names()
    states = []
    got = rg.scan(array, archive=place, progress=states.append, **options)
    assert states[0].resumed_rows > 20_000
    same(got, whole)
    assert Folder(place).within("checkpoints").names() == []
    same(rg.load(place), whole)


def test_checkpoints_of_other_data_or_options_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 8_192)
    array = stored(tmp_path / "a.zarr", rows(100_000))
    interrupted_scan(array, tmp_path / "m.zarr", 40_000)
    with pytest.raises(ValueError, match=r"folds: 0 there, 5 asked for.*Start again with overwrite=True"):
        rg.scan(array, archive=tmp_path / "m.zarr", folds=5)
    array[99_999, 0] = 1.0
    with pytest.raises(ValueError, match="contents:"):
        rg.scan(array, archive=tmp_path / "m.zarr")


def test_a_damaged_checkpoint_is_named(tmp_path):
    sums = {("rows", 0): rg.Moments.of(rows(100)), ("group", 1): Gaps.of(rows(50))}
    there = Checkpoints(Folder(str(tmp_path)))
    there.save("0-100", PartialSums(sums, (Read(0, 100, 7),)))
    back = there.load("0-100")
    same(back.sums["rows", 0], sums["rows", 0])
    for name in ("shift", "total", "product", "cross", "present"):
        assert np.array_equal(getattr(back.sums["group", 1], name), getattr(sums["group", 1], name))
    assert back.reads == (Read(0, 100, 7),)
    path = tmp_path / "0-100.part"
    whole = path.read_bytes()
    for i in np.random.default_rng(0).integers(0, len(whole), 60):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        with pytest.raises(ValueError, match=r"0-100.part is damaged"):
            there.load("0-100")
    head = whole.partition(b"\n")[0][9:].replace(b'"format": 2', b'"format": 9')
    path.write_bytes(f"{zlib.crc32(head):08x} ".encode() + head + b"\n")
    with pytest.raises(ValueError, match="has format 9; this version reads 2"):
        there.load("0-100")
    assert there.load("no such") is None


def test_a_pass_killed_after_its_result_was_written(tmp_path, monkeypatch):
    array = stored(tmp_path / "a.zarr", rows(20_000))
    remove = Folder.remove

    def dies(self, name=""):
        if self.address.endswith("checkpoints"):
            raise InterruptedPassError
        remove(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "remove", dies)
        with pytest.raises(InterruptedPassError):
            rg.scan(array, archive=tmp_path / "m.zarr")
    array.resize((30_000, N))
    array[20_000:] = rows(10_000, seed=4)
    assert rg.append(tmp_path / "m.zarr", array).rows == 30_000


def test_the_same_call_again_removes_the_version_that_was_replaced(tmp_path, monkeypatch):
    array, path = stored(tmp_path / "a.zarr", rows(2_000)), tmp_path / "m.zarr"

    def dies(folder, keep):
        raise InterruptedPassError

    def versions():
        return len(list(path.glob("v*")))

    def killed_and_again(call):
        with monkeypatch.context() as patch:
            patch.setattr(module, "drop_versions", dies)
            with pytest.raises(InterruptedPassError):
                call()
        assert versions() == 2
        call()
        assert versions() == 1

    rg.scan(array, archive=path)
    killed_and_again(lambda: rg.scan(array, archive=path, folds=2, overwrite=True))
    array.resize((3_000, N))
    array[2_000:] = rows(1_000, seed=4)
    killed_and_again(lambda: rg.append(path, array))


def test_a_target_that_cannot_be_written_is_refused_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.sources.in_memory.ArraySource.read", lambda *a: pytest.fail("read"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rgcss_dask.sources.in_memory.ArraySource.stamps", lambda *a: None)
    for target in (tmp_path / "file" / "m.zarr", "/proc/m.zarr", "http://127.0.0.1:9/m.zarr"):
        with pytest.raises(PermissionError, match=r"must be writable; .* is not"):
            rg.scan(rows(10), archive=target)


def test_the_format_is_a_number():
    assert module.FORMAT == 1


def test_moments_of_zeros_come_back(tmp_path):
    """Arrays of zeros are written too: a chunk that is not there means damage."""
    moments = rg.Moments.of(np.zeros((5, 3)))
    rg.save(moments, tmp_path / "zeros.zarr")
    assert np.array_equal(rg.load(tmp_path / "zeros.zarr").gram(), np.zeros((3, 3)))


def contents(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_archive_is_not_written_over_the_data(tmp_path, monkeypatch, zarr_format):
    data = tmp_path / "d.zarr"
    array = zarr.create_array(data, shape=(3_000, N), chunks=(500, N), dtype="f8", zarr_format=zarr_format)
    array[:] = rows(3_000)
    before = contents(tmp_path)
    monkeypatch.setattr("rgcss_dask.sources.zarr.ZarrSource.read", lambda *a: pytest.fail("refused before the pass"))
    for address in (data, f"file://{data}"):
        with pytest.raises(
            FileExistsError, match=r"path to itself; at .*d.zarr there is a Zarr array. Give a new path"
        ):
            rg.scan(data, archive=address)
        with pytest.raises(FileExistsError, match="there is a Zarr array"):
            rg.save(rg.Moments.of(rows(10)), address)
    rg.save(rg.Moments.of(rows(10)), tmp_path / "m.zarr")
    with pytest.raises(FileExistsError, match="there is a Zarr array"):
        rg.merge([tmp_path / "m.zarr"], data)
    with pytest.raises(WrongKindError, match=r"moments are needed; .*d.zarr holds rows: make moments from them"):
        rg.append(data, data)
    assert contents(data) == before


def test_an_archive_is_not_written_into_anything_else(tmp_path):
    for zarr_format in (2, 3):
        group = zarr.create_group(tmp_path / f"group{zarr_format}", zarr_format=zarr_format)
        group.create_array("x", data=np.ones(3))
        zarr.create_group(tmp_path / f"noted{zarr_format}", zarr_format=zarr_format, attributes={"of": "others"})
    (tmp_path / "folder").mkdir()
    for name in "abcd":
        (tmp_path / "folder" / name).write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/zarr.json").write_text('{"zarr')
    before = contents(tmp_path)
    for name, what in {
        "group2": "a Zarr group",
        "group3": "a Zarr group",
        "noted2": "a Zarr group",
        "noted3": "a Zarr group",
        "damaged": "a Zarr group",
        "folder": "a, b, c, more",
        "file": "a file",
    }.items():
        with pytest.raises(FileExistsError, match=f"there is {what}"):
            rg.save(rg.Moments.of(rows(10)), tmp_path / name)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/model.pt",
        "checkpoints/0123456789abcdef/model.pt",
        "checkpoints",
        ".git/config",
        ".hidden",
        "v0123456789ab/thesis.txt",
        "writer.json.txt",
    ],
)
def test_what_has_no_mark_is_not_ours(tmp_path, name):
    """Whatever its name."""
    mine = tmp_path / "run1" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("all of it")
    array = stored(tmp_path / "a.zarr", rows(1_000))
    with pytest.raises(FileExistsError, match=f"path to itself; at .*run1 there is {name.split('/')[0]}"):
        rg.scan(array, archive=tmp_path / "run1")
    assert mine.read_text() == "all of it"


def test_what_lies_beside_ours_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 8_192)
    array, here = stored(tmp_path / "a.zarr", rows(200_000), chunk=1_000), tmp_path / "m.zarr"
    interrupted_scan(array, here, 60_000)
    (inside,) = (path for path in (here / "checkpoints").iterdir() if path.is_dir())
    mine = [here / "checkpoints/model.pt", inside / "notes.txt", here / "v0123456789ab/thesis.txt", here / ".hidden"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("all of it")
    rg.scan(array, archive=here)
    rg.save(rg.Moments.of(rows(10)), here)
    assert [path.read_text() for path in mine] == ["all of it"] * 4
    assert {path for path in (here / "checkpoints").rglob("*") if path.is_file()} == {*mine[:2]}
    assert len(list(here.glob("v*"))) == 2, "the current one, and what only has the name of one"


def test_what_a_killed_write_left_is_written_over(place, monkeypatch):
    def dies(*args):
        raise InterruptedPassError

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_moments", dies)
        with pytest.raises(InterruptedPassError):
            rg.save(rg.Moments.of(rows(10)), place)
    assert "zarr.json" in Folder(place).names()
    rg.save(rg.Moments.of(rows(10)), place)
    assert rg.load(place).rows == 10


def test_a_worker_that_outlived_its_driver_does_not_touch_a_finished_archive(place, monkeypatch):
    """It was stopped while it wrote, and goes on after another process has finished the archive."""
    wanted, write = rg.Moments.of(rows(20)), module._write_moments

    def overtaken(group, moments):
        monkeypatch.setattr(module, "_write_moments", write)
        rg.save(wanted, place)
        return write(group, moments)

    module.begin(Folder(place))  # by the driver, before it asks a worker
    monkeypatch.setattr(module, "_write_moments", overtaken)
    late = handle._write((rg.Moments.of(rows(10)), ()), Folder(place))
    same(rg.load(place), wanted)
    rg.save(wanted, place)
    assert [name for name in Folder(place).names() if name.startswith("v")] == [
        module.require(Folder(place)).lineage[-1]
    ]
    with pytest.raises(
        RuntimeError, match=r"must not be removed while it is written; some were. Make the same call again"
    ):
        module.publish(Folder(place), late, module.Record.empty("late"))
    same(rg.load(place), wanted)


def test_an_archive_at_a_file_url_is_at_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moments = rg.scan(rows(100), archive=f"file://{tmp_path}/there/m.zarr")
    same(rg.load(tmp_path / "there/m.zarr"), moments)
    same(rg.load(f"file://{tmp_path}/there/m.zarr"), moments)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_reader_finds_the_old_archive_or_the_new_one(place, monkeypatch):
    old, new = rg.Moments.of(rows(10)), rg.Moments.of(rows(20))
    rg.save(old, place)
    read, rewrites = module._read_moments, [new, old, new]

    def rewritten_meanwhile(group, head):
        if rewrites:
            rg.save(rewrites.pop(), place)
        return read(group, head)

    monkeypatch.setattr(module, "_read_moments", rewritten_meanwhile)
    got, record = module.read(Folder(place))
    same(got, new)
    assert "saved" in record.history[0]
    assert not rewrites


def test_an_unfinished_scan_is_called_so(tmp_path, place, monkeypatch):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 8_192)
    array = stored(tmp_path / "a.zarr", rows(200_000), chunk=1_000)
    interrupted_scan(array, place, 60_000)
    inside = Folder(place).within("checkpoints")
    (name,) = (name for name in inside.names() if name != "pass.json")
    parts = [part for part in inside.within(name).names() if part.endswith(".part")]
    content = describe(place)
    assert (content["kind"], content["checkpoints"]) == ("unfinished scan", len(parts))
    with pytest.raises(ValueError, match=r"m.zarr holds an unfinished scan.*`rgcss scan` command again"):
        open_moments(place)
    with pytest.raises(FileNotFoundError, match="no Zarr array"):
        open_moments(f"{place}.not")


@pytest.mark.parametrize("name", ["shift", "total", "product"])
@pytest.mark.parametrize("old", [False, True])
def test_an_array_of_another_shape_is_refused_when_it_is_read(tmp_path, name, old):
    path = tmp_path / "m.zarr"
    rg.save(rg.Moments.of(np.random.default_rng(0).normal(size=(50, 6))), path)
    if old:  # as it was before the number of columns was kept
        root = zarr.open_group(path)
        content = dict(root.attrs["rgcss_dask"])
        del content["moments"]["columns"]
        head = {key: content.pop(key) for key in ("format", "crc32")}
        crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
        root.attrs["rgcss_dask"] = {**head, "crc32": crc, **content}
    (metadata,) = path.glob(f"v*/{name}/zarr.json")
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**content, "shape": [7, *content["shape"][1:]]}))
    with pytest.raises(ValueError, match=r"m\.zarr is damaged: \w+ must be float64 of shape"):
        rg.load(path)


def test_the_version_that_an_archive_names_is_no_path(tmp_path):
    path = tmp_path / "m.zarr"
    rg.save(rg.Moments.of(np.eye(4)), path)
    root = zarr.open_group(path)
    content = {**root.attrs["rgcss_dask"], "current": "../elsewhere"}
    head = {key: content.pop(key) for key in ("format", "crc32")}
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    root.attrs["rgcss_dask"] = {**head, "crc32": crc, **content}
    with pytest.raises(ValueError, match=r"m\.zarr is damaged: it names '\.\./elsewhere'"):
        rg.load(path)

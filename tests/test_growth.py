"""Archives that grow: appended rows, weights, folds and groups; and passes that ended in the middle have a way on."""

import json

import dask.array as da
import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.pass_identity import OtherPassError
from rgcss_dask.cli import cli
from rgcss_dask.io.files import Folder

N = 6


class CutOffError(Exception):
    """Ends a pass from within."""


@pytest.fixture
def many_checkpoints(monkeypatch):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 4_096)


def some_rows(count, dtype=np.float64):
    return (np.random.default_rng(7).standard_normal((count, N)) * 20 + 100).clip(0, 255).astype(dtype)


def stored(path, A, chunk=500):
    array = zarr.create_array(path, shape=A.shape, chunks=(chunk, N), dtype=A.dtype)
    array[:] = A
    return array


def grow(array, rows):
    seen = array.shape[0]
    array.resize((seen + len(rows), N))
    array[seen:] = rows


def cut_off(call, *args, after=8_000, **options):
    """Make a call that ends after so many rows."""

    def stop(state):
        if state.rows - state.resumed_rows >= after:
            raise CutOffError

    with pytest.raises(CutOffError):
        call(*args, progress=stop, **options)


def check_moments(moments, A, weights=None):
    w = np.ones(len(A)) if weights is None else weights
    assert moments.rows == len(A)
    np.testing.assert_allclose(moments.gram(), (A.T * w) @ A.astype(float), rtol=1e-12)


def check_groups(moments, A, edges):
    """The groups are the runs of rows between the edges, and together all rows."""
    check_moments(moments, A)
    assert len(moments.groups) == len(edges) - 1
    for group, start, stop in zip(moments.groups, edges, edges[1:], strict=False):
        check_moments(group, A[start:stop])


# --- groups and folds


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
@pytest.mark.parametrize("options", [{}, {"folds": 3}])
def test_new_rows_make_further_groups_of_the_same_size(tmp_path, dtype, options):
    A = some_rows(5_500, dtype)
    array = stored(tmp_path / "a.zarr", A[:4_000])
    rg.scan(array, groups=4, archive=tmp_path / "m.zarr", **options)
    for stop, edges in (
        (4_001, [0, 1_000, 2_000, 3_000, 4_000, 4_001]),
        (4_600, [0, 1_000, 2_000, 3_000, 4_000, 4_600]),  # fills up the last one
        (5_500, [0, 1_000, 2_000, 3_000, 4_000, 5_000, 5_500]),
    ):
        grow(array, A[array.shape[0] : stop])
        moments = rg.append(tmp_path / "m.zarr", array)
        check_groups(moments, A[:stop], edges)
        check_groups(rg.load(tmp_path / "m.zarr"), A[:stop], edges)
        assert moments.exact == (dtype == np.uint8)
    for fold, whole in zip(moments.folds, rg.scan(array, **options).folds, strict=True):
        assert fold.rows == whole.rows
        np.testing.assert_allclose(fold.gram(), whole.gram(), rtol=1e-12)


def test_a_new_group_without_rows_is_left_out_and_later_ones_keep_their_place(tmp_path):
    A = some_rows(4_500)
    A[2_000:3_000] = np.nan
    array = stored(tmp_path / "a.zarr", A[:2_000])
    rg.scan(array, groups=2, nan="drop", archive=tmp_path / "m.zarr")
    for stop, kept in ((2_500, 2), (3_000, 2), (3_500, 3), (4_500, 4)):
        grow(array, A[array.shape[0] : stop])
        moments = rg.append(tmp_path / "m.zarr", array)
        assert len(moments.groups) == kept
    for group, start, stop in zip(moments.groups, (0, 1_000, 3_000, 4_000), (1_000, 2_000, 4_000, 4_500), strict=True):
        check_moments(group, A[start:stop])
    assert (moments.rows, moments.dropped) == (3_500, 1_000)
    assert rg.stability(moments, 2).k == 2


@pytest.mark.parametrize("count", [1, 3])
def test_so_few_rows_that_a_fold_gets_none(tmp_path, count):
    A = some_rows(400 + count)
    array = stored(tmp_path / "a.zarr", A[:400], chunk=100)
    rg.scan(array, folds=5, archive=tmp_path / "m.zarr")
    grow(array, A[400:])
    moments, whole = rg.append(tmp_path / "m.zarr", array), rg.scan(array, folds=5)
    check_moments(moments, A)
    assert [fold.rows for fold in moments.folds] == [fold.rows for fold in whole.folds]


@pytest.mark.parametrize("options", [{}, {"folds": 3}, {"groups": 2}, {"folds": 3, "groups": 2}])
def test_rows_that_are_all_dropped_add_nothing_but_their_count(tmp_path, options):
    A = some_rows(1_000)
    A[600:700] = np.nan
    array = stored(tmp_path / "a.zarr", A[:600], chunk=100)
    rg.scan(array, nan="drop", archive=tmp_path / "m.zarr", **options)
    grow(array, A[600:700])
    moments = rg.append(tmp_path / "m.zarr", array)
    check_moments(moments, A[:600])
    assert moments.dropped == 100
    grow(array, A[700:])
    moments = rg.append(tmp_path / "m.zarr", array)
    check_moments(moments, A[np.r_[0:600, 700:1_000]])
    assert moments.dropped == 100


@pytest.mark.parametrize("options", [{}, {"folds": 3}, {"groups": 2}])
def test_rows_of_weight_0_add_nothing_but_their_count(tmp_path, options):
    A, w = some_rows(1_000), np.random.default_rng(0).random(1_000)
    w[600:700] = 0
    rg.scan(A[:600], weights=w[:600], archive=tmp_path / "m.zarr", **options)
    for stop in (700, 1_000):
        moments = rg.append(tmp_path / "m.zarr", A[:stop], weights=w[:stop])
        check_moments(moments, A[:stop], w[:stop])
        assert moments.weight == pytest.approx(w[:stop].sum())


def test_a_refusal_leaves_everything_as_it_was_and_later_appends_work(tmp_path):
    A = some_rows(1_000)
    A[650, 2] = np.inf
    array = stored(tmp_path / "a.zarr", A[:600], chunk=100)
    rg.scan(array, archive=tmp_path / "m.zarr", folds=2)
    before = archives.read_record(Folder(str(tmp_path / "m.zarr")))
    grow(array, A[600:800])
    for _ in range(2):
        with pytest.raises(ValueError, match="row 650, column 2"):
            rg.append(tmp_path / "m.zarr", array)
    assert archives.read_record(Folder(str(tmp_path / "m.zarr"))) == before
    array[650, 2] = A[650, 2] = 5.0
    grow(array, A[800:])
    check_moments(rg.append(tmp_path / "m.zarr", array), A)
    assert not (tmp_path / "m.zarr" / "checkpoints").exists()


def test_names_in_another_order_are_found_and_others_refused(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(some_rows(100), columns=list("abcdef"))
    rg.scan(frame[:80], archive=tmp_path / "m.zarr")
    with pytest.raises(ValueError, match=r"memory lacks 'f' and has 'x' besides"):
        rg.append(tmp_path / "m.zarr", frame[list("edcba")].assign(x=1.0))
    with pytest.raises(ValueError, match="rows 0 to 79 of memory changed"):
        rg.append(tmp_path / "m.zarr", frame.set_axis(list("fedcba"), axis=1))  # other values by these names
    moments = rg.append(tmp_path / "m.zarr", frame[list("fedcba")])
    assert moments.names == tuple("abcdef")
    np.testing.assert_array_equal(moments.product, rg.append(tmp_path / "m.zarr", frame).product)


# --- weights of old rows


@pytest.mark.parametrize("kind", ["array", "int", "zarr", "dask"])
def test_changed_weights_of_old_rows_are_refused(tmp_path, kind):
    A, w = some_rows(12_000), np.random.default_rng(1).integers(0, 9, 12_000).astype(float)

    def given(weights):
        if kind == "zarr":
            zarr.create_array(
                tmp_path / "w.zarr", data=weights, chunks=(1_000,), overwrite=True, config={"write_empty_chunks": True}
            )
            return tmp_path / "w.zarr"
        return {"array": weights, "int": weights.astype(int), "dask": da.from_array(weights, chunks=700)}[kind]

    array = stored(tmp_path / "a.zarr", A[:9_000])
    rg.scan(array, weights=given(w[:9_000]), archive=tmp_path / "m.zarr")
    grow(array, A[9_000:10_000])
    changed = w.copy()
    changed[4_321] += 1
    before = archives.read_record(Folder(str(tmp_path / "m.zarr")))
    with pytest.raises(ValueError, match=r"weights of old rows .* rows 4,000 to 7,999 have others now"):
        rg.append(tmp_path / "m.zarr", array, weights=given(changed[:10_000]))
    assert archives.read_record(Folder(str(tmp_path / "m.zarr"))) == before
    check_moments(rg.append(tmp_path / "m.zarr", array, weights=given(w[:10_000])), A[:10_000], w[:10_000])
    changed[4_321] -= 1
    changed[9_500] += 1  # a row that came with the first append
    grow(array, A[10_000:])
    with pytest.raises(ValueError, match="rows 9,000 to 9,999 have others now"):
        rg.append(tmp_path / "m.zarr", array, weights=given(changed))
    check_moments(rg.append(tmp_path / "m.zarr", array, weights=given(w)), A, w)


def test_an_archive_of_an_earlier_version_is_appended_to_with_a_word_about_its_weights(tmp_path):
    A, w = some_rows(3_000), np.random.default_rng(1).random(3_000)
    rg.scan(A[:2_000], weights=w[:2_000], folds=2, archive=tmp_path / "m.zarr")
    root = zarr.open_group(tmp_path / "m.zarr", mode="r+")
    content = dict(root.attrs[archives.ATTRIBUTE])
    for name in ("weights", "groups"):
        del content["record"][name]
    del content["record"]["options"]["group_rows"]
    del content["record"]["fingerprint"]["group_rows"]
    del content["crc32"], content["format"]
    root.attrs[archives.ATTRIBUTE] = {"format": 1, "crc32": archives._crc(content), **content}
    assert rg.scan(A[:2_000], weights=w[:2_000], folds=2, archive=tmp_path / "m.zarr").rows == 2_000
    with pytest.warns(UserWarning, match="earlier version, which kept no checksums of the weights"):
        check_moments(rg.append(tmp_path / "m.zarr", A, weights=w), A, w)


# --- interrupted passes


@pytest.mark.usefixtures("many_checkpoints")
def test_an_interrupted_append_goes_on(tmp_path):
    A = some_rows(60_000)
    array = stored(tmp_path / "a.zarr", A[:10_000])
    rg.scan(array, archive=tmp_path / "m.zarr", groups=5)
    grow(array, A[10_000:])
    cut_off(rg.append, tmp_path / "m.zarr", array, after=30_000)
    states = []
    check_moments(rg.append(tmp_path / "m.zarr", array, progress=states.append), A)
    assert states[0].resumed_rows > 0


@pytest.mark.usefixtures("many_checkpoints")
@pytest.mark.parametrize("rows", [50_001, 60_000])
def test_a_source_that_grows_after_an_interrupted_append(tmp_path, rows):
    A = some_rows(rows)
    array = stored(tmp_path / "a.zarr", A[:10_000])
    rg.scan(array, archive=tmp_path / "m.zarr", folds=2)
    grow(array, A[10_000:50_000])
    cut_off(rg.append, tmp_path / "m.zarr", array, after=20_000)
    grow(array, A[50_000:])
    moments, whole = rg.append(tmp_path / "m.zarr", array), rg.scan(array, folds=2)
    check_moments(moments, A)
    assert [fold.rows for fold in moments.folds] == [fold.rows for fold in whole.folds]
    assert not (tmp_path / "m.zarr" / "checkpoints").exists()


@pytest.mark.usefixtures("many_checkpoints")
def test_a_pass_that_a_gap_ended_goes_on_with_drop(tmp_path):
    A = some_rows(60_000)
    A[55_555, 3] = np.nan
    array = stored(tmp_path / "a.zarr", A)
    whole = rg.scan(array, nan="drop", folds=2)
    with pytest.raises(ValueError, match="row 55555, column 3"):
        rg.scan(array, archive=tmp_path / "m.zarr", folds=2)
    states = []
    cut_off(rg.scan, array, archive=tmp_path / "m.zarr", folds=2, nan="drop", after=4_000)
    moments = rg.scan(array, archive=tmp_path / "m.zarr", folds=2, nan="drop", progress=states.append)
    assert states[0].resumed_rows > 20_000
    assert moments.dropped == 1
    for got, wanted in zip((moments, *moments.folds), (whole, *whole.folds), strict=True):
        assert np.array_equal(got.product, wanted.product)  # the same bits as in one pass


@pytest.mark.usefixtures("many_checkpoints")
@pytest.mark.parametrize(("before", "after"), [("drop", "raise"), ("raise", "mean"), ("mean", "drop")])
def test_other_ways_with_gaps_begin_anew_on_request(tmp_path, before, after):
    A = some_rows(60_000)
    A[5, 3] = np.nan if before != "raise" else 0.0
    array = stored(tmp_path / "a.zarr", A)
    cut_off(rg.scan, array, archive=tmp_path / "m.zarr", nan=before, after=30_000)
    with pytest.raises(
        OtherPassError,
        match=rf"unfinished pass .*nan: {before} there, {after} asked for.* overwrite=True \(--overwrite\)",
    ):
        rg.scan(array, archive=tmp_path / "m.zarr", nan=after)
    if after == "raise":
        with pytest.raises(ValueError, match="row 5, column 3"):
            rg.scan(array, archive=tmp_path / "m.zarr", nan=after, overwrite=True)
    else:
        moments = rg.scan(array, archive=tmp_path / "m.zarr", nan=after, overwrite=True)
        np.testing.assert_array_equal(moments.product, rg.scan(array, nan=after).product)


def cut_off_scan(folder):
    """Cut off a scan and return what it scans, its archive and the note that says which pass it is."""
    array, archive = stored(folder / "a.zarr", some_rows(60_000)), folder / "m.zarr"
    cut_off(rg.scan, array, archive=archive, after=30_000)
    return array, archive, archive / "checkpoints" / "pass.json"


@pytest.mark.usefixtures("many_checkpoints")
@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"id": "../../x"}'])
def test_a_note_without_the_mark_of_a_pass_is_not_ours(tmp_path, content):
    array, archive, note = cut_off_scan(tmp_path)
    note.write_text(content)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"its path to itself; .* there is checkpoints\. .*remove what is"):
            rg.scan(array, archive=archive, overwrite=overwrite)
    assert note.read_text() == content


@pytest.mark.usefixtures("many_checkpoints")
@pytest.mark.parametrize("change", [lambda note: {**note, "id": "../../x"}, lambda note: {**note, "seed": 5}, None])
def test_a_damaged_note_of_a_pass_is_refused_and_replaced_on_request(tmp_path, change):
    array, archive, note = cut_off_scan(tmp_path)
    text = note.read_text()
    note.write_text(text[:-1] if change is None else json.dumps(change(json.loads(text))))
    words = "pass.json, .* is damaged. Start again" if change is None else "unfinished pass over other data"
    with pytest.raises(OtherPassError, match=words):
        rg.scan(array, archive=archive)
    assert rg.scan(array, archive=archive, overwrite=True).rows == 60_000


def run(*arguments):
    return cli.main([str(a) for a in arguments], standalone_mode=False)


@pytest.mark.usefixtures("many_checkpoints")
def test_the_way_on_at_the_command_line(tmp_path, capsys):
    A = some_rows(60_000)
    A[55_555, 3] = np.nan
    stored(tmp_path / "a.zarr", A)
    scan = ("scan", tmp_path / "a.zarr", "-o", tmp_path / "m.zarr")
    with pytest.raises(ValueError, match="row 55555"):
        run(*scan)
    with pytest.raises(ValueError, match=r"unfinished scan\. Give the same .* add --overwrite"):
        run("select", tmp_path / "m.zarr", "-k", 2)
    with pytest.raises(OtherPassError, match="--overwrite"):
        run(*scan, "--nan", "drop", "--folds", 3)
    run(*scan, "--nan", "drop", "--folds", 3, "--overwrite")
    run("select", tmp_path / "m.zarr", "-k", 2)
    assert "59,999 rows, 1 dropped" in capsys.readouterr().out
    run("scan", tmp_path / "a.zarr", "-o", tmp_path / "n.zarr", "--nan", "drop", "--groups", 40)
    grow(zarr.open_array(tmp_path / "a.zarr"), A[:3_000])
    run("scan", tmp_path / "a.zarr", "-o", tmp_path / "n.zarr", "--append")
    assert len(rg.load(tmp_path / "n.zarr").groups) == 42


def test_folds_may_be_runs_of_neighbouring_rows(tmp_path):
    A = some_rows(3_000)
    array, archive = stored(tmp_path / "a.zarr", A), tmp_path / "m.zarr"
    asked = {"folds": 4, "blocks": True, "archive": archive}
    moments = rg.scan(tmp_path / "a.zarr", groups=3, **asked)
    check_moments(moments, A)
    for k, fold in enumerate(moments.folds):
        check_moments(fold, A[750 * k : 750 * (k + 1)])
    assert rg.load(archive).folds[1].rows == 750
    assert rg.scan(tmp_path / "a.zarr", groups=3, **asked).rows == 3_000  # the same pass: it is loaded
    with pytest.raises(ValueError, match="blocks"):
        rg.scan(tmp_path / "a.zarr", folds=4, groups=3, archive=archive)
    part = rg.scan(A, rows=slice(1_000, 1_400), folds=4, blocks=True)
    check_moments(part.folds[3], A[1_300:1_400])
    grow(array, some_rows(500))
    with pytest.raises(ValueError, match=r"its folds are runs of the rows there were \(blocks\)"):
        rg.append(archive, tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="say how many, such as folds=5"):
        rg.scan(A, blocks=True)

"""Many archives in one go: broken ones do not stop the others, and a rerun touches only what is missing."""

import json
import shutil

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.batch import read_jobs, run_batch, table
from rgcss_dask.workflow import Question, answer, open_moments

pytest.importorskip("matplotlib")

JOBS = """
[defaults]
k = 3
folds = 3
center = true
moments = "out/{stem}.moments.zarr"
result = "out/{stem}.json"
report = "out/{stem}.html"

[[jobs]]
data = "archives/*.zarr"

[[jobs]]
data = "special.zarr"
k = 2
lam = 0.5
"""


@pytest.fixture
def folder(tmp_path):
    """Nineteen archives and a special one; three of the nineteen are broken in different ways."""
    rng = np.random.default_rng(0)
    (tmp_path / "archives").mkdir()
    for i in range(19):
        A = rng.normal(size=(200, 8))
        if i == 4:
            A[17, 3] = np.nan
        zarr.create_array(tmp_path / f"archives/a{i:02d}.zarr", data=A, chunks=(50, 8))
    (tmp_path / "archives/a07.zarr/c/2/0").unlink()
    shutil.rmtree(tmp_path / "archives/a11.zarr")
    zarr.create_array(tmp_path / "archives/a11.zarr", data=np.zeros((3, 4, 5)))
    zarr.create_array(tmp_path / "special.zarr", data=rng.normal(size=(200, 8)), chunks=(50, 8))
    (tmp_path / "jobs.toml").write_text(JOBS)
    return tmp_path


def statuses(content):
    return [job["status"] for job in content["jobs"]]


def test_twenty_archives_three_of_them_broken(folder):
    done = run_batch(folder / "jobs.toml", say=lambda line: None)
    assert statuses(done).count("done") == 17, table(done)
    reasons = {job["number"]: job["words"] for job in done["jobs"] if job["status"] == "failed"}
    assert "row 17, column 3" in reasons[5]
    assert "chunk" in reasons[8]
    assert "(3, 4, 5)" in reasons[12]
    assert json.loads((folder / "summary.json").read_text()) == done
    assert table(done).endswith("17 done, 3 failed.")
    assert len(list((folder / "out").glob("*.html"))) == 17
    special = rg.load_result(folder / "out/special.json")
    assert (special.k, special.selection.lam) == (2, 0.5)

    written = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.json")}
    again = run_batch(folder / "jobs.toml", say=lambda line: None)
    assert statuses(again).count("kept") == 17
    assert statuses(again).count("failed") == 3
    assert written == {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.json")}

    shutil.rmtree(folder / "archives/a04.zarr")
    zarr.create_array(folder / "archives/a04.zarr", data=np.random.default_rng(1).normal(size=(200, 8)), chunks=(50, 8))
    mended = run_batch(folder / "jobs.toml", say=lambda line: None)
    assert mended["jobs"][4]["status"] == "done"
    assert statuses(mended).count("kept") == 17


def test_shares_cover_all_jobs_once(folder):
    numbers = []
    for i in (1, 2, 3):
        done = run_batch(folder / "jobs.toml", only=f"{i}/3", say=lambda line: None)
        numbers += [job["number"] for job in done["jobs"]]
        assert (folder / f"summary-{i}-of-3.json").exists()
    assert sorted(numbers) == list(range(1, 21))


def test_other_options_are_done_again(folder):
    (folder / "jobs.toml").write_text('[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\n')
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["kept"]
    (folder / "jobs.toml").write_text('[[jobs]]\ndata = "special.zarr"\nk = 3\nlam = 1.0\n')
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    assert rg.load_result(folder / "special.json").k == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[jobs]\n", "is not valid TOML"),
        ("[defaults]\nk = 1\n", r"at least one table \[\[jobs\]\]"),
        ("[[jobs]]\nk = 1\n", "must have data ="),
        ('[[jobs]]\ndata = "special.zarr"\ncolour = "red"\n', "an unknown option 'colour'"),
        ('[other]\n[[jobs]]\ndata = "special.zarr"\n', r"has an unknown table \[other\]"),
        ('[[jobs]]\ndata = "none-*.zarr"\n', "no archive matches"),
        ('[[jobs]]\ndata = "archives/*.zarr"\nresult = "r.json"\n', "two jobs of .* would write .*r.json"),
        ('[[jobs]]\ndata = "archives/*.zarr"\nreport = "all.html"\n', "two jobs of .* would write .*all.html"),
        ('[[jobs]]\ndata = "special.zarr"\nresult = "r"\nreport = "./x/../r"\n', "the same job of .* would write .*r"),
        (
            '[[jobs]]\ndata = "special.zarr"\nmoments = "{stem}.zarr"\n',
            "moments = .*special.zarr.* is data and",
        ),
        ('[[jobs]]\ndata = "nowhere.zarr"\nmoments = "{stem}.zarr"\n', "nowhere.zarr.* is data"),
        ('[[jobs]]\ndata = "special.zarr"\nreport = "special.zarr/"\n', 'is data.*such as report = "out/{stem}.html"'),
        ('[[jobs]]\ndata = "archives/*.zarr"\nmoments = "archives/a00.zarr"\n', "is data and must not be"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_done(folder, text, message):
    (folder / "jobs.toml").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_jobs(folder / "jobs.toml")


@pytest.mark.parametrize("summary", [None, "jobs.toml", "special.zarr", "special.moments.zarr"])
def test_a_summary_is_not_written_over_anything_else(folder, summary):
    text = '[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\n' + (
        'result = "summary.json"\n' if summary is None else ""
    )
    (folder / "jobs.toml").write_text(text)
    with pytest.raises(ValueError, match="the summary must have a place of its own"):
        run_batch(folder / "jobs.toml", summary=summary and str(folder / summary), say=lambda line: None)
    assert (folder / "jobs.toml").read_text() == text
    assert not (folder / "summary.json").exists()


def test_memory_is_for_jobs_that_say_nothing_of_it(folder):
    text = '[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\n'
    (folder / "jobs.toml").write_text(text)
    refused = run_batch(folder / "jobs.toml", memory="1 MB", say=lambda line: None)["jobs"][0]
    assert refused["status"] == "failed"
    assert "there are 1 MB" in refused["words"]
    assert statuses(run_batch(folder / "jobs.toml", memory="1 GB", say=lambda line: None)) == ["done"]
    assert statuses(run_batch(folder / "jobs.toml", memory="2 GB", say=lambda line: None)) == ["kept"]
    (folder / "jobs.toml").write_text(text + 'memory = "1 GB"\n')
    assert statuses(run_batch(folder / "jobs.toml", memory="1 MB", say=lambda line: None)) == ["done"]
    with pytest.raises(ValueError, match="memory must be a number of bytes"):
        run_batch(folder / "jobs.toml", memory="much")


@pytest.mark.parametrize("only", ["0/3", "4/3", "x", "1/", "-1/2"])
def test_a_wrong_share(folder, only):
    with pytest.raises(ValueError, match="--only must be I/N"):
        run_batch(folder / "jobs.toml", only=only)


def test_data_are_not_removed_to_make_room_for_moments(folder):
    A = zarr.open_array(folder / "special.zarr")[:]
    (folder / "taken").mkdir()
    (folder / "special.zarr").rename(folder / "taken/moments.zarr")
    zarr.create_array(folder / "special.zarr", data=A, chunks=(50, 8))
    text = '[[jobs]]\ndata = "special.zarr"\nmoments = "taken/moments.zarr"\nk = 2\nlam = 1.0\n'
    for more in ("", "folds = 2\n"):
        (folder / "jobs.toml").write_text(text + more)
        (job,) = run_batch(folder / "jobs.toml", say=lambda line: None)["jobs"]
        assert job["status"] == "failed"
        assert "there is a Zarr array" in job["words"]
        assert np.array_equal(zarr.open_array(folder / "taken/moments.zarr")[:], A)


def test_moments_of_other_options_are_replaced_and_nothing_beside_them(folder):
    text = '[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\n'
    (folder / "jobs.toml").write_text(text)
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    (folder / "special.moments.zarr/notes.txt").write_text("mine")
    (folder / "jobs.toml").write_text(text + "folds = 2\n")
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    assert len(rg.load(folder / "special.moments.zarr").folds) == 2
    assert (folder / "special.moments.zarr/notes.txt").read_text() == "mine"


def test_moments_that_the_user_made_are_replaced_only_when_asked(folder):
    wanted = rg.scan(folder / "special.zarr", folds=4, archive=folder / "special.moments.zarr")
    (folder / "jobs.toml").write_text('[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\nfolds = 2\n')
    (job,) = run_batch(folder / "jobs.toml", say=lambda line: None)["jobs"]
    assert job["status"] == "failed"
    assert "folds: 4 there, 2 asked for" in job["words"]
    assert np.array_equal(rg.load(folder / "special.moments.zarr").product, wanted.product)
    assert statuses(run_batch(folder / "jobs.toml", overwrite=True, say=lambda line: None)) == ["done"]
    assert len(rg.load(folder / "special.moments.zarr").folds) == 2


def test_moments_stay_until_those_that_replace_them_are_complete(folder, monkeypatch):
    text = '[[jobs]]\ndata = "special.zarr"\nk = 2\nlam = 1.0\n'
    (folder / "jobs.toml").write_text(text)
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    (folder / "jobs.toml").write_text(text + "folds = 2\n")

    def dies(*args):
        raise OSError("died")

    with monkeypatch.context() as patch:
        patch.setattr("rgcss_dask.archive.archive._write_moments", dies)
        assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["failed"]
    assert rg.load(folder / "special.moments.zarr").folds == ()
    (folder / "jobs.toml").write_text(text + "folds = 3\n")
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    assert len(rg.load(folder / "special.moments.zarr").folds) == 3


def test_a_pattern_does_not_find_the_moments_of_an_earlier_run(folder):
    shutil.rmtree(folder / "archives")
    (folder / "jobs.toml").write_text('[[jobs]]\ndata = "*.zarr"\nk = 2\nlam = 1.0\n')
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["done"]
    assert (folder / "special.moments.zarr").exists()
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["kept"]
    zarr.create_array(folder / "b.zarr", data=np.ones((9, 3)))
    zarr.create_array(folder / "b.moments.zarr", data=np.ones((9, 3)))
    with pytest.raises(ValueError, match=r"b.moments.zarr.* is data"):
        read_jobs(folder / "jobs.toml")


def test_chunks_that_were_left_out_may_be_filled(folder):
    text = '[[jobs]]\ndata = "archives/a07.zarr"\nk = 2\nlam = 1.0\n'
    (folder / "jobs.toml").write_text(text)
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["failed"]
    (folder / "jobs.toml").write_text(text + 'missing = "fill"\n')
    (job,) = run_batch(folder / "jobs.toml", say=lambda line: None)["jobs"]
    assert job["status"] == "done", job
    assert (folder / "a07.html").exists()
    assert statuses(run_batch(folder / "jobs.toml", say=lambda line: None)) == ["kept"]


def test_columns_are_exchanged_with_fewer_rows_than_columns_too(tmp_path):
    A = np.random.default_rng(3).normal(size=(20, 30)) @ np.random.default_rng(4).normal(size=(30, 30))
    zarr.create_array(tmp_path / "wide.zarr", data=A)
    rg.save(rg.Moments.of(A), tmp_path / "m.zarr")
    said = []

    def picked(name, **asked):
        source, provenance = open_moments(str(tmp_path / name), say=said.append)
        return answer(source, Question(k=5, lam=0.1, center=True, **asked), provenance, said.append)

    greedy, refined, wanted = picked("wide.zarr"), picked("wide.zarr", refine=True), picked("m.zarr", refine=True)
    assert set(refined.selection.columns) == set(wanted.selection.columns) != set(greedy.selection.columns)
    assert refined.selection.loss[-1] < greedy.selection.loss[-1]
    assert not any("Gram" in line for line in said)  # they are exchanged from the rows themselves
    assert refined.provenance["asked"]["refine"]


@pytest.mark.parametrize(
    "template", ["{data}.json", "{stem:>2000000000}", "{stem!r}", "{0}", "{stem.upper}", "{stem", "{}"]
)
def test_a_place_has_no_field_but_the_stem(tmp_path, template):
    zarr.create_array(tmp_path / "a.zarr", data=np.eye(4))
    path = tmp_path / "jobs.toml"
    path.write_text(f'[[jobs]]\ndata = "a.zarr"\nresult = "{template}"\n')
    with pytest.raises(ValueError, match=r"stem|is not valid"):
        run_batch(path)

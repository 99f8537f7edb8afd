"""What clusters and classes lose when they see picked columns only: beside scikit-learn, out of core, at every door."""

import json
import re
import subprocess
import sys

import click
import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import normalized_mutual_info_score
from sklearn.naive_bayes import GaussianNB
from test_cli import rgcss
from test_report import Page

import rgcss_dask as rg
from rgcss_dask.cli import cli
from rgcss_dask.core.hashing import fold_of
from rgcss_dask.learning.downstream import normalised_information
from rgcss_dask.learning.labels import Labels
from rgcss_dask.learning.rows import FOLDS, Keep, Rows
from rgcss_dask.sources.registry import open_source

DIGITS = load_digits()
X, Y = DIGITS.data, DIGITS.target


@pytest.fixture(scope="module")
def picked():
    return rg.select(X, 16, center=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "digits.zarr"
    zarr.create_array(path, data=X.astype("u1"), chunks=(200, 64))
    return path


def blobs(rows=2000, seed=0):
    """Three groups far apart in two columns that four others repeat, and noise in the rest."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    two = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[y] + rng.normal(size=(rows, 2))
    return np.hstack([two, two @ rng.normal(size=(2, 4)), 0.1 * rng.normal(size=(rows, 3))]), y


def scores(found, task):
    return found[task].everything.scores.tolist(), found[task].picked.scores.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_mutual_information_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, 300), rng.integers(0, 4, 300)
    b[:150] = a[:150] % 4
    table = np.zeros((5, 4))
    np.add.at(table, (a, b), 1)
    assert normalised_information(table) == pytest.approx(normalized_mutual_info_score(a, b), rel=1e-12)


def test_one_cluster_tells_nothing():
    assert normalised_information(np.array([[3.0, 0.0], [4.0, 0.0]])) == 0.0
    assert normalised_information(np.array([[7.0]])) == 0.0


def test_groups_that_are_far_apart_are_found_from_either():
    data, y = blobs()
    found = rg.downstream(rg.select(data, 2, center=True), data, y, repeats=2)
    for task in ("cluster", "classify"):
        assert min(map(min, scores(found, task))) > 0.97
    assert (found.rows, found.columns, found.k, found.classes, found.clusters) == (2000, 9, 2, 3, 3)


def test_columns_that_tell_nothing_lose_all():
    data, y = blobs()
    noise = rg.select(data, 2, center=True, include=[6, 7])
    found = rg.downstream(noise, data, y, repeats=1)
    assert found["classify"].picked.score < 0.5 < 0.97 < found["classify"].everything.score
    assert found["cluster"].picked.score < 0.1
    assert found["classify"].lost[0] == found["classify"].everything.score - found["classify"].picked.score


def test_classes_are_learnt_as_well_as_by_other_means(picked):
    """In memory by an exact logistic regression, on the same rows held out."""
    found = rg.downstream(picked, X, Y, tasks="classify", repeats=3)
    held_out = fold_of(np.arange(len(X), dtype=np.uint64), FOLDS, 0) == 0
    for work, columns in ((found["classify"].everything, slice(None)), (found["classify"].picked, picked.columns)):
        exact = LogisticRegression(max_iter=500, tol=1e-2).fit(X[~held_out][:, columns] / 16, Y[~held_out])
        # A fifth of 1,797 rows tells 0.95 to 0.012, and three readings are not yet the end of stochastic gradients.
        assert work.score > exact.score(X[held_out][:, columns] / 16, Y[held_out]) - 0.06


def test_the_same_figures_from_any_door_and_with_any_memory(picked, archive):
    small = rg.downstream(picked, archive, Y, repeats=2, memory="110 MB")
    large = rg.downstream(picked, archive, Y, repeats=2, memory="4 GB")
    second = rg.downstream(picked, str(archive), da.from_array(Y, chunks=100), repeats=1, seed=1)
    for task in ("cluster", "classify"):
        assert scores(small, task) == scores(large, task)
        assert scores(second, task) == tuple([one[1]] for one in scores(large, task))


def test_a_cluster_at_hand_is_not_used(picked, archive):
    """Memory is that of this process, and the archive of the picked columns is in its folder for temporary files."""
    with dask.config.set(scheduler="a scheduler that is not there"):
        assert rg.downstream(picked, archive, Y, tasks="classify", repeats=1)["classify"].picked.score > 0.8


def test_columns_are_found_by_name(picked):
    names = [f"p{i}" for i in range(64)]
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(X, columns=names)
    named = rg.select(frame, 16, center=True)
    turned = rg.downstream(named, frame[names[::-1]], Y, tasks="classify", repeats=1)
    assert scores(turned, "classify") == scores(rg.downstream(named, X, Y, tasks="classify", repeats=1), "classify")
    with pytest.raises(ValueError, match=r"the columns must be those of the selection.*lacks 'p0'"):
        rg.downstream(named, frame.rename(columns={"p0": "other"}), Y)


@pytest.mark.parametrize("dtype", ["u1", "i4", "f4", "f8"])
@pytest.mark.parametrize("rows", [None, Keep(held_out=False, seed=3), Keep(held_out=True, seed=3)])
def test_rows_are_prepared_as_they_were_picked(dtype, rows, archive):
    picked = rg.select(X, 5, center=True, scale="std")
    result = picked.result()
    whole = Rows.all_of(result, open_source(np.asarray(X, dtype=dtype)), nan="raise")
    blocks, kept = whole.blocks(rows)
    sigma = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    expected = (X - X.mean(axis=0)) / sigma
    expected /= np.sqrt((expected**2).sum(axis=1).mean())
    assert np.allclose(blocks.compute(), expected[kept], atol=1e-5)
    assert len(kept) == len(X) if rows is None else 0.1 < len(kept) / len(X) < 0.9


def test_what_is_held_out_is_never_learnt_from():
    learnt, held_out = (Keep(held_out=one, seed=7).rows(100, 900) for one in (False, True))
    assert sorted([*learnt, *held_out]) == list(range(100, 900))
    assert 0.15 < len(held_out) / 800 < 0.25


def test_a_classifier_of_the_users(picked):
    found = rg.downstream(picked, X, Y, tasks=["classify"], classifier=GaussianNB(), repeats=1)
    assert found["classify"].picked.score > 0.7


LABELS = {
    "text": (["a", "b", "b", "a"], ["a", "b"], [0, 1, 1, 0]),
    "booleans": (np.array([True, False, False, True]), [False, True], [1, 0, 0, 1]),
    "whole floats": ([2.0, 3.0, 2.0, 3.0], [2.0, 3.0], [0, 1, 0, 1]),
    "objects": (np.array(["x", "y", "x", "y"], dtype=object), ["x", "y"], [0, 1, 0, 1]),
    "no gap": (np.ma.array([1, 2, 1, 2], mask=False), [1, 2], [0, 1, 0, 1]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_kind(kind):
    given, classes, codes = LABELS[kind]
    found = Labels.of(given, 4)
    assert (found.classes.tolist(), found.codes.tolist()) == (classes, codes)


def test_labels_in_files(tmp_path):
    np.save(tmp_path / "y.npy", Y)
    zarr.create_array(tmp_path / "y.zarr", data=Y, chunks=(100,))
    (tmp_path / "y.csv").write_text("".join(f"class {label}\r\n" for label in Y))
    for name in ("y.npy", "y.zarr", "y.csv"):
        assert Labels.of(tmp_path / name, len(Y)).codes.tolist() == Y.tolist()
    assert Labels.of(str(tmp_path / "y.csv"), len(Y)).classes[3] == "class 3"


WRONG = [
    ([0, 1, 1], r"one entry per row; got shape \(3,\) for 4 rows"),
    ([[0], [1], [1], [0]], r"one entry per row; got shape \(4, 1\) for 4 rows"),
    ([1, 1, 1, 1], "two classes or more; all rows have 1"),
    ([1.0, np.nan, 2.0, 1.0], "must have a label; that of row 1 is missing"),
    (["a", None, "b", "a"], "must have a label; that of row 1 is missing"),
    (np.array(["a", "b", "", "a"], dtype=object), "must have a label; that of row 2 is missing"),
    (np.ma.array([1, 2, 1, 2], mask=[0, 0, 0, 1]), "must have a label; that of row 3 is missing"),
    ([0.5, 1.0, 0.5, 1.0], "must be classes: whole numbers, text or booleans; got float64 with fractions"),
    ([1, 2, 3, 4], "classes of several rows; got 4 for 4 rows"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_labels_that_are_refused(given, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Labels.of(given, 4)


def test_matrices_of_labels_in_a_file_are_refused(tmp_path):
    zarr.create_array(tmp_path / "y.zarr", data=np.ones((4, 2)), chunks=(4, 2))
    with pytest.raises(ValueError, match=r"one entry per row; got shape \(4, 2\)"):
        Labels.of(tmp_path / "y.zarr", 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": "sort"}, "tasks must be of cluster, classify, each once; got 'sort'"),
        ({"tasks": ["cluster", "cluster"]}, "each once"),
        ({"tasks": []}, "tasks must be"),
        ({"repeats": 0}, "repeats must be 1 or more; got 0"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"nan": "drop"}, "nan must be 'raise' or 'mean'.*got 'drop'"),
        ({"clusters": 1}, "clusters must be from 2 to the 1,797 rows; got 1"),
    ],
)
def test_what_is_asked_is_checked_first(picked, options, words):
    with pytest.raises(ValueError, match=words):
        rg.downstream(picked, X, Y, **options)


def test_other_columns_are_refused(picked):
    with pytest.raises(ValueError, match="must have the 64 columns that were selected from; memory has 63"):
        rg.downstream(picked, X[:, 1:], Y)


def test_too_little_memory_is_refused_with_the_numbers(picked, archive):
    with pytest.raises(
        MemoryError, match=r"64 columns needs [\d.]+ MB of memory, for blocks of 1,797 rows; it may use"
    ):
        rg.downstream(picked, archive, Y, memory="20 MB")


def test_gaps_are_named_or_filled(picked):
    holed = X.copy()
    holed[700, picked.columns[0]] = np.nan
    place = rf"row 700, column {picked.columns[0]} holds nan.*nan='mean'"
    with pytest.raises(ValueError, match=place):
        rg.downstream(picked, holed, Y, tasks="cluster", repeats=1)
    filled = rg.downstream(picked, holed, Y, tasks="classify", repeats=1, nan="mean")
    assert filled["classify"].picked.score > 0.8


def test_columns_without_variation_are_refused():
    constant = rg.select(np.ones((50, 4)), 2)
    with pytest.raises(ValueError, match="something to learn from"):
        rg.downstream(constant, np.ones((50, 4)), np.arange(50) % 2)


def test_the_report_has_a_section(picked, tmp_path):
    found = rg.downstream(picked, X, Y, repeats=2)
    rg.report(picked, tmp_path / "r.html", downstream=found)
    page = Page((tmp_path / "r.html").read_text())
    assert "What clusters and classes lose" in page.text
    for one in found.comparisons:
        assert one.everything.words in page.text
        assert one.picked.words in page.text
        assert f"The picked columns lose {one.lost.mean():.3f}" in page.text
    rg.report(picked, tmp_path / "without.html")
    assert "What clusters and classes lose" not in (tmp_path / "without.html").read_text()
    with pytest.raises(ValueError, match="the columns that the report is about, 8 of 64; it is of 16 of 64"):
        rg.report(rg.select(X, 8, center=True), tmp_path / "other.html", downstream=found)


def test_the_command(picked, archive, tmp_path):
    picked.save(tmp_path / "r.json")
    np.save(tmp_path / "y.npy", Y)
    asked = ("--labels", "y.npy", "--repeats", 2, "--task", "classify", "-o", "r.html")
    done = rgcss("downstream", "r.json", archive, *asked, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    here = rg.downstream(rg.load_result(tmp_path / "r.json"), archive, Y, tasks="classify", repeats=2)
    assert found["tasks"]["classify"]["picked"]["scores"] == here["classify"].picked.scores.tolist()
    assert found["tasks"]["classify"]["all"]["scores"] == here["classify"].everything.scores.tolist()
    assert "accuracy on held-out rows" in Page((tmp_path / "r.html").read_text()).text


def test_what_the_command_refuses(picked, archive, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picked.save("r.json")
    np.save("y.npy", Y)
    for arguments, kind, words in (
        (("--labels", "none.npy"), FileNotFoundError, "none.npy"),
        (("--labels", "y.npy", "-o", "y.npy"), FileExistsError, "is an input"),
        (("--labels", "y.npy", "--overwrite"), click.UsageError, "nothing is written without --output"),
    ):
        with pytest.raises(kind, match=words):
            cli.main(["downstream", "r.json", str(archive), *arguments], standalone_mode=False)


def test_words(picked):
    found = rg.downstream(picked, X, Y, tasks="classify", repeats=2)
    assert re.search(r"accuracy on held-out rows, all 64: 0\.\d{3} ± 0\.\d{3}, [\d.]+ s, \d+ MB", str(found))
    assert "1,797 rows of 10 classes, 2 seeds" in str(found)
    assert repr(found) == "<Downstream of 16 of 64 columns: classify>"
    assert re.match(r"<Comparison by accuracy.*<Work: 0", repr(found["classify"]))
    with pytest.raises(ValueError, match="one of those that were done, classify; got 'cluster'"):
        _ = found["cluster"]
    once = rg.downstream(picked, X, Y, tasks="classify", repeats=1)
    assert np.isnan(once["classify"].picked.error)
    assert "±" not in str(once)


def test_dask_ml_waits_for_its_first_use():
    code = "import sys, rgcss_dask.learning.downstream; print('dask_ml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


MEASURED = """
import json, re, sys
from pathlib import Path
import numpy as np
import rgcss_dask as rg
from rgcss_dask.learning.downstream import _warm_up

def peak():  # as the kernel counts it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

result, labels = rg.load_result("r.json"), np.load("y.npy")
_warm_up()
before = peak()
found = rg.downstream(result, "rows.zarr", labels, repeats=1, memory=int(sys.argv[1]))
print(json.dumps({"above": peak() - before, **found.said}))
"""


def measured(folder, rows, memory, columns=200, chunk=2000):
    """Learn from an archive in a process of its own, and return what that took."""
    rng = np.random.default_rng(0)
    array = zarr.create_array(folder / "rows.zarr", shape=(rows, columns), chunks=(chunk, columns), dtype="f4")
    y = rng.integers(0, 4, rows)
    mix = rng.normal(size=(4, columns))
    for start in range(0, rows, chunk):
        few = y[start : start + chunk]
        array[start : start + len(few)] = mix[few] + rng.normal(size=(len(few), columns))
    np.save(folder / "y.npy", y)
    rg.select(array[: 10 * chunk], 10, center=True).save(folder / "r.json")
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, str(memory)], capture_output=True, text=True, check=True, cwd=folder
    )
    return json.loads(ran.stdout)


@pytest.mark.integration
def test_an_archive_larger_than_the_memory(tmp_path):
    memory = 300 * 10**6
    found = measured(tmp_path, 450_000, memory)
    assert 450_000 * 200 * 4 > memory
    print(f"peak {found['above']:,} of {memory:,}; {found}")
    assert found["above"] <= memory
    assert found["tasks"]["cluster"]["picked"]["scores"][0] > 0.9
    assert found["tasks"]["classify"]["all"]["memory"] <= memory

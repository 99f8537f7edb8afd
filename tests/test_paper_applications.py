"""The paper's applications and times: measures, archives and verdicts on made-up data."""

import itertools

import numpy as np
import pytest
import zarr
from sklearn.metrics import mutual_info_score

import rgcss_dask as rg
from examples.paper import clustering, out_of_core, reconstruction, running_time, variants
from examples.paper.clustering_report import Cell
from examples.paper.datasets import Datasets
from examples.paper.out_of_core_report import _duration
from examples.paper.printed import CLUSTERING, CLUSTERING_SHARES
from examples.paper.progress import Progress
from examples.paper.results import Table
from examples.paper.variants_report import AS_ABOVE, EACH_ROW, Fit, _trends, reaching


@pytest.fixture
def progress():
    with Progress() as shown:
        yield shown


@pytest.fixture
def folder(tmp_path):
    """Files as the real ones, with less in them."""
    rng = np.random.default_rng(0)
    faces = rng.integers(0, 255, (400, 1024), dtype=np.uint8)
    people = np.arange(400) // 10 + 1
    faces[:, :200] = (people * 6)[:, None]  # pixels that tell who it is
    np.savez(tmp_path / "orl32.npz", X=faces, y=people, scale=np.float64(255))
    np.savez(tmp_path / "orl64.npz", X=np.repeat(faces, 4, axis=1), y=people, scale=np.float64(255))
    digits = rng.integers(0, 255, (300, 784), dtype=np.uint8)
    labels = np.arange(300) % 10
    parts = {"train": digits[:200], "test": digits[200:], "train_labels": labels[:200], "test_labels": labels[200:]}
    np.savez(tmp_path / "mnist.npz", **parts, scale=np.float64(255))
    things = np.arange(1440) // 72 + 1
    pictures = (12 * things[:, None] + rng.integers(0, 3, (1440, 300))).astype(np.uint8)  # any pixel tells what it is
    np.savez(tmp_path / "coil20.npz", X=pictures, y=things, scale=np.float64(255))
    return tmp_path


# ---- clustering


def test_information_is_normalised_by_the_geometric_mean_of_entropies():
    labels, found = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 1])

    def entropy(x):
        shares = np.unique(x, return_counts=True)[1] / len(x)
        return -np.sum(shares * np.log(shares))

    expected = mutual_info_score(labels, found) / np.sqrt(entropy(labels) * entropy(found))
    assert clustering.nmi(labels, found) == pytest.approx(expected)


def test_past_the_rank_the_first_column_comes_again():
    columns = np.array([7, 3, 5, 9, 8])
    assert clustering.repeated(columns, 3, 5).tolist() == [7, 3, 5, 0, 0]
    assert clustering.repeated(columns, 5, 4).tolist() == [7, 3, 5, 9]


def test_columns_that_tell_the_classes_apart_cluster_well():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 20)
    rows = np.column_stack([labels + 0.01 * rng.standard_normal(100), rng.standard_normal(100)])
    assert clustering.quality(rows[:, :1], labels, 5, rng) > 0.99
    assert clustering.quality(rows[:, 1:], labels, 5, rng) < 0.4


def cell(gcss, rgcss):
    rows = [{"rank": 48, "rows": 48, "gcss": a, "again": a, "rgcss": b} for a, b in zip(gcss, rgcss, strict=True)]
    return Cell("ORL", 40, 0.16, 32, tuple(rows))


def test_a_cell_knows_its_printed_figures_and_which_way_is_better():
    better = cell([0.70, 0.72, 0.71], [0.80, 0.81, 0.82])
    assert better.printed == (0.817, 0.805)
    assert better.off("rgcss") == pytest.approx(0.81 - 0.805)
    assert (better.sign("gcss"), cell([0.8, 0.9, 0.7], [0.81, 0.82, 0.83]).sign("gcss")) == (1, 0)
    assert cell([0.80, 0.81, 0.82], [0.70, 0.72, 0.71]).sign("gcss") == -1
    assert not better.past_rank


def test_clustering_goes_on_where_it_was_and_reports(folder, tmp_path, progress, monkeypatch):
    plan = clustering.Plan((clustering.Case("ORL", 40),), (0.01, 0.16), (16, 32), 2, 1, 100)
    monkeypatch.setitem(clustering.PLANS, "quick", plan)
    out = tmp_path / "out"
    clustering.run(Datasets(folder), "quick", out, progress)
    rows = Table(out, "clustering").rows()
    assert len(rows) == 2 * 2 * 2  # repetitions, shares, k
    assert all(row["gcss"] == row["again"] for row in rows if row["k"] <= row["rank"])
    text = clustering.report(out)
    assert "ORL, 40 clusters (2 repetitions)" in text
    assert "In all data sets RGCSS is superior" in text
    assert "dask-ml's k-means (1 repetitions, 100 test rows" in text
    monkeypatch.setattr(clustering, "quality", None)  # nothing may be left to measure
    clustering.run(Datasets(folder), "quick", out, progress)
    assert Table(out, "clustering").rows() == rows


def test_variants_are_measured_on_the_same_samples_and_told(folder, tmp_path, progress, monkeypatch):
    tried = variants.CLUSTERINGS[:1] + variants.CLUSTERINGS[2:5]
    noises = tuple(noise for noise in variants.NOISES if noise.label in (AS_ABOVE, "only pixels that vary"))
    monkeypatch.setattr(variants, "NOISY_K", 5)
    monkeypatch.setitem(variants.PLANS, "quick", variants.Plan(tried, (0.04,), (16, 64), 2, noises, 2, 3, 3, 2))
    out = tmp_path / "out"
    variants.run(Datasets(folder), "quick", out, progress)
    table = Table(out, "variants_clustering")
    counts = {variant.label: {row["rows"] for row in table.rows(variant=variant.label)} for variant in tried}
    assert counts[AS_ABOVE] == counts["10 clusters"] == {12}
    assert counts["shares of all 400 rows"] == {16}
    text = variants.report(out)
    assert "### Clustering of ORL" in text
    assert "### COIL20: columns at random" in text
    assert "### Stability of MNIST" in text
    assert " nan" not in text
    chance = Table(out, "variants_chance").rows()
    assert [(row["repetition"], row["k"]) for row in chance] == list(itertools.product(range(2), variants.CHANCE_KS))
    assert all(row["nmi"] > 0.9 for row in chance)
    assert "meet most printed figures of RGCSS for k = 128, and not for k = 16, k = 32, k = 64 and k = 256" in text
    lines = table.path.read_text()
    monkeypatch.setattr(variants, "measured", None)  # nothing may be left to measure
    monkeypatch.setattr(variants, "quality", None)
    variants.run(Datasets(folder), "quick", out, progress)
    assert table.path.read_text() == lines


def test_a_fit_is_ours_minus_the_printed_figures():
    rows = [
        {"k": 32, "share": 0.16, "again": 0.8, "rgcss": x, "all": 0.9, "repetition": i} for i, x in enumerate((1, 0))
    ]
    fit = Fit.of("ORL", "other", rows)
    assert (fit.repetitions, fit.whole) == (2, pytest.approx(0.9 - 0.8082))
    assert (fit.off["GCSS"][0], fit.off["RGCSS"][0]) == (pytest.approx(0.8 - 0.817), pytest.approx(0.5 - 0.805))


def test_how_a_penalty_that_grows_with_the_rows_changes_with_their_share_is_told():
    found = {AS_ABOVE: (0.5, 0.7), f"lambda = 2 {EACH_ROW}": (0.6, 0.55), "40 clusters": (0.1, 0.9)}
    rows = [
        {"variant": label, "k": k, "share": share, "rgcss": nmi + k}
        for label, two in found.items()
        for k in (16, 64)
        for share, nmi in zip((0.01, 0.16), two, strict=True)
    ]
    (text,) = _trends("COIL20", rows)
    wanted = "k = 16 changes by -0.032 as printed, +0.200 as above and -0.050 with lambda = 2 for each row"
    assert wanted in text
    assert _trends("COIL20", [row for row in rows if row["variant"] == AS_ABOVE]) == []


@pytest.mark.parametrize(("paper", "count"), [(0.7, 1), (0.6, 2), (0.3, 1), (0.9, 0)])
def test_samples_reach_a_figure_from_the_side_of_their_mean(paper, count):
    assert reaching(np.array([0.3, 0.5, 0.6, 0.7]), paper) == count


def test_printed_clusterings_have_a_figure_for_every_share():
    assert all(len(line) == len(CLUSTERING_SHARES) for part in CLUSTERING.values() for line in part.values())


# ---- reconstruction


@pytest.mark.parametrize("k", [3, 12])
def test_reconstruction_is_the_papers_formula(k):
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((6, 15)), rng.standard_normal((4, 15))
    S = rng.permutation(15)[:k]
    C = A[:, S]
    W = np.linalg.solve(C.T @ C + reconstruction.LAM * np.eye(k), C.T @ A)
    np.testing.assert_allclose(reconstruction.rebuilt(A, B, S), B[:, S] @ W, atol=1e-12)


def test_reconstructions_are_measured_drawn_and_told(folder, tmp_path, progress, monkeypatch):
    plan = reconstruction.Plan("ORL64", (0.02, 0.04), (16, 32), 1, 0.04)
    monkeypatch.setitem(reconstruction.PLANS, "quick", plan)
    out = tmp_path / "out"
    reconstruction.run(Datasets(folder), "quick", out, progress)
    rows = Table(out, "reconstruction").rows()
    assert [(row["share"], row["k"]) for row in rows] == [(0.02, 16), (0.02, 32), (0.04, 16), (0.04, 32)]
    assert rows[0]["gcss"] == rows[1]["gcss"]  # past the rank GCSS stays where it is
    assert len(Table(out, "reconstruction_panels").rows()) == 4
    assert "With GCSS it ceases to fall" in reconstruction.report(out)
    assert {path.name for path in out.glob("*.png")} == {"reconstruction_errors.png", "reconstruction_panels.png"}


# ---- running time


def test_the_plain_gcss_picks_what_ours_picks():
    for m in (100, 300):
        A = np.random.default_rng(m).standard_normal((m, 120))
        ours = rg.select(A.T @ A, 60, lam=0.0).columns.tolist()
        assert running_time.plain_gcss(None, A.T @ A, 60) == ours
        assert running_time.plain_gcss(A, None, 60) == ours


def test_times_are_taken_in_turns_and_told(tmp_path, progress, monkeypatch):
    points = running_time._points((60, 80), (20, 40), (5, 8))
    points = tuple(running_time.Point(p.sweep, p.m, min(p.n, 50), min(p.k, 10)) for p in points)
    monkeypatch.setitem(running_time.PLANS, "quick", running_time.Plan(points, 2))
    running_time.run(None, "quick", tmp_path, progress)
    rows = Table(tmp_path, "running_time").rows()
    assert len(rows) == 2 * len(points)
    assert all(row[name] > 0 for row in rows for name in ("source_s", "gcss_s", "rgcss_s", "plain_s"))
    text = running_time.report(tmp_path)
    assert "timed in turns, 2 times each" in text
    assert "lower than the paper's 3 to 5" in text


# ---- out of core


def test_rows_are_like_the_digits_and_the_same_each_time():
    images = np.zeros((3, 28, 28), np.uint8)
    images[:, 10:15, 10:15] = 200
    rows = out_of_core.digits(images, np.random.default_rng(0), 50)
    assert rows.shape == (50, 784)
    assert rows.dtype == np.uint8
    assert np.all((rows > 0).sum(axis=1) == 25)  # moved, whole
    assert len(np.unique(rows, axis=0)) > 40
    np.testing.assert_array_equal(rows, out_of_core.digits(images, np.random.default_rng(0), 50))


@pytest.mark.integration
def test_passes_over_repeated_chunks_are_exact_and_told(folder, tmp_path, progress, monkeypatch):
    monkeypatch.setattr(out_of_core, "CHUNK", 100)
    monkeypatch.setitem(out_of_core.PLANS, "quick", out_of_core.Plan((100, 600), 200, (1, 1)))
    out = tmp_path / "out"
    out_of_core.run(Datasets(folder), "quick", out, progress)
    rows = Table(out, "out_of_core").rows()
    assert [(row["rows"], row["distinct"], row["exact"]) for row in rows] == [(100, 100, "True"), (600, 200, "True")]
    assert rows[1]["stored_bytes"] > 2 * rows[0]["stored_bytes"]
    text = out_of_core.report(out)
    assert "*Sums of 8-bit rows are exact*: confirmed" in text
    assert "1e12" in text


def test_expected_grams_count_every_repetition(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_core, "CHUNK", 100)
    made = out_of_core.make(tmp_path / "made.zarr", Datasets(folder), 200)
    known = out_of_core.grams(tmp_path / "made.zarr", {100, 600})
    out_of_core.archive(tmp_path / "600.zarr", made, 600)
    X = zarr.open_array(tmp_path / "600.zarr", mode="r")[:].astype(np.int64)
    np.testing.assert_array_equal(known[600], X.T @ X)
    np.testing.assert_array_equal(known[100], X[:100].T @ X[:100])


def test_durations_have_units_one_can_read():
    assert [_duration(x) for x in (0.5, 119, 120, 7200, 200_000)] == [
        "0.5 s",
        "119 s",
        "2.0 min",
        "2.0 h",
        "2.3 days",
    ]

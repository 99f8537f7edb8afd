"""The benchmarks of noise, weights, distances, targets and panels: their own formulas, and a quick run of each."""

import json

import numpy as np
import oracle
import pytest

from examples.benchmarks import bands, panels, panels_page, sensors, supervised


def rows_of(m=60, n=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, 4)) @ rng.standard_normal((4, n)) + 0.3 * rng.standard_normal((m, n))


def test_density_peaks_are_those_of_the_paper():
    X = rows_of()
    n = X.shape[1]
    distance = np.array([[np.linalg.norm(X[:, i] - X[:, j]) / n for j in range(n)] for i in range(n)])
    pairs = sorted(distance[i, j] for i in range(n) for j in range(i))
    cutoff = pairs[round(0.02 * len(pairs))] / np.exp(4 / n)
    density = [sum(np.exp(-((distance[i, j] / cutoff) ** 2)) for j in range(n) if j != i) for i in range(n)]
    apart = []
    for i in range(n):
        denser = [distance[i, j] for j in range(n) if density[j] > density[i]]
        apart.append(min(denser) if denser else max(distance[i]))
    unit = [(np.array(v) - min(v)) / (max(v) - min(v)) for v in (density, apart)]
    assert list(bands.density_peaks(X, 4)) == list(np.argsort(-unit[0] * unit[1] ** 2, kind="stable")[:4])


def test_equally_spaced_bands_stand_for_runs_of_the_same_length():
    assert list(bands.middles(200, 5)) == [20, 60, 100, 140, 180]


def test_what_is_significant_is_said():
    noise = np.random.default_rng(0).normal(0, 0.1, (10, 3))
    found = {bands.AWARE: 70 + noise, bands.EVEN: np.array([60.0, 70.0, 80.0]) - noise}
    (said,) = bands.statements(found, (5, 10, 30))
    assert "better at k = 5; not told apart at k = 10; worse at k = 30" in said


def test_bands_run(data_dir, tmp_path):
    bands.main(["--quick", "--data", str(data_dir), "--output", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert "settled on splits 0 to 1" in page
    assert "Splits 2 to 3" in page
    assert "`rgcss_dask.bands` picks" in page
    assert all(
        f"| {name} |" in page for name in (bands.TODAY, bands.AWARE, bands.LABELS, bands.BOTH, bands.QR, bands.PEAKS)
    )


def test_held_out_error_is_that_of_ridge_regression():
    learnt, left, columns, weights = rows_of(), rows_of(20, seed=1), np.array([1, 5, 7]), np.arange(12.0)
    whole = np.sum(left**2 @ weights)
    for lam, error in zip((0.5, 20.0), sensors.lost(learnt, left, columns, (0.5, 20.0), weights), strict=True):
        stacked = np.vstack([learnt[:, columns], np.sqrt(lam) * np.eye(3)])
        W = np.linalg.lstsq(stacked, np.vstack([learnt, np.zeros((3, 12))]), rcond=None)[0]
        assert error + whole == pytest.approx(np.sum((left - left[:, columns] @ W) ** 2 @ weights))


def test_sensors_say_where_ours_are_not_better():
    repeats = [
        [
            {"question": "q", "k": k, "errors": {sensors.OURS: 1.0 + more, sensors.QR: 2.0, sensors.TPGR: k}}
            for k in (0.5, 3)
        ]
        for more in (0.0, 0.5, 1.2)
    ]
    said = list(sensors.statements(repeats))
    assert said[0] == f"Ours is lower than {sensors.QR} in 2 of 2 cases, in 0 of them in every one of 3 repeats."
    assert said[1] == f"Ours is lower than {sensors.TPGR} in 1 of 2 cases, in 1 of them in every one of 3 repeats."
    assert said[2].startswith(f"Not lower than {sensors.TPGR}: q, k = 0.5")
    assert len(said) == 3
    assert sensors.cell(sensors.errors_of(repeats, "q", 3, sensors.OURS)) == "1.5667 ± 0.3480"


@pytest.mark.integration
@pytest.mark.parametrize("data", ["sst", "air"])
def test_sensors_run(data_dir, tmp_path, data):
    pytest.importorskip("pysensors", reason="needs python-sensors, in the extra `bench`")
    sensors.main(["--quick", "--only", data, "--data", str(data_dir), "--output", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert "nan" not in page
    assert page.count(f"Ours is lower than {sensors.QR} in") == 2


def test_picks_for_labels_are_the_best_there_are():
    X = rows_of()
    y = np.argmax(X[:, :3] + rows_of(n=3, seed=2), axis=1)
    data = supervised.Labelled.of("made up", X, y)
    A, T = (M - M.mean(axis=0) for M in (X, data.indicators))
    weights = 1.0 / data.indicators.sum(axis=0)
    picked = []
    for _ in range(4):
        left = {j: np.sum((T - A[:, S] @ np.linalg.lstsq(A[:, S], T, rcond=None)[0]) ** 2 @ weights)
                for j in range(12) if j not in picked for S in [[*picked, j]]}  # fmt: skip
        picked.append(min(left, key=left.__getitem__))
    assert supervised.ours(data, 4) == picked
    assert oracle.select(A, 4, 0.0) != picked  # labels matter


def test_archives_hold_rows_and_the_indicators_of_their_classes(tmp_path):
    counts = supervised.make_archive(tmp_path / "a.zarr", 0.005)
    rows = supervised.zarr.open_array(tmp_path / "a.zarr", mode="r")[:]
    assert np.array_equal(rows[:, supervised.COLUMNS :].sum(axis=0), counts)
    found = supervised.pick_alone(tmp_path / "a.zarr", counts)
    assert found["picks"] == supervised.carrying(rows, max(supervised.KS), counts)
    assert json.dumps(found)


@pytest.mark.integration
def test_supervised_runs(tmp_path):
    pytest.importorskip("fastcan", reason="needs fastcan, in the extra `bench`")
    supervised.main(["--quick", "--output", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.count("10 of 10") == 2
    assert page.count("30 of 30") == 1
    assert "| yes |" in page


def figures(knn, recall, splits=4):
    """Return figures that vary a little from split to split, in the same way for all."""
    wave = 0.01 * np.sin(np.arange(splits))
    return [dict.fromkeys(panels.METRICS, 0.5) | {"knn": knn + w, "recall": recall + w} for w in wave]


def test_the_rule_is_the_best_recall_among_those_that_keep_neighbours():
    early = {panels.name_of(rule): figures(0.6 - rule[0], rule[0] + rule[1]) for rule in panels.RULES}
    early |= {panels.PCA: figures(0.35, 0.9), panels.DE: figures(0.1, 0.9), panels.HVG: figures(0.0, 0.1)}
    assert panels.settle(early) == (0.2, 0.05)  # more share: neighbours are lost to PCA
    early[panels.PCA] = figures(0.9, 0.9)
    assert panels.settle(early)[0] == 0.1


def test_panels_say_where_ours_are_behind():
    rule = (0.2, 0.05)
    late = {panels.NO_TYPES: figures(0.5, 0.8), panels.name_of(rule): figures(0.4, 0.9)}
    late |= {panels.PCA: figures(0.45, 0.95), panels.DEFAULTS: figures(0.1, 0.99, splits=1)}
    seconds = dict(zip(late, (0.1, 0.2, 0.1, 400.0), strict=True))
    said = list(panels_page.statements(panels.Found(rule, {}, late, 6, seconds)))
    assert "kNN overlap: gene_panel, no cell types is ahead of all 2 peers." in said
    assert f"kNN overlap: gene_panel, share 0.2 is behind {panels.PCA} (-0.050)." in said
    ending = f"that of {panels.PCA}; that of gene_panel, share 0.2 is not within a standard error of it."
    assert any(sentence.endswith(ending) for sentence in said)
    assert said[-1].endswith(f"{panels.PCA} 0.50; {panels.DEFAULTS} 2,000.")


def test_what_was_picked_and_judged_is_kept(tmp_path):
    split = panels.Split("0.0", None, None)
    kept = panels.Kept(tmp_path / "kept.json")
    assert kept.genes("ours", split, lambda cells: ["a", "b"]) == ["a", "b"]
    assert kept.judged("ours", split, lambda: {"knn": 0.5}) == {"knn": 0.5}
    again = panels.Kept(tmp_path / "kept.json")
    assert again.genes("ours", split, lambda cells: pytest.fail("picked again")) == ["a", "b"]
    assert again.judged("ours", split, lambda: pytest.fail("judged again")) == {"knn": 0.5}
    assert again.seconds("ours") >= 0


def test_halves_have_every_type_and_no_cell_twice():
    anndata = pytest.importorskip("anndata")
    obs = {panels.TYPES: np.repeat(["a", "b"], [7, 5])}
    adata = anndata.AnnData(np.eye(12, 3), obs=obs)
    first, second = (panels.Split.of(adata, 3, half) for half in (0, 1))
    assert first.learnt.obs_names.equals(second.held_out.obs_names)
    assert not set(first.learnt.obs_names) & set(first.held_out.obs_names)
    assert list(first.learnt.obs[panels.TYPES].value_counts()) == [3, 2]


@pytest.mark.integration
def test_panels_run(data_dir, tmp_path, monkeypatch):
    pytest.importorskip("spapros", reason="needs spapros, in the extra `bench`")
    monkeypatch.setattr(panels, "SETTLING", 1)
    monkeypatch.setattr(panels, "RULES", panels.RULES[:2])
    page = tmp_path / "page.md"
    panels.main(["--data", str(data_dir), "--repeats", "2", "--few", "0", "--defaults", "0", "--output", str(page)])
    assert "kNN overlap: gene_panel, no cell types is " in page.read_text()
    assert page.with_suffix(".png").stat().st_size > 10_000

"""The paper's experiments: loaders, measures and verdicts on made-up data; all, quickly, on the real data sets."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets

import rgcss_dask as rg
from examples.paper import __main__ as command
from examples.paper import conditioning, datasets, generalisation, judging, printed, results, stability
from examples.paper.datasets import Datasets
from examples.paper.generalisation_report import Figures
from examples.paper.picking import fill, generator, pick, sample_rows, source_of
from examples.paper.progress import Progress, TimeIsUpError
from examples.paper.sampling import Sample, Sampler
from examples.paper.textbook import textbook_gcss

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)


def pictures(rows, side, rng, scale=255):
    """Smooth pictures of different brightness, so that pixels depend on each other but not exactly."""
    waves = np.stack([np.cos(np.outer(np.arange(side) * (i + 1) / 9, np.ones(side)) + i) for i in range(8)])
    X = np.tensordot(rng.uniform(0, 1, (rows, 8)), np.abs(waves), 1).reshape(rows, -1) / 8
    X += 0.1 * rng.uniform(0, 1, X.shape)
    return np.rint(scale * np.clip(X, 0, 1)).astype(np.uint8)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Files as the real ones, with fewer rows where the paper's split allows it."""
    target, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(1)
    digits = pictures(460, 28, rng)
    digits[:, :30] = 0
    labels = np.arange(460) % 10
    np.savez(
        target / "mnist.npz",
        train=digits[:400],
        test=digits[400:],
        train_labels=labels[:400],
        test_labels=labels[400:],
        scale=np.float64(255),
    )
    np.savez(target / "orl32.npz", X=pictures(400, 32, rng), y=np.arange(400) // 10 + 1, scale=np.float64(255))
    np.savez(target / "yaleb32.npz", X=pictures(1240, 32, rng), y=np.arange(1240) // 60 + 1, scale=np.float64(255))
    np.savez(target / "coil20.npz", X=pictures(40, 64, rng), y=np.arange(40) // 2 + 1, scale=np.float64(255))
    np.savez(target / "onlinenews.npz", X=rng.lognormal(size=(30_100, 58)) * np.arange(1, 59))
    return target


@pytest.fixture(autouse=True)
def _nothing_fetched():
    """Forget what an earlier test made the fetchers return."""
    yield
    for fetch in (datasets._fetch_mnist, datasets._fetch_orl64):
        fetch.cache_clear()


@pytest.fixture
def progress():
    with Progress() as bars:
        yield bars


# Data sets


@pytest.mark.parametrize(
    ("name", "train", "test", "side"),
    [
        ("MNIST", (400, 784), (60, 784), 28),
        ("ORL", (300, 1024), (100, 1024), 32),
        ("YaleB", (1200, 1024), (40, 1024), 32),
        ("COIL20", (20, 4096), (20, 4096), 64),
        ("OnlineNews", (30_000, 58), (100, 58), None),
    ],
)
def test_data_sets_are_split_and_scaled_as_in_the_paper(folder, name, train, test, side):
    data = Datasets(folder).load(name)
    assert data.train.shape == train
    assert data.test.shape == test
    assert data.side == side
    if side is not None:
        assert 0 <= data.train.min() <= data.train.max() <= 1
        assert data.train.max() > 0.3


def test_the_digit_can_stand_before_the_pixels(folder):
    data = Datasets(folder)
    pixels, table = data.load("MNIST"), data.load(datasets.WITH_DIGIT)
    for rows, both, labels in (
        (pixels.train, table.train, pixels.train_labels),
        (pixels.test, table.test, pixels.test_labels),
    ):
        np.testing.assert_array_equal(both[:, 1:], rows)
        np.testing.assert_allclose(255 * both[:, 0], labels)


@pytest.mark.parametrize("seed", range(3))
def test_gcss_takes_the_digit_for_a_column_and_a_penalty_leaves_it(data_dir, seed):
    """Why the printed condition numbers of GCSS on MNIST are twenty times those of its pixels."""
    train = Datasets(data_dir).load(datasets.WITH_DIGIT).train
    rows = train[np.random.default_rng(seed).choice(len(train), 2400, replace=False)]
    zero, one = (rg.select(rg.Moments.of(rows), 16, lam=lam).columns for lam in (0.0, 1.0))
    assert 0 in zero
    assert 0 not in one
    paper = printed.CONDITIONING[0.04, "MNIST", 16]
    for columns, theirs in zip((zero, one), paper, strict=True):
        assert 0.9 * theirs.low < conditioning.condition(rows[:, columns]) < 1.1 * theirs.high
    assert conditioning.condition(rows[:, np.setdiff1d(zero, [0])]) < 10


def test_online_news_is_standardised_on_all_rows_or_on_training_rows(folder):
    data = Datasets(folder)
    everything, train = data.load("OnlineNews"), data.load("OnlineNews, scaled on train")
    both = np.vstack([everything.train, everything.test])
    np.testing.assert_allclose([both.mean(axis=0), both.std(axis=0)], [np.zeros(58), np.ones(58)], atol=1e-9)
    np.testing.assert_allclose(train.train.std(axis=0), np.ones(58), atol=1e-9)
    assert not np.allclose(train.test, everything.test)


def test_both_halves_of_coil_have_every_object(folder):
    data = Datasets(folder).load("COIL20")
    assert np.array_equal(np.unique(data.train_labels), np.unique(data.test_labels))


def test_a_file_that_cannot_be_downloaded_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"YaleB must be in a file yaleb32.npz .* is not there"):
        Datasets(tmp_path).load("YaleB")
    with pytest.raises(FileNotFoundError, match="names no folder"):
        Datasets().load("Isolet")


def test_an_unknown_data_set_is_an_error():
    with pytest.raises(ValueError, match="got 'Iris'"):
        Datasets().load("Iris")


def test_mnist_is_fetched_when_the_file_is_absent(monkeypatch, tmp_path):
    digits = np.arange(60_002 * 4, dtype=np.int64).reshape(60_002, 4) % 256

    def fetch(name, **_):
        assert name == "mnist_784"
        return digits.astype(float), np.array(["7"] * len(digits))

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data = Datasets(tmp_path).load("MNIST")
    assert data.train.shape == (60_000, 4)
    np.testing.assert_array_equal(data.test * 255, digits[60_000:])
    assert data.test_labels.tolist() == [7, 7]


def test_faces_are_fetched_when_the_files_are_absent(monkeypatch, tmp_path):
    grey = np.random.default_rng(2).integers(0, 243, (400, 4096))
    faces = SimpleNamespace(data=(grey / 242).astype(np.float32), target=np.arange(400) // 10)
    monkeypatch.setattr(sklearn.datasets, "fetch_olivetti_faces", lambda: faces)
    large, small = (Datasets(tmp_path).load(name) for name in ("ORL64", "ORL"))
    np.testing.assert_array_equal(large.train * 255, grey[:300])
    first = large.test[0].reshape(64, 64)
    assert small.test[0].reshape(32, 32)[3, 5] == pytest.approx(first[6:8, 10:12].mean())
    assert (large.train_labels[0], large.test_labels[-1]) == (1, 40)


# Selecting on samples


def test_digits_go_through_zarr_and_dask_and_give_the_same_gram(folder):
    data = Datasets(folder)
    with Sampler(data, "MNIST") as sampler:
        sample = sampler.draw(0.2, generator(1))
        assert isinstance(sample.moments, rg.Moments)
        assert sample.m == sample.moments.rows == 80
        np.testing.assert_allclose(sample.gram, sample.rows.T @ sample.rows, rtol=1e-12)
        test = data.load("MNIST").test
        np.testing.assert_allclose(sampler.test_gram, test.T @ test, rtol=1e-12)
        archived = sample.pick(12, (0.0, 1.0), generator(2))
    plain = Sample(sample.rows).pick(12, (0.0, 1.0), generator(2))
    for one, other in zip(archived, plain, strict=True):
        assert one.columns.tolist() == other.columns.tolist()


def test_beyond_the_rank_columns_are_filled_with_different_ones():
    rows = RNG.standard_normal((5, 12))
    zero, one = pick(source_of(rows), 12, 9, (0.0, 1.0), generator(3))
    assert (zero.chosen, one.chosen) == (5, 9)
    for picks in (zero, one):
        assert len(set(picks.columns.tolist())) == 9
    assert fill(np.array([3, 1]), 4, 4, generator(4)).tolist()[:2] == [3, 1]


def test_samples_depend_on_their_labels_only():
    first, again, other = (sample_rows(1000, 0.05, generator("a", label)) for label in (1, 1, 2))
    assert len(first) == len(set(first.tolist())) == 50
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


# Generalisation


def loss_by_rows(A, B, S):
    """The paper's L(S) with lambda = 1, from rows."""
    C = A[:, S]
    return np.sum((B - B[:, S] @ np.linalg.solve(C.T @ C + np.eye(len(S)), C.T @ A)) ** 2)


@pytest.mark.parametrize("m", [6, 60])
def test_losses_are_the_papers(m):
    rng = np.random.default_rng(5)
    mix = rng.standard_normal((20, 20)) / np.arange(1, 21)
    A, B = rng.standard_normal((m, 20)) @ mix, rng.standard_normal((50, 20)) @ mix
    found = generalisation.losses(Sample(A), B.T @ B, (4, 12, 32), generator(6))
    zero, one = Sample(A).pick(12, (0.0, 1.0), generator(6))
    assert found["rank"] == min(m, 20)
    start = np.sum(B**2)
    for k in (4, 12):
        assert found[f"rgcss_{k}"] == pytest.approx(loss_by_rows(A, B, one.columns[:k]) / start, rel=1e-9)
        assert found[f"gcss_{k}"] == pytest.approx(loss_by_rows(A, B, zero.columns[: min(k, m)]) / start, rel=1e-9)
        assert found[f"filled_{k}"] == pytest.approx(loss_by_rows(A, B, zero.columns[:k]) / start, rel=1e-9)
    assert np.isnan(found["rgcss_32"])  # more than there are columns


def test_improvement_is_the_papers_ratio_of_means(tmp_path):
    rows = [
        {"data": "X", "share": 0.01, "rows": 5, "repetition": i, "rank": 3, "gcss_4": a, "filled_4": a, "rgcss_4": b}
        for i, (a, b) in enumerate([(0.5, 0.4), (0.3, 0.25), (0.4, 0.33)])
    ]
    results.Table(tmp_path, "generalisation").add(rows)
    found = Figures(tmp_path).improvement("X", 0.01, 4, "gcss")
    assert found.difference == pytest.approx(100 * (0.4 - 0.98 / 3) / 0.4)
    assert found.sign == 1


# Conditioning


def test_textbook_recursion_agrees_until_the_rank_and_repeats_columns_beyond():
    A = np.random.default_rng(7).standard_normal((10, 30))
    picked = textbook_gcss(A, 20)
    sound = rg.select(rg.Factor(A), 10, lam=0.0)
    assert picked[:9].tolist() == sound.columns[:9].tolist()  # the last one takes all that is left, whichever it is
    assert len(set(picked.tolist())) < 20


def test_textbook_recursion_leaves_out_dead_columns():
    A = np.random.default_rng(8).standard_normal((40, 12))
    A[:, [0, 5]] = 0.0
    assert textbook_gcss(A, 6).tolist() == rg.select(A.T @ A, 6, lam=0.0).columns.tolist()


def test_condition_numbers():
    C = np.random.default_rng(9).standard_normal((30, 4)) * [1, 10, 100, 1000]
    assert conditioning.condition(C) == pytest.approx(np.linalg.cond(C))
    assert conditioning.condition(C[:3]) == pytest.approx(np.linalg.cond(C[:3].T))  # fewer rows than columns
    B = C.T @ C
    assert conditioning.on_test(B, np.arange(4)) == pytest.approx(np.linalg.cond(C), rel=1e-6)
    assert conditioning.on_test(B, np.array([0, 1, 1])) == np.inf
    assert conditioning.largest(C) == pytest.approx(np.linalg.norm(C, 2) / 30**0.5)


# Stability


def test_shared_start_counts_picks_before_the_first_difference():
    picks = [np.array(x) for x in ([1, 2, 3, 4], [1, 2, 4, 3], [1, 2, 3, 4])]
    assert stability.shared_start(picks) == pytest.approx((2 + 4 + 2) / 3)


def test_printed_expectations_of_the_jaccard_index():
    columns = {"ORL": 4096, "MNIST": 784, "YaleB": 1024, "OnlineNews": 58, "Isolet": 617}
    for name, paper in printed.EXPECTED_JACCARD.items():
        ours = rg.expected_jaccard(columns[name], 29 if name == "OnlineNews" else 100)
        assert abs(ours - paper) < 1e-3, name  # printed to three digits, some cut and some rounded


# Printed figures and verdicts


def test_printed_figures_are_whole():
    assert len(printed.CONDITIONING) == 3 * 5 * 2
    for pair in (*printed.CONDITIONING.values(), *printed.TEST_CONDITIONING.values()):
        for spread in pair:
            assert 1 <= spread.low <= spread.mean <= spread.high
    for table in printed.CLUSTERING.values():
        assert all(len(line) == len(printed.CLUSTERING_SHARES) for line in table.values())
    assert all(0 <= x <= 1 for line in printed.STABILITY.values() for x in line.values())


def test_a_difference_counts_from_two_standard_errors_on():
    base, clear, unclear = (np.array(x) for x in ([1.0, 2.0, 3.0, 4.0], [0.5, 0.6, 0.5, 0.6], [0.5, -0.6, 0.5, -0.3]))
    assert judging.compare(base, base + clear).sign == 1
    assert judging.compare(base, base - clear).sign == -1
    assert judging.compare(base, base + unclear).sign == 0
    assert judging.compare(base, base + 1e-4).sign == 0  # certain, but nothing
    assert judging.compare(base[:1], base[:1] + 1).sign == 0  # one sample tells no error


@pytest.mark.parametrize(
    ("paper", "ours", "words"),
    [
        (1, 1, "confirmed"),
        (0, 0, "confirmed"),
        (1, 0, "not confirmed: no clear difference"),
        (0, -1, "not confirmed: a difference"),
        (1, -1, "reversed"),
    ],
)
def test_verdicts(paper, ours, words):
    assert judging.verdict(paper, ours) == words


def test_words():
    assert judging.counted(["a", "b", "a"]) == "2 a, 1 b"
    assert judging.listed([]) == "none"
    assert judging.listed(["a", "b", "c"]) == "a, b and c"
    assert judging.spread([1.0, 2.0, 6.0]) == "1.00 / 3.00 / 6.00"
    assert judging.shown(printed.Spread(1.0, 2.0, 6e16)) == "1.00 / 2.00 / 6.00e+16"
    assert judging.number(np.inf) == "∞"


# Tables and the command


def test_tables_keep_their_types_and_find_rows(tmp_path):
    table = results.Table(tmp_path, "t")
    assert table.rows() == []
    table.add([{"name": "a, b", "n": 3, "x": 0.123456789, "y": float("nan")}])
    table.add([{"name": "c", "n": 4, "x": 2.0, "y": float("inf")}])
    (row,) = table.rows(name="a, b")
    assert (row["n"], row["x"]) == (3, 0.123457)
    assert np.isnan(row["y"])
    assert table.rows(n=4)[0]["y"] == np.inf
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_an_experiment_runs_once_at_a_time_in_a_folder(tmp_path):
    with results.alone(tmp_path, "stability"), results.alone(tmp_path, "clustering"):
        with pytest.raises(FileExistsError, match="another process runs stability"):
            results.alone(tmp_path, "stability").__enter__()
    with results.alone(tmp_path, "stability"):
        pass


def test_results_of_different_sizes_are_not_mixed(tmp_path):
    results.begin(tmp_path, "stability", "full")
    with pytest.raises(FileExistsError, match=r"holds results of --full for stability; --quick would mix"):
        results.begin(tmp_path, "stability", "quick")
    results.forget(tmp_path, "stability")
    results.begin(tmp_path, "stability", "quick")
    results.end(tmp_path, "stability")
    (run,) = json.loads((tmp_path / "stability.json").read_text())
    assert run["size"] == "quick"
    assert run["versions"]["rgcss-dask"] == rg.__version__
    assert run["began"] <= run["ended"]


SMALL = {
    "generalisation": generalisation.Plan(("ORL", "MNIST", "OnlineNews"), (0.02, 0.1), (4, 16), 3, 2),
    "stability": stability.Plan(tuple(replace(case, k=5) for case in stability.CASES[:3]), 3, 2, 3),
    "conditioning": conditioning.Plan((0.01, 0.04), 2),
}


@pytest.fixture
def small(monkeypatch):
    """Make every experiment tiny."""
    for module in (generalisation, stability, conditioning):
        monkeypatch.setitem(module.PLANS, "quick", SMALL[module.NAME])
    cases = [case for case in conditioning.CASES if not case.label.startswith("Isolet")]
    monkeypatch.setattr(conditioning, "CASES", tuple(cases))


@pytest.mark.integration
@pytest.mark.usefixtures("small")
def test_the_command_writes_tables_figures_and_results(folder, tmp_path, capsys):
    names = ["generalisation", "stability", "conditioning"]
    command.main(["--data", str(folder), "--quick", "--out", str(tmp_path), "--only", *names])
    assert capsys.readouterr().out.strip() == str(tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    for title in ("## Generalisation", "## Stability", "## Conditioning", "### What differs and why"):
        assert title in text
    assert "| clustering | not run |" in text
    assert text.count("`--quick`") == 3
    assert " nan" not in text
    made = {path.name for path in (tmp_path / "results").iterdir()}
    assert {f"{name}.{end}" for name in names for end in ("csv", "json")} <= made
    assert {"generalisation-gcss.png", "stability.png", "conditioning.png"} <= made
    mean = np.mean(
        [row["rgcss_16"] for row in results.Table(tmp_path / "results", "conditioning").rows(data="ORL", share=0.01)]
    )
    assert f"/ {mean:.2f} /" in text
    assert "13.07 / 338.94 / 3127.57" in text


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("module", [generalisation, stability, conditioning])
def test_a_stopped_run_goes_on_where_it_was(module, folder, tmp_path, progress, monkeypatch):
    module.run(Datasets(folder), "quick", tmp_path, progress)
    table = results.Table(tmp_path, module.NAME)
    whole = table.path.read_text()
    lines = whole.splitlines(keepends=True)
    per_sample = 3 if module is stability else 1
    table.path.write_text("".join(lines[:-per_sample]))
    calls = []
    real = module.generator
    monkeypatch.setattr(module, "generator", lambda *labels: calls.append(labels) or real(*labels))
    module.run(Datasets(folder), "quick", tmp_path, progress)
    assert table.path.read_text() == whole
    assert len(calls) == 1


def test_loops_end_before_an_item_when_time_is_up(progress):
    progress.limit(1e9)
    assert list(progress.track("ab", "letters")) == ["a", "b"]
    progress.limit(0)
    with pytest.raises(TimeIsUpError):
        list(progress.track("ab", "letters"))
    progress.limit(None)
    assert list(progress.track("ab", "letters")) == ["a", "b"]


@pytest.mark.usefixtures("small")
def test_minutes_stop_a_run_which_then_goes_on_to_the_same_results(folder, tmp_path, monkeypatch):
    args = ["--data", str(folder), "--quick", "--only", "generalisation", "--out"]
    command.main([*args, str(tmp_path / "at-once")])
    real, calls = generalisation.losses, []

    def until_late(*given):
        if len(calls) == 4:
            raise TimeIsUpError
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(generalisation, "losses", until_late)
    command.main([*args, str(tmp_path / "in-parts"), "--minutes", "1"])
    assert "not finished" in (tmp_path / "in-parts" / "RESULTS.md").read_text()
    assert len(results.Table(tmp_path / "in-parts" / "results", "generalisation").rows()) == 4
    monkeypatch.setattr(generalisation, "losses", real)
    command.main([*args, str(tmp_path / "in-parts")])
    once, parts = (tmp_path / name / "results" / "generalisation.csv" for name in ("at-once", "in-parts"))
    assert once.read_text() == parts.read_text()
    assert "not finished" not in (tmp_path / "in-parts" / "RESULTS.md").read_text()


def test_the_command_without_data_says_what_is_missing(tmp_path):
    command_line = [sys.executable, "-m", "examples.paper", "--quick", "--only", "generalisation"]
    command_line += ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command_line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: OnlineNews must be in a file onlinenews.npz" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_download_that_fails_is_told(monkeypatch, tmp_path):
    def fetch():
        raise URLError("no route")

    monkeypatch.setattr(sklearn.datasets, "fetch_olivetti_faces", fetch)
    with pytest.raises(FileNotFoundError, match=r"ORL64 is not in .*orl64.npz and could not be downloaded .*no route"):
        Datasets(tmp_path).load("ORL64")


@pytest.mark.integration
def test_all_experiments_quickly_on_the_real_data(data_dir, tmp_path):
    subprocess.run(
        [sys.executable, "-m", "examples.paper", "--data", str(data_dir), "--quick", "--out", str(tmp_path)],
        cwd=ROOT,
        check=True,
    )
    text = (tmp_path / "RESULTS.md").read_text()
    assert "not run" not in text
    assert "not finished" not in text
    assert text.count("`--quick`") == len(command.EXPERIMENTS)
    size = sum(path.stat().st_size for path in (tmp_path / "results").iterdir())
    assert size < 2_000_000

"""Sketches: exact where they promise it, honest where they estimate, and the two readings that end exactly."""

import sys
import warnings
from functools import reduce

import numpy as np
import oracle
import pytest
import scipy.sparse
import zarr

import rgcss_dask as rg
from rgcss_dask import cli, two_readings
from rgcss_dask.batch import run_batch
from rgcss_dask.core import plan, spans
from rgcss_dask.core.sketch import Sketch, SketchSums, drawn
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.sources.in_memory import ArraySource

RNG = np.random.default_rng(8)
A = RNG.normal(size=(4000, 12)) @ RNG.normal(size=(12, 150)) + 0.5 * RNG.normal(size=(4000, 150)) + 4.0
BYTES = np.clip(A * 8 + 100, 0, 255).astype("u1")
SPARSE = scipy.sparse.random(4000, 150, 0.05, format="csr", rng=2)
KINDS = {"double": A, "single": A.astype("f4"), "bytes": BYTES, "signed": (BYTES // 2).astype("i1"), "sparse": SPARSE}
D = 90


def dense(X):
    return X.toarray() if scipy.sparse.issparse(X) else X.astype(np.float64)


def omega(rows, d, seed=0):
    """The matrix of signs, d x m, as the definition has it."""
    places, signs = drawn(np.arange(rows, dtype=np.uint64), d, seed)
    matrix = np.zeros((d, rows))
    matrix[places, np.arange(rows)] = signs
    return matrix


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [{}, {"folds": 3, "groups": 4}])
def test_a_sketch_is_signs_times_rows_and_sums_are_exact(kind, weighted, parts):
    X, w = KINDS[kind], RNG.random(4000) if weighted else np.ones(4000)
    sketch = rg.scan(X, sketch=D, weights=w if weighted else None, **parts)
    whole = rg.scan(X, weights=w if weighted else None)
    mu = RNG.normal(size=150)
    for center, rows in ((False, dense(X)), (True, dense(X) - whole.mean), (mu, dense(X) - mu)):
        wanted = omega(4000, D) @ (np.sqrt(w)[:, None] * rows)
        F, norms = sketch.prepared(center, None)
        np.testing.assert_allclose(F, wanted, atol=1e-8 * np.abs(wanted).max())
        np.testing.assert_allclose(norms, w @ rows**2, rtol=1e-9)
    np.testing.assert_allclose(sketch.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(sketch.spread, whole.spread, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["u1", "i1", "bool", "i2", "u2", "f4", "f2", "i8"])
@pytest.mark.parametrize("rows", [3, 1400])
def test_small_integers_of_any_type_are_exact_in_any_order(dtype, rows):
    low, high = (
        (0, 1)
        if dtype in ("bool", "f2")
        else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if dtype[1] in "12"
        else (-9, 300)
    )
    X = RNG.integers(low, high, (rows, 37), endpoint=True).astype(dtype)
    X[: rows // 2], X[:, 5] = low, high  # many of one place add up to the most that there can be
    numbers, plain = np.arange(rows, dtype=np.uint64), X.astype(np.int64)
    wanted, found = omega(rows, 2).astype(np.int64) @ plain, []
    for cuts in ([], [rows // 3], [1, 2]):
        pieces = [SketchSums(37, X.dtype, 2, 0) for _ in range(len(cuts) + 1)]
        for sums, rows_of, own in zip(pieces, np.split(X, cuts), np.split(numbers, cuts), strict=True):
            sums.add(rows_of, own)
        made = [sums.finished() for sums in pieces[::-1]]
        found.append(reduce(Sketch.merge, made).about(np.zeros(37)))
        assert found[-1].exact
        np.testing.assert_array_equal(found[-1].product, wanted)
        np.testing.assert_array_equal(found[-1].total, plain.sum(axis=0))
        np.testing.assert_array_equal(found[-1].column_squares, (plain**2).sum(axis=0))


def test_a_sketch_leaves_integers_when_it_must():
    first, then = RNG.integers(900, 1000, (70, 9)).astype("f8"), RNG.normal(950, 1, (60, 9))
    sums = SketchSums(9, np.dtype("f8"), 8, 0)
    sums.add(first, np.arange(70, dtype=np.uint64))
    sums.add(then, np.arange(70, 130, dtype=np.uint64))
    sketch, X = sums.finished(), np.concatenate([first, then])
    assert not sketch.exact
    np.testing.assert_allclose(sketch.prepared(True, None)[0], omega(130, 8) @ (X - X.mean(axis=0)), atol=1e-9)
    np.testing.assert_allclose(sketch.spread, X.std(axis=0), rtol=1e-12)


def test_stacked_sparse_rows_stay_sparse(monkeypatch):
    monkeypatch.setattr(SparseRows, "__array__", None)
    stacked = rg.scan([SPARSE[:1500], SPARSE[1500:]], sketch=D)
    np.testing.assert_allclose(stacked.product, rg.scan(SPARSE, sketch=D).product, atol=1e-9)


def test_signs_and_places_are_even():
    places, signs = drawn(np.arange(100_000, dtype=np.uint64), 50, 3)
    assert abs(signs.mean()) < 0.02
    assert np.bincount(places, minlength=50).std() < 100
    assert abs(np.corrcoef(places, signs)[0, 1]) < 0.02


@pytest.mark.parametrize("kind", ["bytes", "double"])
def test_sketches_of_parts_add_up_to_that_of_the_whole(kind):
    X = KINDS[kind]
    whole, one, two = Sketch.of(X, D), Sketch.of(X[:1500], D), Sketch.of(X[1500:], D, first=1500)
    for merged in (one.merge(two), two.merge(one)):
        assert merged.seen == ((0, 4000),)
        if kind == "bytes":
            np.testing.assert_array_equal(merged.product, whole.product)
            np.testing.assert_array_equal(merged.column_squares, whole.column_squares)
        np.testing.assert_allclose(merged.prepared(True, None)[0], whole.prepared(True, None)[0], atol=1e-8)
    left = whole.minus(two)
    np.testing.assert_allclose(left.prepared(True, "std")[0], one.prepared(True, "std")[0], atol=1e-7)
    some = whole.take([9, 3, 77])
    np.testing.assert_allclose(some.product, Sketch.of(X[:, [9, 3, 77]], D).product, atol=1e-8)


def test_bits_are_the_same_for_any_number_of_threads_and_spans_of_bytes(tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "a.zarr", data=BYTES, chunks=(100, 150))
    zarr.create_array(tmp_path / "b.zarr", data=A, chunks=(100, 150))
    monkeypatch.setattr(spans, "SPAN_ROWS", 200)
    monkeypatch.setattr(spans, "SKETCH_SPAN", 0)
    for name, exact in (("a.zarr", True), ("b.zarr", False)):
        found = []
        for threads in (1, 3):
            monkeypatch.setattr("rgcss_dask.cluster.execution._thread_count", lambda threads=threads: threads)
            found.append(rg.scan(tmp_path / name, sketch=D, folds=2))
        assert found[0].exact == exact
        np.testing.assert_array_equal(found[0].product, found[1].product)
        np.testing.assert_array_equal(found[0].folds[1].ones, found[1].folds[1].ones)


def test_kept_and_appended(tmp_path):
    array = zarr.create_array(tmp_path / "a.zarr", shape=(3000, 150), chunks=(100, 150), dtype="u1")
    array[:] = BYTES[:3000]
    first = rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr", sketch=D, folds=3)
    back = rg.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(back.product, first.product)
    assert back.seen == ((0, 3000),)
    array.resize((4000, 150))
    array[3000:] = BYTES[3000:]
    grown, once = rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr"), rg.scan(BYTES, sketch=D, folds=3)
    for one, other in ((grown, once), *zip(grown.folds, once.folds, strict=True)):
        np.testing.assert_array_equal(one.product, other.product)
    assert grown.seen == ((0, 4000),)
    with pytest.raises(ValueError, match="numbers of their own"):
        rg.merge([tmp_path / "m.zarr", tmp_path / "m.zarr"])


def test_picks_on_a_sketch_use_the_exact_norms():
    sketch = rg.scan(A, sketch=40)
    F = sketch.factor(True, "std")
    np.testing.assert_allclose((F * F).sum(axis=0), rg.scan(A).gram(center=True, scale="std").diagonal())
    scaled = sketch.prepared(True, "std")[0]
    np.testing.assert_allclose(F / np.linalg.norm(F, axis=0), scaled / np.linalg.norm(scaled, axis=0))
    for half in sketch.halves():
        assert half.height == 20
        np.testing.assert_allclose(
            (half.factor(True, None) ** 2).sum(axis=0), (sketch.factor(True, None) ** 2).sum(axis=0)
        )


def test_estimates_are_honest():
    """Over 12 draws nearly all true losses are within two of the errors told, and those are not idle."""
    X, inside, told = A[:, :80], 0, []
    for seed in range(12):
        picked = rg.select(rg.scan(X, sketch=100, seed=seed), 8, center=True, scale="std")
        Z = (X - X.mean(axis=0)) / X.std(axis=0)
        true = oracle.loss(Z, picked.columns, 1.0)
        inside += abs(picked.loss[-1] - true) <= 2 * picked.error[-1]
        told.append(picked.error[-1] / true)
    assert inside >= 11
    assert np.median(told) < 0.5
    assert "an estimated" in picked.sentence
    assert picked.start == pytest.approx(float(np.sum(Z * Z)))


def test_questions_of_a_sketch_are_answered_as_estimates(tmp_path):
    sketch = rg.scan(A, sketch=160, folds=3, groups=6)
    whole = rg.scan(A, folds=3)
    tuned = rg.cross_validate(sketch, 6, lams=[1.0, 1e4], center=True, scale=1.0)
    exactly = rg.cross_validate(whole, 6, lams=[1.0, 1e4], center=True, scale=1.0)
    np.testing.assert_allclose(tuned.mean, exactly.mean, rtol=0.5)
    assert tuned.selection.error is not None
    assert len(rg.stability(sketch, 4, scale=1.0, resamples=4).picks) == 4
    picked = rg.select(sketch, 6, scale=1.0)
    better = rg.refine(picked, sketch)
    assert better.after <= better.before
    assert better.selection.last_loss <= picked.last_loss * (1 + 1e-9)
    with pytest.warns(UserWarning, match=r"estimated from 160 rows of a sketch\. Exact ones .*select_wide"):
        rough = picked.weights(sketch)
    assert not np.allclose(rough, picked.weights(whole), rtol=1e-6)
    result = picked.result()
    assert result.selection.bound is None
    assert "an estimated" in result.sentence
    picked.save(tmp_path / "r.json")
    assert rg.load_result(tmp_path / "r.json").selection.error[-1] == picked.error[-1]
    rg.report(picked, tmp_path / "r.html")
    assert "an estimated" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("kind", ["bytes", "double", "sparse"])
@pytest.mark.parametrize("prepared", [{"scale": 1.0}, {"center": True, "scale": "std"}])
def test_two_readings_end_exactly(kind, prepared):
    X = KINDS[kind]
    picked = rg.select_wide(X, 5, **prepared)
    whole = rg.scan(X)
    Z = dense(X)
    if prepared.get("center"):
        Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    assert picked.last_loss == pytest.approx(oracle.loss(Z, picked.columns, 1.0), rel=1e-10)
    W = picked.weights(picked.origin.source)
    np.testing.assert_allclose(W, picked.weights(whole), atol=1e-10)
    greedy = rg.select(whole, 5, **{"scale": 1.0, **prepared})
    assert picked.last_loss <= 1.05 * greedy.last_loss
    assert picked.among < 150
    assert picked.error is None


def test_two_readings_choose_lambda_by_cross_validation():
    picked = rg.select_wide(A, 5, lam="cv", center=True, scale=1.0)
    assert picked.origin.tuning.folds == 5


@pytest.fixture
def narrow(monkeypatch, tmp_path):
    """A matrix whose n x n products do not fit into the memory there is, though sketches and bands do."""
    X = RNG.normal(size=(1300, 5)) @ RNG.normal(size=(5, 1200)) + 0.3 * RNG.normal(size=(1300, 1200))
    zarr.create_array(tmp_path / "a.zarr", data=X.astype("f4"), chunks=(100, 1200))
    monkeypatch.setattr(plan, "OVERHEAD", 0)
    monkeypatch.setattr(spans, "CELL_ROWS", 100)
    for module in ("cluster.execution", "workflow"):
        monkeypatch.setattr(f"rgcss_dask.{module}.default_budget", lambda: 32_000_000)
    return str(tmp_path / "a.zarr"), X


def test_too_many_columns_are_refused_by_the_pass_and_read_twice_by_selections(narrow):
    path, X = narrow
    with pytest.raises(MemoryError, match="select_wide"):
        rg.scan(path, folds=5)
    with pytest.warns(UserWarning, match="(?i)reading") as told:
        picked = rg.select(path, 5, center=True, scale=1.0)
    assert "candidates. Reading again" in str(told[-1].message)
    Z = X.astype("f4") - X.astype("f4").mean(axis=0, dtype="f8")
    E = Z - Z[:, picked.columns] @ picked.weights(picked.origin.source)
    assert float(np.sum(np.delete(E, picked.columns, axis=1) ** 2)) == pytest.approx(picked.last_loss, rel=1e-9)
    with pytest.warns(UserWarning, match="(?i)reading"):
        fitted = rg.RGCSS(5, center=True, scale=1.0, refine=False).fit(path)
    assert list(fitted.selected_) == list(picked.columns)
    with pytest.warns(UserWarning, match="(?i)reading"):
        fitted = rg.RGCSS(5, center=True, scale=1.0, refine=False).fit(X.astype("f4"))
    assert list(fitted.selected_) == list(picked.columns)


def test_the_command_reads_twice_and_says_so(narrow, tmp_path, monkeypatch, capsys):
    asked = ["rgcss", "select", narrow[0], "-k", "5", "--center", "-o", str(tmp_path / "r.json")]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    assert "reading 1,300 rows twice" in out + err
    assert "Reading again" in out + err
    assert rg.load_result(tmp_path / "r.json").selection.among > 5


def test_data_that_changed_between_the_readings_are_refused(monkeypatch):
    changed, reads = A.copy(), []
    scanned = rg.scan

    def scan(source, **options):
        if "candidates" in options:
            changed[7, 3] += 1.0
        reads.append(options)
        return scanned(source, **options)

    monkeypatch.setattr("rgcss_dask.two_readings.scan", scan)
    with pytest.raises(ValueError, match="changed between the two readings"):
        rg.select_wide(changed, 3)
    assert len(reads) == 2


def test_bad_input_is_refused():
    sketch = rg.scan(A, sketch=20)
    with pytest.raises(ValueError, match="as many rows as columns are picked"):
        rg.select(sketch, 21, scale=1.0)
    with pytest.warns(UserWarning, match="20 rows of a sketch are few for 6 columns"):
        rg.select(sketch, 6, scale=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rg.select(sketch, 5, scale=1.0)
    with pytest.raises(ValueError, match="select_wide"):
        rg.select(sketch, 3, scale=1.0, bound=True)
    with pytest.raises(ValueError, match="select_wide"):
        sketch.gram()
    with pytest.raises(ValueError, match="drawn differently"):
        sketch.merge(rg.scan(A, sketch=21))
    with pytest.raises(ValueError, match="drawn differently"):
        sketch.merge(rg.scan(A, sketch=20, seed=1))
    with pytest.raises(ValueError, match="numbers of their own"):
        sketch.merge(sketch)
    with pytest.raises(ValueError, match="cannot merge moments and sketch"):
        sketch.merge(rg.scan(A))


class Unread(ArraySource):
    """Rows of some shape that nobody may read."""

    def __init__(self, shape):
        super().__init__(np.broadcast_to(np.float64(0), shape))

    def read(self, start, stop):
        raise AssertionError("this was to be refused before anything is read")


def test_passes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="whole number of rows"):
        rg.scan(A, sketch=0)
    with pytest.raises(ValueError, match="not both"):
        rg.scan(A, sketch=20, candidates=[1])
    with pytest.raises(ValueError, match=r"select_wide\(source, k, nan='mean'\)"):
        rg.scan(A, candidates=[1, 2], nan="mean")
    for error, words, options in (  # all of them before anything is read
        (MemoryError, "products of 120 candidates", {"k": 120, "memory": "0.1 MB"}),
        (ValueError, r"k must be a whole number .*; got 2\.5", {"k": 2.5}),
        (ValueError, "k must be a whole number .*; got 'a'", {"k": "a"}),
        (ValueError, "k must be a whole number from 1 to 149, .*; got 150", {"k": 150, "exclude": [3]}),
        (ValueError, "at least the 3 included columns", {"k": 2, "include": [1, 2, 3]}),
        (ValueError, "runners_up must be .*; got 0", {"k": 2, "runners_up": 0}),
        (ValueError, "as many rows as columns are picked", {"k": 5, "sketch": 4}),
        (ValueError, "a sketch must have a whole number of rows", {"k": 5, "sketch": 10.5}),
        (ValueError, "folds must be between 2", {"k": 5, "lam": "cv", "folds": 1}),
        (ValueError, "nan must be one of", {"k": 5, "nan": "x"}),
    ):
        with pytest.raises(error, match=words):
            rg.select_wide(Unread(A.shape), **options)
    with pytest.raises(MemoryError, match="a sketch in 20 rows"):
        rg.scan(A, sketch=20, memory=1000)
    with pytest.raises(MemoryError, match="products of 3 candidates"):
        rg.select_wide(A, 3, memory=1000)


def test_gaps_are_named_or_dropped():
    gap = A.copy()
    gap[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7, column 2"):
        rg.scan(gap, sketch=20)
    dropped = rg.scan(gap, sketch=20, nan="drop")
    assert dropped.dropped == 1
    np.testing.assert_allclose(dropped.mean, np.delete(A, 7, axis=0).mean(axis=0))
    sparse = scipy.sparse.csr_array(np.where(np.abs(gap) > 5, gap, 0) + np.where(np.isnan(gap), np.nan, 0))
    assert rg.scan(sparse, sketch=20, nan="drop").dropped == 1


def with_gaps(X, share=0.1):
    """The rows with gaps, and with the means of what is left in their place."""
    X = X.astype("f8")
    X[RNG.random(X.shape) < share] = np.nan
    return X, np.where(np.isnan(X), np.nanmean(X, axis=0), X)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [{}, {"folds": 3, "groups": 2}])
def test_gaps_are_filled_with_means(weighted, parts, monkeypatch):
    monkeypatch.setattr(spans, "SPAN_ROWS", 800)
    monkeypatch.setattr(spans, "SKETCH_SPAN", 0)
    gappy, _ = with_gaps(A + 1e4)
    w = RNG.random(4000) if weighted else np.ones(4000)
    filled = np.where(np.isnan(gappy), (w @ np.nan_to_num(gappy)) / (w @ ~np.isnan(gappy)), gappy)
    given = w if weighted else None
    sketch = rg.scan(gappy, sketch=D, nan="mean", weights=given, **parts)
    wanted = rg.scan(filled, sketch=D, weights=given, **parts)
    for mine, other in ((sketch, wanted), *zip(sketch.folds, wanted.folds, strict=True)):
        np.testing.assert_allclose(mine.prepared(True, None)[0], other.prepared(True, None)[0], atol=1e-7)
        np.testing.assert_allclose(mine.spread, other.spread, rtol=1e-7)
        np.testing.assert_allclose(mine.mean, other.mean, rtol=1e-12)


def test_sparse_gaps_are_filled_and_stay_sparse(monkeypatch):
    data = SPARSE.copy()
    data.data[::9] = np.nan
    gap = np.isnan(data.toarray())
    mean = np.nansum(data.toarray(), axis=0) / (~gap).sum(axis=0)
    wanted = rg.scan(np.where(gap, mean, data.toarray()), sketch=D)
    picked_from = rg.select_wide(np.where(gap, mean, data.toarray()), 4, center=True, scale=1.0)
    monkeypatch.setattr(SparseRows, "__array__", None)
    found = rg.scan(data, sketch=D, nan="mean")
    np.testing.assert_allclose(found.prepared(True, None)[0], wanted.prepared(True, None)[0], atol=1e-9)
    picked = rg.select_wide(data, 4, center=True, scale=1.0, nan="mean")
    assert list(picked.columns) == list(picked_from.columns)
    assert picked.last_loss == pytest.approx(picked_from.last_loss, rel=1e-10)


def test_two_readings_fill_gaps(narrow):
    gappy, filled = with_gaps(A)
    picked = rg.select_wide(gappy, 5, nan="mean", center=True)
    Z = filled - filled.mean(axis=0)
    assert picked.last_loss == pytest.approx(oracle.loss(Z, picked.columns, 1.0), rel=1e-10)
    gappy[7, 2] = np.inf
    with pytest.raises(ValueError, match="row 7, column 2"):
        rg.select_wide(gappy, 5, nan="mean")
    gappy[:, 3], gappy[7, 2] = np.nan, 0
    with pytest.raises(ValueError, match="column 3 has none"):
        rg.scan(gappy, sketch=20, nan="mean")


def test_the_plan_of_two_readings_is_told_and_bands_are_cut_to_fit(monkeypatch):
    said = []
    rg.select_wide(A, 5, say=said.append, center=True)
    assert "reading 4,000 rows twice, 4.8 MB each time" in said[0]
    assert "some 120 candidates. At the rates of this machine: some" in said[0]
    asked = []
    monkeypatch.setattr(two_readings._Room, "holds", lambda self, count: asked.append(count) or count <= 20)
    picked = rg.select_wide(A, 5, say=said.append, center=True)
    assert "would not fit into memory" in " ".join(said)
    assert picked.among <= 20 < asked[0]


def test_a_sketch_by_the_command_line_and_in_a_batch(tmp_path, monkeypatch, capsys):
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(500, 150))
    asked = [
        "rgcss",
        "scan",
        str(tmp_path / "a.zarr"),
        "--sketch",
        "90",
        "-o",
        str(tmp_path / "m.zarr"),
        "--folds",
        "3",
    ]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert not ended.value.code, err
    assert "a sketch in 90 rows of 4,000 rows x 150 columns" in out
    np.testing.assert_array_equal(
        rg.load(tmp_path / "m.zarr").product, rg.scan(tmp_path / "a.zarr", sketch=90, folds=3).product
    )
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\ndata = "a.zarr"\nsketch = 160\nk = 5\nmoments = "b.zarr"\ncenter = true\nlam = 1.0\n')
    done = run_batch(jobs, say=lambda words: None)
    assert [job["status"] for job in done["jobs"]] == ["done"], done["jobs"][0]["words"]
    assert "estimated" in done["jobs"][0]["words"]


def test_a_batch_reads_twice_where_products_do_not_fit(narrow, tmp_path):
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\ndata = "a.zarr"\nk = 5\ngroups = 2\nmoments = "b.zarr"\ncenter = true\n')
    said = []
    done = run_batch(jobs, say=said.append)
    assert [job["status"] for job in done["jobs"]] == ["done"], done["jobs"][0]["words"]
    assert "twice" in " ".join(said)
    band = rg.load(tmp_path / "b.zarr")
    assert len(band.candidates) < 200
    assert len(band.groups) == 2

import time
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from rgcss_dask import Moments, scan
from rgcss_dask.core.hashing import fold_of
from rgcss_dask.core.pass_options import Options
from rgcss_dask.scanning.graph import build_graph
from rgcss_dask.scanning.request import make_request
from rgcss_dask.scanning.tasks import PassJob
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source

ROWS, COLUMNS = 200_000, 24


def bytes_like_digits(rows, columns, seed=0):
    """Many zeros and many 255s, as in MNIST."""
    rng = np.random.default_rng(seed)
    A = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    A[rng.random(A.shape) < 0.6] = 0
    A[rng.random(A.shape) < 0.1] = 255
    return A


@pytest.fixture(scope="module")
def digits():
    return bytes_like_digits(ROWS, COLUMNS)


@pytest.fixture(scope="module")
def floats():
    return np.random.default_rng(1).standard_normal((ROWS, COLUMNS)) * 3 + np.arange(COLUMNS) * 50.0


@pytest.fixture(scope="module")
def stores(digits, floats, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    found = {}
    for name, A in (("uint8", digits), ("float64", floats)):
        found[name] = str(folder / f"{name}.zarr")
        zarr.create_array(found[name], data=A, chunks=(3_000, COLUMNS))
    return found


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


def assert_close(got, wanted):
    """Agreement to 1e-13 of the product of the two column norms: a sum that cancels resolves no less."""
    norms = np.sqrt(np.diagonal(wanted))
    assert np.all(np.abs(got - wanted) <= 1e-13 * np.outer(norms, norms))


def same_bits(a, b):
    assert a.rows == b.rows
    assert a.weight == b.weight
    for name in ("shift", "total", "product"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for kind in ("folds", "groups"):
        for x, y in zip(getattr(a, kind), getattr(b, kind), strict=True):
            same_bits(x, y)


@pytest.mark.integration
def test_the_same_bits_on_threads_and_clusters(stores):
    def each_kind():
        return [scan(stores[kind], folds=3, groups=4) for kind in ("uint8", "float64")]

    def check(found):
        for got, wanted in zip(found, one_thread, strict=True):
            same_bits(got, wanted)

    with dask.config.set(num_workers=1):
        one_thread = each_kind()
    with dask.config.set(num_workers=2):
        check(each_kind())
    for options in (
        {"n_workers": 1, "threads_per_worker": 1},
        {"n_workers": 2, "threads_per_worker": 1},
        {"n_workers": 4, "threads_per_worker": 1},
        {"n_workers": 1, "threads_per_worker": 3, "processes": False},
    ):
        with LocalCluster(**options, dashboard_address="127.0.0.1:0") as cluster, Client(cluster):
            check(each_kind())


KINDS = {
    "float64": lambda A: A,
    "Fortran order": np.asfortranarray,
    "float32": lambda A: A.astype(np.float32),
    "float16": lambda A: A.astype(np.float16),
    "extended": lambda A: np.asfortranarray(A, dtype=np.longdouble),
    "integers": lambda A: A.astype(np.int64),
    "large integers": lambda A: A.astype(np.int64) + 2**60,
    "bytes": lambda A: np.abs(A).astype(np.uint8),
    "bool": lambda A: A > 0,
    "every other": lambda A: A[::2, ::-1],
    "sparse": lambda A: scipy.sparse.csr_matrix(np.where(A > 400, A, 0.0)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_small_rows_in_memory_give_the_bits_of_a_graph(kind, floats, monkeypatch):
    A = KINDS[kind](floats[:20_000])
    w = np.random.default_rng(4).random(A.shape[0])
    cases = [
        {},
        {"weights": w},
        {"folds": 4},
        {"groups": 3, "folds": 2, "blocks": True},
        {"rows": slice(7, 9_000)},
    ]
    cases += [
        {"rows": w < 0.5},
        {"rows": 0.3},
        {"nan": "mean"},
        {"nan": "drop"},
        {"sketch": 40},
        {"candidates": [3, 1]},
    ]
    for options in cases:
        states = []
        here = scan(A, progress=states.append, **options)
        assert states[-1].spans == states[-1].total_spans > 0
        with monkeypatch.context() as patched:
            patched.setattr("rgcss_dask.scanning.request.SMALL", 0)
            patched.setattr("rgcss_dask.scanning.scan.run_tree", None)
            wanted = scan(A, **options)
        for name in wanted.ARRAYS:
            assert np.array_equal(getattr(here, name), getattr(wanted, name)), (options, name)
        for name in ("folds", "groups"):
            for x, y in zip(getattr(here, name), getattr(wanted, name), strict=True):
                same_bits(x, y)


def test_small_rows_in_memory_give_the_bits_of_a_store(floats, tmp_path):
    A = floats[:4_000]
    zarr.create_array(tmp_path / "data.zarr", data=A, chunks=(500, COLUMNS))
    same_bits(scan(A, folds=3), scan(tmp_path / "data.zarr", folds=3))


def test_small_rows_with_lazy_weights_need_a_graph(floats):
    A, w = floats[:3_000], np.random.default_rng(5).random(3_000)
    same_bits(scan(A, weights=da.from_array(w, chunks=700)), scan(A, weights=w))


def test_small_rows_keep_to_a_budget_that_is_given(floats):
    with pytest.raises(MemoryError, match="memory budget is too small"):
        scan(floats[:100], memory=10_000)


def test_small_passes_of_many_threads_do_not_disturb_each_other(floats):
    wanted = scan(floats[:5_000], folds=3)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: scan(floats[:5_000], folds=3), range(32)):
            same_bits(found, wanted)


def test_eight_bit_data_give_the_integer_gram(stores, digits):
    wide = digits.astype(object)  # Python integers
    got = scan(stores["uint8"])
    assert got.exact
    for i in range(0, COLUMNS, 7):
        assert [int(x) for x in got.gram()[i]] == [int(x) for x in wide[:, i] @ wide]


@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_the_layout_of_the_chunks_does_not_matter(kind, digits, floats, tmp_path):
    A = (digits if kind == "uint8" else floats)[:60_000]
    layouts = [
        {"chunks": (60_000, COLUMNS)},
        {"chunks": (100, COLUMNS)},
        {"chunks": (7_777, 5)},
        {"chunks": (500, 12), "shards": (10_000, 24)},
        {"chunks": (1_000, 24), "zarr_format": 2},
    ]
    found = []
    for i, layout in enumerate(layouts):
        zarr.create_array(tmp_path / f"{i}.zarr", data=A, **layout)
        found.append(scan(tmp_path / f"{i}.zarr", folds=2))
    for other in found[1:]:
        for a, b in zip((found[0], *found[0].folds), (other, *other.folds), strict=True):
            assert a.rows == b.rows
            if kind == "uint8":
                assert np.array_equal(a.gram(), b.gram())
            else:
                assert_close(a.gram(), b.gram())
                assert_close(a.scatter, b.scatter)


def test_folds_are_the_rows_their_numbers_say(stores, floats):
    got = scan(stores["float64"], folds=4, seed=9)
    fold = fold_of(np.arange(ROWS, dtype=np.uint64), 4, 9)
    for k in range(4):
        wanted = Moments.of(floats[fold == k])
        assert got.folds[k].rows == wanted.rows
        np.testing.assert_allclose(got.folds[k].gram(), wanted.gram(), rtol=1e-12)
        assert abs(wanted.rows - ROWS / 4) < 4 * np.sqrt(ROWS)
    other = scan(stores["float64"], folds=4, seed=10)
    assert other.folds[0].rows != got.folds[0].rows


def test_groups_are_runs_of_rows(stores, floats):
    got = scan(stores["float64"], groups=7, folds=2)
    group = np.arange(ROWS) * 7 // ROWS
    for g in range(7):
        np.testing.assert_allclose(got.groups[g].gram(), Moments.of(floats[group == g]).gram(), rtol=1e-12)
    np.testing.assert_allclose(got.gram(), floats.T @ floats, rtol=1e-12)


@pytest.mark.parametrize("kind", ["numpy", "zarr", "zarr path", "dask"])
def test_weights_from_anywhere(stores, floats, kind, tmp_path):
    w = np.random.default_rng(2).random(ROWS)
    given = w
    if kind.startswith("zarr"):
        given = zarr.create_array(tmp_path / "w.zarr", data=w, chunks=(7_001,))
        given = str(tmp_path / "w.zarr") if kind == "zarr path" else given
    elif kind == "dask":
        given = da.from_array(w, chunks=1_234)
    got = scan(stores["float64"], weights=given)
    np.testing.assert_allclose(got.gram(), (floats * w[:, None]).T @ floats, rtol=1e-12)
    np.testing.assert_allclose(got.weight, w.sum(), rtol=1e-13)


def test_weights_and_masks_on_a_cluster(stores, floats, cluster):
    w = np.random.default_rng(3).random(ROWS)
    mask = w > 0.3
    wanted = scan(stores["float64"], weights=w, rows=mask)
    np.testing.assert_allclose(wanted.gram(), (floats[mask] * w[mask, None]).T @ floats[mask], rtol=1e-12)
    with Client(cluster):
        same_bits(scan(stores["float64"], weights=w, rows=mask), wanted)
        same_bits(scan(stores["float64"], weights=da.from_array(w, chunks=999), rows=mask), wanted)


def test_integer_weights_keep_eight_bit_data_exact(stores, digits):
    w = np.random.default_rng(4).integers(0, 5, ROWS)
    got = scan(stores["uint8"], weights=w)
    assert got.exact
    assert np.array_equal(got.gram(), (digits.astype(float) * w[:, None]).T @ digits.astype(float))


def test_rows_as_slice_fraction_and_mask(stores, floats, tmp_path):
    np.testing.assert_allclose(
        scan(stores["float64"], rows=slice(1_234, 98_765)).gram(), Moments.of(floats[1_234:98_765]).gram(), rtol=1e-12
    )
    some = scan(stores["float64"], rows=0.1, seed=5)
    assert abs(some.rows - ROWS / 10) < 4 * np.sqrt(ROWS)
    zarr.create_array(tmp_path / "other.zarr", data=floats, chunks=(999, COLUMNS))
    assert scan(tmp_path / "other.zarr", rows=0.1, seed=5).rows == some.rows
    assert scan(stores["float64"], rows=1.0).rows == ROWS
    mask = np.arange(ROWS) % 3 == 0
    np.testing.assert_allclose(scan(stores["float64"], rows=mask).gram(), Moments.of(floats[mask]).gram(), rtol=1e-12)


def test_gaps(floats, tmp_path, cluster):
    A = floats[:50_000].copy()
    A[np.random.default_rng(5).random(A.shape) < 0.01] = np.nan
    zarr.create_array(tmp_path / "gaps.zarr", data=A, chunks=(2_000, COLUMNS))
    gap = np.isnan(A).any(axis=1)
    dropped = scan(tmp_path / "gaps.zarr", nan="drop", folds=2)
    assert dropped.dropped == gap.sum() == sum(fold.dropped for fold in dropped.folds)
    np.testing.assert_allclose(dropped.gram(), Moments.of(A[~gap]).gram(), rtol=1e-12)

    filled = np.where(np.isnan(A), np.nanmean(A, axis=0), A)
    got = scan(tmp_path / "gaps.zarr", nan="mean", folds=2)
    centred = filled - filled.mean(axis=0)
    np.testing.assert_allclose(got.gram(), filled.T @ filled, rtol=1e-12)
    np.testing.assert_allclose(got.scatter, centred.T @ centred, rtol=0, atol=1e-12 * np.diagonal(got.scatter).max())
    fold = fold_of(np.arange(len(A), dtype=np.uint64), 2, 0)
    np.testing.assert_allclose(got.folds[1].gram(), filled[fold == 1].T @ filled[fold == 1], rtol=1e-12)
    with Client(cluster):
        same_bits(scan(tmp_path / "gaps.zarr", nan="mean", folds=2), got)
    with pytest.raises(ValueError, match=r"row \d+, column \d+ of .*gaps.zarr holds nan.*nan='drop'"):
        scan(tmp_path / "gaps.zarr")


def test_infinity_is_dropped_and_never_filled(tmp_path):
    A = np.ones((100, 3))
    A[41, 1] = np.inf
    assert scan(A, nan="drop").dropped == 1
    for nan in ("raise", "mean"):
        with pytest.raises(ValueError, match="row 41, column 1 of memory holds inf"):
            scan(A, nan=nan)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64, np.int16, np.float32, np.float16, np.bool_])
def test_every_real_dtype_gives_the_right_number(dtype, tmp_path):
    rng = np.random.default_rng(6)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        A = rng.choice(np.array([info.min, 0, info.max], dtype), (20_000, 4))
    else:
        A = (rng.random((20_000, 4)) * 1.9).astype(dtype)
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(900, 4))
    wide = A.astype(np.longdouble)
    assert_close(scan(tmp_path / "a.zarr").gram(), (wide.T @ wide).astype(float))


def test_single_precision(stores, floats):
    A = floats[:30_000].astype(np.float32)
    exact = Moments.of(A).scatter
    got = scan(A, precision="single").scatter
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-5 * np.diagonal(exact).max())


def test_one_compute_and_a_small_graph_of_named_tasks(stores):
    source = open_source(stores["float64"])
    request = make_request(source, Options(), weights=None, rows=None, reading=Reading(), memory=None)
    graph, end, resumed = build_graph(PassJob("t", request.plan, source, None, 0, lambda rows, spans: None), {})
    kinds = {key[0] if isinstance(key, tuple) else key for key in graph}
    assert kinds == {"rgcss-span-t", "rgcss-merge-t", "rgcss-job-t", "rgcss-moments-t"}
    assert end == "rgcss-moments-t"
    assert resumed == 0
    assert len(graph) == 2 * len(request.plan.spans) + 1


@pytest.mark.integration
def test_a_hundred_thousand_chunks_plan_in_seconds(tmp_path):
    array = zarr.create_array(tmp_path / "many.zarr", shape=(1_000_000, 4), chunks=(10, 4), dtype="u1")
    (tmp_path / "many.zarr" / "c").mkdir()
    for i in range(100_000):
        (tmp_path / "many.zarr" / "c" / str(i)).mkdir()
        (tmp_path / "many.zarr" / "c" / str(i) / "0").touch()
    began = time.perf_counter()
    request = make_request(
        open_source(array), Options(checksum=True), weights=None, rows=None, reading=Reading(), memory=None
    )
    graph, _, _ = build_graph(PassJob("t", request.plan, request.source, None, 0, lambda rows, spans: None), {})
    taken = time.perf_counter() - began
    assert len(graph) <= 10_000
    assert taken < 8, f"planning and the search for missing chunks took {taken:.1f} s"
    (tmp_path / "many.zarr" / "c" / "99998" / "0").unlink()
    with pytest.raises(ValueError, match=r"no chunk c/99998/0 \(rows 999,980 to 999,989\)"):
        make_request(
            open_source(array), Options(checksum=True), weights=None, rows=None, reading=Reading(), memory=None
        )


def test_the_calling_process_keeps_its_blas_threads(stores):
    before = [info["num_threads"] for info in threadpool_info()]
    scan(stores["uint8"])
    with pytest.raises(ValueError, match="holds nan"):
        scan(np.full((10, 2), np.nan))
    assert [info["num_threads"] for info in threadpool_info()] == before


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"folds": 1}, ValueError, "folds must be between 2 and the number of rows, 10; got 1"),
        ({"folds": 11}, ValueError, "got 11"),
        ({"groups": 1}, ValueError, "groups must be between"),
        ({"folds": 10}, ValueError, "every fold must get rows; 10 folds are too many"),
        ({"weights": np.ones(9)}, ValueError, r"weights must have one entry per row; got shape \(9,\) for 10 rows"),
        ({"weights": -np.ones(10)}, ValueError, "not negative; row 0 has -1"),
        ({"weights": np.zeros(10)}, ValueError, "no row is left"),
        ({"weights": da.full(10, np.nan)}, ValueError, "finite and not negative; row 0 has nan"),
        ({"weights": np.array(["a"] * 10)}, TypeError, "weights must be real numbers"),
        ({"rows": np.ones(9, bool)}, ValueError, "rows must have one entry per row"),
        ({"rows": np.arange(10)}, TypeError, "boolean mask, a slice or a fraction; got dtype int64"),
        ({"rows": np.zeros(10, bool)}, ValueError, "no row is left"),
        ({"rows": slice(0, 10, 2)}, ValueError, "must be a run of rows"),
        ({"rows": slice(5, 5)}, ValueError, "must be a run of rows"),
        ({"rows": 0.0}, ValueError, "above 0 and at most 1"),
        ({"nan": "zero"}, ValueError, "nan must be one of"),
        ({"missing": "zero"}, ValueError, "missing must be 'raise' or 'fill'"),
        ({"precision": "half"}, ValueError, "precision must be one of"),
        ({"memory": "much"}, ValueError, "memory must be a number of bytes"),
        ({"memory": "1 MB"}, MemoryError, "Give at least memory="),
    ],
)
def test_bad_options_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        scan(np.arange(30.0).reshape(10, 3), **options)


def test_too_many_columns_are_refused_before_reading(tmp_path):
    zarr.create_array(tmp_path / "wide.zarr", shape=(10, 400_000), chunks=(1, 400_000), dtype="f4")
    with pytest.raises(MemoryError, match=r"400,000 columns need 1\.28 TB .*Keep fewer columns.*Factor"):
        scan(tmp_path / "wide.zarr")


def test_an_asynchronous_client_is_refused(stores, cluster, monkeypatch):
    with Client(cluster) as client:
        monkeypatch.setattr(type(client), "asynchronous", property(lambda self: True))
        with pytest.raises(TypeError, match="needs a synchronous Dask client"):
            scan(stores["uint8"])
        monkeypatch.undo()


@pytest.mark.integration
def test_a_hundred_million_float32_rows_of_a_large_mean(tmp_path):
    """Added up in float32 these sums stop growing at 2**24 rows or lose all digits of the spread."""
    rows, chunk = 100_000_000, 1_000_000
    array = zarr.create_array(tmp_path / "a.zarr", shape=(rows, 2), chunks=(chunk, 2), dtype="f4", fill_value=10_000.0)
    steps = np.random.default_rng(0).integers(-1, 2, (chunk, 2))
    for i in range(0, 100, 10):
        array[i * chunk : (i + 1) * chunk] = 10_000 + steps
    got = scan(array, missing="fill")
    total = 10 * steps.sum(axis=0)
    squares = 10 * steps.T @ steps  # integers
    mean = 10_000 + total / rows
    scatter = squares - np.outer(total, total) / rows
    np.testing.assert_allclose(got.mean, mean, rtol=1e-15)
    np.testing.assert_allclose(got.scatter, scatter, rtol=0, atol=1e-12 * scatter.max())
    wanted = rows * 10_000**2 + 10_000 * (total[:, None] + total) + squares
    np.testing.assert_allclose(got.gram(), wanted.astype(float), rtol=1e-14)


def test_a_checkpoint_that_vanishes_is_an_error_and_not_rows_without_weights(stores, tmp_path, monkeypatch):
    monkeypatch.setattr("rgcss_dask.core.merge_tree.SAVE_ROWS", 8_192)
    weights = np.arange(ROWS, dtype=float)

    class StopError(Exception):
        pass

    def stop(state):
        if state.rows > ROWS // 2:
            raise StopError

    with pytest.raises(StopError):
        scan(stores["float64"], weights=weights, archive=tmp_path / "m.zarr", progress=stop)

    def purge(state):
        for file in tmp_path.rglob("*.part"):
            file.unlink(missing_ok=True)

    with pytest.raises(RuntimeError, match="a checkpoint vanished while the pass was running; run it again"):
        scan(stores["float64"], weights=weights, archive=tmp_path / "m.zarr", progress=purge)
    got = scan(stores["float64"], weights=weights, archive=tmp_path / "m.zarr")
    assert got.weight == weights.sum()

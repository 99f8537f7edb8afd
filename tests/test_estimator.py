"""The scikit-learn face: its contract, every kind of input, laziness, tuning, batches and pipelines."""

import doctest
import pickle
import subprocess
import sys
from contextlib import contextmanager

import dask
import dask.array as da
import dask.dataframe
import dask.threaded
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse
import zarr
from dask_ml.cluster import KMeans
from dask_ml.model_selection import GridSearchCV as DaskGridSearch
from dask_ml.preprocessing import StandardScaler as DaskScaler
from dask_ml.wrappers import Incremental, ParallelPostFit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import rgcss_dask as rg
from rgcss_dask import GCSS, RGCSS


@parametrize_with_checks([RGCSS(), GCSS()])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.integration
@parametrize_with_checks(
    [RGCSS(lam="cv", cv=2), RGCSS(center=True, scale="std", refine=True), RGCSS(objective="all"), RGCSS(nan="drop")]
)
def test_scikit_learn_contract_with_other_parameters(estimator, check):
    check(estimator)


@pytest.fixture(name="X", scope="module")
def tall():
    rng = np.random.default_rng(0)
    return rng.standard_normal((500, 8)) @ rng.standard_normal((8, 20)) + 0.3 * rng.standard_normal((500, 20)) + 2.0


@pytest.fixture(scope="module")
def wide():
    rng = np.random.default_rng(1)
    return rng.standard_normal((30, 90)) + 1.0


@contextmanager
def counted_computes():
    """Count every graph that Dask's threads run, whoever asks for it."""
    runs = []
    plain = dask.threaded.get

    def get(*args, **kwargs):
        runs.append(1)
        return plain(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler=get):
        patch.setattr(dask.threaded, "get", get)
        yield runs


MADE = []


def noted(part, block_info=None):
    """Note which block is made; not a closure, which Dask may copy with the list in it."""
    if block_info:
        MADE.append(block_info[0]["chunk-location"])
    return part


def counting_blocks(X, chunks):
    """A Dask array that notes which blocks were made."""
    MADE.clear()
    return da.from_array(X, chunks=chunks).map_blocks(noted, dtype=X.dtype, meta=np.empty((0, 0))), MADE


def same(a, b, tol=1e-12):
    """The same picks and the same loss to rounding."""
    assert list(a.selected_) == list(b.selected_)
    np.testing.assert_allclose(a.loss_path_, b.loss_path_, rtol=0, atol=tol * a.selection_.start)
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=0, atol=1e-9)


def test_attributes_of_a_fit(X):
    e = RGCSS(5, lam=2.0, center=True, refine=False).fit(X)
    picked = rg.select(rg.Moments.of(X), 5, lam=2.0, center=True, bound=True)
    assert list(e.selected_) == list(picked.columns)
    assert list(e.ranking_[e.selected_]) == [1, 2, 3, 4, 5]
    assert np.all(e.ranking_[~e.support_] == 6)
    assert list(e.get_support(indices=True)) == sorted(e.selected_)
    np.testing.assert_array_equal(e.loss_path_, picked.loss)
    np.testing.assert_allclose(e.bound_path_, picked.bound, rtol=1e-12)
    np.testing.assert_allclose(e.coef_, picked.weights(rg.Moments.of(X)))
    assert (e.lam_, e.n_features_in_, e.moments_.rows) == (2.0, 20, 500)


def test_picks_are_those_of_brute_force(X):
    A = X - X.mean(axis=0)
    e = RGCSS(4, center=True, refine=False).fit(X)
    for t in range(4):
        best = min(
            oracle.loss(A, [*e.selected_[:t], j], 1.0, "unselected") for j in range(20) if j not in e.selected_[:t]
        )
        assert oracle.loss(A, list(e.selected_[: t + 1]), 1.0, "unselected") <= best + 1e-12 * np.sum(A**2)


def test_gcss_is_lambda_zero(X):
    same(GCSS(6).fit(X), RGCSS(6, lam=0.0).fit(X), tol=0)
    assert GCSS(6).fit(X).lam_ == 0.0
    assert "lam" not in GCSS().get_params()


@pytest.mark.parametrize("n", [3, 25])
def test_default_number_of_columns(n):
    A = np.random.default_rng(0).standard_normal((100, n))
    assert len(RGCSS().fit(A).selected_) == min(10, n)


def test_pickle_and_clone(X):
    e = RGCSS(4, center=True, scale="std", include=[3]).fit(X)
    back = pickle.loads(pickle.dumps(e))
    same(e, back, tol=0)
    np.testing.assert_array_equal(back.inverse_transform(back.transform(X)), e.inverse_transform(e.transform(X)))
    twin = clone(e)
    assert not hasattr(twin, "support_")
    same(e, twin.fit(X), tol=0)


def frame_of(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])], index=np.arange(len(X)) + 100)


def test_set_output_pandas(X):
    df = frame_of(X)
    out = RGCSS(3).set_output(transform="pandas").fit(df).transform(df)
    assert isinstance(out, pd.DataFrame)
    assert list(out.index) == list(df.index)
    pd.testing.assert_frame_equal(out, df[list(out.columns)])
    assert list(RGCSS(3).fit(df).get_feature_names_out()) == list(out.columns)


def test_a_frame_keeps_its_dtypes(X):
    df = frame_of(X).astype({f"c{i}": "float32" for i in range(10)})
    e = RGCSS(6).fit(df)
    out = e.transform(df)
    pd.testing.assert_frame_equal(out, df.iloc[:, np.flatnonzero(e.support_)])
    back = e.inverse_transform(out)
    assert list(back.columns) == list(df.columns)
    assert list(back.index) == list(df.index)
    np.testing.assert_array_equal(back.to_numpy()[:, e.support_], out.to_numpy())


# --- every kind of input


def inputs(X, tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, X.shape[1]))
    yield "list", X.tolist()
    yield "frame", frame_of(X)
    yield "csr", scipy.sparse.csr_array(X)
    yield "csc matrix", scipy.sparse.csc_matrix(X)
    yield "dask rows", da.from_array(X, chunks=(70, -1))
    yield "dask columns", da.from_array(X, chunks=(500, 7))
    yield "dask both", da.from_array(X, chunks=(133, 6))
    yield "dask sparse", da.from_array(X, chunks=(100, -1)).map_blocks(scipy.sparse.csr_array)
    yield "dask unknown", da.from_array(X, chunks=(100, -1))[da.from_array(np.ones(len(X), bool), chunks=100)]
    yield "dask frame", dask.dataframe.from_pandas(frame_of(X), npartitions=3)
    yield "zarr path", tmp_path / "x.zarr"
    yield "zarr array", zarr.open_array(tmp_path / "x.zarr", mode="r")
    yield "list of paths", [str(tmp_path / "x.zarr")]


def test_every_kind_of_input_gives_the_same(X, tmp_path):
    for how in ({}, {"center": True, "scale": "std"}):
        base = RGCSS(6, **how).fit(X)
        for name, data in inputs(X, tmp_path / str(len(how))):
            e = RGCSS(6, **how).fit(data)
            same(base, e)
            (out,) = dask.compute(e.transform(data))
            out = out.toarray() if scipy.sparse.issparse(out) else out
            np.testing.assert_array_equal(out, X[:, base.support_], err_msg=name)
            assert e.score(data) == pytest.approx(base.score(X), rel=1e-12), name


def test_fit_moments(X):
    df = frame_of(X)
    e = RGCSS(6, center=True).fit_moments(rg.scan(df))
    same(RGCSS(6, center=True).fit(df), e)
    assert list(e.feature_names_in_) == list(df.columns)
    assert e.transform(df).shape == (500, 6)


def test_weights_count_rows(X):
    w = np.random.default_rng(2).integers(0, 4, 500)
    repeated = RGCSS(6, center=True, scale="std").fit(np.repeat(X, w, axis=0))
    weighted = RGCSS(6, center=True, scale="std").fit(X, sample_weight=w)
    same(repeated, weighted)
    lazy = RGCSS(6, center=True, scale="std").fit(
        da.from_array(X, chunks=(90, -1)), sample_weight=da.from_array(w, chunks=90)
    )
    same(repeated, lazy)
    assert weighted.score(X, sample_weight=w) == pytest.approx(repeated.score(np.repeat(X, w, axis=0)), rel=1e-12)


# --- the way back


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize("how", [{}, {"center": True}, {"center": True, "scale": "std"}, {"scale": 3.0}])
def test_what_is_rebuilt_has_the_loss_that_was_promised(X, objective, how):
    e = RGCSS(5, lam=4.0, objective=objective, **how).fit(X)
    mu, sigma = e.moments_.preparation(e.center, e.scale)
    back = e.inverse_transform(e.transform(X))
    loss = np.sum(((back - X) / sigma) ** 2)
    start = np.sum(((X - mu) / sigma) ** 2)
    assert loss == pytest.approx(e.loss_path_[-1], rel=1e-10)
    assert e.score(X) == pytest.approx(1 - e.loss_path_[-1] / start, rel=1e-12)
    if objective == "unselected":
        np.testing.assert_array_equal(back[:, e.support_], X[:, e.support_])


def test_float32_stays_float32(X):
    e = RGCSS(5).fit(X.astype(np.float32))
    assert e.inverse_transform(e.transform(X.astype(np.float32))).dtype == np.float32


# --- fewer rows than columns


@pytest.mark.parametrize(
    "how", [{}, {"center": True}, {"center": True, "scale": "std"}, {"center": np.ones(90), "scale": 2 * np.ones(90)}]
)
def test_the_wide_path_is_taken_and_gives_the_same(wide, how, monkeypatch):
    moments = rg.Moments.of(wide)
    monkeypatch.setattr("rgcss_dask.estimator.selector.scan", None)  # nothing n x n is made
    for objective in ("unselected", "all"):
        e = RGCSS(12, lam=0.7, objective=objective, **how).fit(wide)
        assert e._moments is None
        ref = RGCSS(12, lam=0.7, objective=objective, refine=False, **how).fit_moments(moments)
        same(ref, e)
        np.testing.assert_allclose(e.bound_path_, ref.bound_path_, atol=1e-9 * ref.selection_.start)
        assert e.score(wide) == pytest.approx(ref.score(wide), rel=1e-9)
    np.testing.assert_allclose(e.moments_.product, moments.product)


def test_the_wide_path_with_weights_gaps_constants_and_names(wide):
    gaps = frame_of(wide).rename(columns=str.upper)
    gaps.iloc[3, 5] = np.nan
    gaps["C7"] = 4.0
    w = np.arange(30) % 3
    for nan in ("drop", "mean"):
        e = RGCSS(8, nan=nan, center=True, scale="std", include=["C2"], exclude=["C4"]).fit(gaps, sample_weight=w)
        ref = RGCSS(8, nan=nan, center=True, scale="std", include=["C2"], exclude=["C4"], refine=False)
        ref.fit_moments(rg.scan(gaps, nan=nan, weights=w))
        same(ref, e, tol=1e-11)
        assert e.selected_[0] == 2
        assert 4 not in e.selected_


# --- tuning and refinement


def test_tuning_uses_folds_of_the_one_pass(X):
    moments = rg.scan(X, folds=5)
    both = RGCSS("cv", lam="cv", center=True).fit(X)
    chosen = rg.cross_validate(moments, 20, center=True, one_se=True)
    assert (both.lam_, len(both.selected_)) == (chosen.lam, chosen.k)
    lam = RGCSS(4, lam="cv", center=True).fit(X)
    assert lam.lam_ == rg.cross_validate(moments, 4, center=True, fixed_k=True).lam
    assert len(lam.selected_) == 4
    assert lam.cv_results_.held_out_loss.shape[1:] == (4, 5)
    k = GCSS("cv", center=True, cv=3).fit(X)
    assert len(k.moments_.folds) == 3
    assert k.lam_ == 0.0
    assert not hasattr(lam.set_params(lam=1.0).fit(X), "cv_results_")


def test_gcss_tunes_within_the_rank():
    A = np.random.default_rng(0).standard_normal((60, 4)) @ np.random.default_rng(1).standard_normal((4, 30))
    assert len(GCSS("cv").fit(A).selected_) <= 4


def test_splitters_of_scikit_learn(X):
    e = RGCSS(4, lam="cv", cv=KFold(4, shuffle=True, random_state=0)).fit(X)
    held = [test for _, test in KFold(4, shuffle=True, random_state=0).split(X)]
    np.testing.assert_allclose(e.moments_.folds[1].mean, X[held[1]].mean(axis=0))
    np.testing.assert_allclose(e.moments_.gram(), X.T @ X)
    with pytest.raises(ValueError, match="hold out each of the 500 rows exactly once"):
        RGCSS(4, lam="cv", cv=[(np.arange(10), np.arange(10, 500))]).fit(X)
    with pytest.raises(ValueError, match="cv must be a number of folds if the rows are not in memory"):
        RGCSS(4, lam="cv", cv=KFold(4)).fit(da.from_array(X))


def test_columns_are_swapped_by_default_where_that_is_cheap(X, monkeypatch):
    greedy, default = (GCSS(5, center=True, include=[3], **how).fit(X) for how in ({"refine": False}, {}))
    swapped = rg.refine(greedy.selection_, greedy.moments_)
    assert swapped.swaps > 0
    assert default.selected_.tolist() == swapped.columns.tolist()
    assert default.selected_[0] == 3
    np.testing.assert_allclose(default.coef_, swapped.selection.weights(greedy.moments_))
    monkeypatch.setattr("rgcss_dask.core.refinement.CHEAP", 20 * 20 * 5 - 1)
    assert GCSS(5, center=True, include=[3]).fit(X).selected_.tolist() == greedy.selected_.tolist()
    for more in ({"effort": 5}, {"exact": True}, {"refine": True}):
        assert GCSS(5, center=True, include=[3], **more).fit(X).loss_path_[-1] <= default.loss_path_[-1]
    assert GCSS(5, center=True, exact=True).fit(X).selection_.certificate.optimal


def test_refinement_never_loses(X):
    greedy, refined = GCSS(5, refine=False).fit(X), GCSS(5, refine=True).fit(X)
    assert refined.loss_path_[-1] <= greedy.loss_path_[-1]
    assert oracle.loss(X, list(refined.selected_), 0.0, "unselected") == pytest.approx(refined.loss_path_[-1], rel=1e-9)


# --- batches


@pytest.mark.parametrize("how", [{}, {"center": True, "scale": "std"}, {"lam": "cv", "cv": 3}])
def test_batches_equal_the_whole(X, how):
    e = RGCSS(5, **how)
    for start in range(0, 500, 77):
        e.partial_fit(X[start : start + 77])
    same(RGCSS(5, **how).fit(X), e)
    assert e.moments_.rows == 500


def test_batches_of_bytes_are_exact():
    A = np.random.default_rng(0).integers(0, 256, (300, 12), dtype=np.uint8)
    e = RGCSS(5, center=True).partial_fit(A[:100]).partial_fit(A[100:])
    whole = RGCSS(5, center=True).fit(A)
    np.testing.assert_array_equal(e.moments_.product, whole.moments_.product)
    same(whole, e, tol=0)


@pytest.mark.parametrize("nan", ["drop", "mean"])
def test_batches_with_gaps_and_weights(X, nan):
    A = X.copy()
    A[::37, 3] = np.nan
    w = np.arange(500) % 3
    e = RGCSS(5, nan=nan).partial_fit(A[:200], sample_weight=w[:200]).partial_fit(A[200:], sample_weight=w[200:])
    same(RGCSS(5, nan=nan).fit(A, sample_weight=w), e)


def test_batches_go_on_after_fit(X, wide):
    same(RGCSS(5).fit(X), RGCSS(5).fit(X[:300]).partial_fit(X[300:]))
    same(RGCSS(5, cv=3, lam="cv").fit(X), RGCSS(5, cv=3, lam="cv").fit(X[:300]).partial_fit(X[300:]))
    tall = np.vstack([wide] * 4) + np.random.default_rng(0).standard_normal((120, 90))
    same(RGCSS(5).fit(tall), RGCSS(5).fit(tall[:30]).partial_fit(tall[30:]))
    with pytest.raises(ValueError, match="Give the first rows to partial_fit too"):
        RGCSS(5, nan="mean").fit(X).partial_fit(X)
    with pytest.raises(TypeError, match="a batch of rows in memory"):
        RGCSS(5).partial_fit(da.from_array(X))


# --- lazy


def test_fit_computes_once_and_every_block_once(X):
    data, made = counting_blocks(X, (60, -1))
    with counted_computes() as runs:
        e = RGCSS(5, center=True, scale="std", lam="cv").fit(data)
    assert len(runs) == 1
    assert sorted(made) == [(i, 0) for i in range(9)]
    same(RGCSS(5, center=True, scale="std", lam="cv").fit(X), e)


def test_blocks_of_unknown_length_are_computed_once(X):
    gaps = X.copy()
    gaps[7, 3] = np.nan
    for A, nan in ((X, "raise"), (gaps, "mean"), (gaps, "drop")):
        data, made = counting_blocks(A, (60, -1))
        unknown = data[da.from_array(A[:, 0] > -1e9, chunks=60)]
        frame = dask.dataframe.from_dask_array(data, columns=[f"c{i}" for i in range(20)])
        for thing in (unknown, frame, unknown.rechunk({1: 7})):
            made.clear()
            with counted_computes() as runs:
                e = RGCSS(5, center=True, nan=nan).fit(thing)
            assert (len(runs), len(made)) == (1, 9)
            same(RGCSS(5, center=True, nan=nan).fit(A), e)
    some = da.from_array(X, chunks=(60, -1))
    some = some[da.from_array(np.arange(500) >= 100, chunks=60)]  # the first block is empty
    same(RGCSS(5).fit(X[100:]), RGCSS(5).fit(some))
    with pytest.raises(ValueError, match="every block of this one is empty"):
        RGCSS(5).fit(some[some[:, 0] > 1e9])
    with pytest.raises(ValueError, match=r"row 7, column 3 .*holds nan"):
        RGCSS(5).fit(unknown)


def test_blocks_of_unknown_length_are_counted_where_memory_must_be_planned(X, monkeypatch):
    monkeypatch.setattr("rgcss_dask.scanning.uncounted.default_budget", lambda: 1000)
    data = da.from_array(X, chunks=(60, -1))
    same(RGCSS(5).fit(X), RGCSS(5).fit(data[data[:, 0] > -1e9]))


def test_transform_and_back_stay_lazy(X):
    e = RGCSS(5, center=True, scale="std").fit(X)
    data, made = counting_blocks(X, (60, -1))
    with counted_computes() as runs:
        out = e.transform(data)
        back = e.inverse_transform(out)
        columns = e.transform(da.from_array(X, chunks=(60, 7)))
        unknown = data[data[:, 0] > 2.0]
        few = e.inverse_transform(e.transform(unknown))
    assert (runs, made) == ([], [])
    assert out.chunks == (data.chunks[0], (5,))
    assert back.chunks == (data.chunks[0], (20,))
    np.testing.assert_array_equal(out, e.transform(X))
    np.testing.assert_allclose(back, e.inverse_transform(e.transform(X)), rtol=1e-12)
    np.testing.assert_array_equal(columns, e.transform(X))
    assert np.isnan(few.shape[0])
    np.testing.assert_allclose(few.compute(), e.inverse_transform(e.transform(X[X[:, 0] > 2.0])), rtol=1e-12)


def test_dask_frames_stay_frames(X):
    df = frame_of(X).astype({"c3": "float32"})
    ddf = dask.dataframe.from_pandas(df, npartitions=4)
    e = RGCSS(5, include=["c3"]).fit(ddf)
    with counted_computes() as runs:
        out = e.transform(ddf)
        back = e.inverse_transform(out)
    assert runs == []
    expected = df.iloc[:, np.flatnonzero(e.support_)]
    assert list(out.columns) == list(expected.columns)
    assert list(out.dtypes) == list(expected.dtypes)
    pd.testing.assert_frame_equal(out.compute(), expected)
    got = back.compute()
    assert list(got.columns) == list(df.columns) == list(back.columns)
    assert list(got.dtypes) == list(back.dtypes)
    np.testing.assert_allclose(got, e.inverse_transform(expected), rtol=1e-6)
    assert list(got.index) == list(df.index)


def test_a_stored_matrix_gives_a_dask_array(X, tmp_path):
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, 20))
    e = RGCSS(5).fit(tmp_path / "x.zarr")
    with counted_computes() as runs:
        out = e.transform(str(tmp_path / "x.zarr"))
    assert runs == []
    np.testing.assert_array_equal(out.compute(), e.transform(X))


def test_set_output_refuses_to_load_what_is_lazy(X):
    e = clone(RGCSS(3).set_output(transform="pandas")).fit(X)
    with counted_computes() as runs, pytest.raises(TypeError, match="would load them into memory"):
        e.transform(da.from_array(X))
    assert runs == []


MEMORY = """
import dask.array as da, sys
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
from rgcss_dask import RGCSS
import numpy as np
def data(m):
    return da.random.default_rng(0).standard_normal((m, 100), chunks=(20_000, 100))
RGCSS(5).fit(data(40_000))
before = peak()
e = RGCSS(5).fit(data(600_000))
assert e.moments_.rows == 600_000
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_dask_array_is_never_materialised():
    """480 MB of rows pass through; the peak is some blocks of 16 MB above that of a fit on 32 MB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 150


# --- pipelines


def test_scaling_inside_equals_a_scaler_before(X):
    data, made = counting_blocks(X, (60, -1))
    inside = RGCSS(5, center=True, scale="std").fit(data)
    assert len(made) == 9  # one pass; the scaler would have made another
    before = make_pipeline(StandardScaler(), RGCSS(5)).fit(X)[-1]
    same(before, inside)


def test_dask_ml_scaler_and_kmeans_compute_nothing_early(X):
    data, made = counting_blocks(X, (125, -1))
    scaled = DaskScaler().fit_transform(data)
    made.clear()
    pipeline = make_pipeline(RGCSS(5), KMeans(3, random_state=0))
    with counted_computes() as runs:
        picked = pipeline[:-1].fit(scaled)
        assert (len(runs), len(made)) == (1, 4)  # the pass
        out = picked.transform(scaled)
        assert len(runs) == 1
    assert out.chunks == (scaled.chunks[0], (5,))
    same(RGCSS(5, center=True, scale="std").fit(X), picked[-1], tol=1e-10)
    labels = pipeline.fit(scaled).predict(scaled)
    assert isinstance(labels, da.Array)
    assert set(labels.compute()) == {0, 1, 2}


def test_whole_pipeline_on_dask_arrays(X):
    data = da.from_array(X, chunks=(125, -1))
    pipeline = make_pipeline(DaskScaler(), RGCSS(5), KMeans(3, random_state=0)).fit(data)
    assert pipeline.predict(data).shape == (500,)
    same(RGCSS(5, center=True, scale="std").fit(X), pipeline[1], tol=1e-10)


def test_dask_ml_grid_search(X):
    grid = {"n_features_to_select": [2, 4], "lam": [0.1, 100.0]}
    search = DaskGridSearch(RGCSS(center=True), grid, cv=3, iid=False).fit(X)
    assert search.best_params_["n_features_to_select"] == 4
    held = [RGCSS(4, lam=search.best_params_["lam"], center=True).fit(X[a]).score(X[b]) for a, b in KFold(3).split(X)]
    assert search.best_score_ == pytest.approx(np.mean(held), rel=1e-9)


def test_parallel_post_fit(X):
    wrapped = ParallelPostFit(RGCSS(5)).fit(X)
    data, made = counting_blocks(X, (125, -1))
    out = wrapped.transform(data)
    assert made == []
    np.testing.assert_array_equal(out.compute(), RGCSS(5).fit_transform(X))


def test_incremental(X):
    wrapped = Incremental(RGCSS(5, center=True)).fit(da.from_array(X, chunks=(125, -1)))
    same(RGCSS(5, center=True).fit(X), wrapped.estimator_)


# --- gaps


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gaps_are_refused_by_name(X, wide, value):
    for A in (X, wide):
        bad = A.copy()
        bad[7, 3] = value
        for data in (bad, frame_of(bad), scipy.sparse.csr_array(bad), da.from_array(bad, chunks=(10, -1))):
            with pytest.raises(ValueError, match=f"row 7, column 3 .*holds {value}"):
                RGCSS(2).fit(data)
        e = RGCSS(2, include=[3]).fit(A)
        for data in (bad, pd.DataFrame(bad), scipy.sparse.csr_array(bad)):
            with pytest.raises(ValueError, match=f"row 7, column 3 .*holds {value}"):
                e.transform(data)
        with pytest.raises(ValueError, match=f"column 3 holds {value}"):
            e.transform(da.from_array(bad, chunks=(10, -1))).compute()


def test_gaps_are_filled_in_transform_too(X):
    bad = X.copy()
    bad[7, 3] = np.nan
    e = RGCSS(4, include=[3], nan="mean").fit(bad)
    expected = bad.copy()
    expected[7, 3] = np.nanmean(bad[:, 3])
    for data in (bad, pd.DataFrame(bad), da.from_array(bad, chunks=(100, -1))):
        np.testing.assert_allclose(np.asarray(e.transform(data)), expected[:, e.support_])
    ddf = dask.dataframe.from_pandas(frame_of(bad), npartitions=2)
    np.testing.assert_allclose(e.transform(ddf).compute(), expected[:, e.support_])
    dropped = RGCSS(4, include=[3], nan="drop").fit(bad)
    same(RGCSS(4, include=[3]).fit(np.delete(bad, 7, axis=0)), dropped)
    assert np.isnan(dropped.transform(bad)).sum() == 1


def test_scored_rows_are_filled_with_the_means_of_fit(X, wide, tmp_path):
    for rows in (X, wide):
        bad = rows.copy()
        bad[::7, 3] = np.nan
        e = RGCSS(4, nan="mean", center=True).fit(bad)
        other = bad[:25] + 5.0  # rows with means of their own
        filled = other.copy()
        filled[::7, 3] = np.nanmean(bad[:, 3])
        taken = e.transform(other)
        np.testing.assert_allclose(taken, filled[:, e.support_])
        expected = 1 - np.sum((filled - e.inverse_transform(taken)) ** 2) / np.sum((filled - e.selection_.mu) ** 2)
        zarr.create_array(tmp_path / f"{len(rows)}.zarr", data=other, chunks=(7, rows.shape[1]))
        for data in (other, da.from_array(other, chunks=(4, -1)), tmp_path / f"{len(rows)}.zarr"):
            assert e.score(data) == pytest.approx(expected, rel=1e-9)
        weights = np.arange(25.0)
        lazily = e.score(da.from_array(other, chunks=(4, -1)), sample_weight=weights)
        assert e.score(other, sample_weight=weights) == pytest.approx(lazily, rel=1e-9)
        assert e.score(np.repeat(other, 3, axis=0)) == pytest.approx(expected, rel=1e-9)
        other[3, 2] = np.inf
        for data in (other, da.from_array(other, chunks=(2, -1))):
            with pytest.raises(ValueError, match=r"row 3, column 2 .*holds inf"):
                e.score(data)


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "boolean", "int64[pyarrow]", "Float32", "float32"])
def test_frames_with_nullable_columns(dtype):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, (40, 3)).astype(object)
    values[5, 0] = None
    frame = pd.DataFrame({f"c{j}": pd.Series(values[:, j], dtype=dtype) for j in range(3)} | {"x": rng.random(40)})
    plain = frame.to_numpy(dtype=float, na_value=np.nan)
    e = RGCSS(2, nan="mean", include=["c0"]).fit(frame)
    wanted = RGCSS(2, nan="mean", include=[0]).fit(plain)
    same(wanted, e)
    lazily = dask.dataframe.from_pandas(frame, npartitions=3)
    with_gap, without = e.transform(frame), e.transform(frame[10:20])
    np.testing.assert_allclose(with_gap.to_numpy(dtype=float), wanted.transform(plain), rtol=1e-7)
    assert list(with_gap.dtypes) == list(without.dtypes) == list(e.transform(lazily).dtypes)
    pd.testing.assert_frame_equal(e.transform(lazily).compute(), with_gap)
    rebuilt = e.inverse_transform(with_gap)
    np.testing.assert_allclose(rebuilt, wanted.inverse_transform(wanted.transform(plain)), rtol=1e-6)
    np.testing.assert_allclose(e.inverse_transform(e.transform(lazily)).compute(), rebuilt, rtol=1e-6)
    np.testing.assert_allclose([e.score(frame), e.score(lazily)], wanted.score(plain), rtol=1e-9)
    left = RGCSS(2, nan="drop", include=["c0"]).fit(frame)
    pd.testing.assert_frame_equal(left.transform(frame), frame.iloc[:, np.flatnonzero(left.support_)])
    assert np.isnan(np.asarray(left.inverse_transform(left.transform(frame)), dtype=float)[5]).any()


# --- bad input


def test_the_example_in_the_documentation():
    assert doctest.testmod(sys.modules["rgcss_dask.estimator.selector"]).failed == 0


def test_columns_that_differ_are_named(X):
    df = frame_of(X)
    e = RGCSS(3).fit(df)
    with pytest.raises(ValueError, match="X has 19 features, but RGCSS is expecting 20"):
        RGCSS(3).fit(X).transform(X[:, 1:])
    with pytest.raises(ValueError, match="X has 19 features, but RGCSS is expecting 20"):
        e.transform(da.from_array(X[:, 1:]))
    other = df.rename(columns={"c4": "depth"})
    with pytest.raises(ValueError, match=r"(?s)unseen at fit time.*depth.*missing.*c4"):
        e.transform(other)
    with pytest.raises(ValueError, match="'depth' where fit had 'c4'"):
        e.transform(dask.dataframe.from_pandas(other, npartitions=2))
    with pytest.raises(ValueError, match=r"the 3 picked columns that transform returns; got shape \(500, 20\)"):
        e.inverse_transform(X)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n_features_to_select": 21}, "at most n_features=20; got 21"),
        ({"n_features_to_select": 0}, "a whole number from 1, or a share to explain between 0 and 1; got 0"),
        ({"n_features_to_select": 2.5}, "as a number of columns it must be a whole number; got 2.5"),
        ({"n_features_to_select": "all"}, "a whole number from 1, or a share to explain between 0 and 1; got 'all'"),
        ({"lam": -1.0}, "lam must be a finite number, 0 or more; got -1"),
        ({"lam": "auto"}, "lam must be a number or 'cv'; got 'auto'"),
        ({"objective": "some"}, "objective must be 'unselected' or 'all'; got 'some'"),
        ({"nan": "keep"}, "nan must be 'raise', 'drop' or 'mean'; got 'keep'"),
        ({"where": "moon"}, "where must be None or one of"),
        ({"cv": 1}, "2 or more; got 1"),
        ({"include": [1], "exclude": [1]}, "both included and excluded"),
        ({"include": ["depth"]}, "column 'depth' does not exist"),
        ({"scale": "max"}, "scale must be None, a number, 'std'"),
    ],
)
def test_bad_parameters(X, how, message):
    with pytest.raises(ValueError, match=message):
        RGCSS(**how).fit(X)


def test_dates_are_refused_by_transform_as_by_fit(X):
    e = RGCSS(3).fit(X)
    for call in (RGCSS(3).fit, e.transform, e.score):
        with pytest.raises(TypeError, match="must be real numbers"):
            call(X.astype("M8[s]"))


def test_too_many_columns_are_refused_before_anything_is_read(X):
    data, made = counting_blocks(X, (60, -1))
    with pytest.raises(ValueError, match="at most n_features=20; got 21"):
        RGCSS(21).fit(data)
    assert made == []


@pytest.mark.parametrize("attribute", ["moments_", "bound_path_"])
def test_not_fitted(X, attribute):
    with pytest.raises(NotFittedError):
        getattr(RGCSS(), attribute)
    for method in ("transform", "inverse_transform", "score"):
        with pytest.raises(NotFittedError):
            getattr(RGCSS(), method)(X)
    with pytest.raises(NotFittedError):
        RGCSS().transform(da.from_array(X))

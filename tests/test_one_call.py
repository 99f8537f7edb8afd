"""From whatever holds rows to a shared page: select, report, save, in one call each."""

import pickle
import warnings

import anndata
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

import rgcss_dask as rg
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.sizes import size_remark
from rgcss_dask.workflow import Question, answer

K = 3


def rows(n=8, m=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, 4)) @ rng.normal(size=(4, n)) + 0.2 * rng.normal(size=(m, n)) + 1.0


A = rows()
NAMES = [f"c{i}" for i in range(8)]
FRAME = pd.DataFrame(A, columns=NAMES)


def stored(folder):
    zarr.save_array(folder / "rows.zarr", A)
    return folder / "rows.zarr"


def archived(folder):
    rg.scan(A, folds=5, archive=folder / "moments.zarr")
    return str(folder / "moments.zarr")


KINDS = {
    "array": lambda folder: A,
    "lists": lambda folder: A.tolist(),
    "moments": lambda folder: rg.Moments.of(A),
    "frame": lambda folder: FRAME,
    "path of rows": stored,
    "text of a path": lambda folder: str(stored(folder)),
    "path of moments": archived,
    "sparse": lambda folder: scipy.sparse.csr_matrix(A),
    "Dask": lambda folder: da.from_array(A, chunks=(20, 8)),
    "Dask frame": lambda folder: dd.from_pandas(FRAME, npartitions=3),
    "Xarray": lambda folder: xr.DataArray(A, dims=("time", "place")),
    "AnnData": lambda folder: anndata.AnnData(A),
    "stacked": lambda folder: [A[:20], A[20:]],
    "Zarr": lambda folder: zarr.open_array(stored(folder)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_select_takes_whatever_scan_takes(kind, tmp_path):
    want = rg.select(rg.Moments.of(A), K, center=True)
    found = rg.select(KINDS[kind](tmp_path), K, center=True)
    assert found.columns.tolist() == want.columns.tolist()
    np.testing.assert_allclose(found.loss, want.loss, rtol=1e-9)
    assert found.result().rows == 60


def test_names_come_along():
    assert rg.select(FRAME, K).names == tuple(NAMES[j] for j in rg.select(A, K).columns)
    assert 0 not in rg.select(FRAME, K, exclude=["c0"]).columns


@pytest.mark.parametrize("lams", [2.0, [0.5, 2.0]])
def test_fewer_rows_than_columns_are_taken_whole(lams, monkeypatch):
    wide = rows(n=50, m=12)
    want = rg.select(rg.Moments.of(wide), K, lam=lams, center=True, bound=True)
    monkeypatch.setattr("rgcss_dask.scanning.given.scan", None)  # nothing n x n
    found = rg.select(wide, K, lam=lams, center=True, bound=True)
    for one, other in zip(*(x if isinstance(x, list) else [x] for x in (found, want)), strict=True):
        assert one.columns.tolist() == other.columns.tolist()
        np.testing.assert_allclose(one.bound, other.bound, rtol=1e-6)
    with pytest.raises(ValueError, match="where='worker'"):
        rg.select(wide, K, where="worker")


def test_a_square_array_stays_a_gram():
    G = A.T @ A
    want = rg.select(rg.Moments.of(A), K)
    for square in (G, G.tolist(), pd.DataFrame(G), pd.DataFrame(G, index=NAMES, columns=NAMES)):
        assert rg.select(square, K).columns.tolist() == want.columns.tolist()


@pytest.mark.parametrize("square", [A[:8], A[:8].tolist(), FRAME[:8]], ids=["array", "lists", "frame"])
def test_square_rows_are_refused_with_the_way_out(square):
    with pytest.raises(
        ValueError,
        match=r"taken for a Gram, but cannot be one: .*If these are rows, give rgcss_dask.scan\(X\)",
    ):
        rg.select(square, K)
    assert rg.select(rg.scan(np.asarray(square)), K).k == K


@pytest.mark.parametrize(
    "square",
    [da.from_array(A.T @ A), scipy.sparse.csr_array(A.T @ A), xr.DataArray(A.T @ A, dims=("a", "b"))],
    ids=["Dask", "sparse", "Xarray"],
)
def test_something_square_that_is_not_in_memory_could_be_either(square):
    with pytest.raises(WrongKindError, match=r"may be rows or a Gram.*rgcss_dask.scan\(X\).*give it as a NumPy array"):
        rg.select(square, K)


def test_square_rows_at_a_path_are_rows(tmp_path):
    zarr.save_array(tmp_path / "square.zarr", A[:8])
    assert rg.select(tmp_path / "square.zarr", K).result().rows == 8


def test_what_is_no_data_is_refused(tmp_path):
    with pytest.raises(WrongKindError, match=r"a source must be a path"):
        rg.select(object(), K)
    with pytest.raises(FileNotFoundError):
        rg.select(tmp_path / "nothing.zarr", K)
    with pytest.raises(ValueError, match="two dimensions"):
        rg.select(np.ones(7), K)


def test_options_of_reading():
    gaps = A.copy()
    gaps[3, 2] = np.nan
    with pytest.raises(ValueError, match="row 3"):
        rg.select(gaps, K)
    assert rg.select(gaps, K, nan="drop").result().rows == 59
    assert rg.select(A, K, weights=np.r_[np.ones(30), np.zeros(30)]).result().weight == 30
    for data in (rg.Moments.of(A), A.T @ A):
        with pytest.raises(ValueError, match="nan and weights are for rows"):
            rg.select(data, K, nan="drop")


def test_lambda_by_cross_validation(tmp_path):
    found = rg.select(A, K, lam="cv", center=True)
    tuned = rg.cross_validate(rg.scan(A, folds=5), K, fixed_k=True, center=True)
    assert found.lam == tuned.lam
    assert found.columns.tolist() == tuned.columns.tolist()
    assert rg.select(archived(tmp_path), K, lam="cv", center=True).lam == tuned.lam
    assert found.result().tuning.lam == tuned.lam
    assert rg.select(A, K, lam="cv", bound=True).bound is not None
    with pytest.raises(ValueError, match="at least 2 folds"):
        rg.select(rg.Moments.of(A), K, lam="cv")
    with pytest.raises(ValueError, match="which has no rows to hold out"):
        rg.select(A.T @ A, K, lam="cv")
    with pytest.raises(ValueError, match="a number, a sequence of numbers, or 'cv'; got 'auto'"):
        rg.select(A, K, lam="auto")


@pytest.mark.parametrize("lam", [1.0, "cv", 0.0])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_as_many_columns_as_explain_a_share(lam, share):
    found = rg.select(A, explained=share, lam=lam, center=True)
    assert found.explained[-1] >= share
    assert np.all(found.explained[:-1] < share)


def test_lambda_is_chosen_for_as_many_columns_as_the_share_takes():
    """For all columns every lambda leaves nothing, so that the largest would win; it may need twice the columns."""
    X = rows(n=30, m=400)
    found = rg.select(X, explained=0.8, lam="cv", center=True, refine=True)
    tuned = rg.cross_validate(rg.scan(X, folds=5), 30, center=True)
    fewest = min(rg.select(X, explained=0.8, lam=lam, center=True).k for lam in tuned.lams)
    assert found.lam == tuned.best_lam(fewest)
    assert found.k <= fewest + 1
    e = rg.RGCSS(0.8, lam="cv", center=True).fit(X)
    assert (e.lam_, e.selected_.tolist()) == (found.lam, found.columns.tolist())
    assert e.cv_results_.k == found.k == found.result().tuning.k
    assert "1 to 30 columns" in e.cv_results_.words


def test_names_come_along_with_a_gram_that_is_a_frame():
    G = FRAME.corr()
    found = rg.select(G, K, include=["c5"], exclude=["c0"])
    assert found.names == tuple(NAMES[j] for j in found.columns)
    assert found.names[0] == "c5"
    assert "c0" not in found.names


def test_a_share_in_the_place_of_k_is_said():
    with pytest.raises(
        ValueError, match=r"k must be a number of columns; got 0\.9\. For a share to explain give explained=0\.9"
    ):
        rg.select(A, 0.9)


def test_all_of_it_with_lambda_zero():
    exact = rows()[:, :4] @ np.random.default_rng(1).normal(size=(4, 8))
    assert rg.select(exact, explained=1.0, lam=0.0).k == 4


def test_a_share_is_one_above_zero():
    for share in (0, -0.1, 1.5, True):
        with pytest.raises(ValueError, match="explained must be a share above 0 and at most 1"):
            rg.select(A, explained=share)
    with pytest.raises(ValueError, match=r"both were given. Give one of them"):
        rg.select(A, explained=0.9, stop=rg.Stop(loss=0.2))
    with pytest.raises(ValueError, match=r"the number of columns is missing: give k.*explained=0.9"):
        rg.select(A)
    assert rg.select(A, explained=0.9, stop=rg.Stop(bound=50.0)).k == 1  # another rule was met first


def test_a_share_that_too_few_columns_cannot_reach_is_said():
    with pytest.warns(UserWarning, match=r"2 columns, the maximum allowed, explain .*, not the 99.9 %"):
        assert rg.select(A, 2, explained=0.999).k == 2


def test_several_lambdas_with_a_share():
    found = rg.select(A, explained=0.8, lam=[0.1, 10.0])
    assert [one.explained[-1] >= 0.8 for one in found] == [True, True]


def test_a_share_in_the_estimator():
    e = rg.RGCSS(0.9, center=True).fit(A)
    want = rg.select(A, explained=0.9, center=True, refine=True)
    assert e.selected_.tolist() == want.columns.tolist()
    assert rg.RGCSS(np.float64(0.9), center=True).fit(A).selected_.tolist() == want.columns.tolist()
    assert rg.RGCSS(0.9, lam="cv").fit(A).selection_.explained[-1] >= 0.9
    wide = rg.RGCSS(0.9).fit(rows(n=50, m=12))
    assert wide.selection_.explained[-1] >= 0.9
    for wrong in (1.0, 0.0, -0.5, 2.5, float("nan")):
        with pytest.raises(ValueError, match="share to explain must be above 0 and below 1"):
            rg.RGCSS(wrong).fit(A)


def test_the_most_columns_that_cross_validation_tried_is_said():
    X = rows(n=70, m=400) + 0.5 * np.random.default_rng(1).normal(size=(400, 70))
    with pytest.warns(UserWarning, match=r"chose 64 columns, the maximum tried, of 70"):
        rg.RGCSS("cv", lam=1e-6, cv=2).fit(np.random.default_rng(1).normal(size=(4000, 70)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rg.RGCSS("cv", cv=2).fit(X[:, :20])


@pytest.mark.parametrize(
    "answer", ["select", "wide", "refine", "cross_validate", "estimator", "wide estimator", "result"]
)
def test_a_report_of_every_answer(answer, tmp_path):
    moments = rg.scan(FRAME, folds=5)
    wide = rows(n=50, m=12)
    given = {
        "select": lambda: rg.select(FRAME, K, center=True),
        "wide": lambda: rg.select(wide, K),
        "refine": lambda: rg.refine(rg.select(FRAME, K)),
        "cross_validate": lambda: rg.cross_validate(moments, K),
        "estimator": lambda: rg.RGCSS(K, lam="cv").fit(FRAME),
        "wide estimator": lambda: rg.RGCSS(K).fit(wide),
        "result": lambda: rg.select(FRAME, K).result(),
    }[answer]()
    test_rows = wide if "wide" in answer else FRAME
    written = rg.report(given, tmp_path / "r.html", rows=test_rows)
    page = (tmp_path / "r.html").read_text()
    assert written.sentence.split(";")[0] in page
    explained = (given.selection_ if "estimator" in answer else getattr(given, "selection", given)).explained[-1]
    assert written.score == pytest.approx(explained, rel=1e-6)
    assert f"{len(test_rows)} rows given with the report" in page
    assert str(tmp_path / "r.html") in str(written)
    if answer in ("cross_validate", "estimator"):
        assert "cross-validated" in page


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("objective", ["unselected", "all"])
def test_the_score_is_that_of_the_estimator(center, objective, tmp_path):
    held_back = rows(seed=3, m=40) @ np.diag(np.linspace(0.5, 1.5, 8))
    e = rg.RGCSS(K, center=center, objective=objective).fit(FRAME)
    want = e.score(pd.DataFrame(held_back, columns=NAMES))
    shuffled = pd.DataFrame(held_back, columns=NAMES)[NAMES[::-1]]
    for some in (shuffled, da.from_array(held_back), shuffled.astype("float32").astype("float64")):
        found = rg.report(e, tmp_path / "r.html", rows=some)
        assert found.score == pytest.approx(want, rel=1e-5)
    few = rg.report(e, tmp_path / "r.html", rows=shuffled[:5])
    assert few.score == pytest.approx(e.score(pd.DataFrame(held_back[:5], columns=NAMES)), rel=1e-9)
    with pytest.raises(ValueError, match=r"lacks 'c0'"):
        rg.report(e, tmp_path / "r.html", rows=shuffled.rename(columns={"c0": "other"}))


def test_gaps_of_the_rows_are_filled_as_in_the_fit(tmp_path):
    gaps = FRAME.copy()
    gaps.iloc[::7, 2] = np.nan
    e = rg.RGCSS(K, nan="mean", center=True).fit(gaps)
    turned = gaps[NAMES[::-1]]
    assert rg.report(e, tmp_path / "r.html", rows=turned).score == pytest.approx(e.score(gaps), rel=1e-9)
    picked = rg.select(gaps, K, nan="drop")
    assert rg.report(picked, tmp_path / "r.html", rows=turned).score == pytest.approx(picked.explained[-1], rel=1e-9)


def test_a_report_refuses_what_it_is_not_about(tmp_path):
    with pytest.raises(WrongKindError, match=r"got builtins\.int"):
        rg.report(3, tmp_path / "r.html")
    with pytest.raises(ValueError, match="this RGCSS is not fitted yet"):
        rg.report(rg.RGCSS(), tmp_path / "r.html")
    with pytest.raises(ValueError, match=r"do not keep them.*Pick again"):
        rg.report(pickle.loads(pickle.dumps(rg.select(A, K))), tmp_path / "r.html")
    with pytest.raises(ValueError, match="from a Gram alone"):
        rg.report(rg.select(A.T @ A, K), tmp_path / "r.html")
    (tmp_path / "mine.html").write_text("<p>mine")
    with pytest.raises(FileExistsError):
        rg.report(rg.select(A, K), tmp_path / "mine.html")
    assert not (tmp_path / "r.html").exists()


def test_a_report_with_stability(tmp_path):
    moments = rg.scan(FRAME, groups=10)
    rg.report(rg.select(moments, K), tmp_path / "r.html", stability=rg.stability(moments, K, resamples=5))
    assert "by chance" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("kind", ["select", "refine", "cross_validate", "estimator"])
def test_saved_and_loaded_again(kind, tmp_path):
    picked = {
        "select": lambda: rg.select(FRAME, K),
        "refine": lambda: rg.refine(rg.select(FRAME, K)),
        "cross_validate": lambda: rg.cross_validate(rg.scan(FRAME, folds=4), K),
        "estimator": lambda: rg.RGCSS(K).fit(FRAME),
    }[kind]()
    picked.save(tmp_path / "picked.json")
    again = rg.load_result(tmp_path / "picked.json")
    columns = picked.selected_ if kind == "estimator" else picked.columns
    assert again.selection.columns.tolist() == columns.tolist()
    assert rg.report(again, tmp_path / "r.html", rows=FRAME).score is not None
    picked.save(tmp_path / "picked.json")  # a result may be replaced
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(FileExistsError):
        picked.save(tmp_path / "other.json")
    assert len(repr(again).split("\n")) == 2


def test_refine_knows_what_was_picked():
    picked = rg.select(A, K)
    assert rg.refine(picked).columns.tolist() == rg.refine(picked, rg.Moments.of(A)).columns.tolist()
    wide = rows(n=50, m=12)
    first = rg.select(wide, K)
    swapped = rg.refine(first)
    assert swapped.after <= swapped.before
    assert swapped.before == pytest.approx(first.loss[-1], rel=1e-9)  # as promised of tracked losses
    with pytest.raises(ValueError, match=r"give the moments, refine\(selection, moments\)"):
        rg.refine(rg.select(A.T @ A, K))


# Columns of very different size.


def mixed(m=200, n=10, seed=0):
    X = np.abs(np.random.default_rng(seed).normal(size=(m, n))) + 1
    X[:, 3] *= 1e4
    return X


SAYS = r"columns are on such different scales.*'?column 3|'income'"


@pytest.mark.parametrize(
    "door",
    [
        lambda X: rg.select(X, K),
        lambda X: rg.select(X, K, lam="cv"),
        lambda X: rg.cross_validate(rg.scan(X, folds=4), K),
        lambda X: rg.RGCSS(K).fit(X),
        lambda X: rg.RGCSS(K, lam="cv").fit(X),
        lambda X: rg.RGCSS(K).fit(X[:8]),
        lambda X: rg.GCSS(K).fit(X),
    ],
)
def test_columns_of_very_different_size_are_said(door):
    with pytest.warns(UserWarning, match=r"column 3 is more than 100 times as large as 9 of 10 columns.*scale='std'"):
        door(mixed())


def test_the_name_of_the_largest_column_is_said():
    frame = pd.DataFrame(mixed(), columns=[f"x{i}" if i != 3 else "income" for i in range(10)])
    with pytest.warns(UserWarning, match="column 'income' is more than 100 times"):
        rg.select(frame, K)


@pytest.mark.parametrize(
    "prepared", [{"scale": "std"}, {"center": True}, {"scale": 1.0}, {"center": True, "scale": True}]
)
def test_what_is_centred_or_scaled_is_not_warned_of(prepared):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rg.select(mixed(), K, **prepared)


def test_rare_things_are_not_small_ones():
    """Pixels at the edge and rare genes are zero in most rows, and as large as others where they are not."""
    rng = np.random.default_rng(0)
    share = np.logspace(-3, 0, 200)
    counts = rng.poisson(3.0, size=(3000, 200)) * (rng.random((3000, 200)) < share)
    pixels = 255.0 * (rng.random((3000, 200)) < share)
    constant = np.c_[1e6 * np.ones(3000), rng.normal(size=(3000, 20))]
    for X in (counts, pixels, constant, rng.normal(size=(3000, 30)), np.zeros((5, 3)), np.ones((9, 1))):
        assert size_remark(rg.Moments.of(X), Problem()) is None
    standard = rng.normal(size=(3000, 20))
    income = rng.lognormal(10, 1, size=3000)
    assert size_remark(rg.Moments.of(np.c_[standard - standard.mean(axis=0), income]), Problem())


@pytest.mark.parametrize(
    ("file", "key", "warned"),
    [
        ("onlinenews.npz", "X", True),
        ("mnist.npz", "test", False),
        ("isolet.npz", "train", False),
        ("yaleb32.npz", "X", False),
        ("orl32.npz", "X", False),
        ("orl64.npz", "X", False),
        ("coil20_32.npz", "X", False),
        ("coil20.npz", "X", False),
    ],
)
def test_on_real_data(file, key, warned, data_dir):
    X = np.load(data_dir / file)[key]
    moments = rg.Moments.of(X.reshape(len(X), -1)[:, :1024])
    assert (size_remark(moments, Problem()) is not None) == warned


# Pickles.


def test_a_pickled_estimator_leaves_folds_and_groups_behind():
    X = rows(n=40, m=300)
    plain = rg.RGCSS(K).fit(X)
    tuned = rg.RGCSS(K, lam="cv").fit(X)
    grouped = rg.RGCSS(K).fit_moments(rg.scan(X, groups=30))
    size = len(pickle.dumps(plain))
    for e in (tuned, grouped):
        assert len(pickle.dumps(e)) < 2 * size  # and without five folds of one such matrix each
        again = pickle.loads(pickle.dumps(e))
        assert again.moments_.folds == again.moments_.groups == ()
        np.testing.assert_array_equal(again.transform(X), e.transform(X))
        np.testing.assert_array_equal(again.inverse_transform(again.transform(X)), e.inverse_transform(e.transform(X)))
        assert again.score(X) == e.score(X)
        np.testing.assert_array_equal(again.bound_path_, e.bound_path_)
    assert len(tuned.moments_.folds) == 5
    with pytest.raises(ValueError, match="at least 2 folds"):
        rg.cross_validate(pickle.loads(pickle.dumps(tuned)).moments_, K)


def test_folds_and_groups_are_pickled_where_they_are_asked_for():
    X = rows(n=40, m=300)
    tuned = pickle.loads(pickle.dumps(rg.RGCSS(K, lam="cv", pickle_parts=True).fit(X)))
    assert len(tuned.moments_.folds) == 5
    later = rg.RGCSS(K, lam="cv").fit(X).set_params(pickle_parts=True)
    assert len(pickle.loads(pickle.dumps(later)).moments_.folds) == 5


def test_batches_go_on_after_a_pickle_without_folds():
    X = rows(m=300)
    half = pickle.loads(pickle.dumps(rg.RGCSS(K).partial_fit(X[:150])))
    np.testing.assert_allclose(half.partial_fit(X[150:]).loss_path_, rg.RGCSS(K).fit(X).loss_path_)
    folded = pickle.loads(pickle.dumps(rg.RGCSS(K, lam="cv").partial_fit(X[:150])))
    with pytest.raises(ValueError, match=r"in 5 folds; they are in 0.*pickle_parts=True"):
        folded.partial_fit(X[150:])
    kept = pickle.loads(pickle.dumps(rg.RGCSS(K, lam="cv", pickle_parts=True).partial_fit(X[:150])))
    whole = rg.RGCSS(K, lam="cv").fit(X)
    np.testing.assert_allclose(kept.partial_fit(X[150:]).loss_path_, whole.loss_path_)


def test_a_report_of_a_pickled_estimator(tmp_path):
    again = pickle.loads(pickle.dumps(rg.RGCSS(K, lam="cv").fit(FRAME)))
    assert rg.report(again, tmp_path / "r.html").sentence


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"k": np.int64(2)}, {"k": 2}),
        ({"explained": np.float64(0.5)}, {"explained": 0.5}),
        ({"k": K, "lam": 0.0}, {"lam": 0.0}),
        ({"k": K, "lam": np.float32(2)}, {"lam": 2.0}),
        ({"k": K, "include": np.array([1])}, {"include": [1]}),
        ({"k": K, "center": np.True_, "scale": np.True_}, {"center": True, "scale": True}),
        ({"k": K, "scale": np.float64(3)}, {"scale": 3.0}),
        ({"k": K, "center": A.mean(axis=0)}, {"center": "given values"}),
    ],
)
def test_numbers_of_numpy_are_asked_and_kept_as_those_of_python(tmp_path, given, kept):
    rg.select(A, **given).save(tmp_path / "r.json")
    assert rg.load_result(tmp_path / "r.json").provenance["asked"].items() >= kept.items()


def test_lambda_0_is_part_of_what_was_asked_at_every_door(tmp_path):
    said = [
        rg.select(A, K, lam=0.0).result(),
        rg.RGCSS(np.int64(K), lam=0.0).fit(A).result(),
        answer(rg.Moments.of(A), Question(k=K, lam=0.0), {}, say=str),
    ]
    assert [result.provenance["asked"]["lam"] for result in said] == [0.0] * 3
    assert said[1].provenance["asked"]["n_features_to_select"] == K
    assert not any("effort" in result.provenance["asked"] for result in said)

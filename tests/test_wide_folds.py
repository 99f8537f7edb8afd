"""Fewer rows than columns, in folds: cross-validation from the rows themselves says what moments say."""

import re
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import zarr
from sklearn.model_selection import KFold

import rgcss_dask as rg
from rgcss_dask.core.hashing import fold_of
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.validation import validate
from rgcss_dask.core.wide import Rows
from rgcss_dask.scanning.given import ROW_COPIES
from rgcss_dask.workflow import Question, answer, open_moments

M, N, FOLDS = 60, 150, 5
NAMES = tuple(f"c{i}" for i in range(N))
APART = fold_of(np.arange(M, dtype=np.uint64), FOLDS, seed=0)


def data(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(M, 12)) @ rng.normal(size=(12, N)) + 0.3 * rng.normal(size=(M, N)) + rng.normal(size=N)


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize(("center", "scale"), [(False, None), (True, "std"), (np.full(N, 0.5), 2.0)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_and_moments_choose_alike(objective, center, scale, weighted):
    X = data()
    w = np.random.default_rng(1).integers(1, 4, M) if weighted else None
    rows = Rows.of(X, w, apart=APART)
    moments = rg.scan(X, weights=w, folds=FOLDS, progress=False)
    problem = Problem(objective=objective, center=center, scale=scale, exclude=(3,))
    grid = np.geomspace(1e-2, 10, 4)
    few, many = (validate(one, 8, problem, lam_per_row=grid, one_se=True) for one in (rows, moments))
    np.testing.assert_array_equal(few.fold_columns, many.fold_columns)
    np.testing.assert_allclose(few.held_out_loss, many.held_out_loss, rtol=1e-9)
    np.testing.assert_allclose(few.start, many.start, rtol=1e-12)
    assert (few.lam, few.k) == (pytest.approx(many.lam), many.k)
    np.testing.assert_array_equal(few.columns, many.columns)
    np.testing.assert_allclose(few.loss, many.loss, rtol=1e-9)


def test_a_held_out_loss_is_that_of_the_rows():
    """Brute force: centred by the other rows, weights learnt on them, the error on these."""
    X, fold = data(2), 2
    found = validate(Rows.of(X, apart=APART), 6, Problem(center=True), lams=[3.0])
    rest, test = X[APART != fold], X[APART == fold]
    A, B = rest - rest.mean(axis=0), test - rest.mean(axis=0)
    S = found.fold_columns[fold, 0]
    W = np.linalg.solve(A[:, S].T @ A[:, S] + 3.0 * np.eye(6), A[:, S].T @ A)
    errors = np.sum((B - B[:, S] @ W) ** 2, axis=0)
    assert found.loss_all[0, 5, fold] == pytest.approx(errors.sum(), rel=1e-9)
    assert found.loss_unselected[0, 5, fold] == pytest.approx(np.delete(errors, S).sum(), rel=1e-9)


@pytest.fixture
def no_gram(monkeypatch):
    """Fail where anything n x n is made of rows."""

    def refuse(*given, **options):
        raise AssertionError("the Gram of all columns was formed")

    monkeypatch.setattr(Rows, "moments", refuse)
    monkeypatch.setattr("rgcss_dask.scanning.given.scan", refuse)
    monkeypatch.setattr("rgcss_dask.estimator.selector.scan", refuse)
    monkeypatch.setattr("rgcss_dask.estimator.in_memory.scan", refuse)
    monkeypatch.setattr("rgcss_dask.workflow.scan", refuse)


def test_every_door_chooses_lambda_from_the_rows(no_gram, tmp_path):
    X = data(3)
    moments = rg.Moments.of(X)
    folds = tuple(rg.Moments.of(X[fold_of(np.arange(M, dtype=np.uint64), FOLDS, 0) == i]) for i in range(FOLDS))
    want = rg.cross_validate(type(moments)(**{**vars(moments), "folds": folds}), 7, center=True, fixed_k=True)
    picked = rg.select(X, 7, lam="cv", center=True)
    fitted = rg.RGCSS(7, lam="cv", center=True).fit(X)
    np.save(tmp_path / "x.npy", X)
    source, provenance = open_moments(str(tmp_path / "x.npy"), folds=FOLDS, say=lambda said: None)
    told = answer(source, Question(k=7, lam="cv", center=True), provenance, lambda said: None)
    for found in (picked, fitted.selection_, told.selection):
        np.testing.assert_array_equal(found.columns, want.columns)
        assert found.lam == pytest.approx(
            want.lam, rel=0.1
        )  # the grid of many columns is placed by about their spectrum
    assert fitted.cv_results_.k == 7
    assert told.tuning.folds == FOLDS
    A = X - X.mean(axis=0)
    C = A[:, fitted.selected_]
    W = np.linalg.solve(C.T @ C + fitted.lam_ * np.eye(7), C.T @ A)
    np.testing.assert_allclose(fitted.coef_, W, rtol=1e-7, atol=1e-9)
    assert fitted.score(X) == pytest.approx(picked.explained[-1])


def test_an_estimator_chooses_the_count_and_takes_a_splitter(no_gram):
    X = data(4)
    fitted = rg.RGCSS("cv", lam=0.0, cv=KFold(4)).fit(X)
    assert len(fitted.cv_results_.start) == 4
    W = np.linalg.lstsq(X[:, fitted.selected_], X, rcond=None)[0]
    np.testing.assert_allclose(X[:, fitted.selected_] @ fitted.coef_, X[:, fitted.selected_] @ W, atol=1e-8)
    share = rg.RGCSS(0.6, lam="cv").fit(X)
    assert share.selection_.explained[-1] >= 0.6


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize(
    "aims", [{}, {"column_weights": np.arange(N) % 3}, {"costs": 1.0 + np.arange(N) % 2, "budget": 7}]
)
def test_few_rows_are_swapped_as_their_moments_are(no_gram, objective, aims):
    X = data(5)
    asked = {"lam": 0.5, "center": True, "objective": objective, **aims}
    few = rg.select(X, 5, refine=True, **asked)
    greedy = rg.select(X, 5, **asked)
    many = rg.select(rg.Moments.of(X), 5, refine=True, **asked)
    np.testing.assert_array_equal(few.columns, many.columns)
    assert few.last_loss == pytest.approx(many.last_loss)
    assert few.last_loss <= greedy.last_loss
    assert aims or few.last_loss < greedy.last_loss
    assert rg.refine(greedy).after == pytest.approx(few.last_loss)


@pytest.mark.parametrize(
    "asked", [{"center": True, "scale": "std"}, {"lam_per_row": 0.1}, {"objective": "all", "include": [3]}]
)
def test_few_rows_are_resampled_as_their_moments_are(no_gram, asked):
    X = data(7)
    few = rg.stability(X, 5, resamples=6, seed=2, **asked)
    many = rg.stability(rg.scan(X, groups=len(X)), 5, resamples=6, seed=2, **asked)
    np.testing.assert_array_equal(few.picks, many.picks)
    assert few.lam == many.lam
    assert f"{len(X)} row groups" in str(few)


def test_many_rows_are_not_resampled_without_groups():
    with pytest.raises(
        ValueError, match=r"moments with groups.*Got 50 rows of 4 columns\. Give scan\(source, groups=100\)"
    ):
        rg.stability(np.ones((50, 4)), 2)
    with pytest.raises(ValueError, match="column_groups= are not given"):
        rg.stability(data(7), 2, column_groups=np.arange(N))


def test_an_estimator_swaps_few_rows(no_gram):
    X = data(6)
    fitted = rg.RGCSS(5, center=True, refine=True, effort=1).fit(X)
    picked = rg.select(X, 5, center=True, refine=True, effort=1)
    np.testing.assert_array_equal(fitted.selected_, picked.columns)
    A = X - X.mean(axis=0)
    C = A[:, fitted.selected_]
    np.testing.assert_allclose(fitted.coef_, np.linalg.solve(C.T @ C + np.eye(5), C.T @ A), rtol=1e-7, atol=1e-9)


def test_what_reads_the_whole_gram_of_few_rows_still_may():
    X = data(7)[:20, :25]
    groups = [[0, 1], [2, 3]]
    proved = rg.select(X, 2, center=True, exact=True)
    assert proved.certificate is not None
    assert proved.last_loss == pytest.approx(rg.select(rg.Moments.of(X), 2, center=True, exact=True).last_loss)
    few, many = (rg.select(one, 4, center=True, refine=True, column_groups=groups) for one in (X, rg.Moments.of(X)))
    np.testing.assert_array_equal(few.columns, many.columns)


def test_gaps_and_too_many_folds(no_gram):
    X = data(5)
    X[7, 3] = np.nan
    kept = np.arange(M) != 7
    found = rg.RGCSS(5, lam="cv", nan="drop").fit(X)
    want = validate(Rows.of(X[kept], apart=APART[kept]), 5, Problem(), fixed_k=True)
    np.testing.assert_array_equal(found.selected_, want.columns)
    with pytest.raises(ValueError, match="61 folds need at least 61 rows"):
        rg.RGCSS(5, lam="cv", cv=61).fit(data())


@pytest.mark.parametrize("door", [lambda X: rg.select(X, 3), lambda X: rg.RGCSS(3).fit(X)])
def test_sparse_rows_that_do_not_fit_when_dense_are_left_to_the_pass(door, monkeypatch):
    def asked(*given, **options):
        raise MemoryError("the pass")

    X = scipy.sparse.random_array((M, N), density=0.05, format="csr", rng=np.random.default_rng(0))
    for module in ("scanning.given", "estimator.in_memory"):
        monkeypatch.setattr(f"rgcss_dask.{module}.scan", asked)
    monkeypatch.setattr("rgcss_dask.scanning.given.default_budget", lambda: ROW_COPIES * 8 * M * N)
    door(X)
    monkeypatch.setattr("rgcss_dask.scanning.given.default_budget", lambda: ROW_COPIES * 8 * M * N - 1)
    with pytest.raises(MemoryError, match="the pass"):
        door(X)


def test_moments_formed_after_all_have_the_folds():
    X = data(6)
    made, want = Rows.of(X, apart=APART).moments(), rg.scan(X, folds=FOLDS, progress=False)
    assert len(made.folds) == FOLDS
    for mine, theirs in zip(made.folds, want.folds, strict=True):
        np.testing.assert_allclose(mine.gram(), theirs.gram(), rtol=1e-12, atol=1e-12)


def test_every_door_swaps_from_the_rows(no_gram, tmp_path):
    X = data(5)
    G = (X - X.mean(axis=0)).T @ (X - X.mean(axis=0))
    want = rg.refine(rg.select(G, 7), G)
    assert want.swaps > 0
    picked = rg.select(X, 7, center=True, refine=True)
    again = rg.refine(rg.select(X, 7, center=True))
    fitted = rg.RGCSS(7, center=True, refine=True).fit(X)
    zarr.create_array(tmp_path / "a.zarr", data=X, chunks=(20, X.shape[1]))
    source, provenance = open_moments(str(tmp_path / "a.zarr"), say=lambda words: None)
    told = answer(source, Question(k=7, center=True, lam=1.0, refine=True), provenance, say=lambda words: None)
    for columns, loss in (
        (picked.columns, picked.last_loss),
        (again.columns, again.after),
        (fitted.selected_, fitted.loss_path_[-1]),
        (told.selection.columns, told.selection.last_loss),
    ):
        assert list(columns) == list(want.columns)
        assert loss == pytest.approx(want.after, rel=1e-9)
    others, mean = np.setdiff1d(np.arange(N), fitted.selected_), X.mean(axis=0)
    wanted = (X - mean)[:, fitted.selected_] @ fitted.coef_ + mean
    rebuilt = fitted.inverse_transform(fitted.transform(X))
    np.testing.assert_allclose(rebuilt[:, others], wanted[:, others], atol=1e-8)
    wider = rg.refine(rg.select(X, 7, center=True), effort=3)
    assert wider.after <= want.after * (1 + 1e-9)
    with pytest.raises(ValueError, match="at most 500 columns"):
        rg.refine(rg.select(np.tile(X, 9), 3), exact=True)


SCRIPT = """
import re, sys
from pathlib import Path
import numpy as np
import rgcss_dask as rg
rng = np.random.default_rng(0)
m, n = int(sys.argv[1]), int(sys.argv[2])
X = rng.normal(size=(m, 20)).astype("f4") @ rng.normal(size=(20, n)).astype("f4") + rng.normal(size=(m, n)).astype("f4")
rg.RGCSS(20, lam="cv").fit(X)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


def peak(m, n):
    ran = subprocess.run([sys.executable, "-c", SCRIPT, str(m), str(n)], capture_output=True, text=True, check=True)
    return int(re.search(r"\d+", ran.stdout)[0])


@pytest.mark.integration
@pytest.mark.parametrize(("m", "n", "most"), [(500, 8_000, 600 * 10**6)])
def test_memory_of_a_cross_validation_of_few_rows(m, n, most):
    """The whole process, the interpreter and the rows counted; one matrix of 8,000 columns takes 512 MB."""
    assert peak(m, n) <= most

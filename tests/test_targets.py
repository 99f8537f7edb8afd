"""RGCSS(target="y"): the columns of X that carry y best, in one pass over both."""

import dask.array as da
import numpy as np
import oracle
import pandas as pd
import pytest
import scipy.sparse
import zarr
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rgcss_dask as rg
from rgcss_dask import RGCSS, Aims


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)) @ rng.standard_normal((4, 8)) + 0.5 * rng.standard_normal((300, 8)) + 2.0
    y = X[:, 3] - 2.0 * X[:, 6] + 0.3 * rng.standard_normal(300)
    return X, y, np.digitize(y, [-6.0, 0.0])


def by_hand(X, Y, k, lam, weights):
    """Greedy from the rows: the columns of X that carry Y."""
    A = np.hstack([X, Y])
    n, w = X.shape[1], np.concatenate([np.zeros(X.shape[1]), weights])
    picked = []
    for _ in range(k):
        free = [j for j in range(n) if j not in picked]
        after = [oracle.loss_of_targets(A, A, [*picked, j], np.full(n, lam), w) for j in free]
        picked.append(free[int(np.argmin(after))])
    return picked, 1 - min(after) / oracle.loss_of_targets(A, A, [], np.full(n, lam), w)


def centred(values):
    return values - values.mean(axis=0)


@pytest.mark.parametrize("lam", [0.0, 1.0, 100.0])
def test_numbers_are_carried_best(data, lam):
    X, y, _ = data
    picked, score = by_hand(centred(X), centred(y[:, None]), 3, lam, [1.0])
    e = RGCSS(3, lam=lam, center=True, target="y", refine=False).fit(X, y)
    assert e.selected_.tolist() == picked
    assert e.score(X, y) == pytest.approx(score, rel=1e-9)
    assert e.coef_.shape == (3, 8)
    assert e.n_features_in_ == 8
    assert e.transform(X).shape == (300, 3)
    assert e.inverse_transform(e.transform(X)).shape == X.shape


@pytest.mark.parametrize("scale", [None, "std"])
def test_classes_are_whitened_indicators(data, scale):
    X, _, labels = data
    Y = (labels[:, None] == np.unique(labels)).astype(float)
    U = np.linalg.svd(centred(Y), full_matrices=False)
    whitened = U[0][:, U[1] > 1e-9]
    A = centred(X) / (X.std(axis=0) if scale else 1.0)
    picked, score = by_hand(A, whitened, 4, 0.0, np.ones(whitened.shape[1]))
    for y in (labels, labels.astype(str), pd.Series(labels)):
        e = RGCSS(4, lam=0.0, center=True, scale=scale, target="y", refine=False).fit(X, y)
        assert e.selected_.tolist() == picked
        assert e.score(X, y) == pytest.approx(score, rel=1e-8)


def test_every_kind_of_rows_picks_the_same(data, tmp_path):
    X, y, labels = data
    stored = zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(50, 8))
    zarr.create_array(tmp_path / "y.zarr", data=y, chunks=(70,))
    zarr.create_array(tmp_path / "c.zarr", data=labels, chunks=(70,))
    lazy = da.from_array(X, chunks=(90, 3))
    for target, path in ((y, "y.zarr"), (labels, "c.zarr")):
        expected = RGCSS(3, target="y", center=True).fit(X, target)
        for rows, given in [
            (stored, target),
            (tmp_path / "x.zarr", tmp_path / path),
            (lazy, target),
            (lazy, da.from_array(target, chunks=70)),
            (X, da.from_array(target, chunks=70)),
            (scipy.sparse.csr_array(X), target),
            (pd.DataFrame(X, columns=list("abcdefgh")), target),
        ]:
            found = RGCSS(3, target="y", center=True).fit(rows, given)
            assert found.selected_.tolist() == expected.selected_.tolist()
            np.testing.assert_allclose(found.loss_path_, expected.loss_path_, rtol=1e-9)


def test_both_is_between_and_several_numbers_count(data):
    X, y, _ = data
    Y = np.column_stack([y, X[:, 0] * 3])
    both = RGCSS(3, target="both", center=True, scale="std").fit(X, Y)
    half = RGCSS(3, target="both", center=True, scale="std", aims=Aims(targets=[7], target_share=0.5)).fit(X, Y)
    assert 7 not in half.selected_
    assert 0 < both.score(X, Y) < 1
    w = both.selection_.aims.column_weights
    np.testing.assert_allclose(w[:8].sum(), w[8:].sum(), rtol=1e-9)


def test_it_goes_with_folds_names_aims_and_pipelines(data):
    X, y, labels = data
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    aims = Aims(column_weights={"a": 2.0}, penalties={"b": 3.0}, limits=[(["d", "g"], 1)])
    e = RGCSS(3, lam="cv", target="y", aims=aims, center=True, include=["c"], refine=True).fit(frame, y)
    assert e.selected_[0] == 2
    assert len({3, 6} & set(e.selected_)) <= 1
    assert e.get_feature_names_out().tolist() == [frame.columns[i] for i in sorted(e.selected_)]
    pipe = make_pipeline(StandardScaler(), RGCSS(3, target="y"))
    assert pipe.fit(X, labels).transform(X).shape == (300, 3)
    assert clone(e).aims.limits == aims.limits
    assert 0.5 < RGCSS(0.9, target="y", center=True).fit(X, y).score(X, y) <= 1
    assert RGCSS(2, aims=Aims(noise="rows"), center=True).fit(X).selection_.objective == "all"


def test_real_classes():
    X, y = load_breast_cancer(return_X_y=True)
    e = RGCSS(5, lam=0.0, target="y", center=True, scale="std").fit(X, y)
    chance = RGCSS(5, lam=0.0, center=True, scale="std").fit(X)
    joint = np.column_stack([X[:, chance.selected_], np.ones(len(X))])
    left = np.linalg.lstsq(joint, y.astype(float), rcond=None)[1][0]
    assert e.score(X, y) > 1 - left / np.sum((y - y.mean()) ** 2)


@pytest.mark.parametrize(
    ("options", "y", "words"),
    [
        ({"target": "y"}, None, r"call fit\(X, y\)"),
        ({"target": "y"}, np.arange(3.0), "one entry per row of X, 300"),
        ({"target": "y"}, np.r_[np.zeros(299, int), 1], "two rows or more; 1 has one"),
        ({"target": "y"}, np.zeros(300, int), "two classes or more"),
        ({"target": "y"}, np.r_[np.nan, np.arange(299.0)], "row 0"),
        ({"target": "z"}, np.arange(300.0), "target must be None, 'y' or 'both'"),
        ({"aims": {"targets": [1]}}, None, "aims must be None or Aims"),
    ],
)
def test_what_cannot_be_carried_is_refused(data, options, y, words):
    with pytest.raises(ValueError, match=words):
        RGCSS(2, **options).fit(data[0], y)


def test_ways_to_fit_without_y_are_refused(data):
    X, y, labels = data
    with pytest.raises(ValueError, match=r"Use fit\(X, y\)"):
        RGCSS(2, target="y").fit_moments(rg.scan(X, progress=False))
    with pytest.raises(ValueError, match=r"Use fit\(X, y\)"):
        RGCSS(2, target="y").partial_fit(X, y)
    e = RGCSS(2, target="y").fit(X, labels)
    with pytest.raises(ValueError, match="also has 7"):
        e.score(X, np.full(300, 7))

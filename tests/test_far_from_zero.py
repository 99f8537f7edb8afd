"""Whole numbers far from zero: their means are no float64 numbers, and nothing that is centred may show it."""

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.core import evaluate
from rgcss_dask.core.result import make_result

FAR = 2**60  # float64 numbers are 256 apart there


def rows(seed, m=60, n=4):
    rng = np.random.default_rng(seed)
    mixed = 100 * rng.standard_normal((m, 2)) @ rng.standard_normal((2, n)) + 30 * rng.standard_normal((m, n))
    return np.rint(mixed).astype(np.int64)


def answers(X, other, scale, objective):
    """Everything that depends on the means, for these rows and others."""
    how = {"center": True, "scale": scale, "objective": objective}
    moments = rg.scan(X, folds=3, groups=5)
    picked = rg.select(moments, 2, lam=3.0, **how)
    found = rg.cross_validate(moments, 2, lams=[3.0, 100.0], **how)
    estimators = [rg.RGCSS(2, lam=3.0, **how).fit(part) for part in (X, X[:3])]
    by_parts = rg.RGCSS(2, lam=3.0, **how).partial_fit(X[: len(X) // 2]).partial_fit(X[len(X) // 2 :])
    return {
        "loss": picked.loss,
        "weights": picked.weights(moments),
        "weights on others": picked.weights(rg.Moments.of(other)),
        "loss of the weights": evaluate.loss_on(
            picked.base(moments).core(), picked.weights(moments), picked.columns, objective
        ),
        "refined": rg.refine(picked, moments).before,
        "condition": picked.conditioning(rg.Moments.of(other)).value,
        "held out": found.held_out_loss,
        "result": make_result(moments, picked).column_loss,
        "scores": [e.score(other) for e in (*estimators, by_parts)],
        "score of fewer rows": estimators[1].score(X[:3]),
    }


@pytest.mark.parametrize("far", [2**53 + 1, FAR, -FAR - 77])
@pytest.mark.parametrize("scale", [None, "std"])
@pytest.mark.parametrize("objective", ["unselected", "all"])
def test_centred_answers_do_not_depend_on_the_place(far, scale, objective):
    X, other = rows(0), rows(1, 30) + 7
    near = answers(X, other, scale, objective)
    for name, value in answers(X + far, other + far, scale, objective).items():
        np.testing.assert_allclose(value, near[name], rtol=1e-9, err_msg=name)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(-(2**62), 2**62), st.sampled_from([None, "std"]))
def test_any_place(seed, far, scale):
    X, other = rows(seed, 20), rows(seed + 1, 20) + 50
    near = answers(X, other, scale, "unselected")
    for name, value in answers(X + far, other + far, scale, "unselected").items():
        np.testing.assert_allclose(value, near[name], rtol=1e-7, atol=1e-9, err_msg=name)


def test_scores_of_what_is_stored(tmp_path):
    X = rows(0)
    zarr.create_array(tmp_path / "a.zarr", data=X + FAR, chunks=(20, 4))
    e = rg.RGCSS(2, center=True).fit(tmp_path / "a.zarr")
    assert e.score(tmp_path / "a.zarr") == pytest.approx(rg.RGCSS(2, center=True).fit(X).score(X), rel=1e-12)


def test_a_result_keeps_what_float64_rounds_off(tmp_path):
    moments = rg.scan(rows(0) + FAR)
    picked = rg.select(moments, 2, center=True)
    save_result(make_result(moments, picked), tmp_path / "r.json")
    again = rg.load_result(tmp_path / "r.json").selection
    assert np.array_equal(again.weights(moments), picked.weights(moments))


def test_means_that_float64_holds_have_no_rest(tmp_path):
    for X in (rows(0), rows(0) / 7, rows(0).astype(np.int8)):
        moments = rg.scan(X)
        assert moments.mean_rest is None
        picked = rg.select(moments, 2, center=True)
        save_result(make_result(moments, picked), tmp_path / "r.json")
        assert "mu_rest" not in (tmp_path / "r.json").read_text()

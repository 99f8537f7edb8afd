"""A result comes back from its file as it was, and a file that is something else is refused."""

import json
from dataclasses import fields

import numpy as np
import pytest

from rgcss_dask import Moments, load_result, select
from rgcss_dask.core import evaluate
from rgcss_dask.storage.result import Trust, Tuning, make_result, save_result


@pytest.fixture
def result():
    A = np.random.default_rng(0).normal(size=(80, 70)) @ np.diag(np.linspace(0.1, 2, 70)) + 3
    moments = Moments.of(A, names=[f"column {i}" for i in range(70)])
    picked = select(moments, 5, lam=2.0, center=True, scale="std")
    tuning = Tuning(np.array([1.0, 2.0]), np.ones((2, 5)), np.zeros((2, 5)), 4, 2.0, 5, "words")
    trust = Trust(np.linspace(0, 1, 70), 0.5, 0.1, 100, "words")
    return make_result(moments, picked, provenance={"address": "here"}, tuning=tuning, trust=trust)


def equal(a, b):
    if hasattr(a, "__dataclass_fields__"):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def test_every_bit_comes_back(result, tmp_path):
    save_result(result, tmp_path / "r.json")
    back = load_result(tmp_path / "r.json")
    assert equal(back, result)
    save_result(result, "memory://results/r.json")
    assert equal(load_result("memory://results/r.json"), result)


def test_the_numbers_are_those_of_the_selection(result):
    picked = result.selection
    shares = 1 - result.column_loss / result.column_norm
    assert np.all(shares <= 1)
    assert np.delete(result.column_loss, picked.columns).sum() == pytest.approx(picked.loss[-1])
    assert result.spectrum.sum() == pytest.approx(picked.start)
    assert np.all(result.paper_bound <= picked.bound)
    assert np.all(picked.bound <= picked.loss)
    np.testing.assert_allclose(
        result.components_explained,
        evaluate.explained_share(picked.start - np.cumsum(result.spectrum)[:5], picked.start),
    )
    assert result.label(picked.columns[0]) == picked.names[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"kind": "x", "format": 1}'])
def test_something_else_is_refused(text, tmp_path):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a result|has kind"):
        load_result(tmp_path / "r.json")


def test_a_result_of_another_format_is_refused(result, tmp_path):
    save_result(result, tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(ValueError, match=r"format 99; this version reads .* format 1"):
        load_result(tmp_path / "r.json")


def test_no_result_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="Make one with `rgcss select"):
        load_result(tmp_path / "r.json")

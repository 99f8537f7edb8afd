"""Selections, swaps and cross-validations answer the same questions by the same names, and print in few characters."""

import copy
import pickle
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import rgcss_dask as rg
from rgcss_dask.core.result import Trust, Tuning
from rgcss_dask.core.wide import Rows
from rgcss_dask.core.words import counted, listed, percent, printable

mpl.use("Agg")
WIDE = 784


def table(n=12, m=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(m, 4)) @ rng.normal(size=(4, n)) + 0.3 * rng.normal(size=(m, n)) + 2.0


@pytest.fixture(scope="module")
def moments():
    return rg.scan(pd.DataFrame(table()).rename(columns="column {}".format), folds=5, groups=10)


@pytest.fixture(scope="module")
def answers(moments):
    picked = rg.select(moments, 4, center=True)
    return {
        "selection": picked,
        "refinement": rg.refine(picked, moments),
        "cross-validation": rg.cross_validate(moments, 4, center=True),
    }


KINDS = ("selection", "refinement", "cross-validation")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_questions_by_the_same_names(answers, moments, kind):
    found = answers[kind]
    k = found.k
    assert len(found) == k == len(found.columns) == len(found.loss) == len(found.explained)
    assert found.names == tuple(moments.names[j] for j in found.columns)
    picks = list(found)
    assert [pick.column for pick in picks] == found.columns.tolist()
    assert [pick.name for pick in picks] == list(found.names)
    assert picks[-1].explained == found.explained[-1]
    assert picks[0].loss == found.loss[0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_prints_as_two_lines(answers, kind):
    lines = str(answers[kind]).split("\n")
    assert len(lines) == 2
    assert all(lines)
    assert repr(answers[kind]) == str(answers[kind])


def test_an_answer_without_picks_is_still_one():
    nothing = rg.Moments.of(np.zeros((5, 2)))
    with pytest.warns(UserWarning, match="numerical rank"):
        found = rg.select(nothing, 1, lam=0.0)
    assert len(found) == 0
    assert found
    assert str(found) == "No column of 2 was picked.\nNothing is picked."
    assert "<table>" in found._repr_html_()


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_the_picks(answers, kind):
    found = answers[kind]
    frame = found.to_frame()
    assert frame["column"].tolist() == found.columns.tolist()
    assert frame["name"].tolist() == list(found.names)
    np.testing.assert_array_equal(frame["explained"], found.explained)
    np.testing.assert_array_equal(frame["loss"], found.loss)
    assert frame.index.tolist() == list(range(1, found.k + 1))


def test_a_table_has_bounds_and_held_out_shares_where_they_are_known(answers, moments):
    found = answers["cross-validation"]
    assert found.to_frame()["held_out_explained"].between(0, 1).all()
    bounded = rg.select(moments, 4, bound=True)
    assert (bounded.to_frame()["explained_at_most"] >= bounded.explained).all()
    assert "name" not in rg.select(rg.Moments.of(table()), 2).to_frame()


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_of_the_picks(answers, kind):
    found = answers[kind]
    axes = found.plot()
    curves = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    np.testing.assert_array_equal(curves["picked columns"], [0.0, *found.explained])
    for label, shares in found.compared.items():
        np.testing.assert_array_equal(curves[label], [0.0, *shares])
    assert axes.get_title(loc="left") == "of the variation explained"
    assert found.plot(ax=axes) is axes
    mpl.pyplot.close("all")


@pytest.mark.parametrize(
    ("method", "package", "extra"), [("to_frame", "pandas", "dataframe"), ("plot", "matplotlib", "report")]
)
def test_an_extra_that_is_not_there_is_named(answers, monkeypatch, method, package, extra):
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{method}\(\) needs {package}.*rgcss-dask\[{extra}\]"):
        getattr(answers["selection"], method)()


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_escaped_in_a_notebook(kind):
    evil = [f"<script>alert({i})</script>\u202e\x1b[31m&" for i in range(12)]
    moments = rg.scan(pd.DataFrame(table(), columns=evil), folds=5)
    picked = rg.select(moments, 3)
    found = {
        "selection": picked,
        "refinement": rg.refine(picked, moments),
        "cross-validation": rg.cross_validate(moments, 3),
    }[kind]
    page = found._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    for text in (page, repr(found)):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_a_long_table_says_how_much_it_leaves_out():
    found = rg.select(rg.Moments.of(table(n=60)), 30)
    assert "10 more" in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 22


def test_pickles_and_copies_keep_the_answer_without_what_it_was_picked_from(answers):
    for found in answers.values():
        again = pickle.loads(pickle.dumps(found))
        assert str(again) == str(found)
        assert len(pickle.dumps(found)) < 20_000
        assert copy.copy(found).columns.tolist() == found.columns.tolist()


def test_singular_and_plural():
    G = np.diag([3.0, 2.0, 1.0])
    assert rg.select(G, 1).sentence.startswith("1 of 3 columns keeps 50.0 % of the squared norm")
    assert "no 1 column can keep more" in rg.select(G, 1, bound=True).sentence
    assert rg.select(np.array([[2.0]]), 1).sentence.startswith("1 of 1 column keeps")
    assert counted(1, "swap") == "1 swap"
    assert counted(2000, "swap") == "2,000 swaps"


def test_variation_only_about_the_means(moments):
    assert "of the variation" in rg.select(moments, 2, center=True).sentence
    assert "of the squared norm" in rg.select(moments, 2).sentence
    assert "of the squared norm" in rg.select(moments, 2, scale="std").sentence
    assert "of the squared norm" in rg.select(moments.gram(center=True), 2).sentence


def test_a_share_is_whole_only_if_it_is():
    assert percent(1.0) == "100.0 %"
    assert percent(0.99999) == "more than 99.9 %"
    assert percent(0.999999, 2) == "more than 99.99 %"
    assert percent(0.801) == "80.1 %"


def test_lists_of_names_are_short():
    assert listed(["a", "b"]) == "a, b"
    assert len(listed(f"a rather long name of column {i}" for i in range(500))) < 200
    assert listed(range(1000)).endswith("more)")
    assert printable("a\nb\x1b\u202e") == r"a\nb\x1b\u202e"
    assert printable("ä 温度 \ud800") == "ä 温度 \\ud800"


def test_the_most_columns_that_were_tried_are_said(moments):
    found = rg.cross_validate(moments, 3, center=True)
    assert found.k == 3
    assert found.at_the_cap
    assert "3 columns (the maximum tried)" in str(found)
    assert "No more than 3 columns were tried; more columns may be better" in found.words
    given = rg.cross_validate(moments, 3, center=True, fixed_k=True)
    assert not given.at_the_cap
    assert "most that" not in str(given)
    assert not rg.cross_validate(moments, 12, center=True).at_the_cap


def test_lambda_has_the_same_digits_everywhere(moments):
    found = rg.cross_validate(moments, 3, lams=[0.123456789], center=True)
    for text in (str(found), found.words, found.sentence, found.selection.sentence):
        assert "0.1235" in text
        assert "0.12345" not in text
    assert "one lambda (0.1235, given)" in found.words


@pytest.fixture(scope="module")
def everything():
    """Every public value, of 784 columns."""
    X = table(n=WIDE, m=900)
    names = [f"a column with a long name, number {i}" for i in range(WIDE)]
    moments = rg.scan(pd.DataFrame(X, columns=names), folds=5, groups=10)
    picked = rg.select(moments, 100, center=True, scale="std", bound=True)
    tuned = rg.cross_validate(moments, 20, center=True, lams=[0.123456789, 1.0])
    trust = rg.stability(moments, 20, resamples=5)
    fitted = rg.RGCSS(100, center=X.mean(axis=0), scale=X.std(axis=0), include=names[:50]).fit(
        pd.DataFrame(X, columns=names)
    )
    result = picked.result(trust=Trust(trust.frequency, trust.jaccard, trust.expected, 5, str(trust)))
    return {
        "moments": moments,
        "fold": moments.folds[0],
        "selection": picked,
        "selection without names": rg.select(rg.Moments.of(X), 100),
        "refinement": rg.refine(picked, moments, sweeps=1),
        "cross-validation": tuned,
        "stability": trust,
        "estimator": fitted,
        "estimator with everything": rg.RGCSS(
            "cv", "cv", include=names[:60], exclude=list(range(100, 700)), center=X[0], scale=X[1], stop=rg.Stop(0.1)
        ),
        "factor": rg.Factor(X[:50]),
        "rows": Rows.of(X[:50]),
        "result": result,
        "trust": result.trust,
        "tuning": tuned.summary,
        "condition": picked.conditioning(moments),
        "stop": rg.Stop(loss=0.1, bound=2.0),
        "bare tuning": Tuning(np.ones(3), np.ones((3, 4)), np.ones((3, 4)), 3, 1.0, 2, "words " * 200),
    }


def test_every_public_value_prints_in_few_characters(everything):
    lengths = {name: len(repr(value)) for name, value in everything.items()}
    assert not {name: length for name, length in lengths.items() if length >= 400}, lengths
    assert not {name for name, value in everything.items() if len(str(value)) >= 900}


def test_what_prints_says_what_it_is(everything):
    assert repr(everything["moments"]).startswith("<Moments of 900 rows and 784 columns, 5 folds, 10 groups")
    assert repr(everything["factor"]) == "<Factor of 50 rows and 784 columns>"
    assert "784 columns" in repr(everything["stability"])

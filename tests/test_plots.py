"""Plots draw what the answers say, on the axes that are given, with the functions of the report."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from sklearn.datasets import load_digits

import rgcss_dask as rg
from rgcss_dask import plots
from rgcss_dask.reporting import drawing

mpl.use("Agg")
import matplotlib.pyplot as plt


@pytest.fixture(scope="module")
def moments():
    return rg.scan(load_digits().data, folds=3, groups=10)


@pytest.fixture(scope="module")
def picked(moments):
    return rg.select(moments, 6, center=True, bound=True)


@pytest.fixture
def axes():
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def heights(axes, line):
    return axes.lines[line].get_ydata()


def test_path(picked, axes):
    assert plots.path(picked, axes) is axes
    np.testing.assert_allclose(heights(axes, 1)[1:], picked.explained)
    np.testing.assert_allclose(heights(axes, 0)[1:], picked.result().components_explained)


def test_answers_plot_by_the_same_functions(moments, picked, axes):
    """And a selection from a Gram alone is plotted too, with its bound, without anything worked out anew."""
    tuned = rg.cross_validate(moments, 4, center=True)
    trust = rg.stability(moments, 6, center=True, resamples=10)
    alone = rg.select(moments.gram(center=True), 6, bound=True)
    for answer, plot in (
        (picked, lambda: plots.path(picked, axes, components=False)),
        (alone, lambda: plots.path(alone, axes, components=False)),
        (picked.result(), lambda: plots.path(picked, axes)),
        (tuned, lambda: plots.path(tuned, axes, components=False)),
        (trust, lambda: plots.stability(trust, ax=axes)),
    ):
        shown = answer.plot(ax=axes)
        assert shown is axes
        drawn = [np.asarray(line.get_ydata()) for line in axes.lines], [bar.get_height() for bar in axes.patches]
        axes.clear()
        plot()
        again = [np.asarray(line.get_ydata()) for line in axes.lines], [bar.get_height() for bar in axes.patches]
        for one, other in zip(drawn, again, strict=True):
            assert len(one) == len(other)
            assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))
        assert any(drawn)
        axes.clear()
    tuned.plot(axes, against="columns")
    np.testing.assert_allclose(heights(axes, 0), tuned.summary.mean[np.flatnonzero(tuned.lams == tuned.lam)[0]])
    axes.clear()
    trust.plot(picked, axes)
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], trust.frequency[picked.columns])


def test_loss_and_its_bound(picked, axes):
    plots.loss(picked, axes)
    drawn = [np.asarray(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) == 6]
    for values in (picked.loss, picked.bound):
        assert any(np.allclose(ys, values / picked.start) for ys in drawn)


def test_picks_on_an_image_a_map_and_a_spectrum(picked, axes):
    plots.picks(picked, axes, image_shape=(8, 8))
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3", "4", "5", "6"]
    first = axes.lines[0]
    assert (first.get_ydata()[0], first.get_xdata()[0]) == divmod(int(picked.columns[0]), 8)
    axes.clear()
    plots.picks(picked, axes, grid=(np.arange(8.0), np.arange(8.0)))
    assert len(axes.texts) == 6
    axes.clear()
    wavelengths = np.linspace(400, 700, 64)
    plots.picks(picked, axes, x=wavelengths)
    assert [float(line.get_xdata()[0]) for line in axes.lines[1:]] == wavelengths[picked.columns].tolist()


def test_cross_validation(moments, axes):
    tuned = rg.cross_validate(moments, 4, center=True)
    plots.cross_validation(tuned, axes, against="columns")
    np.testing.assert_allclose(heights(axes, 0), tuned.summary.mean[np.flatnonzero(tuned.lams == tuned.lam)[0]])
    for against in ("both", "lambda"):
        axes.clear()
        assert plots.cross_validation(tuned, axes, against=against).has_data()


def test_stability(moments, picked, axes):
    trust = rg.stability(moments, 6, center=True, resamples=10)
    plots.stability(trust, picked, axes)
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], trust.frequency[picked.columns])
    axes.clear()
    plots.stability(trust, ax=axes)
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], -np.sort(-trust.frequency)[:6])


def test_redundancy(picked, axes):
    plots.redundancy(picked, axes)
    norm = picked.result().column_norm
    assert sum(bar.get_height() for bar in axes.patches) == np.sum(norm > 0) - 6


def test_no_colour_is_left_that_a_page_would_set(picked, axes):
    plots.path(picked, axes)
    drawn = {to_hex(line.get_color()) for line in axes.lines} | {to_hex(text.get_color()) for text in axes.texts}
    assert drawn
    assert not drawn & set(drawing.VARIABLES)


def test_an_answer_of_another_kind_is_refused(picked):
    with pytest.raises(ValueError, match="held-out losses exist only in what cross_validate returns; got Selection"):
        plots.cross_validation(picked)
    with pytest.raises(ValueError, match="against must be one of both, lambda, columns; got 'k'"):
        plots.cross_validation(picked, against="k")
    with pytest.raises(ValueError, match="give either x, or image_shape or grid"):
        plots.picks(picked, image_shape=(8, 8), x=np.arange(64))
    with pytest.raises(ValueError, match=r"x must have one position for each of the 64 columns; got shape \(3,\)"):
        plots.picks(picked, x=np.arange(3))

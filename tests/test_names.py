"""Columns in another order: found by their names at every door, or refused; never taken for one another."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

import rgcss_dask as rg
from rgcss_dask.archive.result_file import load_result, save_result
from rgcss_dask.cli import cli
from rgcss_dask.core.names import matching
from rgcss_dask.core.result import make_result
from rgcss_dask.reporting.samples import sample

NAMES = [f"station {i}" for i in range(8)]


@pytest.fixture(name="frame", scope="module")
def named_columns():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 8)) + 0.2 * rng.standard_normal((120, 8))
    return pd.DataFrame(X * rng.uniform(1, 5, 8) + np.arange(8), columns=NAMES)


@pytest.fixture(name="shuffled", scope="module")
def in_another_order(frame):
    return frame[[NAMES[j] for j in (5, 2, 7, 0, 3, 6, 1, 4)]]


@pytest.fixture(name="picked", scope="module")
def some_columns(frame):
    return rg.select(rg.scan(frame), 3, lam=0.5, center=True, scale="std")


def test_matching():
    assert matching(None, ("a", "b"), "X") is None
    assert matching(("a", "b"), None, "X") is None
    assert matching(("a", "a"), ["a", "a"], "X") is None  # nothing to find
    assert matching(("a", "b", "c"), ("c", "a", "b"), "X").tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match=r"in any order; X lacks 'c', 'd', 'e' and 1 more and has 'z' besides\. Give"):
        matching(tuple("abcdef"), ("b", "z", "a"), "X")
    with pytest.raises(ValueError, match=r"X lacks 'b'\. Give"):
        matching(("a", "b"), ("a",), "X")
    with pytest.raises(ValueError, match="X has 2 columns called 'a'"):
        matching(("a", "a", "b"), ("a", "b", "a"), "X")


def test_functions_of_a_selection(frame, shuffled, picked):
    moments, others = rg.scan(frame), rg.scan(shuffled)
    np.testing.assert_allclose(picked.weights(others), picked.weights(moments), rtol=1e-9)
    assert picked.conditioning(others).value == pytest.approx(picked.conditioning(moments).value)
    worst = rg.select(moments, 3, lam=0.5, center=True, scale="std", include=["station 6"])
    for include in ((), ["station 6"], [6]):
        here, there = (rg.refine(worst, source, include=include) for source in (moments, others))
        assert here.selection.names == there.selection.names
        np.testing.assert_allclose(there.selection.loss, here.selection.loss, rtol=1e-9)
    a, b = (make_result(source, picked) for source in (moments, others))
    assert a.names == b.names == tuple(NAMES)
    for what in ("mean", "spread", "weights", "column_loss", "spectrum"):
        np.testing.assert_allclose(getattr(b, what), getattr(a, what), rtol=1e-8, atol=1e-10)


def test_other_columns_are_refused_with_a_list(frame, picked, tmp_path):
    renamed = frame.rename(columns={"station 4": "buoy"})
    weights = picked.weights(rg.scan(frame))
    for call in (
        lambda data: picked.weights(rg.scan(data)),
        lambda data: picked.conditioning(rg.scan(data)),
        lambda data: rg.refine(picked, rg.scan(data)),
        lambda data: make_result(rg.scan(data), picked),
        lambda data: sample(make_result(rg.scan(frame), picked), data, 2),
        lambda data: rg.write_reduced(picked, data, tmp_path / "out.zarr"),
        lambda data: rg.write_reconstruction(picked, weights, data, tmp_path / "out.zarr"),
    ):
        with pytest.raises(ValueError, match=r"lacks 'station 4' and has 'buoy' besides"):
            call(renamed)
        with pytest.raises(ValueError, match=r"has 'more' besides"):
            call(frame.assign(more=1.0))
        with pytest.raises(ValueError, match=r"lacks 'station 4'\."):
            call(frame.drop(columns="station 4"))


def test_a_gram_of_another_size_is_refused(picked):
    for call in (picked.weights, picked.conditioning, lambda G: rg.refine(picked, G)):
        with pytest.raises(ValueError, match="the columns that were selected from: 8 of them; got 9"):
            call(np.eye(9))


def test_what_is_written(frame, shuffled, picked, tmp_path):
    weights = picked.weights(rg.scan(frame))
    columns = np.sort(picked.columns)
    wanted = frame.to_numpy()[:, columns]
    rg.write_reduced(picked, shuffled, tmp_path / "reduced.zarr")
    reduced = zarr.open_array(tmp_path / "reduced.zarr", mode="r")
    assert np.array_equal(reduced[:], wanted)
    assert reduced.attrs["column_names"] == [NAMES[j] for j in columns]
    e = rg.RGCSS(3, 0.5, center=True, scale="std", refine=False).fit(frame)
    rebuilt = e.inverse_transform(e.transform(frame)).to_numpy()
    backwards = frame[[NAMES[j] for j in columns[::-1]]]
    for i, source in enumerate((frame, shuffled, tmp_path / "reduced.zarr", backwards, wanted)):
        rg.write_reconstruction(picked, weights, source, tmp_path / f"back{i}.zarr", dtype="float64")
        back = zarr.open_array(tmp_path / f"back{i}.zarr", mode="r")
        np.testing.assert_allclose(back[:], rebuilt, rtol=1e-9)
        assert back.attrs["column_names"] == NAMES
    with pytest.raises(ValueError, match=r"lacks .* and has 'x' besides"):
        rg.write_reconstruction(
            picked, weights, backwards.set_axis(["x", *backwards.columns[1:]], axis=1), tmp_path / "x"
        )


def test_command_line(frame, shuffled, tmp_path):
    run = CliRunner()
    for name, data in (("here", frame), ("there", shuffled)):
        data.to_csv(tmp_path / f"{name}.csv", index=False)
        done = run.invoke(cli, ["convert", str(tmp_path / f"{name}.csv"), str(tmp_path / f"{name}.zarr")])
        assert done.exit_code == 0, done.output
    ask = ["select", f"{tmp_path}/here.zarr", "-k", "3", "--lam", "0.5", "-o", f"{tmp_path}/r.json"]
    assert run.invoke(cli, ask).exit_code == 0
    result = load_result(tmp_path / "r.json")
    assert result.selection.all_names == tuple(NAMES)
    for option in ([], ["--reconstruct"]):
        outputs = []
        for name in ("here", "there"):
            out = f"{tmp_path}/{name}{len(option)}.zarr"
            done = run.invoke(cli, ["apply", f"{tmp_path}/r.json", f"{tmp_path}/{name}.zarr", "-o", out, *option])
            assert done.exit_code == 0, done.output
            outputs.append(zarr.open_array(out, mode="r")[:])
        assert np.array_equal(*outputs)
    for name in ("here", "there"):
        shown = sample(result, tmp_path / f"{name}.zarr", 6)
        np.testing.assert_allclose(shown.original, frame.to_numpy()[shown.rows])
        np.testing.assert_allclose(
            shown.rebuilt[:, result.selection.columns], shown.original[:, result.selection.columns]
        )


def test_a_result_keeps_the_names_once(frame, picked, tmp_path):
    save_result(make_result(rg.scan(frame), picked), tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text().count("station 4") == 1 + list(picked.names).count("station 4")
    assert load_result(tmp_path / "r.json").selection.all_names == tuple(NAMES)


# --- the estimator


def test_inverse_transform_finds_columns_by_name(frame, tmp_path):
    e = rg.RGCSS(3).fit(frame)
    reduced = e.transform(frame)
    wanted = e.inverse_transform(reduced)
    backwards = reduced[reduced.columns[::-1]]
    pd.testing.assert_frame_equal(e.inverse_transform(backwards), wanted)
    lazily = e.inverse_transform(dd.from_pandas(backwards, npartitions=3))
    pd.testing.assert_frame_equal(lazily.compute(), wanted)
    rg.write_reduced(e.selection_, frame[frame.columns[::-1]], tmp_path / "reduced.zarr")
    np.testing.assert_allclose(e.inverse_transform(tmp_path / "reduced.zarr"), wanted.to_numpy(), rtol=1e-12)
    renamed = reduced.set_axis(["x", "y", "z"], axis=1)
    for other in (renamed, dd.from_pandas(renamed, npartitions=2)):
        with pytest.raises(ValueError, match="has 'x', 'y', 'z' besides"):
            e.inverse_transform(other)
    numbered = pd.DataFrame(reduced.to_numpy())  # no names: the order that transform gives
    for other in (numbered, dd.from_pandas(numbered, npartitions=2)):
        np.testing.assert_allclose(np.asarray(e.inverse_transform(other)), wanted.to_numpy(), rtol=1e-12)


def test_names_that_were_made_up_are_known_again(frame):
    X = frame.to_numpy()
    e = rg.RGCSS(3).fit(X).set_output(transform="pandas")
    reduced = e.transform(X)
    assert list(reduced.columns) == [f"x{j}" for j in np.sort(e.selected_)]
    wanted = e.inverse_transform(reduced).to_numpy()
    np.testing.assert_array_equal(e.inverse_transform(reduced[reduced.columns[::-1]]).to_numpy(), wanted)
    own = reduced.set_axis(["p", "q", "r"], axis=1)  # a fit without names knows nothing better than the order
    np.testing.assert_array_equal(e.inverse_transform(own).to_numpy(), wanted)


def test_numbered_columns_in_another_order_are_refused(frame):
    numbered = frame.set_axis(range(8), axis=1)
    e = rg.RGCSS(3).fit(numbered)
    for call in (e.transform, e.score, e.partial_fit):
        with pytest.raises(ValueError, match="in their order; X has 2 where fit had 0, 0 where fit had 1"):
            call(numbered[[2, 0, 1, 3, 4, 5, 6, 7]])
    e.transform(numbered.set_axis(range(10, 18), axis=1))  # numbers that say nothing


def test_places_of_a_field_are_found_by_their_coordinates():
    xr = pytest.importorskip("xarray")
    values = np.random.default_rng(0).standard_normal((30, 4, 5)) + 1.0
    field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": np.arange(4) / 3, "lon": np.arange(5)})
    e = rg.RGCSS(4).fit(field)
    reduced = e.transform(field)
    wanted = e.inverse_transform(reduced)
    xr.testing.assert_identical(e.inverse_transform(reduced.isel(place=[3, 1, 0, 2])), wanted)
    lazily = e.inverse_transform(reduced.isel(place=[3, 1, 0, 2]).chunk({"time": 7}))
    xr.testing.assert_allclose(lazily.compute(), wanted)
    elsewhere = reduced.assign_coords(lat=reduced["lat"] + 7)
    with pytest.raises(ValueError, match=r"X lacks 'lat=.*' .*besides"):
        e.inverse_transform(elsewhere)

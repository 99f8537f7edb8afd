"""Sensors on maps: places and errors against what the rows themselves say, and what is asked for that cannot be."""

import re

import numpy as np
import oracle
import pytest
from distributed import Client

import rgcss_dask as rg
from rgcss_dask import plots
from rgcss_dask.core.places import nearest

xr = pytest.importorskip("xarray")

LAT, LON = np.linspace(40.0, 60.0, 5), np.linspace(-10.0, 25.0, 6)


def made(times, seed=0, lat=LAT, lon=LON):
    rng = np.random.default_rng(seed)
    waves = np.cos(np.arange(1, 7)[:, None, None] * (lat[:, None] + 1.3 * lon) / 25)
    values = 10 + np.tensordot(rng.normal(size=(times, 6)), waves, 1) + 0.1 * rng.normal(size=(times, *waves.shape[1:]))
    values[:, 1, 2] = np.nan  # land
    return xr.DataArray(values, {"lat": lat, "lon": lon}, ("time", "lat", "lon"), name="t", attrs={"units": "K"})


@pytest.fixture(scope="module")
def field():
    return made(80)


def matrix(field):
    flat = field.transpose("time", "lat", "lon").to_numpy().reshape(field.sizes["time"], -1)
    return flat[:, ~np.isnan(flat).any(axis=0)]


def apart(places):
    """Return the distances along the ground between all pairs, in km, by the haversine formula."""
    lat, lon = np.radians(places["lat"].values), np.radians(places["lon"].values)
    a = np.sin(np.subtract.outer(lat, lat) / 2) ** 2
    a = a + np.outer(np.cos(lat), np.cos(lat)) * np.sin(np.subtract.outer(lon, lon) / 2) ** 2
    return 2 * 6371.0088 * np.arcsin(np.sqrt(a))


@pytest.mark.parametrize("times", [80, 20])  # more than places, and fewer
def test_the_error_left_is_that_of_blocks_rebuilt_from_sensors_placed_without_them(times):
    field = made(times)
    X = matrix(field)
    placed = rg.sensors(field, 3, weights=None, lam=0.5, blocks=4, refine=False)
    squares = np.zeros(X.shape[1])
    for block in range(4):
        out = np.arange(times) * 4 // times == block
        mean = X[~out].mean(axis=0)
        A, B = X[~out] - mean, X[out] - mean
        picked = oracle.select(A, 3, 0.5)
        C = A[:, picked]
        errors = (B - B[:, picked] @ np.linalg.solve(C.T @ C + 0.5 * np.eye(3), C.T @ A)) ** 2
        errors[:, picked] = 0.0  # what is read is known
        squares += errors.sum(axis=0)
        assert placed.block_rmse[block] == pytest.approx(np.sqrt(errors.mean()), rel=1e-9)
    expected = placed.layout.full(np.sqrt(squares / times))
    np.testing.assert_allclose(placed.error, expected, rtol=1e-9, atol=1e-9)
    assert placed.rmse == pytest.approx(np.sqrt(squares.sum() / times / X.shape[1]), rel=1e-9)
    assert list(placed.columns) == oracle.select(X - X.mean(axis=0), 3, 0.5)
    assert f"{placed.rmse:.4g}" in placed.sentence


def test_places_count_by_their_area_or_by_a_map(field):
    area = np.cos(np.radians(field["lat"]))
    by_area, by_map = rg.sensors(field, 4), rg.sensors(field, 4, weights=area)
    assert list(by_area.columns) == list(by_map.columns)
    w = np.broadcast_to(area.to_numpy()[:, None], (5, 6))[~np.isnan(field[0])]
    np.testing.assert_allclose(by_area.counts, w)
    mean_squares = by_area.error.to_numpy()[~np.isnan(by_area.error)] ** 2
    assert by_area.rmse == pytest.approx(np.sqrt(mean_squares @ w / w.sum()))


def test_lambda_and_moves_are_those_of_the_other_doors(field):
    placed = rg.sensors(field, 4, weights=None)
    moments = rg.scan(rg.Field.of(field).matrix(field), folds=5, blocks=True)
    tuned = rg.cross_validate(moments, 4, center=True, fixed_k=True)
    moved = rg.refine(tuned.selection, moments)
    assert placed.selection.lam == pytest.approx(tuned.lam)
    assert list(placed.columns) == list(moved.columns)
    assert placed.tuning.lam == pytest.approx(tuned.lam)


def test_stations_stay_and_new_ones_keep_the_distance_within_the_regions(field):
    placed = rg.sensors(field, 5, keep=[(44.0, -4.5), (49.0, -4.0)], distance=800, regions=field["lat"] > 44)
    places = placed.places
    assert list(places["kept"]) == [True, True, False, False, False]
    assert list(places["lat"].values[:2]) == [45.0, 50.0]
    assert list(places["lon"].values[:2]) == [-3.0, -3.0]
    gaps = apart(places) + np.diag(np.full(5, np.inf))
    assert gaps[0, 1] < 800 <= gaps[2:].min()
    assert (places["lat"].values[2:] > 44).all()
    assert "2 of which stood there before" in placed.sentence


def test_the_budget_is_for_new_sensors_and_limits_hold_in_their_region(field):
    costs = xr.where(field[0] > 10, 3.0, 1.0)
    west = field["lon"] < 0
    placed = rg.sensors(field, keep=[(60, 25)], costs=costs, budget=4.0, limits=[(west, 1)], lam=1.0)
    paid = costs.to_numpy()[~np.isnan(field[0])][placed.columns]
    assert paid[1:].sum() <= 4.0
    assert paid.sum() > 4.0 - 1.0
    assert (placed.places["lon"].values < 0).sum() <= 1
    free = rg.sensors(field, keep=[(60, 25)], budget=3, lam=1.0)
    assert len(free) == 4


def test_the_field_is_rebuilt_from_readings_in_any_order_and_lazily(field):
    past, future = field[:60], field[60:]
    placed = rg.sensors(past, 4, lam=2.0, refine=False, weights=None)
    read = placed.read(future)
    X, mean = matrix(past), matrix(past).mean(axis=0)
    np.testing.assert_array_equal(read, matrix(future)[:, placed.columns])
    C = (X - mean)[:, placed.columns]
    W = np.linalg.solve(C.T @ C + 2.0 * np.eye(4), C.T @ (X - mean))
    expected = mean + (matrix(future) - mean)[:, placed.columns] @ W
    expected[:, placed.columns] = matrix(future)[:, placed.columns]
    rebuilt = placed.rebuild(read)
    np.testing.assert_allclose(matrix(rebuilt), expected)
    assert np.isnan(rebuilt[:, 1, 2]).all()
    xr.testing.assert_allclose(placed.rebuild(read[:, ::-1]), rebuilt)
    lazy = placed.rebuild(placed.read(future.chunk({"time": 7})))
    assert lazy.chunks is not None
    xr.testing.assert_allclose(lazy.compute(), rebuilt)


def test_dask_blocks_a_file_and_another_order_of_dimensions_give_the_same_sensors(field, tmp_path):
    expected = rg.sensors(field, 4, distance=500)
    field.to_dataset(name="t").to_zarr(tmp_path / "t.zarr", consolidated=False)
    stored = xr.open_zarr(tmp_path / "t.zarr", consolidated=False)["t"]
    for other in (field.chunk({"time": 30, "lon": 2}), stored, field.transpose("lat", "time", "lon")):
        placed = rg.sensors(other, 4, rows="time", distance=500)
        assert list(placed.columns) == list(expected.columns)
        assert placed.rmse == pytest.approx(expected.rmse)


def test_sensors_on_a_cluster_are_the_same(field):
    expected = rg.sensors(field, 3)
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
        placed = rg.sensors(field.chunk({"time": 30}), 3)
    assert list(placed.columns) == list(expected.columns)
    assert placed.rmse == pytest.approx(expected.rmse)


def test_stations_are_found_across_the_date_line():
    names = tuple(f"lat={lat}, lon={lon}" for lat in (0.0, 10.0) for lon in range(0, 360, 10))
    assert nearest(names, [(1, -8), (9, 359), (4, 181)]).tolist() == [35, 36, 18]
    assert nearest(("depth=0.0", "depth=10.0"), [(7,)]).tolist() == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keep": [(10, 0)]},
            r"a point must lie within the diagonal of a cell, .* latitude 10, longitude 0 is 3\d+ km",
        ),
        ({"keep": [(100, 0)]}, "100 is no latitude"),
        ({"keep": [(50, 0, 1)]}, "latitude and longitude of each"),
        ({"keep": [(50, np.nan)]}, "finite numbers"),
        ({"keep": [(50, 4), (50.5, 4.5)]}, "both stand at lat=50.0, lon=4.0"),
        ({"regions": LAT > 100}, r"regions must have the shape \(5, 6\)"),
        ({"regions": np.zeros((5, 6), dtype=bool)}, "no column is left that may be picked"),
        ({"regions": np.ones((5, 6))}, "a map of True and False"),
        ({"costs": np.full((5, 6), np.nan), "budget": 2.0}, "costs must be finite"),
        ({"costs": np.ones((5, 6)), "budget": 0.5}, "must keep to the budget"),
        ({"weights": np.zeros((5, 6))}, "column_weights must be above 0"),
        ({"weights": "area"}, "must be numbers, a mapping or 'latitude'"),
        ({"lam": "best"}, "lam must be a number or 'cv'"),
        ({"blocks": 1}, "blocks must be a whole number of runs of times, 2 or more; got 1"),
        ({"blocks": 81}, "blocks must be at most the number of times, 80.*got 81"),
        ({"k": 0}, "k must be a whole number"),
        ({"k": None}, "k or budget is required"),
        ({"distance": -5.0}, "distance must be a number above 0"),
        ({"rows": "month"}, "rows must name a dimension"),
    ],
)
def test_what_cannot_be_placed_is_refused(field, options, message):
    with pytest.raises(ValueError, match=message):
        rg.sensors(field, **{"k": 3, **options})


def test_a_map_of_another_grid_or_with_another_dimension_is_refused(field):
    with pytest.raises(ValueError, match=re.escape("lat[0] is 40.0 there and 41.0 here")):
        rg.sensors(field, 3, costs=xr.ones_like(field[0]).assign_coords(lat=LAT + 1), budget=2)
    with pytest.raises(ValueError, match="it has 'time' too"):
        rg.sensors(field, 3, weights=field)
    with pytest.raises(ValueError, match="the columns must be those of fit"):
        rg.sensors(field, 3, lam=1.0).read(field[:, :3])
    with pytest.raises(rg.core.errors.WrongKindError, match="a field is a DataArray"):
        rg.sensors(matrix(field), 3)


def test_a_distance_that_leaves_no_place_for_more_ends_early_and_says_so(field):
    with pytest.warns(UserWarning, match="distance"):
        placed = rg.sensors(field, 4, distance=15000, lam=1.0)
    assert len(placed) == 1


def test_the_map_shows_every_sensor_and_what_stood_there_before(field):
    placed = rg.sensors(field, 4, keep=[(50, 4)])
    axes = placed.plot()
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3", "4"]
    (shown,) = axes.collections[:1]
    expected = placed.error.to_numpy().ravel()
    np.testing.assert_allclose(np.ma.filled(shown.get_array().ravel(), np.nan), expected)
    squares, dots = (collection.get_offsets() for collection in axes.collections[1:3])
    assert squares.tolist() == [[4.0, 50.0]]
    assert len(dots) == 3
    estimated = rg.RGCSS(3, center=True).fit(field)
    assert plots.error_left(placed.error, estimated.places_).figure is not axes.figure
    with pytest.raises(ValueError, match="a map is a DataArray over two dimensions"):
        plots.error_left(placed.error[0], placed.places)


def test_maps_taken_from_the_field_itself_keep_its_time(field):
    sea = field.isel(time=0).notnull()
    north = (0 * field.isel(time=3) + field["lat"]) > 50
    placed = rg.sensors(field, 4, regions=sea, limits=[(north, 1)], costs=xr.where(sea, 1.0, 2.0), progress=False)
    assert len(placed) == 4
    assert int((placed.places["lat"] > 50).sum()) <= 1


def test_a_field_of_one_time_is_read_and_rebuilt(field):
    placed = rg.sensors(field[:60], 4, progress=False)
    now = placed.rebuild(placed.read(field.isel(time=70)))
    assert now.dims == ("time", "lat", "lon")
    assert now["time"].size == 1
    xr.testing.assert_allclose(now[0], placed.rebuild(placed.read(field[70:71]))[0])


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (
            lambda f: f.rename(lat="y", lon="x"),
            {},
            "weights='latitude', the default, .*the places have y, x.*weights=None",
        ),
        (
            lambda f: f.transpose("lat", "lon", "time"),
            {"blocks": 2},
            "places have lon, time.*The times are 'lat'.*rows='time'",
        ),
        (lambda f: f[:3], {}, "blocks must be at most the number of times, 3.*got 5"),
        (
            lambda f: f.where((f.time != 5) | (f.lon > -10)),
            {},
            "at lat=40.0, lon=-10.0 there is nan for time=5.*nan='drop'",
        ),
    ],
)
def test_what_a_field_lacks_is_said_in_the_words_of_sensors(field, change, options, said):
    with pytest.raises(ValueError, match=said):
        rg.sensors(change(field.assign_coords(time=range(80))), 3, progress=False, **options)


def test_places_without_latitudes_all_count_alike_if_asked_for(field):
    renamed = field.rename(lat="y", lon="x", time="t")
    found = rg.sensors(renamed, 3, weights=None, progress=False)
    assert found.columns.tolist() == rg.sensors(field, 3, weights=None, progress=False).columns.tolist()

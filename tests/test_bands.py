"""Bands of image cubes: picks against brute force on the pixels, every kind of cube, and what cannot be one."""

import dask.array as da
import numpy as np
import oracle
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask import plots
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.sources.cube import in_turns, pixels
from rgcss_dask.sources.guarded_stores import MissingChunkError

LINES, COLUMNS, BANDS = 11, 9, 7


@pytest.fixture(scope="module")
def cube():
    rng = np.random.default_rng(0)
    scene = np.cumsum(np.cumsum(rng.normal(size=(LINES, COLUMNS, 3)), axis=0), axis=1)
    noise = np.array([0.2, 0.3, 0.2, 2.0, 0.3, 1.0, 0.4])
    return scene @ rng.normal(size=(3, BANDS)) + noise * rng.normal(size=(LINES, COLUMNS, BANDS))


@pytest.fixture(scope="module")
def labels(cube):
    found = 1 + (cube[:, :, 0] > np.median(cube[:, :, 0])) + (cube[:, :, 2] > np.median(cube[:, :, 2]))
    found[::4] = 0
    return found


def snake(cube):
    """Walk through the pixels one by one, to and fro."""
    order = [(i, j if i % 2 == 0 else COLUMNS - 1 - j) for i in range(LINES) for j in range(COLUMNS)]
    return np.array([cube[i, j] for i, j in order])


def noise_of(rows):
    return np.mean((rows[2:] - 2 * rows[1:-1] + rows[:-2]) ** 2, axis=0) / 6


def greedy(A, T, k, weights, candidates):
    """Pick by trying all candidates: columns of A from which those of T are rebuilt, with lambda 1."""
    picked = []
    for _ in range(k):
        left = {
            j: oracle.loss_of_targets(A, T, [*picked, j], np.ones(A.shape[1]), weights)
            for j in candidates
            if j not in picked
        }
        picked.append(min(left, key=left.__getitem__))
    return picked, left[picked[-1]]


def test_rows_that_follow_each_other_are_pixels_that_touch(cube):
    np.testing.assert_array_equal(in_turns(cube), snake(cube))
    places = in_turns(np.stack(np.meshgrid(range(LINES), range(COLUMNS), indexing="ij"), axis=2))
    assert np.all(np.abs(np.diff(places, axis=0)).sum(axis=1) == 1)
    np.testing.assert_array_equal(in_turns(cube[3:6], first=3), snake(cube)[3 * COLUMNS : 6 * COLUMNS])


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_signals_are_carried_that_brute_force_carries(cube, k):
    X = snake(cube)
    X, noise = X - X.mean(axis=0), noise_of(X)
    A, S = oracle.columns_and_signals(X, len(X) * np.minimum(noise, X.var(axis=0)))
    picked = rg.bands(cube, k)
    expected, loss = greedy(A, S, k, 1.0 / noise, range(BANDS))
    assert list(picked.columns) == expected
    assert picked.loss[-1] == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(picked.noise**2, noise)
    np.testing.assert_allclose(picked.mean, snake(cube).mean(axis=0))
    assert "in units of their noise" in picked.sentence


def test_without_noise_it_is_the_plain_selection(cube):
    plain = rg.bands(cube, 4, noise=None)
    assert list(plain.columns) == list(rg.select(snake(cube), 4, center=True).columns)
    assert plain.noise is None
    assert plain.sentence.endswith("of the variation of all bands.")


def test_given_noise_takes_the_place_of_what_neighbours_tell(cube):
    found = rg.bands(cube, 3)
    given = rg.bands(cube, 3, noise=found.noise**2)
    assert list(found.columns) == list(given.columns)
    other = rg.bands(cube, 3, noise=np.full(BANDS, 0.1))
    assert other.loss[-1] != given.loss[-1]


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_labels_are_carried_from_labelled_pixels_alone(cube, labels, share):
    X, y = snake(cube), snake(labels[:, :, None])[:, 0]
    rows, classes = X[y > 0], y[y > 0]
    Y = (classes[:, None] == np.unique(classes)).astype(float)
    own, Z = rows - rows.mean(axis=0), Y - Y.mean(axis=0)
    noise = np.minimum(noise_of(X), own.var(axis=0))
    m, n, q = len(rows), BANDS, Y.shape[1]
    alike = 1.0 / Y.mean(axis=0)  # each class counts alike, however often it occurs
    if share == 1.0:
        A, T, weights = np.hstack([own, Z]), Z, alike
    else:
        A, T = oracle.columns_and_signals(np.hstack([own, Z]), m * np.concatenate([noise, np.full(q, 1e-9)]))
        weights = np.concatenate([1.0 / noise_of(X), alike])
        squares = (own**2).sum(axis=0) @ weights[:n], (Z**2).sum(axis=0) @ weights[n:]
        weights[:n] *= (1.0 - share) * squares[1] / squares[0]
        weights[n:] *= share
    picked = rg.bands(cube, 3, labels=labels, share=share)
    expected, _ = greedy(A, T, 3, weights, range(n))
    assert list(picked.columns) == expected
    assert "what tells 3 classes apart" in picked.sentence
    np.testing.assert_allclose(picked.mean, rows.mean(axis=0))


def kinds(cube, tmp_path):
    xr = pytest.importorskip("xarray")
    stored = zarr.create_array(tmp_path / "cube.zarr", data=cube, chunks=(4, 5, 3))
    yield "zarr", stored
    yield "path", str(tmp_path / "cube.zarr")
    yield "dask", da.from_array(cube, chunks=(3, 4, 2))
    field = xr.DataArray(cube, {"band": np.arange(BANDS) * 10.0 + 400}, ("y", "x", "band"), name="reflectance")
    yield "xarray", field
    field.transpose("band", "y", "x").to_dataset().to_zarr(tmp_path / "field.zarr", consolidated=False)
    for chunks in ({}, None):
        yield f"file {chunks}", xr.open_zarr(tmp_path / "field.zarr", consolidated=False, chunks=chunks)["reflectance"]


def test_every_kind_of_cube_gives_the_same_bands(cube, labels, tmp_path):
    expected, classes = rg.bands(cube, 4), rg.bands(cube, 3, labels=labels, share=0.5)
    for name, other in kinds(cube, tmp_path):
        dim = {"dim": "band"} if name.startswith(("xarray", "file")) else {}
        picked = rg.bands(other, 4, **dim)
        assert list(picked.columns) == list(expected.columns), name
        np.testing.assert_allclose(picked.noise, expected.noise, rtol=1e-9, err_msg=name)
        of_labels = rg.bands(other, 3, labels=da.from_array(labels, chunks=5), share=0.5, **dim)
        assert list(of_labels.columns) == list(classes.columns), name
        if dim:
            assert picked.names[0] == f"band={400.0 + 10 * picked.columns[0]}"
            assert rg.bands(other, 2, include=["band=450.0"], dim="band").columns[0] == 5


def test_ranges_of_pixels_are_read_as_they_lie(cube, tmp_path):
    for source, shape in (pixels(cube), pixels(zarr.create_array(tmp_path / "c.zarr", data=cube, chunks=(4, 5, 3)))):
        assert shape == (LINES, COLUMNS)
        assert source.shape == (LINES * COLUMNS, BANDS)
        assert set(source.cuts) <= {COLUMNS * i for i in range(LINES + 1)}
        for start, stop in ((0, 99), (5, 40), (17, 18), (36, 99)):
            np.testing.assert_array_equal(source.read(start, stop), snake(cube)[start:stop])


def test_swaps_and_bands_that_are_given(cube):
    picked = rg.bands(cube, 3, include=[3], exclude=[0, 1])
    assert picked.columns[0] == 3
    assert not set(picked.columns) & {0, 1}
    assert rg.bands(cube, 3, refine=True).loss[-1] <= rg.bands(cube, 3).loss[-1] * (1 + 1e-12)


def test_pixels_with_gaps_are_refused_or_left_out(cube, labels):
    gaps = cube.copy()
    gaps[2, 3, 4] = np.nan
    with pytest.raises(ValueError, match="the pixel in line 2 and column 3 has nan in band 4"):
        rg.bands(gaps, 2)
    picked = rg.bands(gaps, 2, nan="drop")
    rows = snake(gaps)
    np.testing.assert_allclose(picked.mean, rows[~np.isnan(rows).any(axis=1)].mean(axis=0))
    few = labels.copy()
    few[labels == 3] = 0
    few[2, 3:5] = 3
    gaps[2, 4, 0] = np.nan
    with pytest.raises(ValueError, match="each class must have pixels without gaps; class=3 has none"):
        rg.bands(gaps, 2, labels=few, nan="drop")


def test_a_band_that_never_varies_counts_nothing(cube):
    dead = cube.copy()
    dead[:, :, 5] = 7.0
    assert 5 not in rg.bands(dead, 4).columns
    with pytest.raises(ValueError, match=r"noise must be above 0 in every band that varies.*band 2 has none"):
        rg.bands(cube, 2, noise=np.where(np.arange(BANDS) == 2, 0.0, 0.1))


def test_a_missing_chunk_is_named(cube, tmp_path):
    zarr.create_array(tmp_path / "cube.zarr", data=cube, chunks=(4, 9, 7))
    next(iter((tmp_path / "cube.zarr" / "c" / "1").rglob("0"))).joinpath("0").unlink()
    with pytest.raises(MissingChunkError, match=r"has no chunk c/1/0/0 \(rows 4 to 7\)"):
        rg.bands(str(tmp_path / "cube.zarr"), 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda cube: cube[0], r"a cube must have lines, columns and bands; the cube has shape \(9, 7\)"),
        (lambda cube: cube[None], r"has shape \(1, 11, 9, 7\)"),
        (lambda cube: cube[:0], r"has shape \(0, 9, 7\)"),
        (lambda cube: cube.astype(complex), "values must be real numbers"),
        (lambda cube: cube.tolist(), "a cube must be an array of NumPy, Dask or Zarr"),
    ],
)
def test_what_is_no_cube_is_refused(cube, wrong, message):
    with pytest.raises((ValueError, WrongKindError), match=message):
        rg.bands(wrong(cube), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": np.ones((9, 11), dtype=int)}, r"one entry for each of 11 x 9 pixels; got \(9, 11\)"),
        ({"labels": np.ones((11, 9), dtype=int)}, "two classes or more; got 1 besides 0"),
        ({"labels": np.zeros((11, 9), dtype=int)}, "two classes or more; got 0 besides 0"),
        ({"labels": np.ones((11, 9))}, "labels must be whole numbers"),
        ({"labels": np.arange(99).reshape(11, 9)}, "each class must have two pixels or more; 1 has one"),
        ({"share": 0.5}, "give labels as well"),
        ({"labels": np.arange(99).reshape(11, 9) % 3, "share": 1.5}, "target_share must be above 0 and at most 1"),
        ({"noise": "rows"}, "noise must be 'neighbours', variances or None"),
        ({"noise": np.ones(3)}, "noise must be 7 variances"),
        ({"noise": -np.ones(7)}, "noise must be 7 variances, 0 or more"),
        ({"dim": "band"}, "dim names the bands of a DataArray"),
        ({"nan": "mean"}, "nan must be 'raise' or 'drop'"),
        ({"k": 8}, "k must be a whole number from 1 to 7"),
    ],
)
def test_what_cannot_be_asked_is_refused(cube, options, message):
    with pytest.raises(ValueError, match=message):
        rg.bands(cube, **{"k": 2, **options})


def test_unlabelled_pixels_may_have_another_label(cube, labels):
    renamed = np.where(labels == 0, 255, labels).astype(np.uint8)
    expected = rg.bands(cube, 3, labels=labels)
    assert list(rg.bands(cube, 3, labels=renamed, unlabelled=255).columns) == list(expected.columns)


def test_the_plot_shows_the_bands_on_the_mean_spectrum(cube):
    xr = pytest.importorskip("xarray")
    picked = rg.bands(cube, 3)
    axes = plots.bands(picked)
    assert [text.get_text() for text in axes.texts] == ["1", "2", "3"]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), picked.mean)
    at = np.linspace(700, 400, BANDS)
    field = xr.DataArray(cube, {"wavelength": at}, ("y", "x", "wavelength"))
    axes = plots.bands(rg.bands(field, 3, noise=None))
    np.testing.assert_allclose(axes.lines[0].get_xdata(), at[::-1])
    assert axes.get_xlabel() == "wavelength"


@pytest.mark.parametrize("name", ["band", "Wavelength"])
def test_a_dimension_called_band_is_that_of_the_bands_wherever_it_stands(cube, name):
    xr = pytest.importorskip("xarray")
    array = xr.DataArray(cube, {name: np.arange(BANDS) * 10}, ("y", "x", name)).transpose(name, "y", "x")
    found = rg.bands(array, 3, progress=False)
    assert found.columns.tolist() == rg.bands(cube, 3, progress=False).columns.tolist()
    assert found.names[0].startswith(f"{name}=")
    assert rg.bands(array, 3, dim="x", progress=False).names[0].startswith("x=")


def test_labels_of_a_dataarray_may_be_transposed():
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    square = np.cumsum(rng.normal(size=(9, 9, 6)), axis=1)
    labels = 1 + (square[:, :, 1] > 0)
    array = xr.DataArray(square, dims=("y", "x", "band"))
    turned = xr.DataArray(labels, dims=("y", "x")).transpose("x", "y")
    wanted = rg.bands(square, 2, labels=labels, progress=False)
    assert rg.bands(array, 2, labels=turned, progress=False).loss == pytest.approx(wanted.loss)
    assert rg.bands(array, 2, labels=labels.T, progress=False).loss != pytest.approx(wanted.loss)


@pytest.mark.parametrize("line", [2, 3])  # walked to and fro
@pytest.mark.parametrize("kinds", [False, True])
def test_a_pixel_with_a_gap_is_named(cube, labels, line, kinds):
    gap = cube.copy()
    gap[line, 4, 5] = np.nan
    options = {"labels": np.maximum(labels, 1)} if kinds else {}
    with pytest.raises(ValueError, match=rf"line {line} and column 4 has nan in band 5\. Use nan='drop'"):
        rg.bands(gap, 3, progress=False, **options)

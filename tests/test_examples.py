"""Every example runs, on small sizes, and says what it should."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name, *args):
    return runpy.run_path(str(EXAMPLES / name))["main"](*args)


def test_every_example_is_tested():
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("[0-9]*.py"):
        assert f'"{path.name}"' in here


def test_in_memory(capsys):
    run("01_in_memory.py", 6)
    assert "6 of 64 columns keep" in capsys.readouterr().out


def test_out_of_core_zarr(capsys, tmp_path):
    run("02_out_of_core_zarr.py", 45_000, str(tmp_path))
    out = capsys.readouterr().out
    assert "Read 45,000 rows once" in out
    assert "Wrote 45,000 rows" in out
    assert {path.name for path in tmp_path.iterdir()} == {"data.zarr", "moments.zarr", "reduced.zarr", "rebuilt.zarr"}


def test_on_a_cluster():
    command = [sys.executable, str(EXAMPLES / "03_on_a_cluster.py"), "20000"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 workers and this process: same bits True" in out


def test_pipeline_with_dask_ml(capsys):
    run("04_pipeline_with_dask_ml.py", 4000)
    assert "the same as after StandardScaler: True" in capsys.readouterr().out


def test_sensor_placement(tmp_path):
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    time, lat, lon = np.arange(200), np.linspace(-30, 30, 7), np.linspace(0, 90, 10)
    waves = np.stack([np.cos((i + 1) * lat[:, None] / 20 + i * lon / 30) for i in range(6)])
    values = np.tensordot(rng.standard_normal((200, 6)) * [8, 6, 5, 4, 3, 2], waves, 1)
    values += 0.2 * rng.standard_normal(values.shape)
    values[:, 2:4, 3:5] = np.nan
    coords = {"time": time, "lat": lat, "lon": lon}
    data = xr.DataArray(values, coords, ("time", "lat", "lon"), name="temperature").to_dataset()
    data.to_zarr(tmp_path / "field.zarr", zarr_format=2, consolidated=True)
    errors = run("05_sensor_placement.py", str(tmp_path / "field.zarr"), 6, str(tmp_path / "map.png"))
    assert errors["placed"] < errors["random"]
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.integration
@pytest.mark.parametrize("name", ["air_temperature.zarr", "sst.mnmean.nc"])
def test_sensor_placement_on_real_data(data_dir, tmp_path, name):
    errors = run("05_sensor_placement.py", str(data_dir / name), 20, str(tmp_path / "map.png"))
    assert errors["placed"] < errors["pivoted QR"]
    assert errors["placed"] < 0.9 * errors["random"]


def test_gene_panel(capsys):
    run("06_gene_panel.py", 3000, 150)
    out = capsys.readouterr().out
    assert "3,000 cells x 150 genes" in out
    assert "12 of 12 programs have a gene in the panel" in out


def test_daily_append(capsys):
    run("07_daily_append.py", 2000, 3)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(";")[0].split(": ")[1].split() for line in lines] == [
        ["2,000", "rows,", "2,000", "read"],
        ["4,000", "rows,", "2,000", "read"],
        ["6,000", "rows,", "2,000", "read"],
    ]


def test_many_columns(capsys):
    picked = run("08_many_columns.py", 1500, 400, 5)
    out = capsys.readouterr().out
    assert "an estimated" in out
    assert f"Chosen from {picked.among} candidates" in out


def test_extend_a_panel(capsys):
    run("09_extend_a_panel.py")
    lines = capsys.readouterr().out.splitlines()
    shares = [float(line.split(" keep ")[1].split(" %")[0]) for line in lines]
    assert lines[1].count(",") == 3  # three are added, and lambda is said
    assert shares[0] < shares[1]


def test_bands_of_an_image(capsys, tmp_path):
    found = run("10_bands_of_an_image.py", None, 4, str(tmp_path / "bands.png"))
    noisy = np.flatnonzero(np.abs(np.linspace(0, 1, 120) - 0.55) < 0.05)
    assert np.isin(found["all bands alike"].columns, noisy).any()
    assert not np.isin(found["signal behind the noise"].columns, noisy).any()
    assert "what tells 4 classes apart" in capsys.readouterr().out
    assert (tmp_path / "bands.png").stat().st_size > 10_000


def test_downstream():
    found = run("11_downstream.py", 3000)
    assert found[16]["classify"].picked.score > found[4]["classify"].picked.score


def test_neurons():
    found = run("12_neurons.py", 64)
    assert found["picked"][0] > found["random"][0]
    assert found["picked"][-1] > 0.85

"""What is to be carried, asked on the command line, in a batch and of the estimator as in Python."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import rgcss_dask as rg
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import cli

NAMES = ("a", "b", "c,d", "band_1", "band_2", "y")
GIVEN = {
    "column_weights": {"a": 0.5, "c,d": 2.0},
    "targets": ["y"],
    "target_share": 0.5,
    "penalties": {"b": 3.0},
    "costs": {"a": 2.0},
    "budget": 3.0,
    "limits": [(["band_1", "band_2"], 1)],
}
OPTIONS = [
    *("--column-weight", "a=0.5", "--column-weight", "c,d=2", "--target", "y", "--target-share", "0.5"),
    *("--penalty", "b=3", "--cost", "a=2", "--budget", "3", "--limit", "1:band_1,band_2"),
]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 6)) + 0.2 * rng.standard_normal((200, 6))
    return pd.DataFrame(values, columns=NAMES)


@pytest.fixture
def data(frame, tmp_path):
    frame.to_csv(tmp_path / "data.csv", index=False)
    rg.convert(tmp_path / "data.csv", tmp_path / "data.zarr")
    return tmp_path / "data.zarr"


def command(*args):
    done = CliRunner().invoke(cli, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_line(frame, data, tmp_path):
    expected = rg.select(frame, 3, center=True, refine=True, **GIVEN)
    found = command("select", data, "-k", 3, "--lam", 1, "--center", *OPTIONS, "-o", tmp_path / "r.json", "--json")
    assert found["columns"] == expected.columns.tolist()
    np.testing.assert_allclose(found["loss"], expected.loss, rtol=1e-9)
    loaded = rg.load_result(tmp_path / "r.json").selection
    np.testing.assert_array_equal(loaded.aims.column_weights, expected.aims.column_weights)
    assert rg.refine(loaded, rg.scan(frame)).after <= loaded.loss[-1] * (1 + 1e-9)
    assert loaded.aims.budget == 3.0
    tuned = command("tune", data, "-k", 3, "--lams", "0.1,1", "--center", *OPTIONS, "--json")
    assert 5 not in tuned["columns"]


def test_noise_of_rows_on_the_command_line(frame, data, tmp_path):
    expected = rg.select(frame, 3, center=True, noise="rows", refine=True)
    found = command("select", data, "-k", 3, "--lam", 1, "--center", "--noise", "rows", "--json")
    assert found["columns"] == expected.columns.tolist()
    command("scan", data, "-o", tmp_path / "m.zarr", "--noise", "--json")
    again = command("select", tmp_path / "m.zarr", "-k", 3, "--lam", 1, "--center", "--noise", "rows", "--json")
    assert again["loss"] == found["loss"]
    given = command("select", data, "-k", 3, "--lam", 1, "--center", "--noise", "a=0.01", "--noise", "b=0.02", "--json")
    by_name = rg.select(frame, 3, center=True, noise={"a": 0.01, "b": 0.02}, refine=True)
    np.testing.assert_allclose(given["loss"], by_name.loss, rtol=1e-9)


def test_groups_and_candidates_on_the_command_line(frame, data):
    options = ["--column-group", "a,b", "--candidates", "a,b,band_*"]
    found = command("select", data, "-k", 3, "--lam", 1, *options, "--json")
    asked = {"column_groups": [["a", "b"]], "candidates": ["a", "b", "band_*"]}
    expected = rg.select(frame, 3, refine=True, **asked)
    assert found["columns"] == expected.columns.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--column-weight", "a=heavy"], "not a name and a number"),
        (["--limit", "a,b"], "not a number and columns"),
        (["--target", "z*"], "no column has a name like"),
        (["--cost", "a=0"], "costs must be finite and above 0"),
        (["--noise", "a=1000000"], "noise must not exceed"),
    ],
)
def test_what_commands_refuse(data, options, words):
    done = CliRunner().invoke(cli, ["select", str(data), "-k", "2", "--lam", "1", *options])
    assert done.exit_code in (1, 2)
    assert words in done.output + str(done.exception)


def test_a_batch(frame, data, tmp_path):
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f"""[[jobs]]
data = "{data}"
k = 3
lam = 1.0
center = true
moments = "{tmp_path}/m.zarr"
result = "{tmp_path}/r.json"
targets = ["y"]
target_share = 0.5
column_weights = {{a = 0.5, "c,d" = 2.0}}
penalties = {{b = 3.0}}
costs = {{a = 2.0}}
budget = 3.0
limits = [[["band_1", "band_2"], 1]]
"""
    )
    run_batch(jobs)
    expected = rg.select(frame, 3, center=True, refine=True, **GIVEN)
    found = rg.load_result(tmp_path / "r.json")
    assert found.selection.columns.tolist() == expected.columns.tolist()
    assert found.provenance["asked"]["budget"] == 3.0

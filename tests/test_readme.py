"""What the README shows is run, block by block, on a small matrix; tests/test_site.py does the same for the site."""

import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import zarr

import rgcss_dask as rg
from rgcss_dask.cli import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
# First lines of the blocks that are not run here, each for its reason. All others are.
NOT_RUN = {"python3 -m venv .venv && .venv/bin/pip install": "installs, as has been done to run this"}
ROWS, COLUMNS = 400, 70


def blocks(kind):
    """Return the blocks of a kind that are to be run."""
    return [text for found, text in BLOCKS if found == kind and not any(text.startswith(start) for start in NOT_RUN)]


def some_rows(seed, count=ROWS):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)) @ rng.normal(size=(5, COLUMNS)) + 0.1 * rng.normal(size=(count, COLUMNS))


def test_every_block_is_run_or_said_not_to_be():
    run = [text for kind in ("bash", "python") for text in blocks(kind)]
    left = [text for _, text in BLOCKS if text not in run]
    assert len(run) == 2
    assert all(any(text.startswith(start) for start in NOT_RUN) for text in left)
    for start in NOT_RUN:
        assert any(text.startswith(start) for text in left), f"{start} is no longer in the README"


def test_it_is_short_and_its_links_hold_on_other_sites():
    """A package index shows it too, where links within the repository lead nowhere."""
    assert len(README.splitlines()) <= 90
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert all(link.startswith("https://") for link in links)
    assert {len(text.splitlines()) for text in (*blocks("bash"), *blocks("python"))} == {5, 10}


def test_its_links_lead_to_pages_and_files():
    root = Path(__file__).parents[1]
    found = re.findall(r"github\.com/[\w-]+/[\w-]+/(?:blob|tree|raw)/main/([\w/.-]+)", README)
    assert found
    for path in found:
        assert (root / path).exists(), path


def test_all_documents_have_the_one_address_of_the_repository():
    root = Path(__file__).parents[1]
    urls = tomllib.loads((root / "pyproject.toml").read_text())["project"]["urls"]
    for text in (README, (root / "CITATION.cff").read_text(), *urls.values()):
        ours = [url for url in re.findall(r"https://[^\s)\"]+", text) if "arxiv.org" not in url]
        assert ours
        assert all(url.startswith(urls["Source"]) for url in ours), ours


def test_the_commands(tmp_path, monkeypatch, capsys):
    """One after the other, in one process."""
    monkeypatch.chdir(tmp_path)
    names = ",".join(f"c{i}" for i in range(COLUMNS))
    np.savetxt("table.csv", some_rows(0), delimiter=",", header=names, comments="")
    (commands,) = blocks("bash")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "rgcss"
        assert not cli.main(arguments, standalone_mode=False), capsys.readouterr().out
    assert f"{ROWS} rows x {COLUMNS} columns in moments.zarr" in capsys.readouterr().out
    moments = rg.load("moments.zarr")
    assert (moments.rows, len(moments.folds), len(moments.groups)) == (ROWS, 5, 40)
    for made in ("report.html", "reduced.zarr", "result.json"):
        assert Path(made).exists(), made


def test_the_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zarr.create_array("data.zarr", data=some_rows(0), chunks=(100, COLUMNS))
    table = pd.DataFrame(some_rows(3)).rename(columns="column {}".format)
    names = {"frame": table[:300], "test_frame": table[300:]}
    (code,) = blocks("python")
    exec(code, names)
    assert names["picked"].explained[-1] >= 0.9
    assert "100 rows given with the report" in Path("report.html").read_text()
    assert rg.load("moments.zarr").rows == ROWS
    assert names["weights"].shape == (names["tuned"].k, COLUMNS)
    assert names["trust"].k == names["tuned"].k

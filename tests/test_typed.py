"""Users of mypy, pyright and editors see the types of the public names, although importing them waits for their use."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rgcss_dask

pytest.importorskip("mypy", reason="needs mypy: the extra 'lint'")

USE = """
import numpy as np
import rgcss_dask as rg
G = np.eye(4)
reveal_type(rg.select(G, 2))
reveal_type(rg.select(G, 2, lam=[1.0, 2.0]))
reveal_type(rg.load("moments.zarr"))
rg.select(G, "two")
rg.select(G, 2, lamb=1.0)
rg.nothing
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return what mypy says of each line of a user's file: the use above, then each public name on a line."""
    folder = tmp_path_factory.mktemp("typed")
    lines = [*USE.strip().splitlines(), *(f"reveal_type(rg.{name})" for name in rgcss_dask.__all__)]
    (folder / "use.py").write_text("\n".join(lines))
    # Not by the settings of this project, which users do not have.
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--cache-dir", ".", "use.py"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    found = {line: "" for line in lines}
    for line in said.stdout.splitlines():
        if line.startswith("use.py:"):
            found[lines[int(line.split(":")[1]) - 1]] += line
    return found


def test_what_a_call_returns_is_known(told):
    assert 'Revealed type is "rgcss_dask.core.selection.Selection"' in told["reveal_type(rg.select(G, 2))"]
    assert '"list[rgcss_dask.core.selection.Selection]"' in told["reveal_type(rg.select(G, 2, lam=[1.0, 2.0]))"]
    assert "Moments" in told['reveal_type(rg.load("moments.zarr"))']


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('rg.select(G, "two")', "[call-overload]"),
        ("rg.select(G, 2, lamb=1.0)", "[call-overload]"),
        ("rg.nothing", "[attr-defined]"),
    ],
)
def test_a_wrong_call_is_found(told, line, error):
    assert error in told[line]


@pytest.mark.parametrize("name", rgcss_dask.__all__)
def test_each_public_name_has_a_type(told, name):
    said = told[f"reveal_type(rg.{name})"]
    assert 'Revealed type is "def (' in said or 'Revealed type is "Overload(def (' in said


def test_checkers_and_python_find_a_name_at_the_same_place():
    tree = ast.parse(Path(rgcss_dask.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == {name: f"rgcss_dask.{home}" for name, home in rgcss_dask._HOME.items()}

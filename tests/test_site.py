"""The pages of the site: every block is run or said not to be, and every public name and page is in its place."""

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

import rgcss_dask as rg
from rgcss_dask.cli import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {"_build", "_examples", "_templates", "gallery", "generated"}
PAGES = sorted(p for p in DOCS.rglob("*.md") if not GENERATED & set(p.relative_to(DOCS).parts))
CELL = re.compile(r"^( *)```(\{code-cell\}(?: (\w+))?|python|bash|toml)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NEEDS = {"how-to/parquet-and-polars.md": "polars"}
# Blocks that no test runs, by their first lines, each for its reason. Cells are all run.
NOT_RUN = {
    "pip install": "installs",
    "python3 -m venv": "installs",
    "from distributed import Client": "needs a cluster of the reader's; a cell on another page starts one",
    "rgcss scan data.zarr -o moments.zarr --workers 4": "the same; tests/test_connection.py has schedulers",
    "rg.report(picked": "needs the display of a notebook",
    "import dask": "changes the settings of this process; tests/test_object_store.py tries them",
    "import logging": "changes the settings of this process",
}


def _module():
    """Load docs/cells.py, which Sphinx uses too."""
    pytest.importorskip("docutils", reason="docutils is in the extra docs")
    spec = importlib.util.spec_from_file_location("cells", DOCS / "cells.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cells"] = module
    spec.loader.exec_module(module)
    return module


def blocks(path):
    """Return the kind and text of each block of a page, cells and others."""
    for indent, fence, language, text in CELL.findall(path.read_text()):
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        is_cell = fence.startswith("{")
        yield is_cell, (language or "python") if is_cell else fence, "\n".join(x for x in lines if x != ":hidden:")


def named(path):
    return path.relative_to(DOCS).as_posix()


def with_cells():
    """Yield the pages that have cells; those that start processes are slow."""
    for path in PAGES:
        if any(is_cell for is_cell, *_ in blocks(path)):
            slow = [pytest.mark.integration] if "LocalCluster(" in path.read_text() else []
            yield pytest.param(path, marks=slow, id=named(path))


@pytest.mark.parametrize("path", list(with_cells()))
def test_the_cells_of_a_page_run(path):
    cells = _module()
    if named(path) in NEEDS:
        pytest.importorskip(NEEDS[named(path)])
    page = cells.Page()
    for is_cell, kind, text in blocks(path):
        if is_cell:
            page.run(text, kind)


def test_every_other_block_is_parsed_or_said_not_to_be_run():
    left = set(NOT_RUN)
    for path in PAGES:
        for is_cell, kind, text in blocks(path):
            start = next((start for start in NOT_RUN if text.startswith(start)), None)
            left.discard(start)
            if is_cell or start:
                continue
            if kind == "toml":
                tomllib.loads(text)
            else:
                assert kind == "bash", f"{named(path)}: make this a cell, or say in NOT_RUN why not:\n{text}"
                parse(text)
    assert not left, "no longer on any page"


def parse(text):
    """Parse commands of rgcss as the program would."""
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "rgcss", f"say in NOT_RUN why {line} is not run"
        command = cli.commands[words[1]]
        command.make_context(words[1], words[2:])


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^   (\w+)$", (DOCS / "reference/api.rst").read_text(), re.MULTILINE)
    assert not set(rg.__all__) - set(listed), "put these into a group of docs/reference/api.rst"


def test_a_cell_that_fails_ends_the_build():
    page = _module().Page()
    with pytest.raises(ZeroDivisionError):
        page.run("1 / 0")
    with pytest.raises(ValueError, match="runs commands of rgcss"):
        page.run("ls", "bash")


def test_what_a_cell_shows():
    page = _module().Page()
    assert page.run("a = 3\nprint('before')\na + 1")[0] == "before\n4\n"
    assert page.run("import warnings\nwarnings.warn('careful')")[0] == "UserWarning: careful\n"
    assert page.run("a;")[0] == ""
    assert len(page.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")[2]) == 1

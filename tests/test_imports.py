"""Imports point one way: doors, shells, core. And importing the package costs nothing until something is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rgcss_dask

PACKAGE = Path(rgcss_dask.__file__).parent
# Each file belongs to a layer; a new one must be put in one here.
CORE = {
    "evaluate", "gaps", "gram", "greedy", "grid", "kernels", "moments", "plan", "rebuild", "selection",
    "sparse_rows", "subsets", "swaps", "threads", "tuning", "wide", "workers",
}  # fmt: skip
DOORS = {"__init__", "__main__", "cli", "estimator", "report", "batch", "demo"}
CORE_MAY_IMPORT = {"numpy", "scipy", "numba", "threadpoolctl"}
MODULES = {path.stem: path for path in PACKAGE.rglob("*.py")}


def imported(path):
    """Yield the outside packages and the modules of this package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            yield ("own", next((part for part in rest if part in MODULES), None)) if first == "rgcss_dask" else (
                "outside",
                first,
            )


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name):
    found = set(imported(MODULES[name]))
    own = {module for kind, module in found if kind == "own" and module}
    outside = {module for kind, module in found if kind == "outside"} - sys.stdlib_module_names
    if name in CORE:
        assert not outside - CORE_MAY_IMPORT, f"{name} is core and must not import {sorted(outside - CORE_MAY_IMPORT)}"
        assert not own - CORE, f"{name} is core and must not import {sorted(own - CORE)}"
    elif name not in DOORS:
        assert not own & DOORS, f"{name} is a shell and must not import the door {sorted(own & DOORS)}"


def test_every_public_name_is_there_and_documented():
    for name in rgcss_dask.__all__:
        assert getattr(rgcss_dask, name).__doc__, f"{name} needs a docstring"


def test_no_module_hides_a_public_name():
    """A submodule becomes an attribute of the package once it is imported, in the place of the public name."""
    assert not set(rgcss_dask.__all__) & set(MODULES)


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, rgcss_dask; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "dask", "distributed", "sklearn", "zarr", "numba"} & set(loaded)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rgcss_dask.nothing

"""Imports point one way: doors, shells, core. And importing the package costs nothing until something is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rgcss_dask

PACKAGE = Path(rgcss_dask.__file__).parent
# The layer of a file is its folder. What is not in one of these is a door: it may import everything.
CORE, RUNTIME = "core", "runtime"
SHELLS = ("io", "sources", "conversion", "archive", "cluster", "scanning")
COMPAT = "compat"  # names of other packages, for all but the core
CORE_MAY_IMPORT = {"numpy", "scipy", "numba", "threadpoolctl"}
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in PACKAGE.rglob("*.py")
}


def imported(path):
    """Return the outside packages and the layers of this package that a file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    outside = {name.split(".")[0] for name in names} - {"rgcss_dask"} - sys.stdlib_module_names
    return outside, {name.split(".")[1] for name in names if name.startswith("rgcss_dask.")}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_one_way(name):
    outside, layers = imported(MODULES[name])
    layer = name.split(".")[0]
    if layer == CORE:
        assert not outside - CORE_MAY_IMPORT, f"{name} is core and must not import {sorted(outside - CORE_MAY_IMPORT)}"
        assert not layers - {CORE, RUNTIME}, f"{name} is core and must not import {sorted(layers)}"
    elif layer in SHELLS:
        assert not layers - {RUNTIME, CORE, COMPAT, *SHELLS}, f"{name} is a shell and must not import {sorted(layers)}"
    elif layer in (COMPAT, RUNTIME):
        assert not layers - {RUNTIME}, f"{name} must not import {sorted(layers)}"


def test_every_public_name_is_there_and_documented():
    for name in rgcss_dask.__all__:
        assert getattr(rgcss_dask, name).__doc__, f"{name} needs a docstring"


def test_no_module_hides_a_public_name():
    """A submodule becomes an attribute of the package once it is imported, in the place of the public name."""
    assert not set(rgcss_dask.__all__) & {name.split(".")[0] for name in MODULES}


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, rgcss_dask; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "dask", "distributed", "sklearn", "zarr", "numba"} & set(loaded)


def test_what_a_worker_loads_is_not_more_than_it_needs():
    """Its event loop stands still meanwhile, and a scheduler gives up workers that are silent."""
    code = "import sys, rgcss_dask.scanning.tasks, rgcss_dask.sources.zarr; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"dask.array", "dask.dataframe", "xarray", "pandas", "sklearn", "matplotlib"} & set(loaded)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rgcss_dask.nothing

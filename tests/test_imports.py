"""Layers without cycles: a module imports what is to its left. And importing the package costs nothing until used."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rgcss_dask

PACKAGE = Path(rgcss_dask.__file__).parent
# From left to right; a layer is a folder, or a module beside them. Those in one set do not import each other.
LAYERS = (
    {"runtime"},
    {"core"},
    {"io"},
    {"sources"},
    {"conversion", "archive"},
    {"cluster"},
    {"scanning"},
    {"origin"},  # what a selection was picked from
    # The doors.
    {"answering", "options", "reporting"},
    {"questions"},
    {"two_readings", "learning"},
    {"selecting", "plots"},
    {"workflow", "estimator"},
    {"imaging", "panels", "sensing"},  # doors of one field of work each
    {"faults"},  # what is a bug and what a user can mend
    {"batch", "demo"},
    {"cli"},
    {"__main__"},
)
VERSION = "rgcss_dask.__version__"  # all that is taken from the package itself
COMPAT = "compat"  # names of other packages, for all but the process and the mathematics
WITHOUT_COMPAT = {"runtime", "core"}
# Of other packages; what is not here may import what it needs.
MAY_IMPORT = {
    "runtime": {"numpy", "psutil", "threadpoolctl"},
    "core": {"numpy", "scipy", "numba"},
    "io": {"numpy", "dask", "fsspec", "zarr"},  # of Dask its configuration
    "archive": {"numpy", "threadpoolctl", "zarr"},
    "options": {"click"},
}
NEEDS_A_CLUSTER = {"distributed"}
MOST_LINES = 400  # of a module
KNOWS_CLUSTERS = {"cluster", COMPAT}


def name_of(path):
    parts = ("rgcss_dask", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path.read_text() for path in PACKAGE.rglob("*.py")}


def layer_of(module):
    """Return the layer of a module of the package; none for the package itself."""
    return [*module.split("."), ""][1]


def imported(code, modules=MODULES):
    """Return the modules that code imports, anywhere in it: those of this package whole, of others the package."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in names if name.split(".")[0] == "rgcss_dask"}
    return {nearest(name, modules) for name in ours - {VERSION}}, {name.split(".")[0] for name in names - ours}


def nearest(name, modules):
    """Return the module that a dotted name is, or is in; what the package looks up itself is in the package."""
    while name not in modules:
        name = name.rpartition(".")[0]
    return name


def wrong(module, code, modules=MODULES):
    """Say what a module imports that it must not."""
    layer, (ours, others) = layer_of(module), imported(code, modules)
    allowed = allowed_to(layer)
    found = sorted(one for one in ours if layer_of(one) not in allowed)
    outside = others - sys.stdlib_module_names
    found += sorted(outside - MAY_IMPORT.get(layer, outside))
    return found + sorted(outside & NEEDS_A_CLUSTER if layer not in KNOWS_CLUSTERS else set())


def allowed_to(layer):
    """Return the layers that a layer may import."""
    if layer in ("", COMPAT):
        return {layer}
    left = LAYERS[: position(layer)]
    compat = set() if layer in WITHOUT_COMPAT else {COMPAT}
    return {layer, *compat, *(name for names in left for name in names)}


def position(layer):
    (found,) = [i for i, names in enumerate(LAYERS) if layer in names]
    return found


# The package itself is the face of all layers: what it imports only type checkers see, see the test of what is heavy.
@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"rgcss_dask"}))
def test_a_module_imports_what_is_to_its_left(module):
    assert not wrong(module, MODULES[module]), f"{module} is in {layer_of(module)!r}, which must not import it"


def test_every_module_is_in_one_layer_and_every_layer_is_there():
    named = [name for names in LAYERS for name in names]
    assert sorted(["", COMPAT, *named]) == sorted({layer_of(module) for module in MODULES})


def test_no_two_modules_need_each_other():
    uses = {module: imported(code)[0] - {module} for module, code in MODULES.items()}
    graphlib.TopologicalSorter(uses).prepare()  # or it raises a CycleError that names them


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("core.new", "from rgcss_dask.io.files import Folder"),
        ("core.new", "from rgcss_dask import compat"),
        ("core.new", "import zarr"),
        ("runtime.new", "from rgcss_dask.core import moments"),
        ("io.new", "def late():\n    from rgcss_dask.sources.zarr import ZarrSource"),
        ("sources.new", "import rgcss_dask.scanning.scan"),
        ("sources.new", "from rgcss_dask import archive"),
        ("sources.new", "if TYPE_CHECKING:\n    from distributed import Client"),
        ("archive.new", "from rgcss_dask.conversion.convert import convert"),
        ("cluster.new", "from rgcss_dask.questions import select"),
        ("workflow", "import rgcss_dask.estimator"),
        ("compat", "from rgcss_dask.core import moments"),
        ("", "from rgcss_dask.core import moments"),
        ("core.new", "from rgcss_dask import scan"),
        ("estimator", "import rgcss_dask"),
    ],
)
def test_a_wrong_import_is_found(module, code):
    module = f"rgcss_dask.{module}".rstrip(".")
    assert wrong(module, code, {**MODULES, module: code})


def test_a_module_that_is_in_no_layer_is_found():
    with pytest.raises(ValueError, match="not enough values"):
        wrong("rgcss_dask.drawer", "import numpy")


BESIDE = [path for folder in ("examples", "deploy", "tests") for path in (PACKAGE.parent / folder).rglob("*.py")]


@pytest.mark.parametrize("path", BESIDE, ids=lambda path: path.relative_to(PACKAGE.parent).as_posix())
def test_what_stands_beside_the_package_imports_modules_that_exist(path):
    """Scripts that need what the checks do not install would go stale otherwise."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rgcss_dask."):
            assert node.module in MODULES, f"there is no {node.module}"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                assert whole in MODULES or re.search(rf"\b{alias.name}\b", MODULES[node.module]), f"no {whole}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_has_one_job_and_fits_on_a_few_screens(module):
    lines = MODULES[module].count("\n")
    assert lines <= MOST_LINES, f"{module} has {lines} lines; move one of its jobs to a module of its own"


def test_every_public_name_is_there_and_documented():
    for name in rgcss_dask.__all__:
        assert getattr(rgcss_dask, name).__doc__, f"{name} needs a docstring"


def test_no_module_hides_a_public_name():
    """A submodule becomes an attribute of the package once it is imported, in the place of the public name."""
    assert not set(rgcss_dask.__all__) & {layer_of(name) for name in MODULES}


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

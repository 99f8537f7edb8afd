"""What other packages do not promise to keep is in `rgcss_dask.compat` alone, and is there in the installed version."""

import ast
import importlib
import importlib.metadata
import inspect
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from zarr.abc.codec import BytesBytesCodec
from zarr.storage import MemoryStore, WrapperStore

import rgcss_dask

PACKAGE = Path(rgcss_dask.__file__).parent
COMPAT = PACKAGE / "compat.py"
# Modules that are documented for users of these packages. Their other modules may change with every version.
PUBLIC = {
    "dask": {"dask", "dask.array", "dask.base", "dask.dataframe", "dask.delayed", "dask.task_spec"} | {"dask.threaded"},
    "distributed": {"distributed"},
    "zarr": {"zarr", "zarr.abc.buffer", "zarr.abc.codec", "zarr.abc.store", "zarr.buffer", "zarr.buffer.cpu"}
    | {"zarr.codecs", "zarr.errors", "zarr.storage"},
}


def imported(path):
    """Return each name that a file imports from these packages, with the module it comes from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PUBLIC:
            yield from ((node.module, alias.name) for alias in node.names)


def is_public(module, name):
    return module in PUBLIC[module.split(".")[0]] and not name.startswith("_")


def broken(module, name):
    package = module.split(".")[0]
    return (
        f"{package} {importlib.metadata.version(package)} broke {module}.{name}: find another in rgcss_dask/compat.py"
    )


@pytest.mark.parametrize(("module", "name"), list(imported(COMPAT)))
def test_the_installed_version_has_the_name(module, name):
    """The file is read, not imported: one name that is gone would hide the others."""
    assert not is_public(module, name), f"{module}.{name} is public: import it where it is used"
    try:
        found = hasattr(importlib.import_module(module), name)
    except ImportError:
        found = False
    assert found, broken(module, name)


@pytest.mark.parametrize(
    "path", sorted(set(PACKAGE.rglob("*.py")) - {COMPAT}), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_other_module_imports_what_is_not_public(path):
    private = [f"{module}.{name}" for module, name in imported(path) if not is_public(module, name)]
    assert not private, f"{path.name} imports {private}: import it in rgcss_dask/compat.py"


def parameters(module, name):
    return set(inspect.signature(getattr(importlib.import_module(module), name)).parameters)


@pytest.mark.parametrize(
    ("module", "name", "used"),
    [
        ("dask.task_spec", "Task", {"key", "func", "_data_producer"}),
        ("distributed.comm.core", "connect", {"addr", "timeout", "connection_args"}),
        ("distributed.core", "ConnectionPool", {"deserialize", "connection_args", "server"}),
        ("distributed.core", "clean_exception", {"exception", "traceback"}),
        ("zarr.core.common", "concurrent_map", {"items", "func", "limit"}),
    ],
)
def test_names_still_take_what_they_are_given(module, name, used):
    assert used <= parameters(module, name), broken(
        module, f"{name}({', '.join(sorted(used - parameters(module, name)))})"
    )


# Attributes with an underscore that are used of objects of other packages, and methods that ours override: each with an
# object or class that must have it.
PRIVATE = {
    "_data": ("xarray", "Variable", lambda: pytest.importorskip("xarray").Variable),
    "_decode_single": ("zarr.abc.codec", "BytesBytesCodec", lambda: BytesBytesCodec),
    "_get_many": ("zarr.storage", "WrapperStore", lambda: WrapperStore),
    "_meta": ("dask.array", "Array", lambda: da.ones((2, 2))),
    "_set_many": ("zarr.storage", "WrapperStore", lambda: WrapperStore),
    "_store": ("zarr.storage", "WrapperStore", lambda: WrapperStore(MemoryStore())),
    "_store_dict": ("zarr.storage", "MemoryStore", MemoryStore),
    "_with_store": ("zarr.storage", "WrapperStore", lambda: WrapperStore),
}


@pytest.mark.parametrize("attribute", PRIVATE)
def test_attributes_that_are_not_public(attribute):
    module, name, owner = PRIVATE[attribute]
    assert hasattr(owner(), attribute), broken(module, f"{name}.{attribute}")


def private_attributes(tree):
    """Return the names with one underscore that are asked of objects, and those that are defined, in a file."""
    asked, defined = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            (asked if isinstance(node.ctx, ast.Load) else defined).add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
    return asked, defined


def test_no_other_attribute_that_is_not_public_is_used():
    """What this package defines itself is its own; the rest is of other packages, and must be watched above."""
    found = [private_attributes(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")]
    foreign = set().union(*(asked for asked, _ in found)) - set().union(*(defined for _, defined in found))
    used = {name for name in foreign if name.startswith("_") and not name.startswith("__")} - {"_exit"}
    assert used <= set(PRIVATE), f"{sorted(used - set(PRIVATE))}: watch what is not public in tests/test_compat.py"


def test_private_attributes_hold_what_is_taken_from_them():
    assert MemoryStore()._store_dict == {}, broken("zarr.storage", "MemoryStore._store_dict")
    store = MemoryStore()
    assert WrapperStore(store)._store is store, broken("zarr.storage", "WrapperStore._store")
    for name in ("_get_many", "_set_many", "_with_store"):
        assert callable(getattr(WrapperStore, name, None)), broken("zarr.storage", f"WrapperStore.{name}")
    assert isinstance(da.ones((2, 2))._meta, np.ndarray), broken("dask.array", "Array._meta")

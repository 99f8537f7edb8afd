"""Every public name is documented in the form of numpydoc, and its example runs."""

import doctest
import inspect

import pytest

import rgcss_dask as rg
from rgcss_dask import plots

# What must not be found, by the codes of https://numpydoc.readthedocs.io/en/latest/validation.html: no docstring;
# parameters that do not exist, have no type or no description; no return value; no example.
OF_ALL = {"GL08", "PR02", "PR03", "PR04", "PR05", "PR07", "RT01", "RT03", "YD01"}
OF_NAMES = {"EX01", *OF_ALL}
OF_FUNCTIONS = {"PR01", *OF_NAMES}
# Values that users make and hand over: their methods are for the package, and the site leaves them out.
HANDED_OVER = {"Aims", "Band", "Sketch", "Factor"}


def methods(cls):
    """Return the public methods and properties that this package defines."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        member = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(member) and member.__module__.startswith("rgcss_dask"):
            yield f"{cls.__name__}.{name}"


CLASSES = [name for name in rg.__all__ if inspect.isclass(getattr(rg, name))]
METHODS = [method for name in CLASSES if name not in HANDED_OVER for method in methods(getattr(rg, name))]


def faults(name, kinds):
    """Return what numpydoc finds, of these kinds."""
    validate = pytest.importorskip("numpydoc.validate", reason="numpydoc is in the extra docs").validate
    return [f"{kind}: {words}" for kind, words in validate(f"rgcss_dask.{name}")["errors"] if kind in kinds]


@pytest.mark.parametrize("name", rg.__all__)
def test_a_public_name_has_a_whole_docstring(name):
    assert not faults(name, OF_NAMES if name in CLASSES else OF_FUNCTIONS)


@pytest.mark.parametrize("name", plots.__all__)
def test_a_plot_has_a_whole_docstring(name):
    assert not faults(f"plots.{name}", OF_FUNCTIONS)


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_has_a_whole_docstring(name):
    assert not faults(name, OF_ALL)


@pytest.mark.parametrize("name", [*rg.__all__, *(f"plots.{name}" for name in plots.__all__)])
def test_the_example_runs(name, tmp_path, monkeypatch):
    """In a folder of its own; a warning fails it, as it fails every test."""
    monkeypatch.chdir(tmp_path)
    thing = getattr(plots, name.removeprefix("plots.")) if name.startswith("plots.") else getattr(rg, name)
    tests = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    assert sum(len(test.examples) for test in tests) > 0
    told = []
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test, out=told.append)
    assert not told, "".join(told)


def test_what_is_missing_is_found():
    found = {fault[:4] for fault in faults("core.tuning.mean_and_error", OF_FUNCTIONS)}
    assert {"PR01", "RT01", "EX01"} <= found

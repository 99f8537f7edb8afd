"""The documents for maintainers name what exists: files, modules, names of the code, options, files it writes."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import rgcss_dask

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rgcss_dask"
BUILT = {"_build", "_examples", "gallery", "generated"}  # what building the site leaves in docs
PAGES = (path for path in (ROOT / "docs").rglob("*.md") if not BUILT & set(path.relative_to(ROOT / "docs").parts))
DOCUMENTS = sorted([ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *PAGES])
SOURCES = sorted(PACKAGE.rglob("*.py"))
# What ends so is a file that is there, unless the package writes it: then its name stands in the package.
ENDINGS = (".py", ".md", ".cff", ".html", ".toml", ".txt", ".sh", ".json", ".css", ".js")
# Names of other packages and tools, and of what is no longer here: a record of what was dropped has to name it.
OTHERS = {"np.ones", "zarrs", "numcodecs", "psutil", "distributed", "RGCSS_DATA"}
FORMER = {"rgcss_dask/core/steps.py", "core/steps.py", "core/workers.py"}

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?")
PLACE = re.compile(r"[\w./-]+\.py:[A-Za-z_][\w.]*|[\w.-]*/[\w./-]*|[\w.-]+")


def spans(text):
    """Return what stands in backticks, and places in the code that stand in pictures."""
    pictures = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    drawn = [found for picture in pictures for found in re.findall(r"[\w/]+\.py\b(?::[\w.]+)?", picture)]
    return re.findall(r"`([^`\n]+)`", plain) + drawn


def wrong(span):
    """Say what is wrong with a span in backticks; nothing for what is no file, place, name or option."""
    if span in OTHERS | FORMER | extras() or span.startswith(("http", "s3:", "DASK_")):
        return ""
    if span.startswith("--"):
        return "" if span.split("=")[0].split()[0] in options() else "there is no such option"
    if PLACE.fullmatch(span) and (":" in span or "/" in span or span.endswith(ENDINGS)):
        path, _, name = span.partition(":")
        return _wrong_place(path, name)
    return _wrong_name(span.removesuffix("()")) if NAME.fullmatch(span) else ""


def _wrong_place(path, name):
    found = next((base / path for base in (ROOT, PACKAGE) if (base / path).exists()), None)
    if found is None:
        written = path.rstrip("/").rsplit("/", 1)[-1]
        return "" if not name and not path.endswith((".py", ".md")) and written in texts() else "there is no such file"
    if found.suffix == ".py" and path.endswith("/"):
        return "it is a file"
    return "" if not name or name in defined(found) else "nothing of that name is defined there"


def _wrong_name(name):
    if name.startswith("rgcss_dask.") and name.count(".") == 1:
        known = set(rgcss_dask.__all__) | {path.stem for path in PACKAGE.iterdir()} | {"__version__"}
        return "" if name.split(".")[1] in known else "it is no public name"
    missing = [part for part in name.split(".") if part not in names() and part not in texts()]
    return f"no code has the name {missing[0]}" if missing else ""


@cache
def defined(path):
    """Return what a module defines: functions, classes, constants, and what classes define, with their dots."""

    def within(body, before):
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield before + target.id
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield before + node.name
            if isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{before}{node.name}.")

    return frozenset(within(ast.parse(path.read_text()).body, ""))


@cache
def _nodes():
    return [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


@cache
def names():
    """Return every name that the package has: of modules, functions, classes, fields, arguments and imports."""
    kinds = ((ast.Name, "id"), (ast.Attribute, "attr"), (ast.arg, "arg"), (ast.keyword, "arg"), (ast.alias, "name"))
    found = {getattr(node, name) for node in _nodes() for kind, name in kinds if isinstance(node, kind)}
    found |= {n.name for n in _nodes() if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    parts = {part for name in found if name for part in name.split(".")}
    return parts | {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}


@cache
def texts():
    """Return the words that stand as texts in the package: keys, choices, names of files it writes."""
    return {n.value for n in _nodes() if isinstance(n, ast.Constant) and isinstance(n.value, str)}


@cache
def extras():
    """Return what can be installed besides."""
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@cache
def options():
    """Return the options of the command line, and those that tests and the experiments of the paper are given."""
    given = [(ROOT / path).read_text() for path in ("tests/conftest.py", "examples/paper/__main__.py")]
    return set(re.findall(r"--[a-z][a-z-]*", "\n".join([*given, *texts()])))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_what_exists(document):
    found = {span: wrong(span) for span in spans(document.read_text())}
    assert not {span: reason for span, reason in found.items() if reason}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_leads_somewhere(document):
    targets = re.findall(r"\]\(([^)#]+)", document.read_text())
    assert not [to for to in targets if "://" not in to and not (document.parent / to).exists()]


def test_every_module_has_a_line_in_the_architecture():
    named = set(spans((ROOT / "ARCHITECTURE.md").read_text()))
    modules = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    assert not [name for name in modules if not name.endswith("__init__.py") and name not in named]


def test_every_decision_is_listed():
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text()))
    assert listed == {path.name for path in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}


@pytest.mark.parametrize(
    "span",
    [
        "core/steps_of_old.py",
        "sourcing/",
        "core/moments.py:Moment",
        "core/moments.py:Moments.subtract_all",
        "Moments.subtract_all",
        "select_all_columns",
        "rgcss_dask.choose",
        "docs/nowhere.md",
        "nobody-writes-this.json",
        "--no-such-option",
    ],
)
def test_what_does_not_exist_is_found(span):
    assert wrong(span)


@pytest.mark.parametrize(
    "span",
    [
        "core/moments.py",
        "rgcss_dask/core/moments.py",
        "tests/oracle.py",
        "core/moments.py:Moments.merge",
        "core/",
        "Moments.merge",
        "rgcss_dask.select",
        "pass.json",
        "--folds",
        "x x'",
    ],
)
def test_what_exists_is_not_complained_of(span):
    assert not wrong(span)

"""Cells of pages: code that is run when the site is built, shown with what it printed.

A cell is a fence that begins with ```` ```{code-cell} ```` for Python, or ```` ```{code-cell} bash ```` for commands of
rgcss. The option ``:hidden:`` is for what readers need not see. All cells of a page run one after the other, in a
folder of the page's own. An error in a cell ends the build. `tests/test_site.py` runs the same cells.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import os
import shlex
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from docutils import nodes
from docutils.parsers.rst import Directive, directives

TOLD = (UserWarning, RuntimeWarning)  # what is shown of warnings


class Page:
    """The names and the folder that the cells of a page share."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.folder = tempfile.mkdtemp(prefix="rgcss-page-")
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def run(self, code: str, kind: str = "python") -> tuple[str, str, list[str]]:
        """Run a cell; return what it printed, its last value as HTML, and its figures as PNG in base 64."""
        mpl.use("Agg")
        out = io.StringIO()
        with _within(self.folder), _told(out), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            value = commands(code) if kind == "bash" else _evaluated(code, self.names)
            html = "" if value is None else getattr(value, "_repr_html_", str)() if _is_rich(value) else ""
            if value is not None and not html:
                print(repr(value))
        return out.getvalue(), html, list(_figures())


def _is_rich(value: Any) -> bool:
    return callable(getattr(value, "_repr_html_", None)) and not isinstance(value, type)


def _evaluated(code: str, names: dict[str, Any]) -> Any:
    """Run statements; return the value of the last one if it is an expression without a semicolon."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";") else None
    exec(compile(tree, "<cell>", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def commands(text: str) -> None:
    """Run commands of rgcss in this process, one in each line."""
    from rgcss_dask.cli import cli  # noqa: PLC0415 (the pages without commands do not wait for it)

    for line in text.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(line, comments=True) or ["rgcss", "--version"]
        if program != "rgcss":
            raise ValueError(f"a cell runs commands of rgcss; got {line!r}. Write others as a plain block.")
        if code := cli.main(arguments, prog_name="rgcss", standalone_mode=False):
            raise RuntimeError(f"{line!r} ended with exit code {code}.")


@contextlib.contextmanager
def _within(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _told(out: io.StringIO) -> Iterator[None]:
    """Write warnings that users see to the output, and leave out where in the code they came from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in TOLD:
            warnings.simplefilter("always", kind)
        warnings.showwarning = lambda text, kind, *place, **more: out.write(f"{kind.__name__}: {text}\n")
        yield


def _figures() -> Iterator[str]:
    for number in plt.get_fignums():
        image = io.BytesIO()
        plt.figure(number).savefig(image, dpi=110, bbox_inches="tight")
        yield base64.b64encode(image.getvalue()).decode()
    plt.close("all")


class CodeCell(Directive):
    """A cell on a page."""

    has_content = True
    optional_arguments = 1
    option_spec = {"hidden": directives.flag}  # noqa: RUF012 (docutils reads it so)

    def run(self) -> list[nodes.Node]:
        """Run the cell; return its code and what came out."""
        env = self.state.document.settings.env
        page = env.temp_data.setdefault("cells", Page())
        kind, code = (self.arguments or ["python"])[0], "\n".join(self.content)
        try:
            printed, html, figures = page.run(code, kind)
        except Exception as error:
            raise self.error(f"a cell ended with {type(error).__name__}: {error}\n{code}") from error
        if "hidden" in self.options:
            return []
        made: list[nodes.Node] = [nodes.literal_block(code, code, language=kind, classes=["cell"])]
        if printed:
            text = printed.rstrip("\n")
            made.append(nodes.container("", nodes.literal_block(text, text, language="none"), classes=["output"]))
        if html:
            made.append(nodes.raw("", f'<div class="output">{html}</div>', format="html"))
        for image in figures:
            figure = f'<img class="output" alt="What the cell above draws" src="data:image/png;base64,{image}">'
            made.append(nodes.raw("", figure, format="html"))
        return made


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_directive("code-cell", CodeCell)
    return {"parallel_read_safe": True}

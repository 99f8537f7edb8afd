"""Pages of the site that are files of the repository: shown as they are, with their links led to pages of the site.

A page that begins with the line ``<!-- page: CONTRIBUTING.md -->`` shows that file, and then its own text. Links
between files of the repository lead to their pages on the site, or to the repository if they have none.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = re.compile(r"\A<!-- page: (\S+) -->\n(.*)", re.DOTALL)
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def pages(docs: Path) -> dict[str, str]:
    """Return which file of the repository is on which page of the site."""
    own, mirrored = {}, {}
    for path in (*docs.rglob("*.md"), *docs.rglob("*.rst")):
        name = path.relative_to(docs).with_suffix("").as_posix()
        own[path.relative_to(ROOT).as_posix()] = name
        if path.suffix == ".md" and (shown := PAGE.match(path.read_text())):
            mirrored[shown[1]] = name
    return own | mirrored


def with_links(text: str, file: str, page: str, known: dict[str, str], repository: str) -> str:
    """Lead the links of a file of the repository to where their targets are, seen from a page."""

    def led(match: re.Match[str]) -> str:
        picture, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(file), target))
        if picture:
            return f"!{label}({os.path.relpath(ROOT / path, (ROOT / 'docs' / page).parent)})"
        for candidate in (path, f"{path}/README.md"):
            if candidate in known:
                to = os.path.relpath(known[candidate] + Path(candidate).suffix, os.path.dirname(page) or ".")
                return f"{label}({to}{anchor})"
        if not (ROOT / path).exists():
            raise ValueError(f"{file} has a link to {target}, which is not there")
        return f"{label}({repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path})"

    return LINK.sub(led, text)


def show(app: Any, page: str, source: list[str]) -> None:
    """Put the file in the place of the line that names it, and lead the links of every page."""
    path = Path(app.env.doc2path(page))
    if path.suffix != ".md":
        return
    shown = PAGE.match(source[0])
    file = shown[1] if shown else path.relative_to(ROOT).as_posix()
    if shown:
        app.env.note_dependency(str(ROOT / file))
        source[0] = (ROOT / file).read_text()
    known, repository = pages(Path(app.srcdir)), app.config.repository
    source[0] = with_links(source[0], file, page, known, repository)
    if shown:
        source[0] += "\n" + with_links(shown[2], path.relative_to(ROOT).as_posix(), page, known, repository)


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_config_value("repository", "", "env")
    app.connect("source-read", show)
    return {"parallel_read_safe": True}

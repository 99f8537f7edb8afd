"""Recognising files of this package by their marks, so that an error can say what was given instead."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import is_url

RESULT = "rgcss_dask result"  # the entry "kind" of a result
ARCHIVE = "rgcss_dask"  # the attribute of a Zarr group with moments
HEAD = 1024  # bytes at the beginning of a file that contain its mark

WAYS = {
    ("rows", "moments"): "holds moments, which were made from rows: pick columns from them with rgcss select {} -k 10",
    ("rows", "a result"): "is a result: show it with rgcss report {} -o report.html",
    ("moments", "a result"): "is a result, which was made from moments: show it with rgcss report {} -o report.html",
    ("moments", "rows"): "holds rows: make moments from them with rgcss scan {} -o moments.zarr",
    ("a result", "moments"): "holds moments: pick columns from them with rgcss select {} -k 10 -o result.json",
    ("a result", "rows"): "holds rows: pick columns from them with rgcss select {} -k 10 -o result.json",
}


def refuse_wrong(address: str | Path, needed: str) -> None:
    """Refuse a local path of another kind than needed (rows, moments or a result), and suggest a command for it."""
    way_out = None if is_url(str(address)) else WAYS.get((needed, _kind_at(Path(address).expanduser())))
    if way_out is not None:
        verb = "is" if needed == "a result" else "are"
        raise WrongKindError(f"{needed} {verb} needed; {address} {way_out.format(shlex.quote(str(address)))}.")


def _kind_at(path: Path) -> str:
    """Return the kind of the file or folder at a path; empty if unknown."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return "a result" if f'"kind": "{RESULT}"'.encode() in file.read(HEAD) else ""
        if (path / ".zarray").exists():
            return "rows"
        content = _json(path / "zarr.json")
        if ARCHIVE in content.get("attributes", {}):
            return "moments"
        return "rows" if content.get("node_type") == "array" else ""
    return ""


def _json(path: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and isinstance(content.get("attributes", {}), dict):
            return content
    return {}

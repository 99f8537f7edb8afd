"""Which files of a folder belong to this package: only files with its marks are overwritten or removed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rgcss_dask.core.kinds import ARRAYS
from rgcss_dask.io.claim import ID
from rgcss_dask.io.claim import NAME as CLAIM
from rgcss_dask.io.files import DRAFT, Folder
from rgcss_dask.io.own_files import ARCHIVE

ATTRIBUTE = ARCHIVE  # mark of the Zarr group of an archive
CHECKPOINTS = "checkpoints"
PASS = "pass.json"  # in the folder of checkpoints: the identity of their pass, and their mark
MARK = b'{"format": '  # beginning of that file
VERSION = re.compile("v[0-9a-f]{12}")
BATCH, BATCH_MARK = "batch.json", b'{"kind": "rgcss_dask batch"}'  # beside moments made by a batch
PARTIAL = r"zarr\.\w+\.partial"  # temporary files of Zarr that a killed process left
IN_VERSION = re.compile(rf"zarr\.json|{'|'.join(ARRAYS)}|folds|groups|{PARTIAL}")
OF_PASS = ID  # the folder of the checkpoints of one pass
IN_PASS = re.compile(rf".+\.part|.+\.part{DRAFT}")
BESIDE_PASS = re.compile(rf"{re.escape(PASS)}{DRAFT}")
# Temporary files in the folder of an unfinished archive.
PASSING = re.compile(rf"{PARTIAL}|{re.escape(CLAIM)}(\.{ID.pattern})*({DRAFT})?|{re.escape(BATCH)}{DRAFT}")


def refuse_foreign(folder: Folder) -> None:
    """Refuse a path that contains anything but an archive: it may be data, which must not be overwritten."""
    found = foreign(folder)
    if found:
        raise FileExistsError(
            f"an archive of moments must have its path to itself; at {folder.address} there is {found}. Give a new "
            "path, or remove what is there if it is not needed."
        )


def foreign(folder: Folder) -> str:
    """Describe what a folder contains besides an archive or an unfinished pass; empty if nothing."""
    if folder.is_web:  # read-only
        return ""
    if folder.is_local and Path(folder.root).is_file():
        return "a file"
    names = folder.names()
    head = _head(folder) if "zarr.json" in names else {}
    if ".zarray" in names or head.get("node_type") == "array":
        return "a Zarr array"
    attributes = head.get("attributes") or {}
    if ATTRIBUTE in attributes or (not attributes and is_begun(folder)):  # marked as an archive
        return ""
    # A group without attributes is an unfinished archive if it contains only files of one.
    others = [name for name in names if not _may_be_unfinished(folder, name, is_group=bool(head))]
    if ".zgroup" in names or (head and (attributes or others)):
        return "a Zarr group of something else"
    return ", ".join(others[:3] + ["more"] * (len(others) > 3))


def is_begun(folder: Folder) -> bool:
    """Tell whether a pass was started here and perhaps not finished."""
    return (folder.within(CHECKPOINTS).read(PASS) or b"").startswith(MARK)


def mark_for_batch(folder: Folder) -> None:
    """Mark a folder as made by a batch, so that a batch may replace its content."""
    folder.write(BATCH, BATCH_MARK)


def has_batch_mark(folder: Folder) -> bool:
    """Tell whether a folder is marked as made by a batch."""
    return folder.read(BATCH) == BATCH_MARK


def drop_checkpoints(folder: Folder) -> None:
    """Remove the checkpoints of a pass, the mark last, and no other files."""
    inside = folder.within(CHECKPOINTS)
    names = inside.names()
    for name in names:
        if OF_PASS.fullmatch(name):
            _remove_of(inside.within(name), IN_PASS)
    for name in names:
        if BESIDE_PASS.fullmatch(name) or (name == PASS and is_begun(folder)):
            inside.remove(name)
    inside.remove_empty()


def drop_versions(folder: Folder, keep: str | None) -> None:
    """Remove old versions of an archive, and leftovers of dead processes; the caller holds the claim."""
    for name in folder.names():
        if re.fullmatch(PARTIAL, name):
            folder.remove(name)
        if VERSION.fullmatch(name) and name != keep and _holds_only(folder.within(name), IN_VERSION):
            folder.remove(name)


def _may_be_unfinished(folder: Folder, name: str, *, is_group: bool) -> bool:
    if name == CHECKPOINTS:
        inside = folder.within(name)
        return all(
            BESIDE_PASS.fullmatch(one) or (OF_PASS.fullmatch(one) and _holds_only(inside.within(one), IN_PASS))
            for one in inside.names()
        ) and not (folder.is_local and Path(folder.root, name).is_file())
    if name == BATCH:
        return has_batch_mark(folder)
    if VERSION.fullmatch(name):
        return is_group and _holds_only(folder.within(name), IN_VERSION)
    return (name == "zarr.json" and is_group) or PASSING.fullmatch(name) is not None


def _holds_only(folder: Folder, ours: re.Pattern[str]) -> bool:
    return all(ours.fullmatch(name) for name in folder.names())


def _remove_of(folder: Folder, ours: re.Pattern[str]) -> None:
    if _holds_only(folder, ours):
        folder.remove()
        return
    for name in folder.names():
        if ours.fullmatch(name):
            folder.remove(name)


def _head(folder: Folder) -> dict[str, Any]:
    try:
        return dict(json.loads(folder.read("zarr.json") or b"{}"))
    except (ValueError, TypeError, RecursionError):
        return {"attributes": {"unreadable": True}}

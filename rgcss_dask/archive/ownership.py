"""What in a folder is ours: what carries our mark, and nothing else is written over or removed."""

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

ATTRIBUTE = ARCHIVE  # of the group that is an archive: its mark
CHECKPOINTS = "checkpoints"
PASS = "pass.json"  # in the checkpoints: which pass they are of, and their mark
MARK = b'{"format": '  # what it begins with
VERSION = re.compile("v[0-9a-f]{12}")
BATCH, BATCH_MARK = "batch.json", b'{"kind": "rgcss_dask batch"}'  # beside moments that a batch made
PARTIAL = r"zarr\.\w+\.partial"  # drafts of Zarr that a killed process left
IN_VERSION = re.compile(rf"zarr\.json|{'|'.join(ARRAYS)}|folds|groups|{PARTIAL}")
OF_PASS = ID  # the folder of the checkpoints of one pass
IN_PASS = re.compile(rf".+\.part|.+\.part{DRAFT}")
BESIDE_PASS = re.compile(rf"{re.escape(PASS)}{DRAFT}")
# Names without a meaning of their own, in the folder of an archive that was not finished.
PASSING = re.compile(rf"{PARTIAL}|{re.escape(CLAIM)}(\.{ID.pattern})*({DRAFT})?|{re.escape(BATCH)}{DRAFT}")


def refuse_foreign(folder: Folder) -> None:
    """Refuse a path with anything but an archive: it may be the data, which an archive would be written over."""
    found = foreign(folder)
    if found:
        raise FileExistsError(
            f"an archive of moments must have its path to itself; at {folder.address} there is {found}. Give a path at "
            "which there is nothing yet, or remove what is there if it is not needed."
        )


def foreign(folder: Folder) -> str:
    """Say what is in a folder that belongs neither to an archive nor to an unfinished pass; nothing for nothing."""
    if folder.is_web:  # where nothing can be written at all
        return ""
    if folder.is_local and Path(folder.root).is_file():
        return "a file"
    names = folder.names()
    head = _head(folder) if "zarr.json" in names else {}
    if ".zarray" in names or head.get("node_type") == "array":
        return "a Zarr array"
    attributes = head.get("attributes") or {}
    if ATTRIBUTE in attributes or (not attributes and is_begun(folder)):  # a mark, whatever lies beside
        return ""
    # Without attributes it is an archive that was not finished, if there is nothing in it but what one has by then.
    others = [name for name in names if not _may_be_unfinished(folder, name, is_group=bool(head))]
    if ".zgroup" in names or (head and (attributes or others)):
        return "a Zarr group of something else"
    return ", ".join(others[:3] + ["more"] * (len(others) > 3))


def is_begun(folder: Folder) -> bool:
    """Tell whether there is a pass that was begun and perhaps not finished."""
    return (folder.within(CHECKPOINTS).read(PASS) or b"").startswith(MARK)


def mark_for_batch(folder: Folder) -> None:
    """Note that what will be in a folder is made by a batch, and may be replaced by one."""
    folder.write(BATCH, BATCH_MARK)


def has_batch_mark(folder: Folder) -> bool:
    """Tell whether a batch began what is in a folder."""
    return folder.read(BATCH) == BATCH_MARK


def drop_checkpoints(folder: Folder) -> None:
    """Remove the checkpoints of a pass, the mark last, and nothing else that lies beside them."""
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
    """Remove the versions of an archive but the current one, and what else the dead have left; only with the claim."""
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

"""The identity of the pass behind checkpoints and archives, so that no pass resumes from those of another."""

from __future__ import annotations

import json
import uuid
from typing import Any

from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.archive.ownership import CHECKPOINTS, OF_PASS, PASS, drop_checkpoints
from rgcss_dask.io.files import Folder


class OtherPassError(ValueError):
    """An archive or its checkpoints were made from other data, or with other options."""


def open_checkpoints(folder: Folder, fingerprint: dict[str, Any], *, overwrite: bool = False) -> Checkpoints:
    """Return the checkpoints of this pass; refuse those of another pass, or remove them with ``overwrite``."""
    inside = folder.within(CHECKPOINTS)
    there = unfinished_pass(folder)
    if there is not None and not can_go_on(there, fingerprint):
        if not overwrite and (not there or checkpoint_count(inside)):  # a pass without checkpoints may be dropped
            raise _unfinished_other(inside, there, fingerprint)
        drop_checkpoints(folder)
        there = None
    name = uuid.uuid4().hex if there is None else there["id"]
    inside.write(PASS, json.dumps({**fingerprint, "id": name}).encode())
    # In a separate folder, because workers of a killed pass may still write checkpoints.
    return Checkpoints(inside.within(name))


def unfinished_pass(folder: Folder) -> dict[str, Any] | None:
    """Return the fingerprint of a pass whose checkpoints are in the folder of an archive, if there is one."""
    found = folder.within(CHECKPOINTS).read(PASS)
    try:
        return None if found is None else dict(json.loads(found))
    except (ValueError, TypeError, RecursionError):
        return {}  # damaged: it cannot be resumed


def checkpoint_count(inside: Folder) -> int:
    """Count the checkpoints of all passes in a folder."""
    passes = [name for name in inside.names() if OF_PASS.fullmatch(name)]
    return sum(len(Checkpoints(inside.within(name)).names()) for name in passes)


def can_go_on(there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Tell whether a pass can use existing checkpoints: those of nan="raise" serve nan="drop" too."""
    if there.get("nan") == "raise" and here["nan"] == "drop":
        there = {**there, "nan": "drop"}
    named = OF_PASS.fullmatch(str(there.get("id")))  # it becomes a path
    return named is not None and not differences(there, here)


def refuse_other(address: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse a finished archive that was made from other data or with other options."""
    if different := differences(there, here):
        raise OtherPassError(
            f"{address} holds a pass over other data or with other options ({different}). Make the call it was made "
            f"with, use append() for rows that were added since, give another path, or remove {address}; "
            "overwrite=True (--overwrite) replaces it when the new pass is complete."
        )


def differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Describe how two passes differ; empty if they are the same."""
    here = json.loads(json.dumps(here))
    different = [k for k in {**there, **here} if k != "id" and there.get(k) != here.get(k)]
    return "; ".join(f"{k}: {there.get(k)} there, {here.get(k)} asked for" for k in different)


def _unfinished_other(inside: Folder, there: dict[str, Any], here: dict[str, Any]) -> OtherPassError:
    anew = "Start again with overwrite=True (--overwrite), or give another path."
    if not there:
        return OtherPassError(f"{inside.address}/{PASS}, which identifies the pass, is damaged. {anew}")
    return OtherPassError(
        f"{inside.address} holds an unfinished pass over other data or with other options "
        f"({differences(there, here)}). Make the call it was made with to resume it. {anew}"
    )

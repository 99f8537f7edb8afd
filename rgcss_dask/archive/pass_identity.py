"""Which pass checkpoints and archives are of, so that no pass goes on from what another has left."""

from __future__ import annotations

import json
import uuid
from typing import Any

from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.archive.ownership import CHECKPOINTS, OF_PASS, PASS, drop_checkpoints
from rgcss_dask.io.files import Folder


class OtherPassError(ValueError):
    """An archive or its checkpoints were made of other data, or in another way."""


def open_checkpoints(folder: Folder, fingerprint: dict[str, Any], *, overwrite: bool = False) -> Checkpoints:
    """Return the checkpoints of this very pass; refuse those of another, or remove them if asked to."""
    inside = folder.within(CHECKPOINTS)
    there = unfinished_pass(folder)
    if there is not None and not can_go_on(there, fingerprint):
        if not overwrite and (not there or checkpoint_count(inside)):  # a pass that has kept nothing is no loss
            raise _unfinished_other(inside, there, fingerprint)
        drop_checkpoints(folder)
        there = None
    name = uuid.uuid4().hex if there is None else there["id"]
    inside.write(PASS, json.dumps({**fingerprint, "id": name}).encode())
    # In a folder of its own: a worker of another pass that was killed may still write, and must not be believed.
    return Checkpoints(inside.within(name))


def unfinished_pass(folder: Folder) -> dict[str, Any] | None:
    """Return the fingerprint of a pass whose checkpoints are in the folder of an archive, if there is one."""
    found = folder.within(CHECKPOINTS).read(PASS)
    try:
        return None if found is None else dict(json.loads(found))
    except (ValueError, TypeError, RecursionError):
        return {}  # damaged: no pass that can be gone on with


def checkpoint_count(inside: Folder) -> int:
    """Count the checkpoints that passes have kept in a folder of them."""
    passes = [name for name in inside.names() if OF_PASS.fullmatch(name)]
    return sum(len(Checkpoints(inside.within(name)).names()) for name in passes)


def can_go_on(there: dict[str, Any], here: dict[str, Any]) -> bool:
    """Tell whether a pass can use the checkpoints of another: rows that were not refused are not dropped either."""
    if there.get("nan") == "raise" and here["nan"] == "drop":
        there = {**there, "nan": "drop"}
    named = OF_PASS.fullmatch(str(there.get("id")))  # it becomes a path
    return named is not None and not differences(there, here)


def refuse_other(address: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Refuse to take a finished archive for one of other data, or made in another way."""
    if different := differences(there, here):
        raise OtherPassError(
            f"{address} holds a pass over other data or with other options ({different}). Make the call it was made "
            f"with, append() for rows that were added to a finished archive, give another path, or remove {address}; "
            "overwrite=True (--overwrite) replaces it when the new pass is complete."
        )


def differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Say in what two passes differ; nothing if they are the same."""
    here = json.loads(json.dumps(here))
    different = [k for k in {**there, **here} if k != "id" and there.get(k) != here.get(k)]
    return "; ".join(f"{k}: {there.get(k)} there, {here.get(k)} asked for" for k in different)


def _unfinished_other(inside: Folder, there: dict[str, Any], here: dict[str, Any]) -> OtherPassError:
    anew = "Begin anew with overwrite=True (--overwrite), or give another path."
    if not there:
        return OtherPassError(f"{inside.address}/{PASS}, which says of which pass the rest is, is damaged. {anew}")
    return OtherPassError(
        f"{inside.address} holds an unfinished pass over other data or with other options "
        f"({differences(there, here)}). Make the call it was made with, which goes on from there. {anew}"
    )

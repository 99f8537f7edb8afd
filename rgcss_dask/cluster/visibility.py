"""Checks that workers see the same source as this process, and can write checkpoints to the archive."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from distributed import Client, get_worker

from rgcss_dask.cluster.versions import VERSION, ask_workers, check_version
from rgcss_dask.io.claim import NAME, Claim
from rgcss_dask.io.files import Folder
from rgcss_dask.io.zarr_store import METADATA

MOST = 16  # most paths checked, of a list of archives
SAMPLED, PIECES, PIECE = 4, 4, 2**14  # sampled files of a span, pieces of each, and bytes per piece
NOTHING = "nothing"

SeenPaths = dict[str, str]  # path: description


def look(paths: Sequence[str]) -> SeenPaths:
    """Describe the content of paths, without times and owners, so that copies on other machines compare equal."""
    step = -(-len(paths) // MOST) or 1
    return {path: _at(Path(path)) for path in paths[::step]}


def _at(place: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    try:
        if place.is_file():
            return f"a file of {place.stat().st_size} bytes"
        if not place.is_dir():
            return NOTHING
        for name in METADATA:
            if (place / name).is_file():
                digest.update(name.encode() + (place / name).read_bytes())
    except OSError as error:
        return f"{error.strerror}"
    return f"a folder with the metadata {digest.hexdigest()}"


async def look_there(paths: Sequence[str], folder: Folder | None) -> tuple[SeenPaths, str | None]:
    """Look at the paths from a worker, and check that it can write the archive, in threads beside its event loop."""
    return await asyncio.to_thread(look, paths), await asyncio.to_thread(_writer, folder)


def _writer(folder: Folder | None) -> str | None:
    """Return the id of the writer of the archive, or None if it is not visible or not writable."""
    if folder is None or (folder.is_local and not os.access(folder.root, os.W_OK)):
        return None
    claim = Claim.of(folder.read(NAME) or b"")
    return None if claim is None else claim.id


def check_visible(client: Client, paths: Sequence[str], folder: Folder | None) -> bool:
    """Refuse if a worker does not see the source; return whether all workers can write checkpoints."""
    local = folder if folder is not None and (folder.is_local or folder.address.startswith("memory:")) else None
    if not paths and local is None:
        return True
    here, writer = look(paths), _writer(local)
    blind = []
    for worker, found in ask_workers(client, look_there, list(here), local).items():
        compare(here, found[0], worker)
        if found[1] != writer:
            blind.append(worker)
    if blind and local is not None:
        warnings.warn(
            f"the worker {blind[0]} cannot write to {local.address} as seen from here: there are no checkpoints, and "
            "this process writes the moments at the end. To be able to resume a pass, give an archive that all workers "
            "can write to, on a shared file system or at a URL.",
            stacklevel=5,
        )
    return not blind


def compare(here: SeenPaths, there: SeenPaths, worker: str) -> None:
    """Refuse a worker with different content at a path."""
    for path, wanted in here.items():
        found = there[path]
        if found != wanted:
            kind = "nothing" if found == NOTHING else f"something else ({found}, here it is {wanted})"
            raise FileNotFoundError(
                f"every worker must see the source under its path; the worker {worker} finds {kind} at {path}. Put it "
                "on a file system that all of them share, copy it there, or give a URL such as s3://bucket/data.zarr."
            )


class Stored(Protocol):
    """An object stored in files."""

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of a range of rows."""


def seal(stored: Iterable[Stored], start: int, stop: int) -> str | None:
    """Digest the sizes of all files of a range of rows and pieces of a few files; copies have equal digests.

    Copies that differ only outside the sampled pieces have equal digests; reading everything would cost a whole pass.
    """
    files = [file for one in stored for file in one.files(start, stop)]
    if not files:
        return None
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(f"{_size(file)}\n".encode())
    for file in _spread(files, SAMPLED):
        size = _size(file) or 0
        for offset in _spread(range(0, size, PIECE), PIECES):
            with open(file, "rb") as content:
                content.seek(offset)
                digest.update(content.read(PIECE))
    return digest.hexdigest()


def _size(file: str) -> int | None:
    try:
        return os.stat(file).st_size
    except OSError:  # chunks may be missing
        return None


def _spread(all_of_them: Sequence[Any], count: int) -> Sequence[Any]:
    """Return the first, the last and some entries in between."""
    last = len(all_of_them) - 1
    return [all_of_them[i] for i in sorted({last * j // max(1, count - 1) for j in range(count)})] if last >= 0 else []


def check_seal(wanted: str | None, stored: Iterable[Stored], rows: tuple[int, int], address: str) -> None:
    """Refuse, on a worker, to read data that differ from those of the caller."""
    start, stop = rows
    if wanted is not None and seal(stored, start, stop) != wanted:
        raise ValueError(
            f"every worker must read the same data; on the worker {_name()}, rows {start:,} to {stop - 1:,} of "
            f"{address}, or their weights, differ from what the caller saw when the pass began: the worker has another "
            "copy, or the data are being written. Copy them there again, or use a shared file system, and make the "
            "same call again."
        )


_looked: set[str] = set()  # passes that this worker has checked
_lock = threading.Lock()


def check_here(token: str, version: str, sights: SeenPaths) -> None:
    """Check version and visibility on a worker, which may have joined after the pass began."""
    with _lock:
        if token in _looked:
            return
        check_version(VERSION, f"the worker {_name()}", wanted=version)
        compare(sights, look(list(sights)), _name())
        _looked.add(token)


def _name() -> Any:
    return get_worker().address

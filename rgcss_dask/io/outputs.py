"""Checks of output paths: never over inputs, and over files of other origin only when asked."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path

from rgcss_dask.io.files import Folder, is_url, place_of

SAME = {"s3a": "s3", "gcs": "gs", "az": "abfs"}  # protocols with two names
HEAD = 1024  # bytes at the beginning of a file that contain its mark


class Places:
    """Places that are inputs, or other outputs, and must not be overwritten."""

    def __init__(self, addresses: Iterable[str | Path] = ()) -> None:
        self._at: dict[Hashable, str] = {}
        self._above: dict[Hashable, str] = {}
        for address in addresses:
            self.add(address)

    def add(self, address: str | Path) -> None:
        """Add a place."""
        first, *above = _chain(str(address))
        self._at[first] = str(address)
        self._above |= dict.fromkeys(above, str(address))

    def touched(self, output: str | Path) -> str:
        """Describe how an output coincides with, contains or lies within one of the places; empty if it does not."""
        for chain in _chains(str(output)):
            if chain[0] in self._at:
                return f"is {self._at[chain[0]]}"
            if chain[0] in self._above:
                return f"contains {self._above[chain[0]]}"
            for place in chain[1:]:
                if place in self._at:
                    return f"lies within {self._at[place]}"
        return ""


def refuse_inputs(output: str | Path, inputs: Iterable[str | Path]) -> None:
    """Refuse an output that is, contains or lies within an input, however the paths are spelled."""
    touched = Places(inputs).touched(output)
    if touched:
        raise FileExistsError(
            f"inputs must not be overwritten: the output {output} {touched}, which is an input. Give another path for "
            "the output."
        )


def refuse_others(path: str | Path, mark: bytes, what: str, *, overwrite: bool) -> tuple[Folder, str]:
    """Return the place of an output file; refuse an existing file without the mark of this kind of file."""
    folder, name = place_of(path)
    try:
        head = None if folder.is_web else folder.read(name, HEAD)
    except IsADirectoryError:
        head = b""
    local = Path(folder.root, name)
    if folder.is_local and local.exists() and not local.is_file():
        raise FileExistsError(f"{path} must be a regular file; it is a folder or a device. Give another path.")
    if head is not None and mark not in head and not overwrite:
        raise FileExistsError(
            f"{path} exists already, and is not {what} written by this package. Give another path, or overwrite=True "
            "(--overwrite) to replace it."
        )
    return folder, name


def _chains(output: str) -> Iterator[list[Hashable]]:
    """Yield the chain of the target of an output and, for a symbolic link, of the link itself."""
    yield _chain(output)
    path = _local(output)
    if path is not None and path.is_symlink():
        yield [str(path), *_chain(str(path.parent))]


def _chain(address: str) -> list[Hashable]:
    """Return a key of a place, then keys of its parents; equal keys mean the same place, however it is spelled."""
    path = _local(address)
    if path is not None:
        real = Path(os.path.realpath(path))
        return [_key(place) for place in (real, *real.parents)]
    protocol, _, rest = _plain(address).partition("://")
    names = [name for name in posixpath.normpath(rest).split("/") if name]
    start = f"{SAME.get(protocol, protocol)}:/"
    return ["/".join([start, *names[:count]]) for count in range(len(names), 0, -1)]


def _key(path: Path) -> Hashable:
    """Identify a file by its inode, which does not depend on letter case or mounts."""
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return status.st_dev, status.st_ino


def _plain(address: str) -> str:
    """Return the last address of a chain such as zip://a::s3://b/c.zip."""
    return address.split("::")[-1] if is_url(address) else address


def _local(address: str) -> Path | None:
    """Return the absolute path of a local address, without resolving links; None for URLs."""
    plain = _plain(address)
    for protocol in ("file://", "local://"):
        plain = plain.removeprefix(protocol)
    return None if is_url(plain) else Path(plain).expanduser().absolute()

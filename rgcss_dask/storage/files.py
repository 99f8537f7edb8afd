"""Files at a local path or an fsspec URL: whole ones, written in one step."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

# Protocol -> the extra of this package that brings what it needs.
EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "http": "http",
    "https": "http",
    "gs": "gcs",
    "gcs": "gcs",
    "abfs": "azure",
    "az": "azure",
}


def is_url(address: str) -> bool:
    """Tell a URL (or a chain of them) from a local path."""
    return "://" in address or "::" in address


def filesystem(address: str, storage_options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of an address and the path in it."""
    try:
        fs, path = fsspec.core.url_to_fs(address, **(storage_options or {}))
    except ImportError as error:
        protocol = address.split("::")[-1].split("://")[0]
        extra = EXTRAS.get(protocol)
        way_out = f"pip install 'rgcss-dask[{extra}]'" if extra else str(error)
        raise ImportError(f"reading {address} needs a package that is not installed: {way_out}.") from error
    except ValueError as error:
        raise ValueError(f"{address} cannot be opened: {error}.") from error
    return fs, path


@dataclass(frozen=True)
class Folder:
    """A folder, local or remote, in which files appear whole or not at all."""

    address: str
    storage_options: dict[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def _where(self) -> tuple[Any, str]:
        return filesystem(self.address, self.storage_options)

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a file system of this machine."""
        return "file" in self._protocols or "local" in self._protocols

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self._where[0].protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def within(self, name: str) -> Folder:
        """Return a folder in this one."""
        return Folder(f"{self.address.rstrip('/')}/{name}", self.storage_options)

    def read(self, name: str) -> bytes | None:
        """Return what a file holds, or None if there is no such file."""
        fs, root = self._where
        try:
            return bytes(fs.cat_file(f"{root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        """Look for a file, without trusting a listing made earlier."""
        fs, root = self._where
        if self.is_local:
            return Path(root, name).exists()
        fs.invalidate_cache()
        return bool(fs.exists(f"{root}/{name}"))

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        """Write a file: a reader finds the old one or the new one, never a part."""
        fs, root = self._where
        if not self.is_local:  # object stores show an object when it is complete
            fs.pipe_file(f"{root}/{name}", b"".join(pieces))
            return
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.draft")
        try:
            with draft.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def names(self) -> list[str]:
        """List the files of the folder."""
        fs, root = self._where
        fs.invalidate_cache()
        try:
            return sorted(str(entry).rsplit("/", 1)[-1] for entry in fs.ls(root, detail=False))
        except FileNotFoundError:
            return []

    def remove(self, name: str = "") -> None:
        """Remove a file or a folder with all in it, if it is there."""
        fs, root = self._where
        path = f"{root}/{name}" if name else root
        fs.invalidate_cache()
        try:
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            pass  # another process of the same pass was first


def place_of(path: str | Path) -> tuple[Folder, str]:
    """Split the address of a file into its folder and its name."""
    address = str(path) if is_url(str(path)) else str(Path(path).expanduser().absolute())
    parent, _, name = address.rpartition("/")
    return Folder(parent or "/"), name

"""Files at a local path or an fsspec URL, written atomically."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import fsspec

from rgcss_dask.io.retry import Retry, StoreError, status_of
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.runtime.process_identity import is_left, token

T = TypeVar("T")
ONCE = {"total_max_attempts": 1, "mode": "standard"}  # for botocore
LARGE = 100 * 2**20  # bytes; s3fs uploads larger objects in parts
DRAFT = r"\.[0-9a-f]{32}\.draft"  # ending of the temporary name of a file
_DRAFT = re.compile(r"(.*)\.([0-9a-f]{32})\.draft", re.DOTALL)
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # errors of file systems without hard links

# Protocol -> the extra of this package that installs its dependencies.
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


def in_order(addresses: Iterable[str]) -> list[str]:
    """Sort in natural order: day-2 comes before day-10."""

    def key(address: str) -> tuple[Any, ...]:
        parts = re.split(r"([0-9]+)", address)  # text and digits by turns
        return *(int(part) if i % 2 else part for i, part in enumerate(parts)), address

    return sorted(addresses, key=key)


def order_in_words(addresses: Sequence[str]) -> str:
    """Describe the order in which files or archives are read."""
    shown = addresses if len(addresses) <= 4 else [*addresses[:3], "...", addresses[-1]]
    return f"{', '.join(shown)} ({len(addresses)} in this order)"


def options_of(address: str, storage_options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the storage options, with retries of botocore turned off: only `Retry` retries."""
    options = dict(storage_options or {})
    if address.split("://")[0] not in ("s3", "s3a"):
        return options
    set_by_user = options.get("config_kwargs", fsspec.config.conf.get("s3", {}).get("config_kwargs", {}))
    # Without concurrency an object is read in one request. Otherwise s3fs asks for its size first, and joins parts of
    # large objects without checking the length of each part.
    return {"max_concurrency": 1, **options, "config_kwargs": {"retries": ONCE, **set_by_user}}


def tried_once(fs: Any) -> None:
    """Turn off retries of s3fs, which has no option for that, if the file system was made with `options_of`."""
    if "s3" in fs.protocol and "total_max_attempts" in fs.config_kwargs.get("retries", ()):
        fs.retries = 1


def filesystem(address: str, storage_options: dict[str, Any] | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of an address, and the path within it."""
    try:
        fs, path = fsspec.core.url_to_fs(address, **options_of(address, storage_options))
    except ImportError as error:
        protocol = address.split("::")[-1].split("://")[0]
        extra = EXTRAS.get(protocol)
        way_out = f"pip install 'rgcss-dask[{extra}]'" if extra else str(error)
        place = without_secrets(address)
        raise ImportError(f"reading {place} needs a package that is not installed: {way_out}.") from error
    except ValueError as error:
        raise ValueError(without_secrets(f"{address} cannot be opened: {error}.")) from error
    tried_once(fs)
    return fs, path


@dataclass(frozen=True, repr=False)
class Folder:
    """A local or remote folder in which files are written atomically."""

    url: str  # or path; may hold a password
    storage_options: dict[str, Any] = field(default_factory=dict, hash=False)
    retry: Retry = field(default_factory=Retry.configured)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the file system: each process creates its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_where"}

    def __repr__(self) -> str:
        return f"Folder({self.address!r})"

    @property
    def address(self) -> str:
        """The address without secrets."""
        return without_secrets(self.url)

    @cached_property
    def _where(self) -> tuple[Any, str]:
        return filesystem(self.url, self.storage_options)

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a file system of this machine."""
        return "file" in self._protocols or "local" in self._protocols

    @property
    def is_web(self) -> bool:
        """Whether the folder is on a web server, which can only be read."""
        return self.address.startswith(("http://", "https://"))

    @property
    def root(self) -> str:
        """The path of the folder in its file system."""
        return str(self._where[1])

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self._where[0].protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def _tried(self, verb: str, name: str, ask: Callable[[], T]) -> T:
        """Call ``ask``, with retries if the folder is remote."""
        return ask() if self.is_local else self.retry(verb, f"{self.address}/{name}".rstrip("/"), ask)

    def within(self, name: str) -> Folder:
        """Return a folder in this one."""
        return Folder(f"{self.url.rstrip('/')}/{name}", self.storage_options, self.retry)

    def read(self, name: str, stop: int | None = None) -> bytes | None:
        """Return the content of a file, or its first bytes, or None if it does not exist."""
        fs, root = self._where
        part = {} if stop is None else {"start": 0, "end": stop}
        try:
            return self._tried("read", name, lambda: bytes(fs.cat_file(f"{root}/{name}", **part)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except StoreError as error:
            if stop is not None and status_of(error) == 416:  # an empty object has no first bytes
                return b""
            raise

    def opened(self, name: str) -> BinaryIO | None:
        """Open a file for reading, or return None if it does not exist; one of a store is read into memory."""
        if not self.is_local:
            content = self.read(name)
            return None if content is None else io.BytesIO(content)
        try:
            return Path(self.root, name).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, name: str) -> bool:
        """Tell whether a file exists, without using a cached listing."""
        fs, root = self._where
        if self.is_local:
            return Path(root, name).exists()
        fs.invalidate_cache()
        try:
            self._tried("looked for", name, lambda: fs.info(f"{root}/{name}"))
        except FileNotFoundError:
            return False
        return True

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        """Write a file atomically: a reader finds the old or the new content, never a part."""
        root = self._where[1]
        if not self.is_local:  # object stores write objects atomically
            self._put(name, b"".join(pieces))
            return
        path = Path(root, name)
        with _draft_of(path, pieces) as draft:
            draft.replace(path)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists; return whether it was written. Of several concurrent calls, one succeeds.

        In object stores other than S3, and in those without conditional writes, several calls at the same instant may
        all succeed; the last one wins.
        """
        if not self.is_local:
            return self._create_remote(name, content)
        path = Path(self.root, name)
        with _draft_of(path, [content]) as draft:
            try:
                _link(draft, path)
            except FileExistsError:
                return False
        return True

    def _create_remote(self, name: str, content: bytes) -> bool:
        if self.read(name) is not None:
            return False
        fs, root = self._where
        try:
            if "s3" in self._protocols:
                self._tried("written", name, lambda: fs.pipe_file(f"{root}/{name}", content, mode="create"))
                return True
        except FileExistsError:
            return False
        except StoreError as error:
            if status_of(error) == 412:  # the file exists: as above, from stores with less specific errors
                return False
            if status_of(error) != 501:  # conditional writes are not implemented
                raise
        self._put(name, content)
        return True

    def _put(self, name: str, content: bytes) -> None:
        fs, root = self._where
        if "s3" not in self._protocols or len(content) < LARGE:
            self._tried("written", name, lambda: fs.pipe_file(f"{root}/{name}", content))
            return
        # In parts: botocore retries the failed part, so that the others are not sent again.
        once = options_of(self.url, self.storage_options)
        retries = {"total_max_attempts": self.retry.tries, "mode": "standard"}
        options = {**once, "max_concurrency": 10, "config_kwargs": {**once["config_kwargs"], "retries": retries}}
        fs, root = filesystem(self.url, options)
        place = f"{self.address}/{name} (in parts, each up to {self.retry.tries} times)"
        Retry(tries=1)("written", place, lambda: fs.pipe_file(f"{root}/{name}", content))

    def names(self) -> list[str]:
        """List the files of the folder."""
        fs, root = self._where
        fs.invalidate_cache()
        try:
            found = self._tried("listed", "", lambda: fs.ls(root, detail=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        # Without the folder itself.
        inside = (str(entry) for entry in found if str(entry).rstrip("/") != root.rstrip("/"))
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in inside)

    def count(self, name: str) -> int:
        """Count the files in a subfolder, recursively."""
        fs, root = self._where
        fs.invalidate_cache()
        return len(self._tried("listed", name, lambda: fs.find(f"{root}/{name}")))

    def remove(self, name: str = "") -> None:
        """Remove a file, or a folder with its content, if it exists."""
        fs, root = self._where
        path = f"{root}/{name}" if name else root
        fs.invalidate_cache()
        try:
            self._tried("removed", name, lambda: fs.rm(path, recursive=True))
        except FileNotFoundError:
            pass  # another process removed it first

    def remove_empty(self) -> None:
        """Remove the folder itself if it is empty; object stores have no empty folders."""
        if self.is_local:
            with suppress(OSError):
                os.rmdir(self.root)


@contextmanager
def _draft_of(path: Path, pieces: Sequence[bytes | memoryview]) -> Iterator[Path]:
    """Write a draft beside the final file; remove drafts that are left, also those of dead processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{token()}.draft")
    try:
        with draft.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
        drop_drafts(path.parent, re.compile(re.escape(path.name)))


def drop_drafts(folder: Path, names: re.Pattern[str]) -> None:
    """Remove drafts that dead processes have left."""
    for name in os.listdir(folder):
        found = _DRAFT.fullmatch(name)
        if found and names.fullmatch(found[1]) and is_left(found[2]):
            (folder / name).unlink(missing_ok=True)


def _link(draft: Path, path: Path) -> None:
    """Give a complete file its final name, if that is free: a link, unlike a rename, replaces nothing."""
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with path.open("xb") as file:
            file.write(draft.read_bytes())


def place_of(path: str | Path) -> tuple[Folder, str]:
    """Split the address of a file into its folder and its name."""
    address = str(path) if is_url(str(path)) else str(Path(path).expanduser().absolute())
    parent, _, name = address.rpartition("/")
    return Folder(parent or "/"), name

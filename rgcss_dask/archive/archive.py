"""Moments on disk: a Zarr group with checksums, a format number and a record of their origin."""

from __future__ import annotations

import errno
import json
import uuid
import zlib
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.errors import ContainsArrayError
from zarr.storage import LocalStore

from rgcss_dask.archive.ownership import ATTRIBUTE, VERSION, drop_checkpoints, drop_versions, refuse_foreign
from rgcss_dask.core.errors import HinderedError
from rgcss_dask.core.kinds import KINDS
from rgcss_dask.core.moments import Moments, shape_of
from rgcss_dask.core.noise import Differences
from rgcss_dask.core.precision import doubt_of_values
from rgcss_dask.io.claim import claimed, refuse_lost
from rgcss_dask.io.files import Folder, is_url
from rgcss_dask.io.own_files import refuse_wrong
from rgcss_dask.io.retry import StoreError
from rgcss_dask.io.scratch import scratch_folder
from rgcss_dask.io.zarr_store import CODECS, FreshStore, url_store
from rgcss_dask.runtime.disk_matrices import matrices_on_disk, zero_matrix
from rgcss_dask.runtime.environment import versions
from rgcss_dask.runtime.memory_limit import default_budget
from rgcss_dask.sources.guarded_stores import MissingChunkError, strict_group

FORMAT = 1  # of moments
FORMAT_OF_KINDS = 2  # of kinds that earlier versions do not know: bands and sketches
CHUNK_BYTES = 2**25
PIECE_BYTES = 8 * CHUNK_BYTES  # read at once, so that several chunks are decoded at a time


@dataclass(frozen=True)
class Record:
    """The origin of moments, as far as it is known, as JSON values."""

    source: dict[str, Any]  # address, shape, dtype and the rows taken; empty for moments saved by hand
    options: dict[str, Any]
    fingerprint: dict[str, Any]
    spans: list[list[Any]]  # [start, stop, crc, stamp] of each span read
    history: list[str]  # dated notes
    # Not in archives of earlier versions:
    weights: list[int] = field(default_factory=list)  # CRC-32 of the weights of each span, if there are weights
    groups: list[int] = field(default_factory=list)  # number of each group, if some were left without rows
    lineage: list[str] = field(default_factory=list)  # versions of archives whose rows are included, its own last

    @classmethod
    def empty(cls, note: str) -> Record:
        """Return a record for moments of unknown origin."""
        return cls({}, {}, {}, [], [dated(note)])


def save(moments: Moments, path: str | Path, *, storage_options: dict[str, Any] | None = None) -> None:
    """Write moments to a Zarr group at a path or fsspec URL.

    The write is atomic: a reader finds the old or the new archive, never a mixture. Loaded moments have the same bits.
    A path that contains anything but an archive is refused.

    Parameters
    ----------
    moments : Moments
        The moments to write, with their folds and groups.
    path : str or Path
        Path or URL of the archive.
    storage_options : dict, optional
        Options for the file system of a URL.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rg.save(rg.Moments.of(np.eye(3)), "moments.zarr")
    >>> rg.load("moments.zarr")
    <Moments of 3 rows and 3 columns>
    """
    folder = folder_of(path, storage_options)
    refuse_foreign(folder)
    with claimed(folder):
        write(folder, moments, Record.empty("saved"))


def load(path: str | Path, *, storage_options: dict[str, Any] | None = None) -> Moments:
    """Read moments from an archive; a damaged archive raises an error.

    Parameters
    ----------
    path : str or Path
        Path or URL of the archive.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Moments
        The moments with their folds and groups.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> moments = rg.scan(np.random.default_rng(0).normal(size=(100, 3)), folds=2, archive="moments.zarr")
    >>> rg.load("moments.zarr")
    <Moments of 100 rows and 3 columns, 2 folds>
    """
    return read(folder_of(path, storage_options))[0]


def refuse_imputed(record: Record, address: str, verb: str) -> None:
    """Refuse to add rows to moments whose gaps were filled with column means, because the means would change."""
    if record.options.get("nan") == "mean":
        raise ValueError(
            f"cannot {verb} {address}: its gaps were filled with the means of its own rows (nan='mean'), which more "
            "rows would change. Scan all sources in one pass: scan([first, second], nan='mean')."
        )


def folder_of(path: str | Path, storage_options: dict[str, Any] | None = None) -> Folder:
    """Return the folder of an archive."""
    address = str(path)
    return Folder(address if is_url(address) else str(Path(address).expanduser().absolute()), storage_options or {})


@dataclass(frozen=True)
class Draft:
    """A version that was written, perhaps by a worker, but is not published yet."""

    name: str
    head: dict[str, Any]
    files: int


def write(folder: Folder, moments: Moments, record: Record) -> None:
    """Write a new version beside the old one, then publish it in one step."""
    begin(folder)
    publish(folder, write_draft(folder, moments), record)


def begin(folder: Folder) -> zarr.Group:
    """Return the group of an archive; create it if needed, as the mark of the folder before drafts are written."""
    refuse_lost(folder)
    return zarr.open_group(_store(folder, read_only=False), mode="a", zarr_format=3)


def write_draft(folder: Folder, moments: Moments) -> Draft:
    """Write an unpublished version under a unique name; only the holder of the claim may publish it.

    A worker does only this: the process that asked may be dead, and another may have finished the archive since.
    """
    name = f"v{uuid.uuid4().hex[:12]}"
    fresh = FreshStore(_store(folder.within(name), read_only=False))
    head = _write_moments(zarr.create_group(fresh, zarr_format=3), moments)
    return Draft(name, head, folder.count(name))


def is_whole(folder: Folder, draft: Draft) -> bool:
    """Tell whether all files of a draft are visible from this process."""
    return folder.count(draft.name) == draft.files


def publish(folder: Folder, draft: Draft, record: Record) -> None:
    """Make a complete draft the current version, and remove the others; only the holder of the claim may do so."""
    root = begin(folder)
    content: dict[str, Any] = {
        "current": draft.name,
        "moments": draft.head,
        "record": asdict(replace(record, lineage=[*record.lineage, draft.name])),
        "versions": versions(),
        "date": dated(""),
    }
    if not is_whole(folder, draft):
        raise HinderedError(
            f"files of {folder.address}/{draft.name} must not be removed while it is written; some were. Make the same "
            "call again when no other process works on this archive."
        )
    refuse_lost(folder)
    root.attrs[ATTRIBUTE] = {"format": _format_of(draft.head), "crc32": _crc(content), **content}
    drop_versions(folder, draft.name)


def tidy(folder: Folder, record: Record) -> None:
    """Remove the leftovers of a call that was killed after writing its result; the caller holds the claim."""
    drop_versions(folder, record.lineage[-1])
    drop_checkpoints(folder)


def read(folder: Folder) -> tuple[Moments, Record]:
    """Read an archive and its record."""
    content, scratch = _required(folder), scratch_folder()
    while True:
        try:
            group = zarr.open_group(_store(folder, read_only=True), path=content["current"], mode="r")
            with matrices_on_disk(scratch if scratch and not _fits(content["moments"], group) else None):
                return _read_moments(strict_group(group), content["moments"]), Record(**content["record"])
        except (StoreError, PermissionError):
            raise
        except Exception as error:  # any error of a codec
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:  # of the disk for large matrices
                raise
            seen, content = content["current"], _required(folder)
            if content["current"] == seen:  # otherwise a writer has published a new version meanwhile
                raise _broken(folder, error) from error


def _broken(folder: Folder, error: Exception) -> ValueError:
    if isinstance(error, MissingChunkError | FileNotFoundError | KeyError):
        return ValueError(
            f"the archive {folder.address} is incomplete: a part of it was removed. Restore it, or scan again."
        )
    return _damaged(folder, str(error))


def _damaged(folder: Folder, reason: str) -> ValueError:
    return ValueError(
        f"the archive {folder.address} is damaged: {' '.join(reason.split()).rstrip('.')}. Restore it, or scan again."
    )


def require(folder: Folder) -> Record:
    """Read the record of an archive, which must exist."""
    return Record(**_required(folder)["record"])


def read_record(folder: Folder) -> Record | None:
    """Read the record of an archive, or return None if there is no finished archive."""
    content = _look(folder)
    return None if content is None else Record(**content["record"])


def _required(folder: Folder) -> dict[str, Any]:
    content = _look(folder)
    if content is None:
        refuse_wrong(folder.url, "moments")
        raise FileNotFoundError(
            f"there is no finished archive of moments at {folder.address}. Make one with scan(..., archive=path)."
        )
    return content


def _look(folder: Folder) -> dict[str, Any] | None:
    """Read the attributes of an archive once, so that record and moments are of the same version."""
    try:
        root = zarr.open_group(_store(folder, read_only=True), mode="r")
    except (FileNotFoundError, ContainsArrayError):
        return None
    except OSError:
        raise
    except Exception as error:  # any error of Zarr about unreadable metadata
        raise _damaged(folder, f"its zarr.json cannot be read ({type(error).__name__}: {error})") from error
    return None if _current(root) is None else _content(root, folder)


def dated(note: str) -> str:
    """Prefix a note with the date."""
    return f"{datetime.now(UTC).isoformat(timespec='seconds')} {note}".rstrip()


def _store(folder: Folder, *, read_only: bool) -> Store:
    if folder.is_local:
        return LocalStore(folder.root, read_only=read_only)
    return url_store(folder.url, folder.storage_options, read_only=read_only, retry=folder.retry)


def _current(root: zarr.Group) -> str | None:
    content = root.attrs.get(ATTRIBUTE)
    return content.get("current") if isinstance(content, dict) else None


def _content(root: zarr.Group, folder: Folder) -> dict[str, Any]:
    content: dict[str, Any] = dict(root.attrs[ATTRIBUTE])  # type: ignore[arg-type]
    found, crc = content.pop("format", None), content.pop("crc32", None)
    if isinstance(found, int) and found != (known := _format_of(content.get("moments"))):
        raise ValueError(
            f"the archive {folder.address} has format {found}; this version of the package reads format {known}. "
            "Use the version that wrote it (see 'versions' in its attributes), or scan again."
        )
    if found is None or crc != _crc(content):
        raise _damaged(folder, "the checksum of its attributes is wrong")
    if not VERSION.fullmatch(str(content["current"])):  # it becomes a path
        raise _damaged(folder, f"it names {content['current']!r} as its current version")
    content["record"].setdefault("lineage", [content["current"]])  # of the oldest archives
    return content


def _format_of(head: Any) -> int:
    """Return the format number of an archive with moments of the kind in its head."""
    kind = head.get("kind", Moments.KIND) if isinstance(head, dict) else Moments.KIND
    return FORMAT if kind == Moments.KIND else FORMAT_OF_KINDS


def _crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _write_moments(group: zarr.Group, moments: Moments) -> dict[str, Any]:
    """Write the arrays, with folds and groups in subgroups, and return the other values."""
    for name in moments.ARRAYS:
        values = getattr(moments, name)
        rows = max(1, CHUNK_BYTES // (8 * moments.n))
        group.create_array(
            name,
            data=values,
            chunks=(min(rows, len(values)), moments.n) if values.ndim == 2 else values.shape,
            compressors=CODECS,
            config={"write_empty_chunks": True},  # so that a missing chunk always means a lost chunk
        )
    head: dict[str, Any] = {k: _listed(getattr(moments, k)) for k in moments.NUMBERS}
    head |= {"columns": moments.n, "arrays": list(moments.ARRAYS), "kind": moments.KIND}
    if moments.KIND != Moments.KIND:
        head["height"] = len(moments.product)
    if moments.differences is not None:
        head["differences"] = {name: values.tolist() for name, values in vars(moments.differences).items()}
    for kind in ("folds", "groups"):
        parts = [replace(part, names=None) for part in getattr(moments, kind)]  # names are stored once
        head[kind] = [_write_moments(group.create_group(f"{kind}/{i}"), part) for i, part in enumerate(parts)]
    return head


def _read_moments(group: zarr.Group, head: dict[str, Any]) -> Moments:
    n = head.get("columns", group["shift"].shape[0])  # type: ignore[union-attr]  # not in the oldest archives
    names = head.get("arrays", ("shift", "total", "product"))
    height, kind = head.get("height", n), KINDS[head.get("kind", Moments.KIND)]
    stored = {name: _array(group, name, shape_of(name, height, n)) for name in names}
    arrays = {name: _values(array) for name, array in stored.items()}
    parts = {
        kind: tuple(_read_moments(_subgroup(group, f"{kind}/{i}"), part) for i, part in enumerate(head[kind]))
        for kind in ("folds", "groups")
    }
    if "rounding" not in arrays:  # written by a version without rounding
        arrays["rounding"] = np.zeros_like(arrays["shift"])
        if not head["exact"]:
            arrays["rounding"] += doubt_of_values(head["weight"], arrays["shift"])
    values: dict[str, Any] = {name: _tupled(head[name]) for name in kind.NUMBERS}
    values["differences"] = _differences(head.get("differences"), n)
    return kind(**values | arrays | parts)


def _fits(head: dict[str, Any], group: zarr.Group) -> bool:
    """Tell whether the matrices of an archive fit into memory."""
    n = head.get("columns", group["shift"].shape[0])  # type: ignore[union-attr]  # not in the oldest archives
    parts = 1 + len(head["folds"]) + len(head["groups"])
    return bool(parts * 8 * n * head.get("height", n) <= default_budget())


def _values(array: zarr.Array[Any]) -> NDArray[np.float64]:
    """Return the values of an array; a large matrix is read in pieces, into memory or onto a disk."""
    if array.ndim < 2:
        return np.asarray(array[...])
    matrix, step = zero_matrix(array.shape), max(1, PIECE_BYTES // (8 * array.shape[1]))
    for start in range(0, len(matrix), step):
        matrix[start : start + step] = array[start : start + step]
    return matrix


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _differences(head: dict[str, Any] | None, n: int) -> Differences | None:
    """Return the differences of neighbouring rows, if the pass computed them."""
    if head is None:
        return None
    values = {name: np.array(numbers, dtype=np.float64) for name, numbers in head.items()}
    if any(numbers.shape != (n,) for numbers in values.values()):
        raise ValueError(f"differences of neighbouring rows must be {n} numbers")
    return Differences(**values)


def _array(group: zarr.Group, name: str, shape: tuple[int, ...]) -> zarr.Array[Any]:
    """Return an array after checking its shape and dtype, because its metadata have no checksum."""
    array = group[name]
    if not isinstance(array, zarr.Array):
        raise KeyError(name)
    if array.shape != shape or array.dtype != np.float64:
        raise ValueError(f"{name} must be float64 of shape {shape}; its metadata say {array.dtype} of {array.shape}")
    return array


def _subgroup(group: zarr.Group, name: str) -> zarr.Group:
    found = group[name]
    if not isinstance(found, zarr.Group):
        raise KeyError(name)
    return found

"""Rows that were added to a source, added to its archive: only those are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.core.moments import Moments
from rgcss_dask.core.plan import Options
from rgcss_dask.scanning.progress import Callback
from rgcss_dask.scanning.scan import Request, discard_finished, make_request, run
from rgcss_dask.sources.base import Reading, Source, checksum
from rgcss_dask.sources.opening import open_source
from rgcss_dask.storage import archive as archives
from rgcss_dask.storage.archive import Record
from rgcss_dask.storage.claim import claimed
from rgcss_dask.storage.files import Folder


def append(
    archive: str | Path,
    source: Any,
    *,
    weights: Any = None,
    memory: int | float | str | None = None,
    progress: bool | Callback | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Moments:
    """Add the new rows of a grown source to an archive made by ``scan(source, archive=...)``.

    The options of that scan hold for the new rows too. Old rows are not read again where the store can tell that
    their chunks are as they were; otherwise they are read and compared with their checksums. Rows that changed,
    or are gone, are refused.

    Parameters
    ----------
    archive : path or URL of the archive. An interrupted call can be made again, and goes on.
    source : the same matrix with more rows at its end; see `scan`.
    weights : (m,) weights of all rows, old and new, if the archive was made with weights.
    memory, progress, storage_options : see `scan`.
    """
    folder = archives.folder_of(archive, storage_options)
    archives.require(folder)
    with claimed(folder):
        moments, record = archives.read(folder)
        missing = record.options.get("missing", "raise")
        opened = open_source(source, missing=missing, storage_options=storage_options)
        _check_can_grow(folder, record, opened, has_weights=weights is not None)
        _check_old_rows(record, opened)
        seen = int(record.spans[-1][1])
        discard_finished(folder, seen)
        if seen == opened.shape[0]:
            return moments
        options = Options(**{k: record.options[k] for k in Options.__dataclass_fields__})
        request = make_request(
            opened,
            options,
            weights=weights,
            rows=slice(seen, None),
            reading=Reading(missing, storage_options or {}),
            memory=memory,
        )
        return _add(folder, moments, record, request, progress)


def _add(
    folder: Folder, moments: Moments, record: Record, request: Request, progress: bool | Callback | None
) -> Moments:
    result = run(request, folder=folder, progress=progress)
    grown = moments.merge(result.moments)
    new = request.record(result.reads)
    archives.write(
        folder,
        grown,
        replace(
            new,
            fingerprint={**record.fingerprint, **_whole(record, new)},
            spans=record.spans + new.spans,
            history=record.history + new.history,
        ),
    )
    folder.within(archives.CHECKPOINTS).remove()
    return grown


def _whole(old: Record, new: Record) -> dict[str, Any]:
    """Describe old and new rows together; no single scan has this fingerprint."""
    return {"shape": new.source["shape"], "contents": f"{old.fingerprint['contents']}+{new.fingerprint['contents']}"}


def _check_can_grow(folder: Folder, record: Record, source: Source, *, has_weights: bool) -> None:
    address = folder.address
    if not record.spans:
        raise ValueError(
            f"only an archive made by scan(source, archive=...) can be appended to; {address} has no record of its "
            "rows. Scan the new rows alone and merge the two."
        )
    archives.refuse_imputed(record, address, "append to")
    options = record.options
    if options["groups"] or "rows" in options["vectors"] or record.spans[0][0] != 0:
        raise ValueError(
            f"cannot append to {address}: its groups, slice or mask of rows were chosen for the rows there were. "
            "Scan the source again."
        )
    if has_weights != ("weights" in options["vectors"]):
        raise ValueError(
            f"weights must be given if and only if the archive was made with weights; {address} was made "
            f"{'with' if 'weights' in options['vectors'] else 'without'} them."
        )
    (rows, columns), dtype = record.source["shape"], record.source["dtype"]
    if source.shape[1] != columns or str(source.dtype) != dtype:
        raise ValueError(
            f"the source must have the columns of the archive, {columns} of {dtype}; {source.address} has "
            f"{source.shape[1]} of {source.dtype}."
        )
    if source.shape[0] < rows or record.spans[-1][1] != rows:
        raise ValueError(
            f"the source must have grown since it was scanned with {rows:,} rows; {source.address} has "
            f"{source.shape[0]:,}. Scan it again into another archive."
        )


def _check_old_rows(record: Record, source: Source) -> None:
    """Refuse if a span is not what it was; read it only where its stamp cannot tell."""
    spans: Sequence[Sequence[Any]] = record.spans
    edges = np.array([span[0] for span in spans] + [spans[-1][1]], dtype=np.int64)
    stamps = source.stamps(edges)
    for i, (start, stop, crc, stamp) in enumerate(spans):
        if (stamps is None or stamps[i] != stamp) and checksum(source, start, stop) != crc:
            raise ValueError(
                f"rows {start:,} to {stop - 1:,} of {source.address} changed since they were scanned; "
                "moments cannot take them back. Scan the source again into another archive."
            )

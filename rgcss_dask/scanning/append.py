"""Add the rows that a source has gained to its archive; only the new rows are read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.archive import Record
from rgcss_dask.archive.ownership import drop_checkpoints
from rgcss_dask.archive.pass_identity import can_go_on, unfinished_pass
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import matching
from rgcss_dask.core.noise import Differences, merged_differences
from rgcss_dask.core.partial_sums import NOISE, PartialSums
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.io.claim import claimed
from rgcss_dask.io.files import Folder
from rgcss_dask.io.outputs import refuse_inputs
from rgcss_dask.scanning.request import Request, make_request
from rgcss_dask.scanning.scan import run
from rgcss_dask.scanning.tasks import run_together
from rgcss_dask.sources.base import Reading, Source, checksum
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.views import ColumnsSource


def append(
    archive: str | Path,
    source: Any,
    *,
    weights: Any = None,
    memory: int | float | str | None = None,
    progress: bool | Callback | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Moments:
    """Add the new rows of a source that has grown to an archive made by ``scan(source, archive=...)``.

    The options of that scan hold for the new rows too. Old rows are not read again where the store can tell that
    their chunks are unchanged; otherwise they are read and compared with their checksums. If old rows or their
    weights changed, or old rows are missing, the call is refused. The result equals one scan of all rows, up to
    rounding: a row belongs to the same fold, because folds depend on row numbers. Existing groups keep their rows.
    New rows make further groups with as many rows as those of the first scan; if the last group is not full, the next
    call adds to it. Dropped rows and rows of weight 0 add nothing.

    Parameters
    ----------
    archive : str or Path
        Path or URL of the archive. Repeat an interrupted call to resume it; if the source has grown in the meantime,
        all new rows are read from the start.
    source : array-like, data frame, path or list of these
        The same matrix with more rows at its end; see `scan`. Columns in another order are found by their names.
    weights : array of shape (m,), optional
        Weights of all rows, old and new, if the archive was made with weights.
    memory : int, float or str, optional
        Bytes that the pass may use, see `scan`.
    progress : bool or callable, optional
        How progress is shown, see `scan`.
    storage_options : dict, optional
        Options for the file system of a URL, see `scan`.

    Returns
    -------
    Moments
        The moments of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> import rgcss_dask as rg
    >>> array = zarr.create_array("data.zarr", data=np.eye(4).repeat(50, axis=0), chunks=(100, 4))
    >>> rg.scan("data.zarr", archive="moments.zarr").rows
    200
    >>> shape = array.append(np.ones((100, 4)))
    >>> rg.append("moments.zarr", "data.zarr").rows
    300
    """
    folder = archives.folder_of(archive, storage_options)
    archives.require(folder)
    with claimed(folder):
        moments, record = archives.read(folder)
        missing = record.options.get("missing", "raise")
        opened = open_source(source, missing=missing, storage_options=storage_options)
        refuse_inputs(archive, opened.places)
        index = matching(moments.names, opened.names, opened.address)
        opened = opened if index is None else ColumnsSource(opened, index)
        _check_can_grow(folder, record, moments, opened, has_weights=weights is not None)
        _check_old_rows(record, opened)
        seen = int(record.spans[-1][1])
        if seen == opened.shape[0]:
            archives.tidy(folder, record)
            return moments
        request = make_request(
            opened,
            _options(record),
            weights=weights,
            rows=slice(seen, None),
            reading=Reading(missing, storage_options or {}),
            memory=memory,
            added=True,
        )
        _check_old_weights(record, request)
        return _add(folder, moments, record, request, progress)


def _options(record: Record) -> Options:
    """Return the options of the first scan, with the number of rows that its groups divide."""
    given = {k: record.options[k] for k in Options.__dataclass_fields__ if k in record.options}
    if given.get("candidates") is not None:
        given["candidates"] = tuple(given["candidates"])
    options = Options(**given)
    if options.groups and options.group_rows is None:
        options = replace(options, group_rows=int(record.spans[-1][1]))
    return options


def _add(
    folder: Folder, moments: Moments, record: Record, request: Request, progress: bool | Callback | None
) -> Moments:
    there = unfinished_pass(folder)
    if there is not None and not can_go_on(there, request.fingerprint):
        drop_checkpoints(folder)  # of fewer rows than the source has now: no later call can resume them
    result = run(request, folder=folder, progress=progress, finish=run_together)
    grown, groups = _grown(moments, record, result.moments)
    new = request.record(result.reads)
    archives.write(
        folder,
        grown,
        replace(
            new,
            fingerprint={**record.fingerprint, **_whole(record, new)},
            spans=record.spans + new.spans,
            history=record.history + new.history,
            weights=record.weights + new.weights,
            groups=groups,
            lineage=record.lineage,
        ),
    )
    drop_checkpoints(folder)
    return grown


def _grown(moments: Moments, record: Record, new: PartialSums) -> tuple[Moments, list[int]]:
    """Add the sums of new rows to moments, part by part; also return the indices of the groups that have rows."""
    parts = {
        "fold": dict(enumerate(moments.folds)),
        "group": dict(zip(record.groups or range(len(moments.groups)), moments.groups, strict=True)),
        "rows": {0: replace(moments, folds=(), groups=())},
    }
    whole = next(kind for kind in ("fold", "group", "rows") if parts[kind])  # the parts that together hold all rows
    found = new.sums.get(NOISE)
    differences = merged_differences(moments.differences, found if isinstance(found, Differences) else None)
    for (kind, i), sums in sorted(new.sums.items()):
        if (kind, i) == NOISE:
            continue
        assert isinstance(sums, Moments)  # archives with imputed gaps were refused before
        parts[kind][i] = parts[kind][i].merge(sums) if i in parts[kind] else sums
        if kind == whole != "rows":
            parts["rows"][0] = parts["rows"][0].merge(sums)
    groups = {i: group for i, group in parts["group"].items() if group.weight > 0}
    grown = replace(
        parts["rows"][0], folds=tuple(parts["fold"].values()), groups=tuple(groups.values()), differences=differences
    )
    if isinstance(grown, Sketch):
        grown = grown.of_rows((read.start, read.stop) for read in new.reads)
    return grown, list(groups)


def _whole(old: Record, new: Record) -> dict[str, Any]:
    """Return the shape and contents of old and new rows together; no single scan has this fingerprint."""
    return {"shape": new.source["shape"], "contents": f"{old.fingerprint['contents']}+{new.fingerprint['contents']}"}


def _check_can_grow(folder: Folder, record: Record, moments: Moments, source: Source, *, has_weights: bool) -> None:
    address = folder.address
    if not record.spans:
        raise ValueError(
            f"only an archive made by scan(source, archive=...) can be appended to; {address} has no record of its "
            "rows. Scan the new rows alone and merge the two."
        )
    archives.refuse_imputed(record, address, "append to")
    options = record.options
    if "rows" in options["vectors"] or record.spans[0][0] != 0:
        raise ValueError(
            f"cannot append to {address}: its slice or mask of rows was chosen for the rows there were. "
            "Scan the source again."
        )
    if options.get("blocks"):
        raise ValueError(
            f"cannot append to {address}: its folds are runs of the rows there were (blocks), and later rows belong to "
            "none of them. Scan the source again, or scan the new rows alone in as many blocks and merge the two."
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


def _check_old_weights(record: Record, request: Request) -> None:
    """Raise an error if the weights of a span of old rows have changed."""
    weights = request.vectors.get("weights")
    if weights is None:
        return
    if len(record.weights) < len(record.spans):
        warnings.warn(
            "the archive was made by an earlier version, which kept no checksums of the weights: those of the old rows "
            "are taken to be what they were.",
            stacklevel=3,
        )
        return
    edges = np.array([span[0] for span in record.spans] + [record.spans[-1][1]], dtype=np.int64)
    for (start, stop, *_), there, here in zip(record.spans, record.weights, weights.checksums(edges), strict=True):
        if there != here:
            raise ValueError(
                f"weights of old rows must be those of the scan; rows {start:,} to {stop - 1:,} have others now, and "
                "moments cannot take them back. Scan the source again into another archive."
            )


def _check_old_rows(record: Record, source: Source) -> None:
    """Raise an error if a span of old rows has changed; read a span only where its stamp does not show it unchanged."""
    spans: Sequence[Sequence[Any]] = record.spans
    edges = np.array([span[0] for span in spans] + [spans[-1][1]], dtype=np.int64)
    stamps = source.stamps(edges)
    for i, (start, stop, crc, stamp) in enumerate(spans):
        if (stamps is None or stamps[i] != stamp) and checksum(source, start, stop) != crc:
            raise ValueError(
                f"rows {start:,} to {stop - 1:,} of {source.address} changed since they were scanned; "
                "moments cannot take them back. Scan the source again into another archive."
            )

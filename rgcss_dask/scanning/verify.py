"""Verification: rows are read again and compared with the checksums in the archive."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.archive import Record
from rgcss_dask.cluster.execution import ClusterReport, Graph, ThreadReport, capacity, run_on_cluster, run_on_threads
from rgcss_dask.cluster.progress import Callback, Reporter, display
from rgcss_dask.cluster.versions import VERSION, check_cluster
from rgcss_dask.cluster.visibility import SeenPaths, check_here, check_visible, look
from rgcss_dask.core.plan import READ_COPIES
from rgcss_dask.core.spans import READ_BYTES
from rgcss_dask.io.files import Folder
from rgcss_dask.scanning.tasks import Report
from rgcss_dask.sources.base import Source, checksum
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.zarr import DamagedChunkError

CHANGED = "changed since the pass"


@dataclass(frozen=True)
class Difference:
    """Rows that differ from the rows that were scanned."""

    start: int
    stop: int  #: end of the rows, exclusive
    reason: str

    def __str__(self) -> str:
        return f"rows {self.start:,} to {self.stop - 1:,}: {self.reason}"


@dataclass(frozen=True)
class Verification:
    """The result of a verification; true if all rows equal the rows that were scanned."""

    rows: int  #: rows read and compared
    spans: int
    differences: tuple[Difference, ...]

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self:
            return f"{self.rows:,} rows in {self.spans:,} spans are what was summed."
        told = "\n".join(str(difference) for difference in self.differences)
        return f"{len(self.differences):,} of {self.spans:,} spans have changed since the pass.\n{told}"


@dataclass(frozen=True)
class Check:
    """The description of a verification that all its tasks share."""

    token: str
    source: Source
    spans: list[list[Any]]  # [start, stop, crc, stamp]
    report: Report
    sights: SeenPaths | None  # what the caller found at each path; None if the work is done in its process


def verify(
    source: Any,
    archive: str | Path,
    *,
    progress: bool | Callback | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Verification:
    """Read data again and compare them, span by span, with the rows from which an archive was made.

    An archive made by ``scan(source, archive=...)``, appended to or not, keeps a CRC-32 of the rows of each span as
    they were read. Verification therefore finds changes since then: flipped bits in chunks without a checksum,
    overwritten rows, another file of the same name. It cannot find errors that the first pass read already. Weights are
    not compared. The work goes to the active `distributed.Client` if there is one, otherwise to threads.

    Parameters
    ----------
    source : array-like, data frame, path or list of these
        The matrix, see `scan`; rows that were added since then are not read.
    archive : str or Path
        Path or URL of the moments.
    progress : bool or callable, optional
        How progress is shown, see `scan`.
    storage_options : dict, optional
        Options for the file system of a URL, see `scan`.

    Returns
    -------
    Verification
        True if all rows equal the rows that were scanned; ``differences`` lists the spans that differ.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> import rgcss_dask as rg
    >>> array = zarr.create_array("data.zarr", data=np.ones((200, 4)), chunks=(100, 4))
    >>> moments = rg.scan("data.zarr", archive="moments.zarr")
    >>> array[150, 2] = 7
    >>> print(rg.verify("data.zarr", "moments.zarr"))
    1 of 1 spans have changed since the pass.
    rows 0 to 199: changed since the pass
    """
    folder = archives.folder_of(archive, storage_options)
    record = archives.require(folder)
    opened = open_source(source, missing=record.options.get("missing", "raise"), storage_options=storage_options)
    _check_comparable(folder, record, opened)
    found = _run(opened, record.spans, progress)
    different = [
        Difference(start, stop, reason)
        for (start, stop, *_), reason in zip(record.spans, found, strict=True)
        if reason is not None
    ]
    return Verification(record.spans[-1][1] - record.spans[0][0], len(record.spans), tuple(different))


def _check_comparable(folder: Folder, record: Record, source: Source) -> None:
    if not record.spans or not record.options.get("checksum"):
        raise ValueError(
            f"only an archive made by scan(source, archive=...) can be verified; {folder.address} has no checksums of "
            "its rows, as merged and saved moments have none. Scan the source again and compare the moments."
        )
    columns, dtype = record.source["shape"][1], record.source["dtype"]
    if source.shape[1] != columns or str(source.dtype) != dtype or source.shape[0] < record.spans[-1][1]:
        raise ValueError(
            f"what was summed into {folder.address} were {record.spans[-1][1]:,} rows of {columns} columns of {dtype}; "
            f"{source.address} has {source.shape[0]:,} rows of {source.shape[1]} columns of {source.dtype}."
        )


def _run(source: Source, spans: list[list[Any]], progress: bool | Callback | None) -> list[str | None]:
    """Return for each span what is wrong with it, or None."""
    where, token = capacity(cluster=source.processes), uuid.uuid4().hex[:12]
    sights = None
    if where.client is not None:
        check_cluster(where.client)
        check_visible(where.client, source.paths, None)
        sights = look(source.paths)
    geometry = source.geometry
    with display(progress) as tell:
        rows = spans[-1][1] - spans[0][0]
        reporter = Reporter(tell, rows=rows, row_bytes=geometry.row_bytes, spans=len(spans))
        report: Any = ThreadReport(reporter) if where.client is None else ClusterReport(f"rgcss-{token}")
        graph, key = _graph(Check(token, source, spans, report, sights))
        found: list[str | None]
        if where.client is None:
            largest = max(READ_BYTES, int(np.diff(geometry.cuts).max()) * geometry.row_bytes)
            threads = min(where.threads, where.memory // (READ_COPIES * largest))
            found = run_on_threads(graph, key, report, max(1, threads))
        else:
            found, _ = run_on_cluster(where.client, graph, key, report, reporter)
        reporter.finish()
    return found


def _graph(check: Check) -> tuple[Graph, str]:
    edges = np.array([span[0] for span in check.spans] + [check.spans[-1][1]], dtype=np.int64)
    graph, blocks = check.source.blocks(edges)
    job, end = f"rgcss-check-{check.token}", f"rgcss-checked-{check.token}"
    keys = [(f"rgcss-compare-{check.token}", i) for i in range(len(blocks))]
    compared = {key: (compare_span, job, i, blocks[i]) for i, key in enumerate(keys)}
    return {**graph, job: check, **compared, end: (list, keys)}, end


def compare_span(check: Check, index: int, blocks: list[Any]) -> str | None:
    """Read a span and return what is wrong with it, or None."""
    if check.sights is not None:
        check_here(check.token, VERSION, check.sights)
    start, stop, crc, _ = check.spans[index]
    source = check.source.with_blocks(start, blocks) if blocks else check.source
    try:
        found = checksum(source, start, stop)
    except (DamagedChunkError, MissingChunkError) as error:
        return str(error)
    check.report(stop - start, 1)
    return None if found == crc else CHANGED

"""A planned pass that has not begun: what it reads, how, where, and what determines its result."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.checkpoints import FORMAT
from rgcss_dask.cluster.execution import Capacity, capacity
from rgcss_dask.cluster.visibility import Stored
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.partial_sums import Read
from rgcss_dask.core.pass_options import Geometry, Options, check_counts
from rgcss_dask.core.plan import Plan, make_plan
from rgcss_dask.core.problem import Columns
from rgcss_dask.io.scratch import scratch_folder
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.runtime.disk_matrices import free_bytes
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.in_memory import ArraySource
from rgcss_dask.sources.row_vectors import RowVector

# Rows in memory with at most this many multiplications are summed in the calling thread, some 30 milliseconds of work:
# threads and a graph would take longer. If that needs at most these bytes, it is not asked how many are free.
SMALL, LITTLE = 2**27, 2**28


@dataclass(frozen=True)
class Request:
    """A planned pass that has not begun."""

    source: Source
    plan: Plan
    vectors: dict[str, RowVector]
    missing: str
    stamps: dict[tuple[int, int], str] | None  # stamp of each span, if an archive is kept and the source has stamps
    where: Capacity
    budget: int  # bytes that each process may use
    budget_asked: bool  # whether the caller gave the budget
    small: bool = False  # whether the calling thread does all the work
    scratch: Path | None = None  # where matrices are kept that do not fit into memory

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths that every worker must have access to."""
        return self.source.paths + tuple(path for vector in self.vectors.values() for path in vector.paths)

    @property
    def stored(self) -> tuple[Stored, ...]:
        """Stored data of which workers may have copies of their own."""
        vectors = tuple(vector for vector in self.vectors.values() if vector.paths)
        return (self.source, *vectors) if self.source.paths else vectors

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Everything that determines the result."""
        options = asdict(self.plan.options)
        for name in ("noise", "blocks"):
            if not options[name]:  # fingerprints of older archives lack this option
                del options[name]
        cuts = hashlib.blake2b(self.plan.geometry.cuts.tobytes(), digest_size=8).hexdigest()
        stamps = None if self.stamps is None else list(self.stamps.values())
        digest = hashlib.blake2b(json.dumps(stamps).encode(), digest_size=8).hexdigest()
        return {
            "format": FORMAT,
            "source": self.source.address,
            "shape": list(self.source.shape),
            "dtype": str(self.source.dtype),
            "rows": [self.plan.nodes[-1].start, self.plan.nodes[-1].stop],
            "chunks": cuts,
            "contents": digest,
            "missing": self.missing,
            **options,
            **{f"{name} vector": vector.fingerprint for name, vector in self.vectors.items()},
        }

    def record(self, reads: tuple[Read, ...]) -> archives.Record:
        """Return the record of the pass for its archive."""
        stamps = self.stamps or {}
        return archives.Record(
            source={"address": self.source.address, "shape": list(self.source.shape), "dtype": str(self.source.dtype)},
            options={**asdict(self.plan.options), "missing": self.missing, "vectors": sorted(self.vectors)},
            fingerprint=self.fingerprint,
            spans=[[read.start, read.stop, read.crc, stamps.get((read.start, read.stop))] for read in reads],
            history=[archives.dated(f"scanned rows {reads[0].start} to {reads[-1].stop}{_products(reads)}")],
            weights=[read.weights_crc for read in reads] if "weights" in self.vectors else [],
        )


def make_request(
    source: Source, options: Options, *, weights: Any, rows: Any, reading: Reading, memory: Any, added: bool = False
) -> Request:
    """Check and plan a pass; only metadata is read. With ``added``, rows may be fewer than the folds and groups."""
    chosen, fraction, mask = _rows_asked(rows, source.shape[0])
    options = options if fraction is None else replace(options, fraction=fraction)
    check_counts(source.shape[0] if added else chosen.stop - chosen.start, options)
    vectors = {
        name: RowVector.of(thing, name, source.shape[0], reading)
        for name, thing in (("weights", weights), ("rows", mask))
        if thing is not None
    }
    geometry = replace(_within(source.geometry, chosen), masked=mask is not None)
    small = _is_small(source, geometry, vectors)
    where, plan = _planned(geometry, options, memory, small=small, cluster=source.processes)
    stamps = _stamps(source, plan) if options.checksum else None
    return Request(
        source=source,
        plan=plan,
        vectors=vectors,
        missing=reading.missing,
        stamps=stamps,
        where=where,
        budget=where.memory,
        budget_asked=memory is not None,
        small=small,
        scratch=scratch_folder() if plan.disk else None,
    )


def _is_small(source: Source, geometry: Geometry, vectors: dict[str, RowVector]) -> bool:
    """Tell whether everything is in memory and the work so little that the calling thread does it."""
    little = isinstance(source, ArraySource) and geometry.rows * geometry.columns**2 <= SMALL
    return little and all(isinstance(vector.values, np.ndarray) for vector in vectors.values())


def _planned(geometry: Geometry, options: Options, memory: Any, *, small: bool, cluster: bool) -> tuple[Capacity, Plan]:
    """Return where to work, with the memory that may be used there, and the plan."""
    if small and memory is None:
        with suppress(MemoryError):
            return Capacity(1, LITTLE), make_plan(geometry, options, budget=LITTLE, threads=1)
    where = capacity(cluster=cluster)
    where = where if memory is None else replace(where, memory=parse_memory(memory))
    on_cluster = where.client is not None
    scratch = scratch_folder()
    return where, make_plan(
        geometry,
        options,
        budget=where.memory,
        threads=where.threads,
        cluster=on_cluster,
        free_disk=None if scratch is None else free_bytes(scratch),
    )


def candidate_places(candidates: Columns, source: Source) -> tuple[int, ...]:
    """Return the column indices of the candidates in a source."""
    places = tuple(int(i) for i in column_indices(candidates, source.shape[1], source.names))
    if not places:
        raise ValueError("candidates must name a column or more; got none. Leave them out to scan for all columns.")
    return places


def _products(reads: tuple[Read, ...]) -> str:
    by = sorted({name for read in reads for name in read.products})
    return f", products by {' and '.join(by)}" if by else ""


def _within(geometry: Geometry, rows: slice) -> Geometry:
    """Restrict the geometry to a range of rows."""
    inside = geometry.cuts[(geometry.cuts > rows.start) & (geometry.cuts < rows.stop)]
    cuts = np.concatenate([[rows.start], inside, [rows.stop]]).astype(np.int64)
    return replace(geometry, rows=rows.stop - rows.start, cuts=cuts)


def _rows_asked(rows: Any, count: int) -> tuple[slice, float | None, Any]:
    """Return the argument ``rows`` as a slice, a fraction and a mask."""
    if rows is None:
        return slice(0, count), None, None
    if isinstance(rows, slice):
        start, stop, step = rows.indices(count)
        if step != 1 or stop <= start:
            raise ValueError(
                f"rows as a slice must be a run of rows; got {rows} of {count:,} rows. Use a mask otherwise."
            )
        return slice(start, stop), None, None
    if isinstance(rows, bool | str) or np.ndim(rows) > 0 or not np.isscalar(rows):
        return slice(0, count), None, rows
    return slice(0, count), float(rows), None  # type: ignore[arg-type]


def _stamps(source: Source, plan: Plan) -> dict[tuple[int, int], str] | None:
    spans = [(plan.nodes[i].start, plan.nodes[i].stop) for i in plan.spans]
    stamps = source.stamps(plan.edges)
    return None if stamps is None else dict(zip(spans, stamps, strict=True))

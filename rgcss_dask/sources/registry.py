"""The list of all kinds of sources, and stacks of sources."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.io.files import filesystem, in_order, is_url
from rgcss_dask.io.retry import Retry
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.sources.anndata import AnnDataSource
from rgcss_dask.sources.arrow import ArrowSource
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.dask import DaskFrameSource, DaskSource, stacked
from rgcss_dask.sources.file_kinds import local_file
from rgcss_dask.sources.h5ad import H5adSource
from rgcss_dask.sources.in_memory import ArraySource, FrameSource, SparseSource
from rgcss_dask.sources.metadata import OF_JSON, metadata_named
from rgcss_dask.sources.packed_integers import unpacked
from rgcss_dask.sources.xarray import XarraySource
from rgcss_dask.sources.zarr import ZarrSource, no_array


class StackedSource(Source):
    """Several sources, stacked by rows."""

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        for other in sources[1:]:
            _check_stackable(first, other)
        self._sources = tuple(sources)
        self._starts = np.cumsum([0] + [source.shape[0] for source in sources])
        self.shape = (int(self._starts[-1]), first.shape[1])
        self.dtype, self.names = first.dtype, first.names
        # The digest covers all addresses: sources without stamps are identified by their address.
        addresses = "\n".join(source.address for source in sources).encode()
        digest = hashlib.blake2b(addresses, digest_size=4).hexdigest()
        self.address = f"{first.address} and {len(sources) - 1} more ({digest})"
        self.waits = any(source.waits for source in sources)
        self.unguarded = next((source.unguarded for source in sources if source.unguarded), None)

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take lists and tuples of the other kinds, and patterns."""
        return isinstance(thing, list | tuple) or (isinstance(thing, str | Path) and "*" in str(thing))

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Open each source; Dask arrays become one array, so that a cluster computes the blocks."""
        things = thing if isinstance(thing, list | tuple) else matches(str(thing), reading)
        if len(things) == 0:
            raise ValueError("a list of sources must name at least one; got an empty list.")
        # The matches of a pattern are not patterns, even if a name contains a star.
        kinds = KINDS if things is thing else tuple(kind for kind in KINDS if kind is not cls)
        sources = [_open(one, reading, kinds).checked() for one in things]
        if len(sources) == 1:
            return sources[0]
        stack = cls(sources)
        arrays = [source.array for source in sources if isinstance(source, DaskSource)]
        return stack if len(arrays) < len(sources) else DaskSource(stacked(arrays), stack.names)

    @property
    def parts(self) -> tuple[Source, ...]:
        """The stacked sources, in order."""
        return self._sources

    @property
    def processes(self) -> bool:
        """Whether other processes can read all of them; Dask arrays must be computed through this process."""
        return all(source.processes and not isinstance(source, DaskSource) for source in self._sources)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all sources."""
        return tuple(path for source in self._sources for path in source.paths)

    @property
    def places(self) -> tuple[str, ...]:
        """The places of all sources."""
        return tuple(place for source in self._sources for place in source.places)

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of each source that hold some of the rows."""
        return [file for source, a, b in self._ranges(start, stop) for file in source.files(a, b)]

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts of all sources, as rows of the stack."""
        pieces = [s.cuts[:-1] + start for s, start in zip(self._sources, self._starts[:-1], strict=True)]
        return np.concatenate([*pieces, [self.shape[0]]]).astype(np.int64)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows of one source, or of neighbouring sources."""
        found = [source.read(a, b) for source, a, b in self._ranges(start, stop)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def read_block(self, start: int, stop: int) -> NDArray[Any] | SparseRows:
        """Return rows of one source, or of neighbours; sparse where all of them have them so."""
        found = [source.read_block(a, b) for source, a, b in self._ranges(start, stop)]
        if len(found) == 1:
            return found[0]
        sparse = [rows for rows in found if isinstance(rows, SparseRows)]
        return SparseRows.stacked(sparse) if len(sparse) == len(found) else np.concatenate(found)

    @property
    def sparse_row_bytes(self) -> int:
        """Those of the source whose rows take most, if all are sparse."""
        each = [source.sparse_row_bytes for source in self._sources]
        return max(each) if all(each) else 0

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Join the stamps of the parts of each range."""
        joined: list[list[str]] = [[] for _ in edges[1:]]
        for source, start in zip(self._sources, self._starts[:-1], strict=True):
            inside = np.clip(edges - start, 0, source.shape[0])
            touched = np.flatnonzero(np.diff(inside))
            if len(touched) == 0:
                continue
            # All at once, because the store is listed for each call.
            stamps = source.stamps(inside[touched[0] : touched[-1] + 2])
            if stamps is None:
                return None
            for i, stamp in zip(touched, stamps, strict=True):
                joined[i].append(stamp)
        return ["+".join(stamps) for stamps in joined]

    def _ranges(self, start: int, stop: int) -> list[tuple[Source, int, int]]:
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        last = int(np.searchsorted(self._starts, stop, "left"))
        found = []
        for i in range(first, last):
            a, b = max(start, int(self._starts[i])), min(stop, int(self._starts[i + 1]))
            if a < b:
                found.append((self._sources[i], a - int(self._starts[i]), b - int(self._starts[i])))
        return found


def open_source(thing: Any, *, missing: str = "raise", storage_options: dict[str, Any] | None = None) -> Source:
    """Open a matrix as a source: a path, URL or pattern, an array, a data frame, or a list of these."""
    if missing not in ("raise", "fill"):
        raise ValueError(f"missing must be 'raise' or 'fill'; got {missing!r}.")
    return _open(thing, Reading(missing, storage_options or {})).checked()


def _open(thing: Any, reading: Reading, kinds: Sequence[type[Source]] | None = None) -> Source:
    if isinstance(thing, Source):
        return thing
    if isinstance(thing, str | Path):
        thing = local_file(str(thing))
    kinds = kinds or KINDS
    kind = kind_of(thing, kinds)
    if kind is not None:
        return unpacked(kind.of(thing, reading))
    if isinstance(thing, str | Path):
        return _stored(str(thing), reading, kinds)
    raise WrongKindError(
        f"a source must be a path or URL of a Zarr array, a Zarr, NumPy, SciPy sparse or Dask array, a "
        f"pandas, polars or Dask data frame, an Arrow table, an Xarray DataArray, an AnnData, or a list of these; "
        f"got {type(thing).__module__}.{type(thing).__qualname__}."
    )


def kind_of(thing: Any, kinds: Sequence[type[Source]] = ()) -> type[Source] | None:
    """Return the first kind that takes an object; None for an address of a single archive."""
    return next((kind for kind in kinds or KINDS if kind.takes(thing)), None)


def _stored(address: str, reading: Reading, kinds: Sequence[type[Source]]) -> Source:
    """Open stored data at an address by trying each kind, arrays first."""
    for kind in kinds:
        with metadata_named(address, OF_JSON):
            found = kind.at(address, reading)
        if found is not None:
            return unpacked(found)
    raise no_array(address, reading.storage_options)


def addresses(thing: str) -> list[str]:
    """Return the matches of a pattern, or the address itself."""
    return matches(thing, Reading()) if "*" in thing else [thing]


def matches(pattern: str, reading: Reading) -> list[str]:
    """Return the matches of a pattern in natural order: day-2 before day-10."""
    if is_url(pattern):
        fs, path = filesystem(pattern, reading.storage_options)
        found = Retry.configured()("listed", pattern, lambda: [fs.unstrip_protocol(name) for name in fs.glob(path)])
    else:
        found = glob.glob(pattern)
    if not found:
        raise FileNotFoundError(f"no archive matches {without_secrets(pattern)}.")
    return in_order(found)


def _check_stackable(first: Source, other: Source) -> None:
    for what in ("columns", "dtype", "names"):
        a, b = ((s.shape[1] if what == "columns" else getattr(s, what)) for s in (first, other))
        if a != b:
            raise ValueError(
                f"sources in a list must have the same {what}; {first.address} has {a} and {other.address} has {b}."
            )


KINDS: tuple[type[Source], ...] = (
    StackedSource,
    ArraySource,
    SparseSource,
    FrameSource,
    XarraySource,
    DaskSource,
    DaskFrameSource,
    ArrowSource,  # after pandas and Xarray, whose objects can convert to Arrow tables too
    H5adSource,
    ZarrSource,  # before AnnData: most addresses are arrays, and need one request then
    AnnDataSource,
)

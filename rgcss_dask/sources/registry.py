"""Every kind of source there is, and several of them stacked."""

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
from rgcss_dask.core.plan import Cuts
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
    """Several sources, one below the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        first = sources[0]
        for other in sources[1:]:
            _check_stackable(first, other)
        self._sources = tuple(sources)
        self._starts = np.cumsum([0] + [source.shape[0] for source in sources])
        self.shape = (int(self._starts[-1]), first.shape[1])
        self.dtype, self.names = first.dtype, first.names
        # In words the first one, in a digest all: what cannot be stamped is told apart by its address.
        addresses = "\n".join(source.address for source in sources).encode()
        digest = hashlib.blake2b(addresses, digest_size=4).hexdigest()
        self.address = f"{first.address} and {len(sources) - 1} more ({digest})"
        self.waits = any(source.waits for source in sources)
        self.unguarded = next((source.unguarded for source in sources if source.unguarded), None)

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Any list or tuple of the other kinds, and patterns."""
        return isinstance(thing, list | tuple) or (isinstance(thing, str | Path) and "*" in str(thing))

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Open each one; arrays of Dask become one, so that a cluster computes the blocks."""
        things = thing if isinstance(thing, list | tuple) else matches(str(thing), reading)
        if len(things) == 0:
            raise ValueError("a list of sources must name at least one; got an empty list.")
        # What a pattern stands for is no pattern, even if there is a star in its name.
        kinds = KINDS if things is thing else tuple(kind for kind in KINDS if kind is not cls)
        sources = [_open(one, reading, kinds).checked() for one in things]
        if len(sources) == 1:
            return sources[0]
        stack = cls(sources)
        arrays = [source.array for source in sources if isinstance(source, DaskSource)]
        return stack if len(arrays) < len(sources) else DaskSource(stacked(arrays), stack.names)

    @property
    def parts(self) -> tuple[Source, ...]:
        """The sources, from the top."""
        return self._sources

    @property
    def processes(self) -> bool:
        """Whether other processes can read all of them; what Dask has yet to compute is asked for by this one."""
        return all(source.processes and not isinstance(source, DaskSource) for source in self._sources)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all of them."""
        return tuple(path for source in self._sources for path in source.paths)

    @property
    def places(self) -> tuple[str, ...]:
        """Where all of them are."""
        return tuple(place for source in self._sources for place in source.places)

    def files(self, start: int, stop: int) -> list[str]:
        """Name the files of each source that has some of the rows."""
        return [file for source, a, b in self._ranges(start, stop) for file in source.files(a, b)]

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts of each, moved to where it begins."""
        pieces = [s.cuts[:-1] + start for s, start in zip(self._sources, self._starts[:-1], strict=True)]
        return np.concatenate([*pieces, [self.shape[0]]]).astype(np.int64)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows of one source, or of neighbours."""
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
        """Join the stamps of what each source has in a range."""
        joined: list[list[str]] = [[] for _ in edges[1:]]
        for source, start in zip(self._sources, self._starts[:-1], strict=True):
            inside = np.clip(edges - start, 0, source.shape[0])
            touched = np.flatnonzero(np.diff(inside))
            if len(touched) == 0:
                continue
            stamps = source.stamps(inside[touched[0] : touched[-1] + 2])  # all at once: a store is listed for them
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
    """Wrap whatever holds a matrix: a path, URL or pattern, an array, a data frame, or a list of them."""
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
        f"pandas, polars or Dask data frame, a table of Arrow, a DataArray of Xarray, an AnnData, or a list of these; "
        f"got {type(thing).__module__}.{type(thing).__qualname__}."
    )


def kind_of(thing: Any, kinds: Sequence[type[Source]] = ()) -> type[Source] | None:
    """Return the first kind that takes an object; None for addresses of one archive, which are tried one by one."""
    return next((kind for kind in kinds or KINDS if kind.takes(thing)), None)


def _stored(address: str, reading: Reading, kinds: Sequence[type[Source]]) -> Source:
    """Open what is at an address, whichever kind it is of; it is opened as an array first, which most are."""
    for kind in kinds:
        with metadata_named(address, OF_JSON):
            found = kind.at(address, reading)
        if found is not None:
            return unpacked(found)
    raise no_array(address, reading.storage_options)


def addresses(thing: str) -> list[str]:
    """Return what an address or a pattern stands for."""
    return matches(thing, Reading()) if "*" in thing else [thing]


def matches(pattern: str, reading: Reading) -> list[str]:
    """Return the addresses a pattern stands for, in the order people count in: day-2 before day-10."""
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
    ArrowSource,  # after the kinds of pandas and Xarray, which can turn into tables of Arrow too
    H5adSource,
    ZarrSource,  # at an address tried before AnnData: one request for the many that are arrays
    AnnDataSource,
)

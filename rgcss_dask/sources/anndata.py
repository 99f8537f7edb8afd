"""AnnData in memory and in Zarr stores: X is read by ranges of cells, with the names of the variables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.io.retry import StoreError
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.sources.base import BLOCK_BYTES, Reading, Source, crc32, even_cuts, is_sparse, sparse_row_bytes
from rgcss_dask.sources.chunk_checksums import unguarded
from rgcss_dask.sources.dask import DaskSource
from rgcss_dask.sources.guarded_stores import innermost, is_process_local, rooted, strict_group
from rgcss_dask.sources.h5ad import H5adSource
from rgcss_dask.sources.in_memory import ArraySource, SparseSource
from rgcss_dask.sources.zarr import ZarrSource, local_paths, open_store

ENCODING = "encoding-type"
SPARSE = ("csr_matrix", "csc_matrix")
CSC_ADVICE = "Write it by rows once: adata.X = adata.X.tocsr(); adata.write_zarr(path)."


class AnnDataSource(Source):
    """The cells of a CSR matrix in a Zarr store, read by row ranges, never as a whole."""

    def __init__(self, group: zarr.Group, names: tuple[str, ...] | None, address: str, missing: str) -> None:
        self._group = group if missing == "fill" else strict_group(group)
        self._missing = missing
        self.shape, self.names, self.address = tuple(group.attrs["shape"]), names, address  # type: ignore[arg-type, assignment]
        values = _member(group, "data")
        self.dtype, self.unguarded = np.dtype(values.dtype), unguarded(values)
        self._opened: Any = None

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take AnnData objects, and Zarr groups of an AnnData or a sparse matrix; for addresses see `at`."""
        return type(thing).__module__.split(".")[0] == "anndata" or isinstance(thing, zarr.Group)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap X."""
        if not isinstance(thing, zarr.Group):
            return _in_memory(thing)
        group = zarr.open_group(rooted(thing.store), path=thing.path, mode="r", zarr_format=thing.metadata.zarr_format)
        return cls._of_group(group, without_secrets(thing), reading)

    @classmethod
    def at(cls, address: str, reading: Reading) -> Source | None:
        """Open X of an AnnData, or a sparse matrix stored by anndata; return None if there is neither."""
        try:
            store, path = open_store(address, reading.storage_options)
            group = zarr.open_group(store, path=path, mode="r")
        except StoreError:
            raise
        except (OSError, ValueError):  # not a readable group
            return None
        if group.attrs.get(ENCODING) not in ("anndata", *SPARSE):
            return None
        return cls._of_group(group, without_secrets(address), reading)

    @classmethod
    def _of_group(cls, group: zarr.Group, address: str, reading: Reading) -> Source:
        names = None
        if group.attrs.get(ENCODING) == "anndata":
            names = _variable_names(group)
            if "X" not in group or group["X"].attrs.get(ENCODING) == "null":  # as anndata 0.12.0 wrote None
                raise ValueError(_no_x(address, [f"layers/{name}" for name in _members(group, "layers")]))
            found = group["X"]
            if isinstance(found, zarr.Array):
                source = ZarrSource(found, f"{address}/X", reading.missing)
                source.names = names
                return source
            group = found
        if group.attrs.get(ENCODING) not in SPARSE:
            raise ValueError(f"a group must hold an AnnData or a sparse matrix stored by anndata; {address} does not.")
        if group.attrs[ENCODING] == "csc_matrix":
            raise ValueError(
                f"a sparse matrix must be stored by rows (CSR); {address} is stored by columns (CSC). {CSC_ADVICE}"
            )
        return cls(group, names, address, reading.missing)

    @property
    def processes(self) -> bool:
        """Whether the store is outside this process."""
        return not is_process_local(innermost(self._group.store))

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the group on this machine."""
        return local_paths(self._group.store, self._group.path)

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of the pointers, values and column indices of the cells."""
        stored = {
            name: ZarrSource(_member(self._group, name), f"{self.address}/{name}", self._missing)
            for name in ("indptr", "data", "indices")
        }
        first, last = (int(p) for p in np.asarray(stored["indptr"].array[start : stop + 1])[[0, -1]])
        ranges = {"indptr": (start, stop + 1), "data": (first, last), "indices": (first, last)}
        return [file for name, rows in ranges.items() for file in stored[name].files(*rows)]

    @property
    def cuts(self) -> Cuts:
        """Cut every few megabytes, counted as dense rows."""
        return even_cuts(self.shape[0], max(1, 4 * BLOCK_BYTES // (self.shape[1] * self.dtype.itemsize)))

    @property
    def sparse_row_bytes(self) -> int:
        """What is stored, by the cells."""
        return sparse_row_bytes(_member(self._group, "data").shape[0], self.shape[0], self.dtype)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read cells and make them dense."""
        return np.asarray(self.read_block(start, stop))

    def read_block(self, start: int, stop: int) -> SparseRows:
        """Read cells as sparse rows."""
        if self._opened is None:  # the row pointers are read once
            self._opened = _anndata().io.sparse_dataset(self._group)
        return SparseRows(self._opened[start:stop])

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Digest the sizes and times of the chunks that hold the cells; only the row pointers are read."""
        pointers = np.asarray(_member(self._group, "indptr")[:])
        columns = [[f"{crc32(pointers[a : b + 1]):08x}" for a, b in pairwise(edges)]]
        for name in ("data", "indices"):
            stored = ZarrSource(_member(self._group, name), f"{self.address}/{name}", self._missing)
            stamps = stored.stamps(pointers[edges])
            if stamps is None:
                return None
            columns.append(stamps)
        return ["-".join(stamps) for stamps in zip(*columns, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def _in_memory(adata: Any) -> Source:
    """Wrap an AnnData object; if it is backed by a file, rows are read by ranges."""
    if getattr(adata, "isbacked", False):
        return _backed(adata)
    if not hasattr(adata, "X") or adata.X is None:
        raise ValueError(
            _no_x("the AnnData", [f"layers[{name!r}]" for name in getattr(adata, "layers", {}) if name is not None])
        )
    X, names = adata.X, tuple(str(name) for name in adata.var_names)
    source: Source
    if DaskSource.takes(X):
        source = DaskSource.of(X, Reading())
    else:
        source = SparseSource.of(X, Reading()) if is_sparse(X) else ArraySource.of(X, Reading())
    source.names = names
    return source


def _backed(adata: Any) -> Source:
    names = tuple(str(name) for name in adata.var_names)
    if adata.is_view:  # anndata reads all of a view to return any part
        raise ValueError(
            "a backed AnnData must not be a view, which would be loaded whole for each read; this one is. Load the "
            "view, adata.to_memory(), or write it to its own file: adata.copy('part.h5ad')."
        )
    return H5adSource(adata.X, names, f"{adata.filename}/X")


def _no_x(address: str, layers: list[str]) -> str:
    there = f" It has {', '.join(layers)}: give one of these instead." if layers else ""
    return f"there is no matrix X in {address}.{there}"


def _member(group: zarr.Group, name: str) -> zarr.Array[Any]:
    found = group[name]
    if not isinstance(found, zarr.Array):
        raise ValueError(
            f"a sparse matrix must have an array {name!r}; {group.store_path} has a group there. Write it again."
        )
    return found


def _members(group: zarr.Group, name: str) -> list[str]:
    found = group.get(name)
    return sorted(found.keys()) if isinstance(found, zarr.Group) else []


def _variable_names(group: zarr.Group) -> tuple[str, ...] | None:
    var = group.get("var")
    if not isinstance(var, zarr.Group):
        return None
    index = _anndata().io.read_elem(var[str(var.attrs["_index"])])
    return tuple(str(name) for name in index)


def _anndata() -> Any:
    try:
        import anndata  # noqa: PLC0415 (an extra, and a second to import)
        import anndata.io  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(
            "reading AnnData needs a package that is not installed: pip install 'rgcss-dask[anndata]'."
        ) from error
    return anndata

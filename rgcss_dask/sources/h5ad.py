"""Matrices in HDF5 files of AnnData, read in ranges of rows by this process; HDF5 reads with one thread at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.io.files import is_url
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.runtime.extras import imported
from rgcss_dask.sources.base import Reading, Source, is_sparse
from rgcss_dask.sources.in_memory import ArraySource

ENDING = ".h5ad"
READING = "reading .h5ad files"


class H5adSource(ArraySource):
    """A dense HDF5 matrix, or a CSR matrix stored by anndata, read in ranges of rows, never as a whole."""

    def __init__(self, matrix: Any, names: tuple[str, ...] | None, address: str) -> None:
        if getattr(matrix, "format", "csr") != "csr":
            raise ValueError(
                f"cells are read by rows; {address} holds them by columns (CSC). Write it by rows once: "
                "adata.X = adata.X.tocsr(); adata.write_h5ad(path)."
            )
        super().__init__(matrix, names, address)
        self._one_at_a_time = threading.Lock()

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: a backed AnnData object is opened as an AnnData."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Raise: `takes` is always False."""
        raise NotImplementedError

    @classmethod
    def at(cls, address: str, reading: Reading) -> Source | None:
        """Open X of a file with the extension .h5ad; return None for other addresses."""
        if not is_h5ad(address):
            return None
        file = open_h5ad(address)
        return matrix_in(file, "X", address)

    def read_block(self, start: int, stop: int) -> Any:
        """Read cells, dense or sparse as stored."""
        with self._one_at_a_time:
            rows = self._array[start:stop]
        return SparseRows(rows) if is_sparse(rows) else rows

    def read(self, start: int, stop: int) -> Any:
        """Read cells and make them dense."""
        block = self.read_block(start, stop)
        return block.__array__() if isinstance(block, SparseRows) else block


def is_h5ad(address: str) -> bool:
    """Tell whether an address is that of an .h5ad file."""
    return address.lower().endswith(ENDING) and not Path(address).is_dir()


def open_h5ad(address: str) -> Any:
    """Open a local file for reading."""
    if is_url(address):
        raise ValueError(
            f"an .h5ad file is read from a disk of this machine; got {without_secrets(address)}. Download it, or write "
            "it once as Zarr, adata.write_zarr(path), which is read from anywhere."
        )
    if not Path(address).exists():
        raise FileNotFoundError(f"there is no file {address}.")
    h5py = imported("h5py", extra="anndata", by=READING)
    try:
        return h5py.File(address, "r")
    except OSError as error:
        raise OSError(f"{address} cannot be opened as HDF5: {error}.") from error


def matrix_in(file: Any, where: str, address: str) -> Source:
    """Return X, or a layer, of an open file as a source with the names of the variables."""
    io = imported("anndata.io", extra="anndata", by=READING)
    # Some versions of anndata store no X as a dataset without a shape.
    if where not in file or getattr(file[where], "shape", ()) is None:
        there = [f"layers/{name}" for name in file.get("layers", ())]
        also = f" It has {', '.join(there)}." if there else ""
        raise ValueError(f"there is no matrix {where} in {address}.{also}")
    found = file[where]
    matrix = found if hasattr(found, "dtype") else io.sparse_dataset(found)
    names = tuple(str(name) for name in io.read_elem(file["var"]).index)
    return H5adSource(matrix, names, f"{address}/{where}")

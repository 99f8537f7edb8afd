"""The parts of an AnnData, in memory or stored: a matrix of cells by genes, and the tables of cells and of genes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.safe_text import without_secrets
from rgcss_dask.runtime.extras import imported
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.h5ad import is_h5ad, matrix_in, open_h5ad
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.zarr import open_store

BY = "reading AnnData"


@dataclass(frozen=True, eq=False)
class Cells:
    """A matrix that is read in ranges of cells, with the tables of cells and genes in memory."""

    matrix: Source
    obs: Any  # frame of pandas, a row for each cell
    var: Any  # frame of pandas, a row for each gene

    @classmethod
    def of(cls, data: Any, layer: str | None = None) -> Cells:
        """Open an AnnData object, the path of an .h5ad file, or the path or group of a Zarr store."""
        if isinstance(data, str | Path):
            return cls._at(str(data), layer)
        if isinstance(data, zarr.Group):
            matrix = data if layer is None else _layer(data, layer, without_secrets(data))
            return cls._with_tables(open_source(matrix), data, without_secrets(data))
        if type(data).__module__.split(".")[0] != "anndata":
            raise WrongKindError(
                "genes are picked from an AnnData, or the path of an .h5ad file or Zarr store of one; got "
                f"{type(data).__module__}.{type(data).__qualname__}."
            )
        matrix = data if layer is None else _layer(data, layer, "the AnnData")
        source = open_source(matrix)
        source.names = tuple(str(name) for name in data.var_names)
        return cls(source, data.obs, data.var)

    @classmethod
    def _at(cls, address: str, layer: str | None) -> Cells:
        if is_h5ad(address):
            file = open_h5ad(address)
            matrix = matrix_in(file, "X" if layer is None else f"layers/{layer}", address)
            return cls._with_tables(matrix, file, address)
        try:
            store, path = open_store(address, Reading().storage_options)
            group = zarr.open_group(store, path=path, mode="r")
        except (FileNotFoundError, ValueError) as error:  # an array, or no data
            raise ValueError(
                f"genes are picked from an AnnData; there is none at {without_secrets(address)}."
            ) from error
        matrix = open_source(address if layer is None else _layer_address(group, layer, address))
        return cls._with_tables(matrix, group, without_secrets(address))

    @classmethod
    def _with_tables(cls, matrix: Source, group: Any, address: str) -> Cells:
        """Read the tables of a group of Zarr or HDF5."""
        io = imported("anndata.io", extra="anndata", by=BY)
        lacking = [name for name in ("obs", "var") if name not in group]
        if lacking:
            raise ValueError(f"an AnnData has tables obs and var; {address} has no {lacking[0]}.")
        cells = cls(matrix, io.read_elem(group["obs"]), io.read_elem(group["var"]))
        matrix.names = tuple(str(name) for name in cells.var.index)
        return cells


def _layer(data: Any, layer: str, holder: str) -> Any:
    """Return a layer of an AnnData object or group."""
    layers: Any = data.get("layers", {}) if isinstance(data, zarr.Group) else data.layers
    if layer not in layers:
        there = ", ".join(repr(name) for name in layers if name is not None) or "none"  # None: X, since anndata 0.13
        raise ValueError(f"there is no layer {layer!r} in {holder}; the layers there are: {there}.")
    return layers[layer]


def _layer_address(group: zarr.Group, layer: str, address: str) -> str:
    """Return the address of a layer of a stored AnnData; refuse a layer that does not exist."""
    _layer(group, layer, without_secrets(address))
    return f"{address.rstrip('/')}/layers/{layer}"

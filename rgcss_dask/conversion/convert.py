"""Files of other kinds turned into Zarr matrices, out of core."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.conversion.tables import Block, Table, open_table, reading
from rgcss_dask.io.files import in_order, is_url
from rgcss_dask.io.matrix_writer import Told, write_matrix
from rgcss_dask.io.outputs import refuse_inputs


def convert(
    source: str | Path | list[str], target: str | Path, *, dataset: str | None = None, told: Told | None = None
) -> int:
    """Turn files into one Zarr matrix with chunks of whole rows, checksums and column names; return its rows.

    Memory is a few chunks, whatever the size. An interrupted call can be made again and goes on, where the store can
    tell that the rows are still the same, and begins anew otherwise.

    Parameters
    ----------
    source : .npy, .npz, .csv, .tsv, .parquet, .h5 / .hdf5, .mat, MNIST IDX (also .gz), a Zarr array; a list of
        files or a pattern such as ``"day-*.csv"`` is stacked in order. The first line of a .csv or .tsv names the
        columns. Nulls become NaN: integers of a Parquet file that does not say it has none become float64.
    target : local path of the Zarr array to make.
    dataset : the array in an .npz, HDF5 or .mat file, where there are several matrices.
    told : called with the number of rows after each chunk is written.
    """
    paths = _paths(source)
    refuse_inputs(target, paths)
    tables = [open_table(path, dataset) for path in paths]
    first = _checked_alike(paths, tables)
    dtype = np.result_type(*(table.dtype for table in tables))

    def blocks(start: int) -> Iterator[Block]:
        before = 0
        for path, table in zip(paths, tables, strict=True):
            if table.rows is None or start < before + table.rows:
                with reading(path):
                    for block in table.blocks(max(0, start - before)):
                        yield block.astype(dtype, copy=False)
            assert table.rows is not None, "a table knows its rows when its blocks have come to their end"
            before += table.rows

    def made_from() -> dict[str, Any] | None:
        states = [table.state(path) for path, table in zip(paths, tables, strict=True)]
        return None if None in states else {"files": [*zip(paths, states, strict=True)], "dataset": dataset}

    return write_matrix(target, blocks, first.n, dtype, made_from=made_from, names=first.names, told=told)


def _checked_alike(paths: list[str], tables: list[Table]) -> Table:
    """Return the first file; refuse files of other columns, or of none."""
    first = tables[0]
    if first.n < 1:
        raise ValueError(f"a matrix must have columns; {paths[0]} has none.")
    for path, table in zip(paths, tables, strict=True):
        if table.n != first.n or table.names != first.names:
            difference = f"{_unlike(paths[0], first, table)} and {_unlike(path, table, first)}"
            raise ValueError(
                f"files must have the same columns in the same order; {difference}. "
                "Make their columns the same, or convert them apart."
            )
    return first


def _unlike(path: str, table: Table, other: Table) -> str:
    """Say how many columns a file has, and which of its names the other has not, or in another place."""
    has = f"{path} has {table.n}"
    if table.names is None or other.names is None:
        return has if table.names == other.names else f"{has} with{'out' if table.names is None else ''} names"
    names = set(other.names)
    own = [name for name in table.names if name not in names]
    if not own and table.n == other.n:
        own = [mine for mine, theirs in zip(table.names, other.names, strict=True) if mine != theirs]
    more = f" and {len(own) - 5} more" if len(own) > 5 else ""
    return f"{has} (differing: {', '.join(map(repr, own[:5]))}{more})" if own else has


def _paths(source: str | Path | list[str]) -> list[str]:
    if isinstance(source, list):
        found = [path for one in source for path in _paths(one)]
    elif "*" in str(source) and not is_url(str(source)):
        found = in_order(glob.glob(str(source)))
    else:
        found = [str(source)]
    if not found:
        raise FileNotFoundError(f"no file matches {source}.")
    return found

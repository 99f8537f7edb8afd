"""Apply a selection to a matrix larger than memory: write the picked columns, or all columns rebuilt from them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from rgcss_dask.core.names import column_indices, matching
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.spans import READ_BYTES, thinned
from rgcss_dask.io.matrix_writer import Told, write_matrix
from rgcss_dask.io.outputs import refuse_inputs
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.xarray import along

ATTRIBUTE = "rgcss_dask_columns"  # of a reduced matrix: the indices of its columns in the original matrix


def write_reduced(
    picked: Selection | ArrayLike,
    source: Any,
    path: str | Path,
    *,
    rows: str | None = None,
    missing: str = "raise",
    storage_options: dict[str, Any] | None = None,
    told: Told | None = None,
) -> int:
    """Write the picked columns of a matrix to a new Zarr array, in the order of the matrix; return the number of rows.

    If there are names, the columns of a selection are found by name, whatever their order in the matrix, and are
    written in the order of the columns that were selected from.

    Rows are read once, a few megabytes at a time, and written in chunks of some 16 MB with checksums. The array appears
    when it is complete. After an interruption the same call resumes if the source can tell that its rows have not
    changed; otherwise it starts again.

    Parameters
    ----------
    picked : Selection or sequence of int or str
        A selection, or the columns themselves, by index or by name.
    source : array-like, data frame, path or list of these
        The matrix, in anything that `scan` reads.
    path : str or Path
        Local path of the array to write.
    rows : str, optional
        For a DataArray, the dimension along the rows.
    missing : {"raise", "fill"}, default="raise"
        Policy for chunks that are not in the store, see `scan`.
    storage_options : dict, optional
        Options for the file system of a URL.
    told : callable, optional
        Called with the number of rows after each chunk is written.

    Returns
    -------
    int
        The number of rows that were written.

    Examples
    --------
    >>> import zarr
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> rows = load_digits().data
    >>> picked = rg.select(rows, 8, center=True)
    >>> rg.write_reduced(picked, rows, "reduced.zarr")
    1797
    >>> zarr.open_array("reduced.zarr", mode="r").shape
    (1797, 8)
    """
    opened = _opened(source, rows, missing, storage_options)
    refuse_inputs(path, opened.places)
    columns = (
        columns_in(picked, opened)[np.sort(picked.columns)] if isinstance(picked, Selection) else _given(picked, opened)
    )
    if len(columns) == 0:
        raise ValueError("there must be a column to write; none was picked.")
    return write_matrix(
        path,
        _blocks(opened, lambda block: block[:, columns]),
        len(columns),
        opened.dtype,
        made_from=lambda: _identity(opened, {"columns of": columns.tolist()}),
        names=None if opened.names is None else [opened.names[i] for i in columns],
        attributes={ATTRIBUTE: columns.tolist()},
        told=told,
    )


def write_reconstruction(
    picked: Selection,
    weights: NDArray[np.float64],
    source: Any,
    path: str | Path,
    *,
    rows: str | None = None,
    dtype: DTypeLike | None = None,
    missing: str = "raise",
    storage_options: dict[str, Any] | None = None,
    told: Told | None = None,
) -> int:
    """Write all columns, rebuilt from the picked ones, to a new Zarr array; return the number of rows.

    Centring and scaling are undone. Picked columns keep their values unless the objective is ``"all"``. Like
    `write_reduced`, the function works out of core and resumes after an interruption.

    Parameters
    ----------
    picked : Selection
        The selection.
    weights : array of shape (k, n)
        The weights of the selection, ``picked.weights(moments)``, or ``coef_`` of the estimator.
    source : array-like, data frame, path or list of these
        The whole matrix, or only the picked columns as `write_reduced` writes them; with names, in any order.
    path : str or Path
        Local path of the array to write.
    rows : str, optional
        For a DataArray, the dimension along the rows.
    dtype : dtype, optional
        Dtype to write, a float or an integer. By default that of the source if it holds integers (values are rounded
        and clipped to its range); else float32, or the dtype of the source if its floats are shorter.
    missing : {"raise", "fill"}, default="raise"
        Policy for chunks that are not in the store, see `scan`.
    storage_options : dict, optional
        Options for the file system of a URL.
    told : callable, optional
        Called with the number of rows after each chunk is written.

    Returns
    -------
    int
        The number of rows that were written.

    Examples
    --------
    >>> import zarr
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> rows = load_digits().data
    >>> moments = rg.scan(rows)
    >>> picked = rg.select(moments, 8, center=True)
    >>> rg.write_reconstruction(picked, picked.weights(moments), rows, "rebuilt.zarr")
    1797
    >>> zarr.open_array("rebuilt.zarr", mode="r").shape
    (1797, 64)
    """
    opened = _opened(source, rows, missing, storage_options)
    refuse_inputs(path, opened.places)
    model = Rebuild.of(picked, np.asarray(weights, dtype=np.float64))
    columns = _places(picked, model.columns, opened)
    written = _dtype_to_write(dtype, opened.dtype)
    crc = zlib.crc32(np.ascontiguousarray(model.weights).data.cast("B"))
    return write_matrix(
        path,
        _blocks(opened, lambda block: model(block[:, columns], written)),
        picked.n,
        written,
        made_from=lambda: _identity(
            opened, {"rebuilt": model.columns.tolist(), "from": columns.tolist(), "weights": crc, "as": str(written)}
        ),
        names=picked.all_names or (opened.names if opened.shape[1] == picked.n else None),
        told=told,
    )


def _dtype_to_write(asked: DTypeLike | None, source: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a reconstruction."""
    if asked is None:
        return source if source.kind in "iu" or source == np.float16 else np.dtype(np.float32)
    try:
        dtype = np.dtype(asked)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iuf":
        raise ValueError(f"dtype must be a real number type, such as 'float32' or 'uint8'; got {asked!r}.")
    return dtype


def _opened(source: Any, rows: str | None, missing: str, storage_options: dict[str, Any] | None) -> Source:
    source, _ = along(source, rows)
    return open_source(source, missing=missing, storage_options=storage_options)


def columns_in(picked: Selection, source: Source) -> NDArray[np.intp]:
    """Return the indices in a matrix of the columns that were selected from, (n,)."""
    index = matching(picked.all_names, source.names, source.address)
    if picked.n != source.shape[1]:
        raise ValueError(
            f"the matrix must have the {picked.n} columns that were selected from; {source.address} has "
            f"{source.shape[1]}."
        )
    return np.arange(picked.n) if index is None else index


def _places(picked: Selection, columns: NDArray[np.intp], source: Source) -> NDArray[np.intp]:
    """Return where the picked columns, ascending, are in the whole matrix or a matrix of them alone, (k,)."""
    if source.shape[1] != picked.k or picked.k == picked.n:
        if source.shape[1] != picked.n and (picked.all_names is None or source.names is None):
            raise ValueError(
                f"the matrix must have the {picked.k} picked columns or all {picked.n}; {source.address} has "
                f"{source.shape[1]}."
            )
        return columns_in(picked, source)[columns]
    names = None if picked.all_names is None else [picked.all_names[j] for j in columns]
    index = matching(names, source.names, source.address)
    return np.arange(picked.k) if index is None else index


def _given(columns: ArrayLike, source: Source) -> NDArray[np.intp]:
    given = np.atleast_1d(np.asarray(columns))
    return np.sort(column_indices(given.tolist(), source.shape[1], source.names))


def _blocks(source: Source, made: Callable[[NDArray[Any]], NDArray[Any]]) -> Callable[[int], Iterator[NDArray[Any]]]:
    """Return a function that yields converted blocks of rows from a given row on, whole chunks at a time."""
    edges = thinned(source.cuts, max(1, READ_BYTES // source.geometry.row_bytes))

    def blocks(start: int) -> Iterator[NDArray[Any]]:
        for first, stop in pairwise(edges.tolist()):
            if stop > start:
                yield made(source.read(max(first, start), stop))

    return blocks


def _identity(source: Source, asked: dict[str, Any]) -> dict[str, Any] | None:
    """Describe the rows and the output, so that a draft made from other rows is not resumed."""
    stamps = source.stamps(np.array([0, source.shape[0]], dtype=np.int64))
    return (
        None if stamps is None else {"source": source.address, "shape": list(source.shape), "stamps": stamps, **asked}
    )

"""DataArrays of Xarray as matrices: one dimension becomes the rows, the others are stacked into columns; and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.missing import plain
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.sources.base import BLOCK_BYTES, Reading, Source, checksums, crc32, even_cuts
from rgcss_dask.sources.dask import DaskSource
from rgcss_dask.sources.data_arrays import checked_array, is_labelled, origin_of, without_value

PLACE = "place"  # the dimension of picked columns in results
RANK = "rank"  # coordinate of picked columns: the pick order, from 1


def along(source: Any, rows: Any) -> tuple[Any, Any]:
    """Convert a DataArray to a matrix if ``rows`` names a dimension; return anything else unchanged."""
    if isinstance(rows, str) and is_labelled(source):
        return Field.of(source, rows).matrix(source), None
    return source, rows


@dataclass(frozen=True, eq=False)
class Field:
    """The layout of a DataArray as a matrix, by which results are converted back.

    Columns that hold no value in any row, such as the land in an ocean data set, are left out of the matrix and
    restored as NaN.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import rgcss_dask as rg
    >>> values = np.random.default_rng(0).normal(size=(50, 3, 4))
    >>> field = xr.DataArray(values, {"lat": [10.0, 20.0, 30.0]}, dims=("time", "lat", "lon"), name="temperature")
    >>> layout = rg.Field.of(field, "time")
    >>> layout.n
    12
    >>> picked = rg.select(rg.scan(layout.matrix(field)), 2, center=True)
    >>> layout.places(picked.columns).sizes["place"]
    2
    """

    rows: str  #: the dimension whose entries are rows
    keep: Any  #: DataArray of bool over the other dimensions, with their coordinates; False: left out
    name: str | None
    attributes: dict[str, Any]

    @classmethod
    def of(cls, array: Any, rows: str | None = None, *, land: str | ArrayLike = "ends") -> Field:
        """Return the layout of a DataArray.

        Parameters
        ----------
        array : DataArray
            An array with two dimensions or more.
        rows : str, optional
            Name of the dimension whose entries are rows; the first one by default.
        land : {"ends", "all"} or array of bool, default="ends"
            Which columns to leave out: columns without a value in the first, middle and last row (``"ends"``; a value
            in another row is then an error in the pass), columns without a value in any row (``"all"``; reads all data
            once more), or a boolean array over the other dimensions.

        Returns
        -------
        Field
            The layout.
        """
        array, rows = checked_array(array, rows)
        values = array.transpose(rows, ...)
        if isinstance(land, str) and land not in ("ends", "all"):
            raise ValueError(f"land must be 'ends', 'all' or a boolean array; got {land!r}.")
        left_out = without_value(values, rows, land) if isinstance(land, str) else np.asarray(land, dtype=bool)
        template = values.isel({rows: 0}, drop=True)
        if left_out.shape != template.shape:
            raise ValueError(f"land must have the shape {template.shape} of {template.dims}; got {left_out.shape}.")
        if left_out.all():
            raise ValueError(f"no column of {array.name or 'the DataArray'} has a value; at least one must have.")
        keep = template.copy(data=~left_out).rename(None).drop_attrs()
        return cls(rows, keep, array.name, dict(array.attrs))

    @property
    def n(self) -> int:
        """Number of columns of the matrix."""
        return int(self.keep.sum())

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each column, made of its coordinates."""
        index = np.unravel_index(self._cells, self.keep.shape)
        labels = []
        for dim, places in zip(self.keep.dims, index, strict=True):
            coordinate = self.keep[dim].to_numpy() if dim in self.keep.coords else np.arange(self.keep.sizes[dim])
            labels.append([f"{dim}={coordinate[i]}" for i in places])
        return tuple(", ".join(parts) for parts in zip(*labels, strict=True))

    def labels(self, array: Any) -> tuple[str, ...] | None:
        """Return the names of picked columns in a DataArray, if it has their coordinates.

        Parameters
        ----------
        array : DataArray
            Picked columns, as ``transform`` returns them.

        Returns
        -------
        tuple of str or None
            A name for each column.
        """
        at = {dim: array.coords.get(dim) for dim in self.keep.dims}
        if any(coordinate is None or coordinate.ndim != 1 for coordinate in at.values()):
            return None
        labels = [[f"{dim}={value}" for value in coordinate.to_numpy()] for dim, coordinate in at.items()]
        return tuple(", ".join(parts) for parts in zip(*labels, strict=True))

    @property
    def _cells(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.keep.to_numpy())

    def matrix(self, array: Any) -> Source:
        """Return the matrix of a DataArray with the same places, for `scan`.

        Parameters
        ----------
        array : DataArray
            An array with the same places.

        Returns
        -------
        Source
            A source of rows.
        """
        array, _ = checked_array(array, self.rows)
        array = array.transpose(self.rows, *self.keep.dims) if set(array.dims) >= set(self.keep.dims) else array
        self.check_places(array)
        if array.chunks is None:
            return XarraySource(array, self)
        m, cells = array.sizes[self.rows], math.prod(self.keep.shape)
        whole = array.data.rechunk(dict.fromkeys(range(1, array.ndim), -1))
        flat = whole.reshape((m, cells))
        if self.n < cells:
            # A block does not know its row numbers; an error gives the row within the block.
            flat = flat.map_blocks(
                self._taken, chunks=(flat.chunks[0], (self.n,)), dtype=flat.dtype, meta=np.empty((0, 0), flat.dtype)
            )
        return DaskFieldSource(flat, self)

    def places(self, columns: ArrayLike) -> Any:
        """Return the coordinates of columns.

        Parameters
        ----------
        columns : sequence of int
            Columns of the matrix.

        Returns
        -------
        DataArray of shape (k,)
            The indices of the columns, in this order, with their coordinates.
        """
        columns = np.asarray(columns, dtype=np.intp)
        found = self.keep.isel(self.indexers(columns))
        ranks = (PLACE, np.arange(1, len(columns) + 1))
        return found.copy(data=columns).assign_coords({RANK: ranks}).rename("column")

    def reduced(self, values: Any, columns: ArrayLike, like: Any) -> Any:
        """Return picked columns as a DataArray.

        Parameters
        ----------
        values : array of shape (m, k)
            The values.
        columns : sequence of int
            The columns of the values.
        like : DataArray
            The array whose rows these are; its row coordinates are copied.

        Returns
        -------
        DataArray of shape (m, k)
            The values with the coordinates of rows and places.
        """
        at = self.keep.isel(self.indexers(np.asarray(columns, dtype=np.intp)))
        shape = at.expand_dims({self.rows: values.shape[0]}, axis=0)
        out = shape.copy(data=values).assign_coords(self._row_coordinates(like))
        return out.rename(self.name).assign_attrs(self.attributes)

    def full(self, values: Any, like: Any = None) -> Any:
        """Return columns as a field over all places, with NaN for places that were left out.

        Parameters
        ----------
        values : array of shape (m, n) or (n,)
            Rows of all columns, or one number for each column.
        like : DataArray, optional
            The array whose rows these are; its row coordinates are copied.

        Returns
        -------
        DataArray
            The values at the places of their columns.
        """
        if values.ndim == 1:
            return self.keep.copy(data=self._spread(values[None])[0].reshape(self.keep.shape)).rename(self.name)
        if isinstance(values, da.Array):
            cells = math.prod(self.keep.shape)
            dtype = np.result_type(values.dtype, np.float32)
            chunks, meta = (values.chunks[0], (cells,)), np.empty((0, 0), dtype)
            flat: Any = da.map_blocks(self._spread, values, chunks=chunks, dtype=dtype, meta=meta)  # type: ignore[no-untyped-call]
        else:
            flat = self._spread(values)
        shaped = flat.reshape((values.shape[0], *self.keep.shape))
        out = self.keep.expand_dims({self.rows: values.shape[0]}, axis=0).copy(data=shaped)
        return out.assign_coords(self._row_coordinates(like)).rename(self.name).assign_attrs(self.attributes)

    def flat(self, values: Any, what: str = "a map") -> NDArray[Any]:
        """Return one number for each column, given a map of them over all places: the other way round than ``full``.

        Parameters
        ----------
        values : DataArray or array
            A number for each place, also for those that are left out; a DataArray over some of the dimensions counts
            in all of the others.
        what : str, default="a map"
            What the map is called in messages.

        Returns
        -------
        array of shape (n,)
            The numbers of the columns.
        """
        if is_labelled(values):
            if set(values.dims) < set(self.keep.dims):
                values = values.broadcast_like(self.keep)
            self.check_places(values)
            extra = [str(dim) for dim in values.dims if dim not in self.keep.dims]
            if extra:
                raise ValueError(f"{what} must have the dimensions {list(self.keep.dims)}; it has {extra[0]!r} too.")
            values = values.transpose(*self.keep.dims).to_numpy()
        values = plain(values)
        if values.shape != self.keep.shape:
            raise ValueError(f"{what} must have the shape {self.keep.shape} of {self.keep.dims}; got {values.shape}.")
        return np.asarray(values.ravel()[self._cells])

    def indexers(self, columns: NDArray[np.intp]) -> dict[Any, Any]:
        """Return what ``isel`` takes to find columns in a DataArray with the same places.

        Parameters
        ----------
        columns : array of int
            Columns of the matrix.

        Returns
        -------
        dict
            Where they lie along each dimension.
        """
        index = np.unravel_index(self._cells[columns], self.keep.shape)
        return {dim: (PLACE, places) for dim, places in zip(self.keep.dims, index, strict=True)}

    def _row_coordinates(self, like: Any) -> dict[Any, Any]:
        if like is None:
            return {}
        return {name: c for name, c in like.coords.items() if c.dims == (self.rows,)}

    def _taken(self, block: NDArray[Any]) -> NDArray[Any]:
        """Leave out columns of a block, after checking that they hold no value."""
        keep = self.keep.to_numpy().ravel()
        there = ~np.isnan(block[:, ~keep])
        if there.any():
            row, place = (int(i) for i in np.argwhere(there)[0])
            raise ValueError(self._late_value(row, int(np.flatnonzero(~keep)[place])))
        return block[:, keep]

    def _late_value(self, row: int, cell: int) -> str:
        index = np.unravel_index(cell, self.keep.shape)
        place = ", ".join(f"{d}={self.keep[d].to_numpy()[i]}" for d, i in zip(self.keep.dims, index, strict=True))
        return (
            f"a column must have values in all rows or in none; {place} has none in the first, middle and last row and "
            f"one in row {row} of a block. Look at all rows: Field.of(array, {self.rows!r}, land='all').matrix(array)."
        )

    def _spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """Expand columns to all places: (m, n) -> (m, places)."""
        out = np.full((len(values), math.prod(self.keep.shape)), np.nan, np.result_type(values.dtype, np.float32))
        out[:, self._cells] = values
        return out

    def check_places(self, array: Any) -> None:
        """Raise an error if the places of an array differ.

        Parameters
        ----------
        array : DataArray
            An array that must have the same places.
        """
        for dim in self.keep.dims:
            if dim not in array.dims or array.sizes[dim] != self.keep.sizes[dim]:
                sizes = {str(d): int(size) for d, size in array.sizes.items()}
                raise ValueError(
                    f"the columns must be those of fit: {dim} has {self.keep.sizes[dim]} entries there; got {sizes}."
                )
            labelled = dim in self.keep.coords and dim in array.coords
            # The variables: a coordinate that one map has besides, such as the time it is of, makes no difference.
            if labelled and not self.keep[dim].variable.equals(array[dim].variable):
                differ = np.flatnonzero(self.keep[dim].to_numpy() != array[dim].to_numpy())[0]
                raise ValueError(
                    f"the columns must be those of fit: {dim}[{differ}] is {self.keep[dim].to_numpy()[differ]} there "
                    f"and {array[dim].to_numpy()[differ]} here. Reindex or sort the DataArray."
                )


class XarraySource(Source):
    """A DataArray in memory, or in a file that Xarray reads lazily."""

    in_memory = True  # of the process that opened it; opened with chunks it is a Dask array

    def __init__(self, array: Any, field: Field) -> None:
        self._array, self.field = array, field
        self.shape, self.dtype = (array.sizes[field.rows], field.n), np.dtype(array.dtype)
        self.names, self.address = field.names, f"DataArray {array.name}"

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take DataArrays, and Datasets, for which `of` raises an error that helps."""
        return is_labelled(thing)

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Use the first dimension as rows."""
        return Field.of(thing).matrix(thing)

    @property
    def cuts(self) -> Cuts:
        """The rows where stored chunks begin, or one cut per megabyte."""
        stored = self._array.encoding.get("preferred_chunks", {}).get(self.field.rows)
        row_bytes = max(1, self.shape[1] * self.dtype.itemsize)
        return even_cuts(self.shape[0], int(stored or max(1, BLOCK_BYTES // row_bytes)))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return decoded rows without the columns that were left out."""
        values = self._array.isel({self.field.rows: slice(start, stop)}).to_numpy()
        flat = values.reshape(len(values), -1)
        return self.field._taken(flat) if self.field.n < flat.shape[1] else flat

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Digest the state of the file and the selection of its values.

        Three rows are read too, to distinguish variables, groups and decodings. Rows in memory, and files about which
        Xarray does not report enough, are read and checksummed instead.
        """
        origin = origin_of(self._array)
        if origin is None:
            return checksums(self, edges)
        ends = [crc32(self.read(i, i + 1)) for i in (0, self.shape[0] // 2, self.shape[0] - 1)]
        return [tokenize(origin, ends)] * (len(edges) - 1)


class DaskFieldSource(DaskSource):
    """A DataArray of Dask blocks, as `xarray.open_zarr` gives it."""

    def __init__(self, array: da.Array, field: Field) -> None:
        super().__init__(array, field.names)
        self.field = field

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: DataArrays are taken by `XarraySource`."""
        return False

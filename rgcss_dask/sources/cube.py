"""Image cubes of lines, columns and bands: each pixel is a row, and neighbouring rows are pixels that touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import plain, plain_dtype
from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.sources.base import BLOCK_BYTES, Reading, Source
from rgcss_dask.sources.dask import DaskSource, plain_blocks
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.zarr import ZarrSource

BANDS = ("band", "bands", "wavelength", "wavelengths")  # what the dimension of the bands is called, rioxarray's first


def in_turns(lines: NDArray[Any], first: int = 0) -> NDArray[Any]:
    """Return pixels line by line, every other line backwards, (pixels, ...), given lines from number ``first`` on.

    The last pixel of a line is then followed by the pixel below it, so that neighbouring rows are neighbouring pixels.
    """
    turned = np.array(lines)
    turned[(first + 1) % 2 :: 2] = lines[(first + 1) % 2 :: 2, ::-1]
    return turned.reshape(-1, *lines.shape[2:])


def pixel_at(row: int, width: int) -> tuple[int, int]:
    """Return the line and the column of a row of ``in_turns``."""
    line, place = divmod(row, width)
    return line, width - 1 - place if line % 2 else place


def placed_as(cube: Any, labels: Any) -> Any:
    """Return labels with their lines and columns in the order of those of the cube, if both are DataArrays."""
    if not (is_labelled(cube) and is_labelled(labels)) or not set(labels.dims) < set(cube.dims):
        return labels
    return labels.transpose(*(dim for dim in cube.dims if dim in labels.dims))


def pixels(cube: Any, dim: str | None = None) -> tuple[Source, tuple[int, int]]:
    """Return the pixels of a cube as rows, and the numbers of lines and columns.

    The bands are the columns of the matrix, named by their coordinate in a DataArray.

    ``dim`` is the dimension of the bands of a DataArray, by default the one with such a name, else the last one.
    """
    names = None
    if is_labelled(cube):
        cube, names = _with_bands_last(cube, dim)
    elif dim is not None:
        raise ValueError(
            f"dim names the bands of a DataArray; a {type(cube).__qualname__} has them last. Leave it out."
        )
    if isinstance(cube, str | Path) or ZarrSource.takes(cube):
        stored = ZarrSource.of(cube, Reading())
        _check(stored.shape, stored.dtype, stored.address)
        return StoredCube(stored), (stored.shape[0], stored.shape[1])
    if not hasattr(cube, "shape"):
        raise WrongKindError(
            f"a cube must be an array of NumPy, Dask or Zarr, a path, or a DataArray; got {type(cube).__qualname__}."
        )
    _check(cube.shape, cube.dtype, "the cube")
    blocks = cube.data if is_labelled(cube) and cube.chunks is not None else cube
    source = _of_blocks(blocks, names) if isinstance(blocks, da.Array) else CubeSource(cube, names)
    return source, (cube.shape[0], cube.shape[1])


def _check(shape: tuple[int, ...], dtype: Any, what: str) -> None:
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"a cube must have lines, columns and bands; {what} has shape {tuple(shape)}.")
    if np.dtype(dtype).kind not in "biuf":
        raise WrongKindError(f"values must be real numbers (bool, integer or float); got dtype {dtype}.")


def _with_bands_last(cube: Any, dim: str | None) -> tuple[Any, tuple[str, ...]]:
    """Return a DataArray of lines, columns and bands, and a name for each band."""
    if hasattr(cube, "data_vars"):
        raise WrongKindError("a cube is one variable; got a Dataset. Give one of its variables: dataset[name].")
    dim = (
        next((str(name) for name in cube.dims if str(name).lower() in BANDS), str(cube.dims[-1]))
        if dim is None
        else dim
    )
    if dim not in cube.dims:
        raise ValueError(f"dim must name a dimension; the cube has {list(cube.dims)}, not {dim!r}.")
    coordinate = cube[dim].to_numpy() if dim in cube.coords else np.arange(cube.sizes[dim])
    return cube.transpose(..., dim), tuple(f"{dim}={value}" for value in coordinate)


def _of_blocks(cube: da.Array, names: tuple[str, ...] | None) -> Source:
    """Return the pixels of a cube of Dask blocks, each turned where it is computed."""
    whole = plain_blocks(cube).rechunk({1: -1, 2: -1})  # type: ignore[no-untyped-call]
    starts = np.cumsum([0, *whole.chunks[0]])[:-1]
    parts = [
        whole[a : a + lines].map_blocks(_turned, int(a), dtype=whole.dtype)
        for a, lines in zip(starts, whole.chunks[0], strict=True)
    ]
    flat = da.concatenate(parts).reshape((-1, cube.shape[2]))  # type: ignore[no-untyped-call]
    return DaskSource(flat, names, name=cube.name)


def _turned(lines: NDArray[Any], first: int) -> NDArray[Any]:
    return in_turns(lines, first).reshape(lines.shape)


class CubeSource(Source):
    """The pixels of a cube in memory, or in a file that Xarray reads when asked."""

    in_memory = True

    def __init__(self, cube: Any, names: tuple[str, ...] | None = None) -> None:
        self._cube, self._width, bands = cube, cube.shape[1], cube.shape[2]
        self.shape, self.names = (cube.shape[0] * self._width, bands), names
        self.dtype = np.dtype(cube.dtype) if is_labelled(cube) else plain_dtype(cube)

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: the caller decides whether an array with three dimensions is a cube."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Wrap a cube."""
        return pixels(thing)[0]

    def lines(self, start: int, stop: int) -> NDArray[Any]:
        """Return lines of the cube, all in forward order."""
        return plain(np.asanyarray(self._cube[start:stop]))

    @property
    def cuts(self) -> Cuts:
        """Row numbers at which lines begin, some megabytes apart."""
        return self._cuts(max(1, BLOCK_BYTES // max(1, self._width * self.shape[1] * self.dtype.itemsize)))

    def _cuts(self, lines: int) -> Cuts:
        return np.append(np.arange(0, self.shape[0], lines * self._width, dtype=np.int64), self.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return pixels of lines in alternating direction, without the parts of lines outside the range."""
        first, last = start // self._width, -(-stop // self._width)
        rows = in_turns(self.lines(first, last), first).astype(self.dtype, copy=False)
        return rows[start - first * self._width : stop - first * self._width]


class StoredCube(CubeSource):
    """The pixels of a cube in a Zarr array; a chunk that is missing or damaged is found and named."""

    in_memory = False

    def __init__(self, stored: ZarrSource) -> None:
        super().__init__(stored.array)
        self._stored, self.address = stored, stored.address
        self.waits, self.unguarded = stored.waits, stored.unguarded

    def lines(self, start: int, stop: int) -> NDArray[Any]:
        """Read lines."""
        return self._stored.slab(start, stop)

    @property
    def cuts(self) -> Cuts:
        """Where chunks of lines begin."""
        return self._cuts(int((self._stored.array.shards or self._stored.array.chunks)[0]))

    @property
    def processes(self) -> bool:
        """Whether the store is outside this process."""
        return self._stored.processes

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the array is on this machine."""
        return self._stored.paths

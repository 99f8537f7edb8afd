"""Zarr arrays of packed integers, as in climate archives: Xarray decodes each block after reading."""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rgcss_dask.core.pass_options import Cuts
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.zarr import ZarrSource

# Attributes that define the packing of stored numbers (CF conventions, chapter 8).
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


class PackedSource(Source):
    """A Zarr array whose packed numbers are decoded; gaps become NaN."""

    def __init__(self, stored: ZarrSource, attributes: dict[str, Any]) -> None:
        self._stored, self._attributes = stored, attributes
        self.shape, self.names, self.address, self.waits = stored.shape, stored.names, stored.address, stored.waits
        self.unguarded = stored.unguarded
        self.dtype = self._decoded(np.empty((0, self.shape[1]), stored.dtype)).dtype

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Return False: an array is opened as a `ZarrSource` first, see `unpacked`."""
        return False

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> Source:
        """Open an array and decode it."""
        return unpacked(ZarrSource.of(thing, reading))

    @property
    def processes(self) -> bool:
        """Whether other processes can read the store."""
        return self._stored.processes

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of the array on this machine."""
        return self._stored.paths

    def files(self, start: int, stop: int) -> list[str]:
        """Return the files of the array."""
        return self._stored.files(start, stop)

    @property
    def cuts(self) -> Cuts:
        """The rows where stored chunks begin."""
        return self._stored.cuts

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows and decode them."""
        return self._decoded(self._stored.read(start, stop))

    def stamps(self, edges: Cuts) -> list[str] | None:
        """Add a digest of the packing to the stamps: the packing can change while the chunks do not."""
        stamps = self._stored.stamps(edges)
        return None if stamps is None else [f"{stamp}-{digest(self._attributes)}" for stamp in stamps]

    def _decoded(self, block: NDArray[Any]) -> NDArray[Any]:
        return decoded(block, self._attributes, self.address)


def decoded(block: NDArray[Any], attributes: dict[str, Any], address: str) -> NDArray[Any]:
    """Return the decoded values of packed numbers, of a matrix or a vector."""
    xarray = _xarray(address)
    variable = xarray.Variable(("row", "column")[: block.ndim], block, attributes)
    return np.asarray(xarray.conventions.decode_cf_variable(address, variable).to_numpy())


def unpacked(source: Source) -> Source:
    """Return a source that decodes, if this one is a Zarr array of packed numbers."""
    if not isinstance(source, ZarrSource) or not packing(source.array):
        return source
    if len(source.shape) != 2:
        raise ValueError(
            f"a matrix must have two dimensions; {source.address} has shape {source.shape}. Open it with "
            "dataset = xarray.open_zarr(...) and give dataset[name], with rows= the dimension of the rows."
        )
    return PackedSource(source, packing(source.array))


def packing(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the attributes that define the packing of an array; empty if it is not packed."""
    found: dict[str, Any] = {name: array.attrs[name] for name in PACKING if name in array.attrs}
    # In format 2 Xarray stores the fill value as that of the array; in format 3 it stores fill values of floats as
    # text.
    if array.metadata.zarr_format == 2 and (found or "_ARRAY_DIMENSIONS" in array.attrs):
        found.setdefault("_FillValue", array.metadata.fill_value)
    fill = found.get("_FillValue")
    if isinstance(fill, str):
        (fill,) = struct.unpack("<d", base64.standard_b64decode(fill))
    if fill is None or fill != fill:  # gaps are NaN already
        found.pop("_FillValue", None)
    else:
        found["_FillValue"] = fill
    return found


def digest(attributes: dict[str, Any]) -> str:
    """Return a digest of the packing."""
    return hashlib.blake2b(repr(sorted(attributes.items())).encode(), digest_size=4).hexdigest()


def _xarray(address: str) -> Any:
    try:
        import xarray  # noqa: PLC0415 (an extra, and half a second to import)
    except ImportError as error:
        raise ImportError(
            f"{address} holds packed numbers; decoding them needs a package that is not installed: "
            "pip install 'rgcss-dask[xarray]'."
        ) from error
    return xarray

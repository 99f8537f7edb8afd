"""Files that are no archives: an .npy is mapped into memory, of others it is said how to convert them."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import is_url

TO_CONVERT = (".csv", ".tsv", ".txt", ".data", ".parquet", ".pq", ".npz", ".h5", ".hdf5", ".mat", "-ubyte", ".idx")


def local_file(address: str) -> str | NDArray[np.generic]:
    """Return an .npy as an array, and an address that is no such file as it is; refuse files to be converted first."""
    name = address.lower().removesuffix(".gz")
    if not is_url(address) and name.endswith(TO_CONVERT) and not Path(address).is_dir():
        raise _to_convert(address, f"rows are read from archives in Zarr, not from {address} itself")
    if is_url(address) or not name.endswith(".npy") or "*" in address or not Path(address).is_file():
        return address
    try:
        array = np.load(address, mmap_mode="r")
    except ValueError as error:  # cut off, or of objects
        raise ValueError(f"{address} must be whole, and an array of numbers: {error}.") from error
    if array.ndim > 2:
        raise _to_convert(address, f"a matrix must have two dimensions; {address} has shape {array.shape}")
    return array


def _to_convert(address: str, rule: str) -> WrongKindError | FileNotFoundError:
    """Say the command that makes an archive of a file."""
    if "*" not in address and not Path(address).exists():
        return FileNotFoundError(f"there is no file {address}.")
    target = archive_for(address)
    return WrongKindError(
        f"{rule}. Convert it first: rgcss convert {shlex.quote(address)} {shlex.quote(target)} "
        f"(in Python rgcss_dask.convert), and give {target} instead."
    )


def archive_for(address: str) -> str:
    """Return a name for the archive made of a file, or of those that a pattern stands for."""
    path = Path(address.removesuffix(".gz"))
    stem = path.stem.replace("*", "").strip("-_. ") or "data"
    return str(path.with_name(f"{stem}.zarr") if "*" not in str(path.parent) else Path(f"{stem}.zarr"))

"""Files that are not Zarr: an .npy file is mapped into memory; for others the error names the conversion."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import is_url

TO_CONVERT = (".csv", ".tsv", ".txt", ".data", ".parquet", ".pq", ".npz", ".h5", ".hdf5", ".mat", "-ubyte", ".idx")


def local_file(address: str) -> str | NDArray[np.generic]:
    """Return an .npy file as an array, other addresses unchanged; refuse files that must be converted first."""
    name = address.lower().removesuffix(".gz")
    if not is_url(address) and name.endswith(TO_CONVERT) and not Path(address).is_dir():
        raise _to_convert(address, f"rows must be in a Zarr array; {address} is a file of another format")
    if is_url(address) or not name.endswith(".npy") or "*" in address or not Path(address).is_file():
        return address
    try:
        array = np.load(address, mmap_mode="r")
    except ValueError as error:  # truncated, or of objects
        raise ValueError(f"{address} must be a complete array of numbers: {error}. Copy or save it again.") from error
    if array.ndim > 2:
        raise _to_convert(address, f"a matrix must have two dimensions; {address} has shape {array.shape}")
    return array


def _to_convert(address: str, rule: str) -> WrongKindError | FileNotFoundError:
    """Return an error that names the command that converts a file."""
    if "*" not in address and not Path(address).exists():
        return FileNotFoundError(f"there is no file {address}.")
    target = archive_for(address)
    return WrongKindError(
        f"{rule}. Convert it first: rgcss convert {shlex.quote(address)} {shlex.quote(target)} "
        f"(in Python rgcss_dask.convert), and give {target} instead."
    )


def archive_for(address: str) -> str:
    """Return a name for the Zarr array made from a file or from the files of a pattern."""
    path = Path(address.removesuffix(".gz"))
    stem = path.stem.replace("*", "").strip("-_. ") or "data"
    return str(path.with_name(f"{stem}.zarr") if "*" not in str(path.parent) else Path(f"{stem}.zarr"))

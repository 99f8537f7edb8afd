"""n x n matrices in unnamed files on a disk, for those that do not fit into memory; the system pages them."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.runtime.page_pool import empty_sums

Array = NDArray[np.float64]

# Smaller matrices stay in memory.
LEAST = 2**26

_lock = threading.Lock()
_folders: list[Path] = []  # of the passes that run now and keep their matrices on a disk; the last one is used


@contextmanager
def matrices_on_disk(folder: Path | None) -> Iterator[None]:
    """Keep new matrices of sums in this folder while inside; None changes nothing. It holds for all threads."""
    if folder is None:
        yield
        return
    with _lock:
        _folders.append(folder)
    try:
        yield
    finally:
        with _lock:
            _folders.remove(folder)


def zero_matrix(shape: tuple[int, ...]) -> Array:
    """Return a matrix of zeros, on a disk inside of `matrices_on_disk`, otherwise in memory."""
    with _lock:
        folder = _folders[-1] if _folders else None
    if folder is not None and 8 * math.prod(shape) >= LEAST:
        return _on_disk(folder, shape)
    matrix: Array = empty_sums(shape)
    matrix.fill(0.0)
    return matrix


def empty_like(matrix: Array) -> Array:
    """Return a matrix of the same shape in the same place: on the same disk, or in memory."""
    folder = folder_of(matrix)
    return empty_sums(matrix.shape) if folder is None else _on_disk(folder, matrix.shape)


def copied(matrix: Array) -> Array:
    """Return a copy in the same place: on the same disk, or in memory."""
    if folder_of(matrix) is None:
        return np.array(matrix)
    copy = empty_like(matrix)
    copy[...] = matrix
    return copy


def folder_of(matrix: Array) -> Path | None:
    """Return the folder of a matrix on a disk, or None if it is in memory."""
    base = matrix
    while isinstance(base, np.ndarray):
        if isinstance(base, _DiskMatrix):
            return base.folder
        base = base.base  # type: ignore[assignment]
    return None


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder."""
    return shutil.disk_usage(folder).free


class _DiskMatrix(np.memmap):
    """A matrix in an unnamed file; a view of it leads back to its folder."""

    folder: Path


def _on_disk(folder: Path, shape: tuple[int, ...]) -> Array:
    """Return zeros in a file without a name, whose space is free again when the last view of it is gone."""
    with tempfile.TemporaryFile(dir=folder) as file:
        _reserve(file.fileno(), 8 * math.prod(shape), folder)
        mapped = _DiskMatrix(file, np.float64, "r+", shape=shape)
    mapped.folder = folder
    # A plain array: compiled loops take no subclasses, and what is computed from it is in memory.
    matrix: Array = np.asarray(mapped)
    return matrix


def _reserve(file: int, size: int, folder: Path) -> None:
    """Reserve the space of a file at once: a disk that is full at a later write would end the process."""
    if not hasattr(os, "posix_fallocate"):
        os.truncate(file, size)
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        raise OSError(
            error.errno,
            f"a matrix of {size / 1e9:.3g} GB must fit on the disk of {folder}, which has "
            f"{free_bytes(folder) / 1e9:.3g} GB free. Free some of it, or name another folder in rgcss.scratch of "
            "Dask's configuration",
        ) from error

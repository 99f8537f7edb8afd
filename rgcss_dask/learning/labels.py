"""Labels of rows, from memory or files: read, checked and numbered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import MASKED
from rgcss_dask.io.files import is_url
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.row_vectors import StoredVector
from rgcss_dask.sources.zarr import ZarrSource

TEXT = (".csv", ".tsv", ".txt")  # files with a label on each line
FEW = 2  # mean number of rows of a class, at least; with fewer, the labels are not classes


@dataclass(frozen=True, eq=False)
class Labels:
    """Classes, and the number of the class of each row."""

    classes: NDArray[Any]  # (c,) as given
    codes: NDArray[np.int32]  # (rows,)

    @classmethod
    def of(cls, given: Any, rows: int, *, storage_options: dict[str, Any] | None = None) -> Labels:
        """Read labels; refuse those that are missing, of another length, or of one class only."""
        values = _read(given, storage_options or {})
        if values.ndim != 1 or len(values) != rows:
            raise ValueError(
                f"labels must have one entry per row; got shape {values.shape} for {rows:,} rows. Give one label for "
                "each row of the data, in their order, and no heading."
            )
        _refuse_gaps(values)
        if values.dtype.kind == "O":
            values = values.astype(str)
        if values.dtype.kind == "f" and not np.array_equal(values, np.rint(values)):
            raise WrongKindError(
                f"labels must be classes: whole numbers, text or booleans; got {values.dtype} with fractions. Sort "
                "the values into classes first."
            )
        classes, codes = np.unique(values, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"labels must be of two classes or more; all rows have {classes[0]!s}.")
        if len(classes) * FEW > rows:
            raise ValueError(f"labels must be classes of several rows; got {len(classes):,} for {rows:,} rows.")
        return cls(classes, codes.astype(np.int32))


def _read(given: Any, storage_options: dict[str, Any]) -> NDArray[Any]:
    if isinstance(given, str | Path) and not is_url(str(given)):
        if Path(given).suffix == ".npy":
            return np.load(given)
        if Path(given).suffix in TEXT:
            lines = Path(given).read_text().splitlines()
            return np.array([line.strip() for line in lines], dtype=object)
    if isinstance(given, str | Path) or ZarrSource.takes(given):
        stored = StoredVector.of(ZarrSource.of(given, Reading(storage_options=storage_options)))
        return stored[:] if len(stored.shape) == 1 else np.empty(stored.shape, dtype=bool)
    values = given.compute() if is_dask_collection(given) else given
    if isinstance(values, MASKED) and np.ma.is_masked(values):
        raise _missing(int(np.argmax(np.ma.getmaskarray(values).ravel())))
    return np.asarray(values)


def _refuse_gaps(values: NDArray[Any]) -> None:
    if values.dtype.kind in "fcmM":
        gap = np.isnan(values)
    elif values.dtype.kind == "O":
        gap = np.array([_is_gap(one) for one in values], dtype=bool)
    else:
        return
    if gap.any():
        raise _missing(int(np.argmax(gap)))


def _is_gap(one: Any) -> bool:
    """Recognise None, an empty line, NaN, and the NA of pandas, whose comparisons are neither true nor false."""
    return one is None or (isinstance(one, str) and not one) or str(one) in ("nan", "<NA>", "NaT")


def _missing(row: int) -> ValueError:
    return ValueError(f"every row must have a label; that of row {row:,} is missing. Leave such rows out of both.")

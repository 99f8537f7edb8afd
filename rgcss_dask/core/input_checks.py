"""Checks of what users give: real, finite and whole numbers, weights of rows; errors name the place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.missing import flawed_weight, plain


class NotFiniteError(ValueError):
    """A NaN or an infinity where numbers are needed, with its place in the block."""

    def __init__(self, row: int, column: int, value: float, where: str = "", name: str | None = None) -> None:
        place = f"row {row}, column {column}{f' of {where}' if where else ''}"
        called = "" if name is None else f"; the column is called {name!r}"
        fill = ", or nan='mean' (--nan mean) to fill gaps (NaN) with the means of columns" if np.isnan(value) else ""
        super().__init__(
            f"values must be finite; {place} holds {value}{called}. "
            f"Use nan='drop' (--nan drop) to leave out such rows{fill}."
        )
        self.row, self.column, self.value, self.where, self.name = row, column, value, where, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.value, self.where, self.name)

    def at(self, where: str, names: Sequence[str] | None) -> NotFiniteError:
        """Return the same error with the address of the rows and the name of the column."""
        return NotFiniteError(self.row, self.column, self.value, where, None if names is None else names[self.column])


def raise_not_finite(piece: NDArray[Any]) -> None:
    """Raise the error with the place of a value that is not finite, given rows whose sum is not finite."""
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad) == 0:
        raise OverflowError("the sum of a column exceeds the range of float64; divide the data by a constant first.")
    row, column = (int(i) for i in bad[0])
    raise NotFiniteError(row, column, float(piece[row, column]))


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse anything but a matrix of real numbers."""
    if dtype.kind not in "biuf":
        raise WrongKindError(f"values must be real numbers (bool, integer or float); got dtype {dtype}.")


def checked_weights(weights: ArrayLike, rows: int) -> NDArray[Any]:
    """Return row weights as an array, or raise an error that states what is wrong with them."""
    w = plain(weights)
    check_real(w.dtype)
    if w.shape != (rows,):
        raise ValueError(f"weights must have one entry per row; got shape {w.shape} for {rows} rows.")
    if (flaw := flawed_weight(w)) is not None:
        raise ValueError(flaw)
    if rows and not np.any(w > 0):
        raise ValueError("weights must not all be zero; nothing would be left to add up.")
    return w


def is_whole(value: object) -> bool:
    """Tell whether something is a whole number, of Python or of NumPy; False for 2.0 and for True."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def checked_rows(rows: Any) -> int:
    """Return the number of rows of a sketch, or raise an error with the rule."""
    if not is_whole(rows) or rows < 1:
        raise ValueError(f"a sketch must have a whole number of rows, 1 or more; got {rows!r}.")
    return int(rows)

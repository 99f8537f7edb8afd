"""Reconstruction of all columns from the picked ones: the linear map of a selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.missing import MASKED, plain
from rgcss_dask.core.objective import Objective
from rgcss_dask.core.precision import difference
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.gram import Base

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rebuild:
    """The map from picked columns, in ascending order, to all columns.

    A picked column keeps its own values if the objective is ``"unselected"``; with ``"all"`` it is approximated like
    every other column.
    """

    columns: NDArray[np.intp]  # (k,) ascending: the columns of a reduced matrix
    weights: Array  # (k, n) rows in that order
    mu: Array  # (n,)
    sigma: Array  # (n,)
    counting: Objective
    mu_rest: Array | None = None  # (n,) rounding errors of mu, if they matter

    @classmethod
    def of(cls, picked: Selection, weights: Array) -> Rebuild:
        """Return the map of a selection and its weights, whose rows are in pick order."""
        order, n = np.argsort(picked.columns), weights.shape[1]  # the first n, if targets follow
        prepared, counting = picked.preparation, picked.counting_columns
        rest = None if prepared.mu_rest is None else prepared.mu_rest[:n]
        counting = counting if counting.weights is None else counting.weighted(counting.weights[:n])
        return cls(picked.columns[order], weights[order], prepared.mu[:n], prepared.sigma[:n], counting, rest)

    @property
    def n(self) -> int:
        """Number of columns after rebuilding."""
        return self.weights.shape[1]

    def dtype(self, given: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of rebuilt values: floats keep theirs."""
        return np.dtype(given) if np.dtype(given).kind == "f" else np.dtype(np.float64)

    def __call__(self, reduced: NDArray[Any], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
        """Rebuild rows, (m, k) -> (m, n), in the given dtype, by default that of `dtype`."""
        S = self.columns
        full = self._prepared(reduced, S) @ self.weights
        full *= self.sigma
        full += self.mu
        found = fitted(full, self.dtype(reduced.dtype) if dtype is None else dtype)
        if not self.counting.picks_count:
            found[:, S] = fitted(reduced, found.dtype)
        return found

    def losses(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[float, float]:
        """Return the loss on the rows of a block, prepared, and their squared norm."""
        return self.summed(*self.column_losses(block, weights))

    def column_losses(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> tuple[Array, Array]:
        """Return the squared error of each column on the rows of a block, prepared, and its squared norm, each (n,)."""
        X = self._prepared(block, np.arange(self.n))
        E = X - X[:, self.columns] @ self.weights
        w = np.ones(len(X)) if weights is None else weights
        return w @ (E * E), w @ (X * X)

    def summed(self, losses: Array, norms: Array) -> tuple[float, float]:
        """Return the loss and the squared norm over the columns that count."""
        left, whole = self.counting.counts(self.n, self.columns), self.counting.counts(self.n)
        return float(losses @ left), float(norms @ whole)

    def losses_in(self, base: Base) -> tuple[float, float]:
        """Return loss and squared norm from a Gram with the preparation of these weights."""
        return self.summed(*self.column_losses_in(base))

    def column_losses_in(self, base: Base) -> tuple[Array, Array]:
        """Return squared error and squared norm of each column from such a Gram, each (n,)."""
        norms = base.diagonal * base.unit
        return evaluate.column_losses_from_rows(norms, base.rows(self.columns), self.weights, self.columns), norms

    def _prepared(self, rows: NDArray[Any], columns: NDArray[np.intp]) -> Array:
        """Centre and scale rows of these columns, without losing digits of 64-bit integers."""
        X: Array = difference(rows, self.mu[columns], np.empty(rows.shape))
        if self.mu_rest is not None:
            X -= self.mu_rest[columns]
        X /= self.sigma[columns]
        return X


def fitted(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert values to a dtype: integers are rounded and clipped; overflow of floats is refused."""
    if values.dtype == dtype:
        return values
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = values.astype(dtype)
        if np.isinf(found).any() and np.isfinite(values).all():
            raise ValueError(
                f"values must fit into {dtype}; they go up to {np.abs(values).max():.3g}. Ask for float64."
            )
        return found
    if not np.isfinite(values).all():
        raise ValueError(
            f"values must be finite for {dtype}; some are NaN or infinite. Ask for a float, such as float32."
        )
    ends = np.iinfo(dtype)
    whole = np.rint(values) if values.dtype.kind == "f" else values
    low, high = whole <= ends.min, whole >= ends.max
    found = np.where(low | high, 0, whole).astype(dtype)
    found[low], found[high] = ends.min, ends.max
    return found


@dataclass(frozen=True, eq=False)
class Take:
    """The map from all columns to the picked ones, in ascending order, with the gap policy of the selection."""

    columns: NDArray[np.intp]  # (k,) ascending
    nan: str  # "raise" refuses a gap, "mean" fills it, "drop" keeps it: rows cannot be dropped here
    mean: Array | None  # (k,) to fill gaps with, for "mean"

    def __call__(self, block: Any) -> Any:
        """Return the picked columns of a dense or sparse block: (m, n) -> (m, k)."""
        return self.settle(block[:, self.columns])

    def settle(self, taken: Any) -> Any:
        """Apply the gap policy to columns that were taken already."""
        taken = plain(taken) if isinstance(taken, MASKED) else taken
        if self.nan == "drop" or np.dtype(taken.dtype).kind != "f":
            return taken
        values = taken if isinstance(taken, np.ndarray) else taken.data
        good = np.isfinite(values)
        if good.all():
            return taken
        X = taken if isinstance(taken, np.ndarray) else taken.toarray()
        bad = np.isinf(X) if self.nan == "mean" else ~np.isfinite(X)
        if bad.any():
            row, place = (int(i) for i in np.argwhere(bad)[0])
            raise NotFiniteError(row, int(self.columns[place]), float(X[row, place]))
        assert self.mean is not None  # given with "mean"
        filled = np.where(np.isnan(X), self.mean, X).astype(X.dtype)
        return filled if isinstance(taken, np.ndarray) else type(taken)(filled)

    def from_frame(self, frame: Any) -> Any:
        """Return the picked columns of a pandas data frame; dtypes are kept if they can hold the mean of their column.

        Nullable integers always become floats with "mean", so that all rows have one dtype.
        """
        taken = frame.iloc[:, self.columns]
        settled = self.settle(taken.to_numpy(dtype=np.float64, na_value=np.nan))
        if self.nan != "mean":
            return taken
        filled = taken.copy()
        for place, dtype in enumerate(taken.dtypes):
            kind = getattr(dtype, "numpy_dtype", dtype).kind
            if kind == "f" or not isinstance(dtype, np.dtype):  # other dtypes have no gaps
                column = taken.iloc[:, place]
                values = type(column)(settled[:, place], index=column.index, name=column.name)
                filled.isetitem(place, values.astype(dtype) if kind == "f" else values)
        return filled

"""The columns that an estimator was fitted on, and checks that other data have the same columns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.input_checks import check_real, checked_weights
from rgcss_dask.core.missing import MASKED, plain
from rgcss_dask.core.names import matching
from rgcss_dask.sources import lazy_columns as lazy
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.in_memory import FrameSource
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.row_vectors import RowVector
from rgcss_dask.sources.xarray import Field


class KnowsItsColumns(BaseEstimator):  # type: ignore[misc]
    """An estimator that accepts arrays, frames and lazy or stored data with the columns of ``fit``."""

    n_features_in_: int
    feature_names_in_: NDArray[Any]
    _field: Field | None  # of a fit on a DataArray
    _numbers: tuple[Any, ...] | None  # of a fit on a frame whose columns have no names

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Return an array or sparse matrix with the columns of ``fit``, or the source of lazy or stored data."""
        if not lazy.is_stored(X):
            self._field = None if reset else self._field
            X = plain(X) if isinstance(X, MASKED | list | tuple) else X
            self._check_numbers(X, reset=reset)
            rules: dict[str, Any] = {"accept_sparse": "csr", "dtype": "numeric", "ensure_all_finite": False}
            try:
                checked = validate_data(self, X, reset=reset, **rules)
            except ValueError:
                if FrameSource.takes(X):
                    open_source(X)  # raises an error that names every unusable column
                raise
            check_real(checked.dtype)  # scikit-learn accepts dates as numbers
            return checked
        if not reset:
            return self._same_columns(X)
        source = open_source(X)
        self._set_columns(source.shape[1], source.names, getattr(source, "field", None))
        return source

    def _check_numbers(self, X: Any, *, reset: bool) -> None:
        """Refuse a frame with the numbered columns of ``fit`` in another order; scikit-learn compares names only."""
        numbers = tuple(X.columns) if is_frame(X) and labels(X) is None else None
        if reset:
            self._numbers = numbers
        elif numbers and self._numbers and numbers != self._numbers and set(numbers) == set(self._numbers):
            raise _other_columns(numbers, self._numbers)

    def _set_columns(self, n: int, names: tuple[str, ...] | None, field: Field | None = None) -> None:
        self.n_features_in_, self._numbers, self._field = n, None, field
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)

    def _names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def _same_columns(self, X: Any) -> Any:
        """Return lazy or stored data if they have the columns of ``fit``; an error names the differences."""
        if is_labelled(X) and self._field is not None:
            return self._field.matrix(X)
        opened, n, names = lazy.columns_of(X)
        if n != self.n_features_in_:
            raise ValueError(
                f"X has {n} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input."
            )
        known = self._names()
        if names is not None and known is not None and names != known:
            raise _other_columns(names, known)
        return opened

    def _picked_places(self, shape: tuple[Any, ...], labels: tuple[str, ...] | None = None) -> NDArray[np.intp]:
        """Return the indices of the picked columns, ascending, in a matrix of this shape with these labels."""
        made_up = [str(name) for name in self.get_feature_names_out()]
        # After a fit without names, data may have the generated names.
        known = made_up if self._names() is not None or set(made_up) == set(labels or ()) else None
        return picked_places(shape, len(made_up), known, labels)


def picked_places(
    shape: tuple[Any, ...], k: int, known: Sequence[str] | None, labels: tuple[str, ...] | None
) -> NDArray[np.intp]:
    """Return the indices of k picked columns with these names in a matrix of this shape with these labels."""
    if len(shape) != 2 or shape[1] != k:
        raise ValueError(f"X must have the {k} picked columns that transform returns; got shape {shape}.")
    index = matching(known, labels, "X")
    return np.arange(k) if index is None else index


def refuse_wrapping(estimator: Any) -> None:
    """Refuse set_output for lazy data: scikit-learn would load them into a data frame."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about missing column names
        probe = estimator.transform(np.zeros((1, estimator.n_features_in_)))
    if not isinstance(probe, np.ndarray):
        package = type(probe).__module__.split(".")[0]
        raise WrongKindError(
            f"set_output must be 'default' for lazy data; {package} would load them into memory. "
            "Use set_output(transform='default'), or compute() the input first."
        )


def row_weights(weights: Any, rows: int) -> NDArray[Any] | None:
    """Return row weights as an array; those of a Zarr array are decoded as in `scan`."""
    if weights is not None and lazy.is_stored(weights):
        weights = np.asarray(RowVector.of(weights, "weights", rows, Reading()).values[:])
    return None if weights is None else checked_weights(weights, rows)


def is_frame(X: Any) -> bool:
    """Recognise a pandas data frame."""
    return FrameSource.takes(X)


def labels(frame: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a frame; as in scikit-learn, numbers do not count as names."""
    return tuple(frame.columns) if all(isinstance(name, str) for name in frame.columns) else None


def _other_columns(given: Sequence[Any], known: Sequence[Any]) -> ValueError:
    differ = [f"{a!r} where fit had {b!r}" for a, b in zip(given, known, strict=True) if a != b]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    return ValueError(f"the columns must be those of fit, in their order; X has {', '.join(differ[:3])}{more}.")

"""Arrow tables, and polars and other data frames that convert to them without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.in_memory import ArraySource


class ArrowSource(ArraySource):
    """An Arrow table, a polars frame, or any object with Arrow's C stream interface."""

    @classmethod
    def takes(cls, thing: Any) -> bool:
        """Take objects with the interface; pandas frames have it too, but are handled by an earlier kind."""
        return hasattr(thing, "__arrow_c_stream__")

    @classmethod
    def of(cls, thing: Any, reading: Reading) -> ArraySource:
        """Copy the values into one array."""
        import pyarrow  # noqa: PLC0415 (slow to import, and only tables need it)

        try:
            table = pyarrow.table(thing)
        except (TypeError, ValueError) as error:  # a single column has the interface too
            raise WrongKindError(
                f"a source must be a table of columns; got {type(thing).__module__}.{type(thing).__qualname__}: {error}"
            ) from error
        wrong = [f"{field.name!r} ({field.type})" for field in table.schema if not is_number(field.type)]
        if wrong:
            raise WrongKindError(
                f"every column must hold real numbers; these do not: {', '.join(wrong)}. Leave them out."
            )
        if not table.num_columns:
            raise ValueError("a matrix must have rows and columns; the table has no columns.")
        dtype = np.result_type(*(dtype_of(one.type, nulls=one.null_count > 0) for one in table.columns))
        values = np.empty((table.num_rows, table.num_columns), dtype)
        for j, column in enumerate(table.columns):
            values[:, j] = numbers(column)
        return cls(values, names=tuple(table.column_names))


def is_number(kind: Any) -> bool:
    """Tell whether an Arrow type is numeric or boolean."""
    import pyarrow.types as types  # noqa: PLC0415

    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))


def dtype_of(kind: Any, *, nulls: bool) -> np.dtype[Any]:
    """Return a dtype that holds a column; a float if there are nulls, because integers and booleans have no NaN."""
    import pyarrow.types as types  # noqa: PLC0415

    if types.is_decimal(kind) or (nulls and not types.is_floating(kind)):
        return np.dtype(np.float64)
    return np.dtype(kind.to_pandas_dtype())


def numbers(column: Any) -> NDArray[Any]:
    """Return the values of a column, with NaN for nulls."""
    import pyarrow  # noqa: PLC0415
    import pyarrow.compute as compute  # noqa: PLC0415

    if pyarrow.types.is_decimal(column.type):
        column = compute.cast(column, pyarrow.float64())
    elif pyarrow.types.is_boolean(column.type) and column.null_count:
        column = compute.cast(column, pyarrow.int8())
    array = column.to_numpy() if isinstance(column, pyarrow.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    return np.asarray(array)

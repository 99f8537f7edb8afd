"""Open the input of a selection: moments, rows of any kind, or a Gram matrix, recognised by fixed rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.archive import archive as archives
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.hashing import fold_of, runs
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.pass_options import Options, check_counts
from rgcss_dask.core.solver.checks import checked_gram
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.core.wide import Rows
from rgcss_dask.io.retry import StoreError
from rgcss_dask.runtime.memory_limit import default_budget
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.in_memory import FrameSource, SparseSource
from rgcss_dask.sources.lazy_columns import is_stored
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.row_vectors import RowVector

ROW_COPIES = 4  # copies of the rows in double precision: the rows, a factor, its residual, and products


@dataclass(frozen=True, eq=False)
class Given:
    """The input of a selection, and its origin."""

    source: Moments | Rows | Factor | NDArray[Any]  # an array is a Gram matrix
    provenance: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None  # column names of a data frame that is a Gram matrix

    @property
    def base(self) -> Moments | Rows | Factor | Gram:
        """The source as the solver takes it: a Gram matrix was checked when it was given, and is not checked again."""
        return Gram(self.source) if isinstance(self.source, np.ndarray) else self.source


def given(
    data: Any,
    *,
    folds: int | None = None,
    blocks: bool = False,
    needs_moments: bool = False,
    noise: bool = False,
    nan: str = "raise",
    weights: Any = None,
    progress: bool | Callback | None = None,
) -> Given:
    """Return the input of a selection; rows are read once, with ``folds`` folds, which are runs of rows if ``blocks``.

    If there are fewer rows than columns, the rows themselves are returned, unless moments are needed. With ``noise``
    the pass also sums squared differences of neighbouring rows.
    """
    data = _listed_numbers(data)
    if isinstance(data, Moments | Factor | Rows) or _is_square(data):
        _refuse_reading(nan, weights)
        if isinstance(data, Moments | Factor | Rows):
            return Given(data)
        labels = data.columns if FrameSource.takes(data) else ()
        names = tuple(labels) if len(labels) and all(isinstance(name, str) for name in labels) else None
        return Given(_gram(data), names=names)
    if isinstance(data, str | Path) and is_archive(str(data)):
        _refuse_reading(nan, weights)
        folder = archives.folder_of(data)
        moments, record = archives.read(folder)
        return Given(moments, provenance_from(folder.address, record))
    source = open_source(data)
    provenance = {"address": source.address, "shape": list(source.shape), "dtype": str(source.dtype)}
    if not needs_moments and are_few(source.shape):
        w = None if weights is None else _weights(weights, source)
        return Given(rows_of(source, w, nan=nan, folds=folds, blocks=blocks), provenance)
    moments = scan(source, folds=folds, blocks=blocks, noise=noise, nan=nan, weights=weights, progress=progress)
    return Given(moments, provenance)


def are_few(shape: tuple[int, ...], budget: int | None = None) -> bool:
    """Tell whether there are fewer rows than columns and selection from the dense rows fits in memory."""
    m, n = shape
    return m < n and ROW_COPIES * m * n * 8 <= (default_budget() if budget is None else budget)


def rows_of(
    source: Source, weights: Any = None, *, nan: str = "raise", folds: int | None = None, blocks: bool = False
) -> Rows:
    """Read all rows of a matrix with fewer rows than columns, with the same folds as a pass."""
    m = source.shape[0]
    check_counts(m, Options(folds=folds or 0, nan=nan, blocks=blocks))
    apart = None
    if folds:
        apart = runs(np.arange(m), m, folds) if blocks else fold_of(np.arange(m, dtype=np.uint64), folds, seed=0)
        apart = apart.astype(np.intp)
    return Rows.of(source.read(0, m), weights, nan=nan, names=source.names, apart=apart)


def is_archive(address: str, storage_options: dict[str, Any] | None = None) -> bool:
    """Tell whether an address is an archive of moments."""
    try:
        return archives.read_record(archives.folder_of(address, storage_options)) is not None
    except StoreError:
        raise
    except (OSError, ImportError):
        return False


def provenance_from(address: str, record: archives.Record) -> dict[str, Any]:
    """Return the provenance of moments from an archive."""
    nan = {name: value for name, value in record.options.items() if name == "nan" and value != "raise"}
    return {"moments": address, **record.source, **nan, "history": record.history}


def _listed_numbers(data: Any) -> Any:
    """Convert nested lists of numbers to an array; return a list of sources unchanged."""
    numbers = isinstance(data, list | tuple) and data and isinstance(data[0], list | tuple | int | float | np.number)
    return plain(data) if numbers else data


def _is_square(data: Any) -> bool:
    """Tell whether an array may be a Gram matrix. Stored data are always rows."""
    shape: tuple[Any, ...] = getattr(data, "shape", ())
    if isinstance(data, str | Path | Source) or len(shape) != 2 or not all(isinstance(size, int) for size in shape):
        return False
    return shape[0] == shape[1]


def _gram(data: Any) -> NDArray[Any]:
    """Return a square array as a Gram matrix; the error for other input says how to give it."""
    way_out = "If these are rows, give rgcss_dask.scan(X) in their place."
    if is_stored(data) or SparseSource.takes(data):
        raise WrongKindError(
            f"a square {type(data).__module__.split('.')[0]} {type(data).__qualname__} of shape {tuple(data.shape)} "
            f"may be rows or a Gram. {way_out} If it is a Gram, give it as a NumPy array."
        )
    try:
        return checked_gram(data)
    except (ValueError, TypeError) as error:
        what = "frame" if FrameSource.takes(data) else "array"
        raise type(error)(f"a square {what} is taken for a Gram, but cannot be one: {error} {way_out}") from None


def _refuse_reading(nan: str, weights: Any) -> None:
    """Refuse options for reading if no rows are read."""
    if nan != "raise" or weights is not None:
        raise ValueError(
            "nan and weights are for rows, which are read now; moments and a Gram were made before. "
            "Give them to rgcss_dask.scan."
        )


def _weights(weights: Any, source: Source) -> NDArray[Any]:
    return np.asarray(RowVector.of(weights, "weights", source.shape[0], Reading()).values[:])

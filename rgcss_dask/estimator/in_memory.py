"""Moments of rows in memory, with hashed folds or folds of a scikit-learn splitter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from rgcss_dask.core.hashing import fold_of
from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.moments import Moments
from rgcss_dask.estimator.parameters import Parameters
from rgcss_dask.scanning.batches import held_out_rows, moments_in_folds
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Source, dense


def folds_in_memory(data: Any, y: Any, asked: Parameters) -> NDArray[np.intp] | None:
    """Return the fold of each row in memory, equal to the folds of a pass; None without folds."""
    rows = data.shape[0]
    if asked.cv is None or is_whole(asked.cv) or isinstance(data, Source):
        folds = asked.folds
        if rows < (folds or 0):
            raise ValueError(f"cv={folds} folds need at least {folds} rows; got n_samples={rows}.")
        return None if folds is None else fold_of(np.arange(rows, dtype=np.uint64), folds, seed=0).astype(np.intp)
    apart = np.empty(rows, dtype=np.intp)
    for fold, index in enumerate(held_out_rows(check_cv(asked.cv).split(data, y), rows)):
        apart[index] = fold
    return apart


def moments_in_memory(
    data: Any, y: Any, weights: NDArray[Any] | None, asked: Parameters, names: tuple[str, ...] | None
) -> Moments:
    """Return the moments of rows in memory, with the requested folds."""
    if asked.cv is None or is_whole(asked.cv):
        folds = asked.folds
        if data.shape[0] < (folds or 0):
            raise ValueError(f"cv={folds} folds need at least {folds} rows; got n_samples={data.shape[0]}.")
        moments = scan(data, weights=weights, folds=folds, nan=asked.nan, noise=asked.needs_noise, progress=False)
        return replace(moments, names=names)
    splits = check_cv(asked.cv).split(data, y)
    return moments_in_folds(dense(data), weights, held_out_rows(splits, data.shape[0]), nan=asked.nan, names=names)

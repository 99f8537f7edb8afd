"""Moments of the rows of a fit, in memory or not: of all columns, or of candidates where those do not fit."""

from __future__ import annotations

from typing import Any

from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.moments import Moments
from rgcss_dask.estimator.columns import row_weights
from rgcss_dask.estimator.in_memory import moments_in_memory
from rgcss_dask.estimator.parameters import Parameters
from rgcss_dask.scanning.scan import scan
from rgcss_dask.selecting import warn_of_readings
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.registry import open_source
from rgcss_dask.two_readings import band_of_candidates


def moments_of(data: Any, y: Any, sample_weight: Any, asked: Parameters, names: tuple[str, ...] | None) -> Moments:
    """Return the moments of rows; if they do not fit into memory, those of candidates only."""
    stored = isinstance(data, Source)
    w = sample_weight if stored else row_weights(sample_weight, data.shape[0])
    try:
        if stored:
            return scan(data, weights=w, folds=asked.folds, nan=asked.nan, noise=asked.needs_noise)
        return moments_in_memory(data, y, w, asked, names)
    except TooManyColumnsError:
        if asked.share is not None or asked.needs_noise:
            raise
    source = data if stored else open_source(data)
    source.names = source.names or names
    k, told = asked.count(source.shape[1], source.names), warn_of_readings
    return band_of_candidates(source, k, asked.problem, folds=asked.folds, say=told, weights=w, nan=asked.nan)

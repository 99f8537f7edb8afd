"""Limiting BLAS to one thread."""

from __future__ import annotations

import functools
from contextlib import ExitStack

from threadpoolctl import ThreadpoolController

from rgcss_dask.runtime.shared_context import SharedContext


@functools.cache  # the search takes a millisecond; NumPy and SciPy have loaded theirs by now
def _blas_libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def _limit_blas(end: ExitStack) -> None:
    end.enter_context(_blas_libraries().limit(limits=1))


_blas_limited = SharedContext(_limit_blas)


def single_threaded_blas() -> SharedContext:
    """Limit BLAS to one thread while any caller is inside; the last one restores the previous limit."""
    return _blas_limited

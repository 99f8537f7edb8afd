"""BLAS, kept from adding threads of its own to those that call it."""

from __future__ import annotations

import functools
from contextlib import ExitStack

from threadpoolctl import ThreadpoolController

from rgcss_dask.runtime.shared_context import SharedContext


@functools.cache  # looking for them takes a millisecond; those of NumPy and SciPy have long been loaded
def _blas_libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def _limit_blas(end: ExitStack) -> None:
    end.enter_context(_blas_libraries().limit(limits=1))


_blas_limited = SharedContext(_limit_blas)


def single_threaded_blas() -> SharedContext:
    """Hold BLAS at one thread while any caller is inside, and give back what was there after the last one."""
    return _blas_limited

"""Bases of the solver, made from moments of any kind, or rows."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.band import Band
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.core.solver.band_rows import BandRows
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.gram import Base, Gram

Array = NDArray[np.float64]


class Wide(Protocol):
    """Fewer rows than columns, which form a base without a Gram."""

    @property
    def n(self) -> int:
        """Number of columns."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns."""

    @property
    def mean_rest(self) -> Array | None:
        """The rounding errors of the means in float64, if they matter."""

    def preparation(self, center: Any, scale: Any) -> tuple[Array, Array]:
        """Resolve options to vectors."""

    def base(self, center: Any, scale: Any, *, rest: Array | None) -> Factor:
        """Return the prepared rows as a factor."""


def base_of(
    moments: Moments | Wide,
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    *,
    rest: Array | None = None,
) -> Base:
    """Return the prepared Gram of moments, or rows, in their own representation; see `Moments.gram`."""
    if not isinstance(moments, Moments):
        return moments.base(center, scale, rest=rest)
    if isinstance(moments, Band):
        return BandRows(*moments.prepared(center, scale, rest=rest), moments.index)
    if isinstance(moments, Sketch):
        return Factor(moments.factor(center, scale, rest))
    return Gram(moments.gram(center, scale, rest=rest), overwrite=True)


def is_wide(source: Any) -> TypeGuard[Wide]:
    """Tell rows, which know how to become a base, from a Gram."""
    return hasattr(source, "preparation") and not isinstance(source, Moments)


def is_base(source: Any) -> bool:
    """Tell whether an object is a base already."""
    return isinstance(source, Gram | Factor | BandRows)

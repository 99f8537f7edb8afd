"""What the solver works on, made of whatever a pass has found."""

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
    """Rows that are fewer than columns, which make a base without their Gram."""

    @property
    def n(self) -> int:
        """Number of columns."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """Their names."""

    @property
    def mean_rest(self) -> Array | None:
        """What float64 rounds off the means, where that counts."""

    def preparation(self, center: Any, scale: Any) -> tuple[Array, Array]:
        """Resolve what was asked for to vectors."""

    def base(self, center: Any, scale: Any, *, rest: Array | None) -> Factor:
        """Return the prepared rows as a factor."""


def base_of(
    moments: Moments | Wide,
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    *,
    rest: Array | None = None,
) -> Base:
    """Return the prepared Gram in the form in which these moments, or rows, know it; see `Moments.gram`."""
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
    """Tell whether something is in the form the solver works on already."""
    return isinstance(source, Gram | Factor | BandRows)

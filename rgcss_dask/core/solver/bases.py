"""What the solver works on, made of whatever a pass has found."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.band import Band
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.core.solver.band_rows import BandRows
from rgcss_dask.core.solver.gram import Base, Factor, Gram

Array = NDArray[np.float64]


def base_of(
    moments: Moments,
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    *,
    rest: Array | None = None,
) -> Base:
    """Return the prepared Gram in the form in which these moments know it; see `Moments.gram`."""
    if isinstance(moments, Band):
        return BandRows(*moments.prepared(center, scale, rest=rest), moments.index)
    if isinstance(moments, Sketch):
        return Factor(moments.factor(center, scale, rest))
    return Gram(moments.gram(center, scale, rest=rest))


def is_base(source: Any) -> bool:
    """Tell whether something is in the form the solver works on already."""
    return isinstance(source, Gram | Factor | BandRows)

"""The kinds of values that a pass can make, by their names in archives and checkpoints."""

from __future__ import annotations

from rgcss_dask.core.band import Band
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.sketch import Sketch

KINDS: dict[str, type[Moments]] = {kind.KIND: kind for kind in (Moments, Band, Sketch)}
# Names of all arrays of these kinds.
ARRAYS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.ARRAYS))

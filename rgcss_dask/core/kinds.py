"""The kinds of values that a pass over rows can make, by the names that archives and checkpoints know them by."""

from __future__ import annotations

from rgcss_dask.core.band import Band
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.sketch import Sketch

KINDS: dict[str, type[Moments]] = {kind.KIND: kind for kind in (Moments, Band, Sketch)}
# Names of all arrays that one of them may have.
ARRAYS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.ARRAYS))

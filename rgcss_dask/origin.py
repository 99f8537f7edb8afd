"""The moments or rows that a selection was picked from, kept with it so that a result can be computed later."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rgcss_dask.archive.result_file import save_result
from rgcss_dask.cluster.placement import ask
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core import memory_needs
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.result import Result, Tuning, make_result
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.wide import Rows


def as_asked(values: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were set, as JSON values; 0 counts as set, None, False and [] do not."""
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if not (value is None or value is False or value == [])}


def _plain(value: Any) -> Any:
    """Convert NumPy numbers to Python numbers, and sequences to lists."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, eq=False)
class PickedFrom:
    """Moments or rows, their origin, and the cross-validation that chose lambda and k, if any."""

    source: Moments | Rows
    provenance: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None

    @classmethod
    def of(
        cls, source: Any, provenance: dict[str, Any] | None = None, tuning: Tuning | None = None
    ) -> PickedFrom | None:
        """Return the origin without folds and groups; None for a bare Gram, from which no result can be made."""
        if not isinstance(source, Moments | Rows):
            return None
        if isinstance(source, Moments) and not isinstance(source, RemoteMoments):
            source = replace(source, folds=(), groups=())
        return cls(source, provenance or {}, tuning)

    def result(self, picked: Selection, **shown: Any) -> Result:
        """Compute everything that a report shows, where the moments are; see `make_result`."""
        shown = {"tuning": self.tuning, "provenance": self.provenance, **shown}
        if isinstance(self.source, Rows):
            return make_result(self.source, picked, **shown)
        need = memory_needs.select_need(self.source.n, picked.k, bound=True)
        found: Result = ask(make_result, self.source, picked, need=need, where=None, **shown)
        return found

    def save(self, result: Result, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a result as JSON."""
        save_result(result, path, overwrite=overwrite)

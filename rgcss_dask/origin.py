"""What a selection was picked from, kept beside it: from it a result is worked out when one is asked for."""

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
    """Return what was asked for as a file can keep it, without what was not; 0 is asked for, and is not False."""
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if not (value is None or value is False or value == [])}


def _plain(value: Any) -> Any:
    """Return numbers of NumPy as those of Python, and sequences of them as lists."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, eq=False)
class PickedFrom:
    """Moments or rows, where they came from, and how lambda and k were chosen if they were."""

    source: Moments | Rows
    provenance: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None

    @classmethod
    def of(
        cls, source: Any, provenance: dict[str, Any] | None = None, tuning: Tuning | None = None
    ) -> PickedFrom | None:
        """Keep what a result can be made of, which a Gram alone is not; parts kept apart are not needed for it."""
        if not isinstance(source, Moments | Rows):
            return None
        if isinstance(source, Moments) and not isinstance(source, RemoteMoments):
            source = replace(source, folds=(), groups=())
        return cls(source, provenance or {}, tuning)

    def result(self, picked: Selection, **shown: Any) -> Result:
        """Work out all that a report shows, where the moments are; see `make_result`."""
        shown = {"tuning": self.tuning, "provenance": self.provenance, **shown}
        if isinstance(self.source, Rows):
            return make_result(self.source, picked, **shown)
        need = memory_needs.select_need(self.source.n, picked.k, bound=True)
        found: Result = ask(make_result, self.source, picked, need=need, where=None, **shown)
        return found

    def save(self, result: Result, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a result as JSON."""
        save_result(result, path, overwrite=overwrite)

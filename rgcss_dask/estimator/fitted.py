"""Attributes of a fitted estimator besides its picks: moments, bounds, places, results; and its pickles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from rgcss_dask.answering import tight_bound
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import PartialSums
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.wide import Rows
from rgcss_dask.estimator.columns import KnowsItsColumns
from rgcss_dask.estimator.parameters import is_plain
from rgcss_dask.origin import PickedFrom, as_asked

Array = NDArray[np.float64]


class TellsItsResult(KnowsItsColumns):
    """An estimator that keeps its selection and the moments or rows behind it."""

    _moments: Moments | None
    _rows: Rows | None  # of a fit on fewer rows than columns, instead of moments
    _parts: PartialSums | None  # of partial_fit, to be continued
    _bound: Array | None
    support_: NDArray[np.bool_]
    selected_: NDArray[np.intp]
    selection_: Selection
    coef_: Array
    center: Any
    where: str | None
    pickle_parts: bool

    @property
    def moments_(self) -> Moments:
        """The moments of the rows; after a fit on fewer rows than columns they are computed on demand."""
        check_is_fitted(self)
        if self._moments is None:
            assert self._rows is not None  # a fit keeps one or the other
            self._moments = self._rows.moments()
        return self._moments

    @property
    def places_(self) -> Any:
        """The indices of the picked columns of a DataArray, in pick order, with their coordinates."""
        check_is_fitted(self)
        if self._field is None:
            raise AttributeError("places_ exists only after a fit on a DataArray.")
        return self._field.places(self.selected_)

    @property
    def bound_path_(self) -> Array:
        """Lower bounds for the loss of any 1, 2, ..., k columns, (k,)."""
        check_is_fitted(self)
        if self._bound is None:
            picked = self.selection_
            if self._rows is None:
                self._bound = tight_bound(picked, self.moments_, where=self._where(self.moments_))
            else:
                model = self._rebuild()
                base = Factor(self._rows.factor(self.center, model.mu, model.sigma))
                self._bound = picked.tight_bound(base.spectrum(picked.counting.counts(picked.n), picked.k))
        return self._bound

    def result(self, **shown: Any) -> Any:
        """Return everything that a report shows.

        Parameters
        ----------
        **shown : dict
            Additional content, such as ``trust=stability.summary``.

        Returns
        -------
        Result
            The selection with bounds, weights, conditioning and how lambda was chosen.
        """
        check_is_fitted(self)
        tuned = getattr(self, "cv_results_", None)
        asked = {name: value for name, value in self.get_params().items() if is_plain(value)}
        asked["effort"] = asked["effort"] or None  # 0 means no search
        provenance = {"estimator": type(self).__name__, "asked": as_asked(asked)}
        origin = PickedFrom.of(self._rows or self.moments_, provenance, None if tuned is None else tuned.summary)
        return self.selection_.known(origin).result(**shown)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the result to a JSON file, for `load_result`, `rgcss report` and `rgcss apply`.

        Parameters
        ----------
        path : str or Path
            Where to write. An existing result is replaced.
        overwrite : bool, default=False
            Replace the file at ``path`` even if it is not a result.
        """
        save_result(self.result(), path, overwrite=overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the moments of folds and groups, which may be much larger than the rest."""
        state = dict(super().__getstate__())
        if not self.pickle_parts and state.get("_moments") is not None:
            state["_moments"] = replace(state["_moments"], folds=(), groups=())
            if state.get("_parts") is not None and len(state["_parts"].sums) > 1:
                state["_parts"] = None  # of folds; partial_fit raises an error about them
        return state

    def _where(self, moments: Moments) -> str | None:
        """Return ``where`` for moments on a cluster, else None: the moments may be of another pass than ``fit``."""
        return self.where if isinstance(moments, RemoteMoments) else None

    def _rebuild(self) -> Rebuild:
        return Rebuild.of(self.selection_, self.coef_)

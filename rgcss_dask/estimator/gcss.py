"""The estimator without regularisation."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from rgcss_dask.core.selection import Stop
from rgcss_dask.estimator.selector import RGCSS


class GCSS(RGCSS):
    """Pick the columns from which all others are best rebuilt, by greedy column subset selection.

    This is `RGCSS` with lambda = 0, the method of Farahat, Ghodsi and Kamel (2011): the loss is the squared norm of
    what the picked columns cannot express. It stops early, with a warning, where they express everything.

    Parameters
    ----------
    n_features_to_select, objective, center, scale, nan, include, exclude, cv, refine, stop, where,
    pickle_parts
        As in `RGCSS`.

    Attributes
    ----------
    selected_, support_, ranking_, loss_path_, bound_path_, coef_, lam_, moments_, selection_, n_features_in_
        As in `RGCSS`.
    """

    def __init__(
        self,
        n_features_to_select: int | float | str | None = None,
        *,
        objective: str = "unselected",
        center: bool | ArrayLike = False,
        scale: float | str | ArrayLike | None = None,
        nan: str = "raise",
        include: Sequence[int] | Sequence[str] | None = None,
        exclude: Sequence[int] | Sequence[str] | None = None,
        cv: int | None = None,
        refine: bool = False,
        stop: Stop | None = None,
        where: str | None = None,
        pickle_parts: bool = False,
    ) -> None:
        super().__init__(
            n_features_to_select,
            0.0,
            objective=objective,
            center=center,
            scale=scale,
            nan=nan,
            include=include,
            exclude=exclude,
            cv=cv,
            refine=refine,
            stop=stop,
            where=where,
            pickle_parts=pickle_parts,
        )

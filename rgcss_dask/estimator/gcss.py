"""The estimator without regularisation."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from rgcss_dask.core.aims import Aims
from rgcss_dask.core.stop import Stop
from rgcss_dask.estimator.selector import RGCSS


class GCSS(RGCSS):
    """Pick the columns from which all others are best rebuilt, by greedy column subset selection.

    This is `RGCSS` with lambda = 0, the method of Farahat, Ghodsi and Kamel (2011): the loss is the squared norm of the
    part of the columns that the picks cannot express. It stops early, with a warning, when they express everything.

    Parameters
    ----------
    n_features_to_select : int, float, ``"cv"`` or None, default=None
        As in `RGCSS`, like all other parameters.
    objective : {"unselected", "all"}, default="unselected"
        Whether the loss counts the columns that were not picked, or all of them.
    center : bool or array of shape (n_features,), default=False
        Subtract the column means, or these values, first.
    scale : None, "std", bool, float or array of shape (n_features,), default=None
        Divide by the standard deviations, or by these values, first.
    nan : {"raise", "drop", "mean"}, default="raise"
        Policy for missing values.
    include : sequence of int or str, default=None
        Columns to pick first.
    exclude : sequence of int or str, default=None
        Columns that must not be picked.
    cv : int, splitter or iterable of (train, test), default=None
        Folds for cross-validation.
    refine : bool, default=None
        Swap picked columns for others as long as that lowers the loss; by default where that takes a second or two.
    effort : int, default=0
        Number of further searches from other starting picks.
    exact : bool, default=False
        Search all subsets for the best one, for at most a minute.
    stop : Stop, default=None
        Rules to stop early by loss or lower bound.
    where : {"scheduler", "worker", "client"}, default=None
        Where the selection is computed after a pass on a Dask cluster.
    pickle_parts : bool, default=False
        Whether pickles include the moments of folds and groups.
    aims : Aims, default=None
        What the picks must explain, and which columns may be picked.
    target : {"y", "both"}, default=None
        Pick the columns that explain y best.

    Attributes
    ----------
    selected_ : ndarray of shape (k,)
        Picked columns in the order they were picked; this and all other attributes are as in `RGCSS`.

    See Also
    --------
    RGCSS : the same with regularisation.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from rgcss_dask import GCSS
    >>> X = load_digits().data
    >>> GCSS(n_features_to_select=8, center=True).fit(X).selected_
    array([26, 36, 21, 61, 27, 45, 10, 42])
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
        refine: bool | None = None,
        effort: int = 0,
        exact: bool = False,
        stop: Stop | None = None,
        where: str | None = None,
        pickle_parts: bool = False,
        aims: Aims | None = None,
        target: str | None = None,
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
            effort=effort,
            exact=exact,
            stop=stop,
            where=where,
            pickle_parts=pickle_parts,
            aims=aims,
            target=target,
        )

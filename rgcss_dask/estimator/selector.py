"""The estimator RGCSS: it validates input, calls the functions of the package, and stores their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from rgcss_dask.answering import loss_and_start
from rgcss_dask.cluster.execution import active_client
from rgcss_dask.cluster.placement import check_where
from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.rebuild import Take
from rgcss_dask.core.stop import Stop
from rgcss_dask.core.wide import Rows
from rgcss_dask.estimator.columns import is_frame, labels, refuse_wrapping, row_weights
from rgcss_dask.estimator.in_memory import folds_in_memory
from rgcss_dask.estimator.labelled import labelled, rebuilt_field
from rgcss_dask.estimator.reading import moments_of
from rgcss_dask.estimator.supervised import CarriesY
from rgcss_dask.scanning.batches import parts_of, with_batch
from rgcss_dask.scanning.scan import scan
from rgcss_dask.scanning.uncounted import is_uncounted
from rgcss_dask.sources import lazy_columns as lazy
from rgcss_dask.sources.base import Source, dense, frame_dtype
from rgcss_dask.sources.data_arrays import is_labelled
from rgcss_dask.sources.gap_filling import FilledSource
from rgcss_dask.sources.registry import open_source

Array = NDArray[np.float64]


class RGCSS(SelectorMixin, CarriesY):  # type: ignore[misc]
    """Pick the columns from which all others are best rebuilt, by regularised greedy column subset selection.

    ``fit`` reads the rows once, from any kind of source, and needs memory for n x n numbers; with fewer rows than
    columns in memory it works on the rows themselves. ``transform`` keeps the picked columns, ``inverse_transform``
    rebuilds all columns from them. Dask collections stay lazy in both.

    Parameters
    ----------
    n_features_to_select : int, float, ``"cv"`` or None, default=None
        Number of columns; None is the smaller of 10 and the number of columns. A float between 0 and 1 is the share to
        explain, of the variation with ``center=True`` and of the squared norm otherwise: the fewest columns that reach
        it. ``"cv"`` takes the fewest, up to 64, within one standard error of the smallest loss on held-out rows.
    lam : float or ``"cv"``, default=1.0
        The paper's lambda, on the prepared Gram. ``"cv"`` takes the lambda with the smallest loss on held-out rows.
    objective : {"unselected", "all"}, default="unselected"
        Whether the loss counts the columns that were not picked, or all of them.
    center : bool or array of shape (n_features,), default=False
        Subtract the column means, or these values, first.
    scale : None, "std", bool, float or array of shape (n_features,), default=None
        Divide by the standard deviations (``"std"`` or True), or by these values, first. ``center=True, scale="std"``
        equals `StandardScaler`, without its pass over the data.
    nan : {"raise", "drop", "mean"}, default="raise"
        With ``"raise"``, a value that is not finite is an error; with ``"drop"``, ``fit`` ignores rows with NaN; with
        ``"mean"``, NaN is replaced by the mean of its column, in ``transform`` too.
    include, exclude : sequence of column indices or names, default=None
        Columns to pick first, and columns that must not be picked.
    cv : int, splitter or iterable of (train, test), default=None
        Folds for cross-validation, by default 5 if something is tuned. With a number, rows are assigned to folds by a
        hash of their row numbers. Splitters of scikit-learn need rows in memory, and must hold out each row once.
    refine : bool, default=None
        Swap picked columns for others, after the greedy selection, as long as that lowers the loss. By default only
        where that takes a second or two: with n_features^2 k up to 2^28, and not with fewer rows than columns, because
        no Gram is computed then. False keeps the greedy picks.
    effort : int, default=0
        Number of further searches from other starting picks, see `refine`; 12 to 20 is a good choice.
    exact : bool, default=False
        Search all subsets for the best one, for at most a minute, see `refine`; up to 60 columns and 8 picks take
        seconds.
    stop : Stop, default=None
        Rules to stop before ``n_features_to_select`` by loss or lower bound, see `Stop`. Cross-validation compares
        complete paths; only the selection on all rows stops early.
    where : {"scheduler", "worker", "client"}, default=None
        Where the selection is computed after a pass on a Dask cluster: on the scheduler (the default), on the worker
        that holds the moments, where they stay until the client is closed, or in this process, which fetches them.
        Rows in memory are processed in this process.
    pickle_parts : bool, default=False
        Whether pickles and copies include the moments of folds and groups, an n x n matrix for each. Without them an
        estimator still transforms, rebuilds and scores; only `cross_validate` and `stability` of its ``moments_``, and
        ``partial_fit`` after a fit with folds, need them.
    aims : Aims, default=None
        What the picks must explain, and which columns may be picked: weights, targets among the columns of X, noise,
        penalties, groups, costs, limits.
    target : {"y", "both"}, default=None
        Pick the columns that explain y best: floats are used as numbers (centred and scaled like X), classes become
        indicators that count alike. ``"both"`` explains X too; y has the share ``aims.target_share`` of the loss, by
        default half. X and y are read in one pass.

    Attributes
    ----------
    selected_ : ndarray of shape (k,)
        Picked columns in the order they were picked.
    support_ : ndarray of bool of shape (n_features,)
        Whether a column was picked.
    ranking_ : ndarray of int of shape (n_features,)
        Pick order, from 1; k + 1 for columns that were not picked.
    loss_path_ : ndarray of shape (k,)
        The objective after each pick.
    bound_path_ : ndarray of shape (k,)
        Lower bounds on the loss of any 1, 2, ..., k columns. Computed at first use.
    coef_ : ndarray of shape (k, n_features)
        Weights that rebuild all prepared columns; rows in pick order.
    lam_ : float
        The lambda used.
    moments_ : Moments
        The moments of the rows; `select`, `cross_validate` and others use them without another pass.
    selection_ : Selection
        The selection, as the function `select` returns it.
    places_ : DataArray of shape (k,)
        After a fit on a DataArray: the picked columns in pick order, with the coordinates of their places.
    cv_results_ : CrossValidation
        The losses on held-out rows, if something was tuned.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the columns, if they have names.

    See Also
    --------
    GCSS : the same without regularisation.

    Notes
    -----
    Time O(m n^2) for the pass and O(k n^2) for the selection. ``transform`` returns the picked columns in the
    order of the data, like other selectors of scikit-learn; ``selected_`` has the pick order.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from rgcss_dask import RGCSS
    >>> X = load_digits().data
    >>> picked = RGCSS(n_features_to_select=8, center=True).fit(X)
    >>> picked.transform(X).shape
    (1797, 8)
    >>> print(f"{picked.score(X):.2f}")
    0.56
    """

    def __init__(
        self,
        n_features_to_select: int | float | str | None = None,
        lam: float | str = 1.0,
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
        self.n_features_to_select = n_features_to_select
        self.lam = lam
        self.objective = objective
        self.center = center
        self.scale = scale
        self.nan = nan
        self.include = include
        self.exclude = exclude
        self.cv = cv
        self.refine = refine
        self.effort = effort
        self.exact = exact
        self.stop = stop
        self.where = where
        self.pickle_parts = pickle_parts
        self.aims = aims
        self.target = target

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Read the rows once and pick columns.

        Parameters
        ----------
        X : array-like, sparse matrix, data frame, Dask collection, DataArray, AnnData or path
            Rows of shape (n_samples, n_features), in any form that `scan` reads. Folds and weights need the number of
            rows; rows of Dask data of unknown length are counted first, which computes them once more.
        y : array-like, path of a Zarr array or Dask array of shape (n_samples,), default=None
            The values to explain with a ``target``: floats, in one or several columns, are numbers; values of any other
            type are classes. Otherwise ignored, unless a splitter given as ``cv`` uses it.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative row weights; for Dask arrays also a Dask array.

        Returns
        -------
        RGCSS
            This estimator, fitted.
        """
        self._asked.check()
        if sample_weight is None and self.target is None and self._asked.needs_no_folds and is_uncounted(X):
            return self._fit_uncounted(X)
        data = self._validated(X, reset=True)
        self._asked.check_count(self.n_features_in_, self._names())  # checked before the pass
        wide = self._asked.is_wide(data.shape)
        if wide or not (isinstance(data, Source) and data.processes and active_client() is not None):
            check_where(self.where, data)  # checked before the pass
        if self.target is not None:
            return self._fit_to(data, y, sample_weight)
        if wide and not lazy.is_stored(sample_weight):  # the rows take less memory than the Gram
            apart = folds_in_memory(data, y, self._asked)  # checked before reading
            block = data.read(0, data.shape[0]) if isinstance(data, Source) else dense(data)
            return self._pick_from_rows(Rows.of(block, sample_weight, nan=self.nan, names=self._names(), apart=apart))
        return self._pick(moments_of(data, y, sample_weight, self._asked, self._names()))

    def fit_moments(self, moments: Moments) -> Self:
        """Pick columns from existing moments, returned by `scan` or loaded from an archive; no row is read.

        Parameters
        ----------
        moments : Moments
            The moments, with folds if something is tuned.

        Returns
        -------
        RGCSS
            This estimator, fitted.
        """
        self._asked.check()
        self._refuse_target("fit_moments")
        self._set_columns(moments.n, moments.names)
        return self._pick(moments)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add a batch of rows to those seen so far, and pick again: equal to ``fit`` on all rows.

        Each call makes a selection, O(k n^2); for many small batches, merge `Moments` and call ``fit_moments`` once.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame
            A batch of rows in memory.
        y : None
            Ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative row weights.

        Returns
        -------
        RGCSS
            This estimator, fitted on all batches so far.
        """
        self._asked.check()
        self._refuse_target("partial_fit")
        if lazy.is_stored(X):
            raise WrongKindError(
                f"partial_fit needs a batch of rows in memory; got {type(X).__module__}.{type(X).__qualname__}. "
                "Use fit, which reads the data block by block."
            )
        known = hasattr(self, "selection_")
        batch = dense(self._validated(X, reset=not known))
        weights = row_weights(sample_weight, len(batch))
        options = Options(folds=self._asked.folds or 0, nan=self.nan)
        seen = self._parts if known else None
        if known and seen is None:
            seen = parts_of(self.moments_, options)
        parts = with_batch(seen, batch, weights, options)
        return self._pick(parts.moments(options, self._names()), parts=parts)

    def transform(self, X: Any) -> Any:
        """Return the picked columns, in the order of the data.

        Arrays, sparse matrices and data frames return the same type; Dask collections stay lazy, with their chunks;
        stored matrices return a Dask array, a DataArray returns a DataArray.

        Parameters
        ----------
        X : array-like, sparse matrix, data frame, Dask collection, DataArray, AnnData or path
            Rows with the columns of ``fit``.

        Returns
        -------
        the kind of X, or a Dask array
            The picked columns, (n_samples, k).
        """
        check_is_fitted(self)
        taker = self._taker()
        if lazy.is_stored(X):
            refuse_wrapping(self)
            taken = lazy.take(self._same_columns(X), taker)
            columns = np.flatnonzero(self.support_)
            return labelled(taken, X, self._field, columns, self.ranking_[columns])
        checked = self._validated(X, reset=False)
        return taker.from_frame(X) if is_frame(X) else taker(checked)

    def inverse_transform(self, X: Any) -> Any:
        """Rebuild all columns from the picked ones, undoing centring and scaling.

        Picked columns keep their values, unless ``objective="all"``. Dask collections stay lazy. If the picked columns
        have names, they are matched by name.

        Parameters
        ----------
        X : array-like, data frame, Dask collection or DataArray
            The picked columns as ``transform`` returns them.

        Returns
        -------
        the kind of X
            All columns, (n_samples, n_features).
        """
        check_is_fitted(self)
        model = self._rebuild()
        names = tuple(str(name) for name in self._names() or range(self.n_features_in_))
        if is_labelled(X):
            return rebuilt_field(X, self._field, model)
        if lazy.is_stored(X):
            held, _, known = lazy.columns_of(X)
            places = self._picked_places(held.shape, labels(held) if lazy.is_dask_frame(held) else known)
            return lazy.rebuild(held, model, names, places)
        if is_frame(X):
            places = self._picked_places(X.shape, labels(X))
            values = X.to_numpy(dtype=frame_dtype(X))[:, places]
            return type(X)(model(values), index=X.index, columns=list(names))
        reduced = np.atleast_2d(dense(X))
        return model(reduced[:, self._picked_places(reduced.shape)])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of the squared norm of X, centred and scaled as in ``fit``, that is explained.

        1 is best. On the data of ``fit`` it is one minus the last loss over the loss before the first pick. Data that
        are not in memory are read once. With ``nan="mean"`` gaps are filled with the means of ``fit``, as in
        ``transform``.

        Parameters
        ----------
        X : array-like, sparse matrix, data frame, Dask collection, DataArray, AnnData or path
            Rows with the columns of ``fit``.
        y : array-like of shape (n_samples,), default=None
            With a ``target``, the values of which the explained share is returned; otherwise ignored.
        sample_weight : array-like of shape (n_samples,), default=None
            Non-negative row weights.

        Returns
        -------
        float
            The share.
        """
        check_is_fitted(self)
        source = open_source(self._same_columns(X) if lazy.is_stored(X) else dense(self._validated(X, reset=False)))
        if self.target is not None:
            return self._score_of_y(source, y, sample_weight)
        model = self._rebuild()
        if self.nan == "mean":
            source = FilledSource(source, self._mean)
        if lazy.is_stored(X):
            seen = scan(source, weights=sample_weight, nan=self.nan)
            loss, start = loss_and_start(seen, model, where=self._where(seen))
            return float(evaluate.explained_share(loss, start))
        rows = Rows.of(source.read(0, source.shape[0]), row_weights(sample_weight, source.shape[0]), nan=self.nan)
        loss, start = model.losses(rows.block, rows.weights)
        return float(evaluate.explained_share(loss, start))

    def __sklearn_tags__(self) -> Tags:
        """Describe the accepted input."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self.nan != "raise"
        return tags

    def __repr__(self, N_CHAR_MAX: int = 250) -> str:
        """Return a short representation, with long parameters abbreviated more than scikit-learn does."""
        return str(super().__repr__(min(N_CHAR_MAX, 250)))

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        return self.support_

    def _taker(self) -> Take:
        columns = np.flatnonzero(self.support_)
        return Take(columns, self.nan, self._mean[columns] if self.nan == "mean" else None)

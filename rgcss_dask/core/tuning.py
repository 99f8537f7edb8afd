"""The held-out losses of every lambda and number of columns, and the choice that they lead to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.answer import AboutSelection, plotted
from rgcss_dask.core.objective import objective_named
from rgcss_dask.core.result import Tuning
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.words import counted, digits

Array = NDArray[np.float64]

# Held-out losses that differ by less than this share of the held-out squared norm are equal.
TIE = 1e-12
# A held-out loss that is higher by at most this share counts as equally good, even if the difference is significant.
FLAT = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation(AboutSelection):
    """Held-out losses of every lambda, number of columns and fold, with the resulting choice and selection.

    Made by `cross_validate`. Columns, names, losses and shares are those of the selection on all rows. Held-out figures
    are in ``held_out_loss`` and ``held_out_explained``; ``fold_columns`` are the picks without each fold.

    A held-out loss is the paper's L(S) = ||B - B_S (A_S'A_S + lambda I)^-1 A_S'A||^2: columns and weights are learnt on
    the rows A of the other folds, and the error is measured on the rows B of this fold.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> moments = rg.scan(load_wine(as_frame=True).data, folds=5)
    >>> tuned = rg.cross_validate(moments, 6, lam_per_row=[0.01, 0.1, 1], center=True, scale="std")
    >>> tuned.mean.shape  # held-out loss per row, of each lambda and number of columns
    (3, 6)
    >>> tuned.selection.k == tuned.k
    True
    """

    lams: Array  #: (L,) ascending: lambda for all rows
    rows: float  #: the weight of all rows; lams / rows is lambda per row
    per_row: bool  #: True: lambda was proportional to the weight of the rows; False: the same number everywhere
    given: bool  #: False: the lambdas come from the spectrum
    losses: dict[str, Array]  #: objective: (L, k, folds) squared errors after 1, 2, ..., k picks
    start: Array  #: (folds,) squared norm of the held-out rows
    weight: Array  #: (folds,) weight of the held-out rows
    fold_columns: NDArray[np.intp]  #: (folds, L, k) picks without each fold
    measure: str  #: the loss used for the choice
    one_se: bool  #: True: the smallest model within a standard error of the best
    lam: float  #: chosen lambda, for all rows
    k: int  #: chosen number of columns
    selection: Selection  #: the selection with the chosen lambda and k on all rows
    fixed_k: bool = False  #: True: only lambda was chosen, for exactly k columns
    #: (folds,) squared errors for the chosen lambda and k, with picks swapped in every fold, if `selection` is swapped
    swapped: Array | None = None

    @property
    def held_out_loss(self) -> Array:
        """The losses used for the choice, (L, k, folds)."""
        return self.losses[self.measure]

    @property
    def loss_all(self) -> Array:
        """The losses over all columns, (L, k, folds)."""
        return self.losses["all"]

    @property
    def loss_unselected(self) -> Array:
        """The losses over the columns not picked, (L, k, folds)."""
        return self.losses["unselected"]

    @property
    def mean(self) -> Array:
        """Held-out loss per row, (L, k)."""
        return mean_and_error(self.held_out_loss, self.weight)[0]

    @property
    def error(self) -> Array:
        """Standard error of `mean` over the folds, (L, k)."""
        return mean_and_error(self.held_out_loss, self.weight)[1]

    @property
    def held_out_explained(self) -> Array:
        """Share of the held-out squared norm that is explained, (L, k)."""
        return evaluate.explained_share(self.held_out_loss.sum(axis=2), float(self.start.sum()))

    @property
    def lam_per_row(self) -> Array:
        """The lambdas divided by the weight of all rows: these have the same effect at any number of rows, (L,)."""
        return self.lams / self.rows

    def best_lam(self, k: int, *, one_se: bool = False) -> float:
        """Return the best lambda for exactly k columns.

        Parameters
        ----------
        k : int
            A number of columns that was tried.
        one_se : bool, default=False
            Return the largest lambda within one standard error of the best.

        Returns
        -------
        float
            The lambda, for all rows.
        """
        if not 1 <= k <= self.tried:
            raise ValueError(f"k must be from 1 to {self.tried}, the sizes that were tried; got {k}.")
        return float(self.lams[chosen(self.held_out_loss, self.start, self.weight, one_se, least=k, most=k)[0]])

    @property
    def valley(self) -> tuple[int, int]:
        """The smallest and the largest of the lambdas around the chosen one that are equally good for the same k.

        Their held-out loss is higher by at most the standard error of the difference, fold by fold, or by a thousandth.
        """
        losses = self.held_out_loss[:, self.k - 1]
        more, error = mean_and_error(losses - losses[self._at], self.weight)
        worse = np.flatnonzero(more > np.maximum(error, FLAT * self.mean[self._at, self.k - 1]))
        below, above = worse[worse < self._at], worse[worse > self._at]
        first = int(below[-1]) + 1 if len(below) else 0
        return first, int(above[0]) - 1 if len(above) else len(self.lams) - 1

    @property
    def tried(self) -> int:
        """The most columns that were tried."""
        return self.held_out_loss.shape[1]

    @property
    def at_the_cap(self) -> bool:
        """Whether the maximum number of columns was chosen, so that more columns may be better."""
        return not self.fixed_k and self.k == self.tried < self.selection.n

    @property
    def sentence(self) -> str:
        """The choice, and its explained share on held-out rows, in one sentence."""
        kept, error = self._kept
        return (
            f"{self._choice}, chosen by {len(self.start)}-fold cross-validation, keep {kept:.2f} % of the "
            f"{self.selection.share_of} of held-out rows{self._swaps} (standard error {error:.2f} %)."
        )

    @property
    def words(self) -> str:
        """The choice in detail: the grid, the rule, and whether the choice lies at an edge."""
        kept, error = self._kept
        rule = "the smallest model within a standard error of the best" if self.one_se else "the smallest held-out loss"
        return (
            f"{len(self.start)}-fold cross-validation over {_grid_words(self)} and {_size_words(self)}.\n"
            f"Chosen by {rule}: {self._choice}. "
            f"They keep {kept:.2f} % of the {self.selection.share_of} of held-out rows{self._swaps} "
            f"(standard error {error:.2f} %, counted over {objective_named(self.measure).columns})."
            f"{_edge_words(self)}\n{self.picks}"
        )

    @property
    def summary(self) -> Tuning:
        """The summary that a result stores."""
        norm = float(self.start.sum() / self.weight.sum())
        unit = norm if norm > 0 else 1.0
        losses, errors = self.mean / unit, self.error / unit
        tuning = Tuning(self.lams, losses, errors, len(self.start), self.lam, self.k, self.words)
        if self.swapped is None:
            return tuning
        mean, error = (float(x) / unit for x in mean_and_error(self.swapped, self.weight))
        return replace(tuning, swapped=mean, swapped_error=error)

    @property
    def _choice(self) -> str:
        cap = " (the maximum tried)" if self.at_the_cap else ""
        per_row = digits(self.lam / self.rows)
        joint = " for" if self.fixed_k else " and"
        return f"lambda = {digits(self.lam)} ({per_row} per row){joint} {counted(self.k, 'column')}{cap}"

    @property
    def kept_words(self) -> str:
        """The explained share of held-out rows, in one sentence."""
        kept, error = self._kept
        return (
            f"{counted(self.k, 'column')} {'keeps' if self.k == 1 else 'keep'} {kept:.2f} % of the "
            f"{self.selection.share_of} of held-out rows{self._swaps} (standard error {error:.2f} %)."
        )

    @property
    def _swaps(self) -> str:
        return "" if self.swapped is None else ", with swaps in every fold"

    @property
    def _at(self) -> int:
        """The index of the chosen lambda."""
        return int(np.flatnonzero(self.lams == self.lam)[0])

    @property
    def _kept(self) -> tuple[float, float]:
        """Return the explained percentage of held-out rows, and its standard error."""
        norm = float(self.start.sum() / self.weight.sum())
        losses = self.held_out_loss[self._at, self.k - 1] if self.swapped is None else self.swapped
        mean, error = (float(x) for x in mean_and_error(losses, self.weight))
        return (100 - 100 * mean / norm, 100 * error / norm) if norm > 0 else (100.0, 0.0)

    @property
    def picks(self) -> str:
        """The selection on all rows, in one sentence."""
        return f"Refitted on all rows: {self.selection.sentence}"

    def _table(self) -> dict[str, Any]:
        """Add the explained share of held-out rows for each number of columns; the last one with swaps, if any."""
        shares = self.held_out_explained[self._at, : len(self)].copy()
        if self.swapped is not None:
            shares[-1:] = evaluate.explained_share(self.swapped.sum(), float(self.start.sum()))
        return {**super()._table(), "held_out_explained": shares}

    @property
    def compared(self) -> dict[str, Array]:
        """The share explained on held-out rows, for the chosen lambda and each number of columns."""
        return {**self.selection.compared, "explained on held-out rows": self.held_out_explained[self._at]}

    def plot(self, ax: Any = None, *, against: str | None = None) -> Any:
        """Plot the share explained after each pick, or the held-out losses, with matplotlib.

        Parameters
        ----------
        ax : Axes, optional
            Where to plot; by default a new figure.
        against : {"both", "lambda", "columns"}, optional
            Plot the held-out losses against lambda, the number of columns, or both, see
            `rgcss_dask.plots.cross_validation`.

        Returns
        -------
        Axes
            The axes.
        """
        return super().plot(ax) if against is None else plotted("cross_validation", self, ax, against=against)

    def _shown(self) -> dict[str, Any]:
        return {"tuning": self.summary}


def _grid_words(result: CrossValidation) -> str:
    origin = "given" if result.given else "from the spectrum"
    if len(result.lams) == 1:
        return f"one lambda ({digits(result.lams[0])}, {origin})"
    return f"{len(result.lams)} lambdas ({digits(result.lams[0])} to {digits(result.lams[-1])}, {origin})"


def _size_words(result: CrossValidation) -> str:
    if result.fixed_k and result.k == result.tried:
        return f"exactly {counted(result.tried, 'column')}"
    return f"1 to {counted(result.tried, 'column')}"


def _edge_words(result: CrossValidation) -> str:
    words = _valley_words(result)
    if result.at_the_cap:
        words += f" No more than {counted(result.tried, 'column')} were tried; more columns may be better: increase k."
    return words


def _valley_words(result: CrossValidation) -> str:
    """Describe the lambdas that do as well as the chosen one, or a choice at the edge of the grid."""
    lams, (first, last), end = result.lams, result.valley, len(result.lams) - 1
    if end == 0 or (first == last and 0 < first < end):
        return ""
    if first == last:
        which, more = ("smallest", "smaller") if first == 0 else ("largest", "larger")
        return f" This is the {which} lambda tried; a {more} one may be better."
    where = f"from {digits(lams[first])} to {digits(lams[last])}"
    if first == 0:
        where = "that were tried" if last == end else f"up to {digits(lams[last])}"
    elif last == end:
        where = f"from {digits(lams[first])} on"
    return f" All lambdas {where} do equally well."


def mean_and_error(losses: Array, weight: Array) -> tuple[Array, Array]:
    """Return the average of losses (..., folds) per row, and its standard error over the folds."""
    per_row = losses / weight
    share = weight / weight.sum()
    mean = per_row @ share
    return mean, np.sqrt((per_row - mean[..., None]) ** 2 @ share / (len(weight) - 1))


def chosen(losses: Array, start: Array, weight: Array, one_se: bool, *, least: int, most: int) -> tuple[int, int]:
    """Return the index of lambda and the number of columns: fewest columns, then largest lambda, near the best."""
    mean, error = mean_and_error(losses, weight)
    mean[:, : least - 1] = mean[:, most:] = np.inf
    i, t = np.unravel_index(mean.argmin(), mean.shape)
    slack = error[i, t] if one_se else TIE * start.sum() / weight.sum()
    near = mean <= mean[i, t] + slack
    size = int(near.any(axis=0).argmax())
    return int(np.flatnonzero(near[:, size])[-1]), size + 1

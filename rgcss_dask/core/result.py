"""A selection with its weights, bounds, condition number and origin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.answer import plotted
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import TINY
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.gram import Base
from rgcss_dask.core.wide import Rows
from rgcss_dask.core.words import counted, digits, percent

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The cross-validation of lambda and k: held-out losses per row, as shares of the held-out squared norm per row."""

    lams: Array  #: (L,)
    mean: Array  #: (L, k)
    error: Array  #: (L, k) standard errors over the folds
    folds: int
    lam: float  #: chosen lambda
    k: int  #: chosen number of columns
    words: str  #: the choice in plain words
    swapped: float | None = (
        None  #: held-out loss of picks that were swapped in every fold, if the selection was swapped
    )
    swapped_error: float | None = None  #: its standard error over the folds

    def __repr__(self) -> str:
        return f"<Tuning: {counted(len(self.lams), 'lambda')}, {self.folds} folds; chosen {digits(self.lam)}, {self.k}>"


@dataclass(frozen=True, eq=False)
class Trust:
    """How much the picks change with the rows."""

    frequency: Array  #: (n,) share of resamples in which a column is picked
    jaccard: float  #: mean pairwise Jaccard index of the resampled picks
    expected: float  #: the same for columns picked at random
    resamples: int
    words: str

    def __repr__(self) -> str:
        return f"<Trust: Jaccard index {self.jaccard:.3f} over {self.resamples} resamples; chance {self.expected:.3f}>"


@dataclass(frozen=True, eq=False)
class Result:
    """A selection with its bounds, weights, conditioning and provenance."""

    selection: Selection
    rows: int
    weight: float
    names: tuple[str, ...] | None  #: (n,) of all columns
    mean: Array  #: (n,) of the data before preparation
    spread: Array  #: (n,) standard deviations before preparation
    weights: Array  #: (k, n) prepared picked columns times these approximate all prepared columns
    column_norm: Array  #: (n,) squared norm of each prepared column
    column_loss: Array  #: (n,) unexplained part of it
    spectrum: Array  #: (n,) eigenvalues of the prepared Gram, largest first; with many columns the k leading ones
    paper_bound: Array | None  #: (k,); needs all eigenvalues
    condition: evaluate.Condition
    provenance: dict[str, Any]  #: origin of the rows and options, JSON
    tuning: Tuning | None = None
    trust: Trust | None = None
    created: str = ""
    versions: dict[str, str] | None = None

    @property
    def k(self) -> int:
        """Number of picked columns."""
        return self.selection.k

    def __repr__(self) -> str:
        """Return the text of the selection."""
        return f"{self.sentence}\n{self.selection.picks}"

    @property
    def n(self) -> int:
        """Number of columns to choose from."""
        return self.selection.n

    def label(self, column: int) -> str:
        """Return the name of a column, or its index."""
        return str(int(column)) if self.names is None else self.names[int(column)]

    @property
    def components(self) -> str:
        """What the picks are compared with."""
        if self.selection.among is None:
            return "principal components"
        return "of the best combinations of the candidates"

    @property
    def components_explained(self) -> Array:
        """Share of the squared norm that 1, 2, ..., k of `components` explain, (k,)."""
        total = float(self.spectrum.sum()) if len(self.spectrum) == self.n else self.selection.start
        return evaluate.explained_share(total - np.cumsum(self.spectrum)[: self.k], total)

    def plot(self, ax: Any = None) -> Any:
        """Plot the share explained after each pick, with matplotlib; see `rgcss_dask.plots.path`.

        Parameters
        ----------
        ax : Axes, optional
            Where to plot; by default a new figure.

        Returns
        -------
        Axes
            The axes.
        """
        return plotted("path", self, ax)

    @property
    def sentence(self) -> str:
        """The explained share of the picks, in one sentence."""
        if self.k == 0:
            return self.selection.sentence
        kept = percent(self.selection.explained[-1])
        if (
            self.selection.among is not None or self.selection.error is not None
        ):  # the principal components of all columns are not known
            return self.selection.sentence
        best = percent(self.components_explained[-1])
        return (
            f"{self.k:,} of {counted(self.n, 'column')} {'keeps' if self.k == 1 else 'keep'} {kept} of the "
            f"{self.selection.share_of}; {counted(self.k, 'principal component')} would keep {best}."
        )


def make_result(
    source: Moments | Rows,
    picked: Selection,
    *,
    provenance: dict[str, Any] | None = None,
    tuning: Tuning | None = None,
    trust: Trust | None = None,
    paper_bound: bool = False,
) -> Result:
    """Compute everything that a report shows of a selection.

    With many columns only the k leading eigenvalues are computed, as the tight bound and the sentence need them.
    ``paper_bound`` needs all eigenvalues, O(n^3), and is computed anyway for few columns or rows.
    """
    source = picked.aligned(source) if isinstance(source, Moments) else source
    base = _base(source, picked)
    k = None if paper_bound and base.candidates is None else picked.k
    spectrum = base.spectrum(picked.counting.counts(base.n), k).of_rank(picked.n)
    GS = base.rows(picked.columns)
    diagonal = base.diagonal * base.unit
    W = evaluate.weights_from_rows(GS, picked.columns, picked.lams)
    losses = evaluate.column_losses_from_rows(diagonal, GS, W, picked.columns)
    bounds = picked.counting.bounds(spectrum, picked.k, picked.aims.bounding(picked.lam))
    if picked.error is not None:  # estimated eigenvalues give no bound, and losses are those of the sketch
        losses = losses * (picked.last_loss / max(float(losses @ picked.counting.counts(base.n, picked.columns)), TINY))
    # With noise, the signals follow the columns, and the picks explain the signals; otherwise the columns.
    carried = slice(base.n - picked.n, None)
    return Result(
        selection=picked if picked.error is not None else replace(picked, bound=bounds.tight),
        rows=source.rows,
        weight=source.weight,
        names=source.names,
        mean=source.mean,
        spread=source.spread,
        weights=W[:, carried],
        column_norm=diagonal[carried],
        column_loss=losses[carried],
        spectrum=spectrum.values,
        paper_bound=None if picked.error is not None else bounds.paper,
        condition=_condition(GS, picked),
        provenance=provenance or {},
        tuning=tuning,
        trust=trust,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={name: version(name) for name in ("rgcss-dask", "numpy", "scipy")},
    )


def _condition(GS: Array, picked: Selection) -> evaluate.Condition:
    if picked.k == 0:
        return evaluate.Condition(1.0, True)
    return evaluate.condition(GS[:, picked.columns], np.arange(picked.k))


def _base(source: Moments | Rows, picked: Selection) -> Base:
    """Return the Gram, or the rows if they are fewer than the columns."""
    if isinstance(source, Moments):
        return picked.base(source)
    mu = np.zeros(source.n) if picked.mu is None else picked.mu
    sigma = np.ones(source.n) if picked.sigma is None else picked.sigma
    return Factor(source.factor(bool(mu.any()), mu, sigma))

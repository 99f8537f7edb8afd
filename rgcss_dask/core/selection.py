"""The result of a selection."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.answer import Answer
from rgcss_dask.core.exact import Certificate
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import matching
from rgcss_dask.core.objective import Objective, objective_named
from rgcss_dask.core.preparation import Preparation
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.core.solver.bases import Wide, is_wide
from rgcss_dask.core.solver.checks import checked_gram
from rgcss_dask.core.solver.gram import Base, Gram
from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.core.words import counted, digits, percent

Array = NDArray[np.float64]

# Rounding shows when it moves a loss by more than this share of it plus this share of the loss at the start.
_SHOWS = 1e-6, 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Selection(Answer):
    """Columns in the order they were picked, and the loss after each pick.

    Made by `select`.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> picked = rg.select(load_wine(as_frame=True).data, 3, center=True, scale="std", bound=True)
    >>> for pick in picked:
    ...     print(pick.column, pick.name, f"{pick.explained:.3f}")
    6 flavanoids 0.312
    9 color_intensity 0.462
    3 alcalinity_of_ash 0.566
    >>> bool(picked.loss[-1] >= picked.bound[-1])
    True
    """

    columns: NDArray[np.intp]  #: (k,)
    loss: Array  #: (k,) the objective after each pick
    start: float  #: the objective before the first pick: the squared norm of the prepared matrix
    lam: float
    objective: str
    n: int  #: columns to choose from
    bound: Array | None = None  #: (k,) lower bound on the loss of any k columns; None if not requested
    names: tuple[str, ...] | None = None  #: (k,) names of the picked columns
    mu: Array | None = None  #: (n,) what was subtracted from each column
    sigma: Array | None = None  #: (n,) what each column was divided by
    refreshes: int = 0  #: number of times that the sums were recomputed to keep their digits
    exhausted: bool = False  #: True if the selection ended because no column had a remainder
    rounding: Array | None = None  #: (k,) bound on the effect of rounding in the Gram on each loss
    all_names: tuple[str, ...] | None = None  #: (n,) names of the columns to choose from
    mu_rest: Array | None = None  #: (n,) rounding errors of mu in float64, if they matter; see `Moments.mean_rest`
    problem: Problem | None = None  #: the problem on the prepared columns, with column indices
    error: Array | None = None  #: (k,) standard error of each loss, if it is estimated from a sketch
    among: int | None = None  #: number of candidates; None: all columns
    spent: bool = False  #: True if the selection ended because the constraints allow no further column
    certificate: Certificate | None = None  #: result of an exact search, if requested

    @property
    def aims(self) -> Aims:
        """The targets, and the columns that may be picked."""
        return Aims() if self.problem is None else self.problem.aims

    @property
    def counting(self) -> Objective:
        """What counts in the loss on these columns, including their signals if noise is known."""
        return objective_named(self.objective).weighted(self.aims.extended(self.n).column_weights)

    @property
    def counting_columns(self) -> Objective:
        """What counts in the loss on the measured columns, without signals."""
        return objective_named(self.objective).weighted(self.aims.column_weights)

    @property
    def preparation(self) -> Preparation:
        """How the columns were prepared."""
        mu = np.zeros(self.n) if self.mu is None else self.mu
        sigma = np.ones(self.n) if self.sigma is None else self.sigma
        return Preparation(mu, sigma, self.mu_rest, self.aims.noise)

    @property
    def lams(self) -> Array:
        """Lambda of each pick, (k,)."""
        return self.aims.lams(self.lam, self.n)[self.columns]

    @property
    def last_loss(self) -> float:
        """The objective after the last pick."""
        return float(self.loss[-1]) if self.k else self.start

    @property
    def k(self) -> int:
        """Number of picked columns."""
        return len(self.columns)

    @property
    def explained(self) -> Array:
        """Share of the squared norm that is explained after each pick, (k,)."""
        return evaluate.explained_share(self.loss, self.start)

    @property
    def doubtful(self) -> int | None:
        """The first pick after which rounding in the Gram may be visible in the loss; mostly None."""
        if self.rounding is None:
            return None
        shows = self.rounding > _SHOWS[0] * self.loss + _SHOWS[1] * self.start
        return int(np.argmax(shows)) if shows.any() else None

    def weights(self, source: Moments | ArrayLike) -> Array:
        """Return W: the prepared picked columns times W approximate all prepared columns.

        From a sketch they are estimates, with a warning; `select_wide` finds picks whose weights are exact.

        Parameters
        ----------
        source : Moments or array of shape (n, n)
            Moments or the Gram from which the columns were selected, or others with the same columns. Moments may have
            the columns in another order if they have names.

        Returns
        -------
        array of shape (k, n)
            The weights; rows are in pick order.
        """
        if isinstance(source, Sketch):
            warnings.warn(
                f"these weights are estimated from {source.height:,} rows of a sketch. Exact ones come from a second "
                "pass: rgcss_dask.select_wide(source, k), or scan(source, candidates=...) with the picks.",
                stacklevel=2,
            )
        return evaluate.weights_from_rows(self.base(source).rows(self.columns), self.columns, self.lams)[:, -self.n :]

    def tight_bound(self, spectrum: Spectrum) -> Array:
        """Return a lower bound on the loss of any 1, 2, ..., k columns.

        Parameters
        ----------
        spectrum : Spectrum
            The eigenvalues of what counts in the loss.

        Returns
        -------
        array of shape (k,)
            The tight lower bound after each pick.
        """
        return self.counting.bounds(spectrum, self.k, self.aims.bounding(self.lam)).tight

    def conditioning(self, source: Moments | ArrayLike) -> evaluate.Condition:
        """Return the condition number of the picked columns on these rows, or on other rows with the same columns.

        Other rows are centred and scaled as the rows of the selection were. Above about a hundred, weights begin to
        amplify noise; a selection that is well conditioned on new rows is more reliable.

        Parameters
        ----------
        source : Moments or array of shape (n, n)
            Moments or a Gram of the rows to evaluate.

        Returns
        -------
        Condition
            The condition number, or a lower limit if it exceeds the resolution of a Gram.
        """
        return evaluate.condition(self.base(source).rows(self.columns)[:, self.columns], np.arange(self.k))

    def base(self, source: Moments | Wide | ArrayLike) -> Base:
        """Return the Gram of ``source`` with this selection's centring, scaling and order of columns.

        Parameters
        ----------
        source : Moments, Rows or array of shape (n, n)
            Moments, rows that are fewer than columns, or a Gram, which is only checked.

        Returns
        -------
        Base
            The prepared Gram, in the representation of the source.
        """
        if isinstance(source, Moments):
            return self.preparation.base(self.aligned(source))
        if is_wide(source):
            self._check_count(source.n)
            return self.preparation.base(source)
        gram: Any = source
        G = plain(gram)
        self._check_count(len(G) if G.ndim else 0)
        return Gram(checked_gram(G))

    def aligned(self, source: Moments) -> Moments:
        """Return moments with the columns of the selection in their order; refuse moments of other columns.

        Columns in another order are found by their names.

        Parameters
        ----------
        source : Moments
            Moments of the same columns.

        Returns
        -------
        Moments
            The same moments, in the order of the selection.
        """
        index = matching(self.all_names, source.names, "the source")
        self._check_count(source.n)
        return source if index is None else replace(source, folds=(), groups=()).take(index)

    def _check_count(self, n: int) -> None:
        if n != self.n:
            raise ValueError(
                f"a selection needs the columns that were selected from: {self.n} of them; got {n}. Give the moments "
                "or the Gram that was given to select, or others of the same columns."
            )

    def remarks(self, k: int, smallest: float) -> Iterator[str]:
        """Yield remarks for a user who requested k columns.

        If possible the words are the same for every lambda, fold and resample, so that Python shows a warning once.

        Parameters
        ----------
        k : int
            Number of columns requested.
        smallest : float
            A lambda below this is rounding.

        Yields
        ------
        str
            A sentence for each remark.
        """
        if 0 < self.lam < smallest:
            yield (
                f"lam={digits(self.lam)} is below {smallest:g}, the rounding of every column in this Gram, and "
                "regularises nothing; use lam=0 or a larger value."
            )
        if self.lam == 0 and self.k < k and self.exhausted:
            yield (
                f"picked {counted(self.k, 'column')} instead of {k}: with lam=0 they already span all columns that may "
                "be picked (the numerical rank), and any further choice would be arbitrary."
            )
        if self.k < k and self.spent and self.aims.budget is None:
            yield (
                f"picked {counted(self.k, 'column')} instead of {k}: no other keeps to the {self.aims.constraints}. "
                "Ask for fewer columns, or allow more."
            )
        if (pick := self.doubtful) is not None:
            column = self.columns[pick] if self.names is None else repr(self.names[pick])
            yield (
                f"column {column} is nearly a mix of those picked before it: from there on rounding in the Gram shows "
                "in the loss, and `rounding` of the selection says how much. Exclude that column, or use a larger lam."
            )

    @property
    def share_of(self) -> str:
        """What the losses are shares of, in words: "variation" only if columns are centred."""
        measure = "variation" if self.mu is not None and self.mu.any() else "squared norm"
        return f"{measure} of the signal" if self.aims.noise is not None else self.aims.words_for(measure)

    @property
    def sentence(self) -> str:
        """Summarise the picked columns in one sentence."""
        if self.k == 0:
            return f"No column of {self.n:,} was picked."
        keep = "keeps" if self.k == 1 else "keep"
        share = percent(self.explained[-1])
        if self.error is not None:
            doubt = 100 * float(self.error[-1]) / self.start if self.start > 0 else 0.0
            share = f"an estimated {share} (standard error {doubt:.2g} %)"
        kept = f"{self.k:,} of {counted(self.n, 'column')} {keep} {share} of the {self.share_of}"
        kept += f", with lambda = {digits(self.lam)}"
        if self.certificate is not None and self.certificate.optimal:
            return f"{kept}: the best {counted(self.k, 'column')} there {'is' if self.k == 1 else 'are'}."
        if self.certificate is None and self.bound is None:
            return kept + "."
        lower = self.bound[-1] if self.bound is not None else -np.inf
        lower = lower if self.certificate is None else max(lower, self.certificate.lower)
        limit = evaluate.explained_share([lower], self.start)[0]
        whose = "" if self.among is None else f" of the {counted(self.among, 'candidate')}"
        return f"{kept}; no {counted(self.k, 'column')}{whose} can keep more than {percent(limit)}."

    def _table(self) -> dict[str, Any]:
        most = {} if self.bound is None else {"explained_at_most": self.explained_at_most}
        return {**super()._table(), **most}

    @property
    def compared(self) -> dict[str, Array]:
        """Upper bound on the explained share after each pick, by label, if the selection has a bound."""
        return {} if self.bound is None else {"no columns can explain more": self.explained_at_most}

    @property
    def explained_at_most(self) -> Array:
        """Upper bound on the share that any 1, 2, ..., k columns explain, (k,), for a selection with bounds."""
        if self.bound is None:
            raise ValueError("this selection has no bound: make it with select(..., bound=True).")
        return evaluate.explained_share(self.bound, self.start)

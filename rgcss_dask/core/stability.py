"""Stability of the picks: agreement of selections on resampled or perturbed rows, compared with chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.answer import plotted
from rgcss_dask.core.evaluate import checked_lambda
from rgcss_dask.core.hashing import runs
from rgcss_dask.core.input_checks import check_real
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.resampling import planned_bytes, resampled_moments
from rgcss_dask.core.result import Trust
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.greedy import solve
from rgcss_dask.core.wide import Rows, solved
from rgcss_dask.core.words import counted, listed

Array = NDArray[np.float64]

# With fewer groups, a bootstrap has too few different resamples for a reliable figure.
FEW_GROUPS = 10
# Groups of neighbouring rows that are drawn of rows in memory, at most.
GROUPS_OF_ROWS = 100


@dataclass(frozen=True, eq=False)
class Stability:
    """The agreement of selections on varied data, and the agreement expected by chance.

    Made by `stability` and `stability_under_noise`.

    Examples
    --------
    >>> from rgcss_dask import Stability
    >>> agreement = Stability.of([[0, 1, 2], [0, 1, 3], [0, 2, 3]], n=6, k=3, lam=1.0, variation="three samples")
    >>> agreement.jaccard, agreement.always.tolist()
    (0.5, [0])
    """

    jaccard: float  #: mean over all pairs of (columns in both) / (columns in either)
    expected: float  #: the expectation for random subsets of k of the n columns
    frequency: Array  #: (n,) share of the selections that picked the column
    picks: tuple[NDArray[np.intp], ...]  #: the columns of each selection, in pick order
    k: int
    lam: float
    variation: str  #: what was varied, in words
    names: tuple[str, ...] | None = None  #: (n,)

    @classmethod
    def of(
        cls,
        picks: Sequence[ArrayLike],
        n: int,
        k: int,
        lam: float,
        variation: str,
        names: tuple[str, ...] | None = None,
        *,
        among: int | None = None,
    ) -> Stability:
        """Compare picked subsets with each other and with chance.

        Parameters
        ----------
        picks : sequence of sequence of int
            The columns of each selection.
        n : int
            Number of columns to choose from.
        k : int
            Number of columns that each selection was to pick.
        lam : float
            Lambda of the selections.
        variation : str
            What was varied, in words.
        names : tuple of str, optional
            Names of all columns.
        among : int, optional
            Number of candidates, if not all columns may be picked.

        Returns
        -------
        Stability
            The agreement.
        """
        subsets = tuple(np.asarray(columns, dtype=np.intp) for columns in picks)
        members = _members(subsets, n)
        chance = expected_jaccard(among or n, k)
        return cls(_mean_jaccard(members), chance, members.mean(axis=0), subsets, k, lam, variation, names)

    @property
    def summary(self) -> Trust:
        """The summary that a result stores."""
        return Trust(self.frequency, self.jaccard, self.expected, len(self.picks), str(self))

    @property
    def always(self) -> NDArray[np.intp]:
        """Columns that every selection picked."""
        return np.flatnonzero(self.frequency == 1.0)

    def plot(self, answer: Any = None, ax: Any = None) -> Any:
        """Plot how often each column was picked, with matplotlib; see `rgcss_dask.plots.stability`.

        Parameters
        ----------
        answer : Selection, Refinement, CrossValidation, Result or fitted estimator, optional
            Plot these picks, in their order; by default the k columns that were picked most often.
        ax : Axes, optional
            Where to plot; by default a new figure.

        Returns
        -------
        Axes
            The axes.
        """
        return plotted("stability", self, answer, ax)

    def __repr__(self) -> str:
        kept = "is" if len(self.always) == 1 else "are"
        return (
            f"<Stability of {counted(len(self.picks), 'selection')} of {self.k:,} of "
            f"{counted(len(self.frequency), 'column')}: Jaccard index {self.jaccard:.3f}, by chance "
            f"{self.expected:.3f}; {counted(len(self.always), 'column')} {kept} in every selection>"
        )

    def __str__(self) -> str:
        labels = [str(i) if self.names is None else self.names[i] for i in self.always]
        few = f" ({listed(labels)})" if labels else ""
        return (
            f"{counted(len(self.picks), 'selection')} of {self.k:,} of {counted(len(self.frequency), 'column')} on "
            f"{self.variation}: "
            f"two of them have on average {100 * self.jaccard:.1f} % of the columns that either has in common "
            f"(Jaccard index); random subsets would have {100 * self.expected:.1f} %. "
            f"{counted(len(self.always), 'column')} {'is' if len(self.always) == 1 else 'are'} in every "
            f"selection{few}."
        )


def expected_jaccard(n: int, k: int) -> float:
    """Return the expected Jaccard index of two random subsets of k of n columns.

    It is the sum over p of C(k, p) C(n - k, p) / C(n, k) times (k - p) / (k + p). Each binomial exceeds the range of
    float64, so their logarithms are built up from ratios; the sum of all terms, which is C(n, k), divides out their
    rounding.

    Parameters
    ----------
    n : int
        Number of columns to choose from.
    k : int
        Number of columns in each subset.

    Returns
    -------
    float
        The expectation of the number of columns in both over that in either.

    Examples
    --------
    >>> from rgcss_dask import expected_jaccard
    >>> round(expected_jaccard(13, 4), 3)
    0.199
    """
    if not 1 <= k <= n:
        raise ValueError(f"k must be from 1 to {n}, the number of columns; got {k}.")
    p = np.arange(min(k, n - k) + 1, dtype=np.float64)
    ratios = np.log(k - p[:-1]) + np.log(n - k - p[:-1]) - 2.0 * np.log(p[1:])
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    chance = np.exp(logs - logs.max())
    return float(np.sum(chance * (k - p) / (k + p)) / chance.sum())


def mean_jaccard(subsets: Sequence[ArrayLike]) -> float:
    """Return the mean over all pairs of subsets of |both| / |either|; two empty subsets agree."""
    index = [np.asarray(columns, dtype=np.intp) for columns in subsets]
    return _mean_jaccard(_members(index, 1 + max((int(i.max()) for i in index if len(i)), default=0)))


def _members(subsets: Sequence[NDArray[np.intp]], n: int) -> Array:
    """Return the membership of columns in subsets, (subsets, n), 1 or 0."""
    members = np.zeros((len(subsets), n))
    for row, columns in zip(members, subsets, strict=True):
        row[columns] = 1.0
    return members


def _mean_jaccard(members: Array) -> float:
    if len(members) < 2:
        raise ValueError(f"agreement needs at least 2 subsets; got {len(members)}.")
    both = members @ members.T
    sizes = np.diagonal(both)
    either = sizes[:, None] + sizes - both
    pairs = np.triu_indices(len(members), 1)
    return float(np.mean(np.where(either > 0, both / np.maximum(either, 1.0), 1.0)[pairs]))


def resample(
    moments: Moments | Rows,
    k: int,
    problem: Problem,
    *,
    lam_per_row: float | None = None,
    resamples: int = 100,
    seed: int = 0,
    memory: int | None = None,
) -> Stability:
    """Solve a problem on bootstrap resamples of the row groups, or of rows; see `rgcss_dask.stability`."""
    count = min(GROUPS_OF_ROWS, moments.rows) if isinstance(moments, Rows) else len(_checked_groups(moments))
    problem = problem.settled(moments)
    _checked_count(resamples, "resamples")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(count, np.full(count, 1.0 / count), size=resamples).astype(np.float64)
    picks = []
    for sums in _resamples(moments, counts, k, memory):
        asked = problem.without_stop()
        if lam_per_row is not None:
            asked = asked.at(checked_lambda(lam_per_row) * sums.weight)
        picked = solved(sums, k, asked)
        picks.append(picked.columns)
        del sums  # or the matrices of this batch would live on while those of the next are made
    few = " (few: the figure is rough)" if count < FEW_GROUPS else ""
    words = f"bootstrap resamples of {count} row groups{few}"
    (used,) = problem.lams if lam_per_row is None else (lam_per_row * moments.weight,)
    return Stability.of(picks, moments.n, k, used, words, moments.names, among=picked.among)


def _resamples(moments: Moments | Rows, counts: Array, k: int, memory: int | None) -> Iterator[Moments | Rows]:
    """Yield the resample of each row of ``counts``: how often each group of rows was drawn."""
    if isinstance(moments, Rows):
        group = runs(np.arange(moments.rows), moments.rows, counts.shape[1])
        yield from (moments.times(count[group]) for count in counts)
        return
    groups = _checked_groups(moments)
    at_once = _resamples_at_once(groups, k, len(counts), memory)
    for start in range(0, len(counts), at_once):
        yield from resampled_moments(groups, counts[start : start + at_once])


def _resamples_at_once(groups: Sequence[Moments], k: int, resamples: int, memory: int | None) -> int:
    n, count = groups[0].n, len(groups)
    least = planned_bytes(n, count, k, 1)
    allowed = max(least, 8 * (count + 1) * n * n) if memory is None else memory
    if least > allowed:
        raise MemoryError(
            f"stability needs {least / 1e9:.3g} GB to compute one resample of {count} groups of {n} columns; "
            f"memory={allowed / 1e9:.3g} GB. Allow more memory, or use fewer columns or groups."
        )
    each = planned_bytes(n, count, k, 2) - least
    return int(min(resamples, 1 + (allowed - least) // each))


@overload
def stability_under_noise(
    block: ArrayLike,
    k: int,
    *,
    lam: float = 1.0,
    sd: float = 1e-3,
    objective: str = "unselected",
    repeats: int = 100,
    seed: int = 0,
) -> Stability: ...


@overload
def stability_under_noise(
    block: ArrayLike,
    k: int,
    *,
    lam: Sequence[float] | NDArray[Any],
    sd: float = 1e-3,
    objective: str = "unselected",
    repeats: int = 100,
    seed: int = 0,
) -> list[Stability]: ...


def stability_under_noise(
    block: ArrayLike,
    k: int,
    *,
    lam: float | Sequence[float] | NDArray[Any] = 1.0,
    sd: float = 1e-3,
    objective: str = "unselected",
    repeats: int = 100,
    seed: int = 0,
) -> Stability | list[Stability]:
    """Select repeatedly on a block with added Gaussian noise, and measure how much the selections agree.

    The paper's experiment (its section on stability): noise of standard deviation 1e-3, 100 times, on 100 rows.

    Parameters
    ----------
    block : array of shape (m, n)
        Rows in memory, already prepared (scaled, centred, standardised).
    k : int
        Number of columns of each selection.
    lam : float or sequence of float, default=1.0
        Lambda, or several: each is tried on the same noisy blocks.
    sd : float, default=1e-3
        Standard deviation of the noise, in the units of the block.
    objective : {"unselected", "all"}, default="unselected"
        The loss to minimise, see `select`.
    repeats : int, default=100
        Number of noisy blocks.
    seed : int, default=0
        Seed of the random numbers.

    Returns
    -------
    Stability or list of Stability
        A list when ``lam`` is a sequence.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> block = load_digits().data[:100] / 16
    >>> rg.stability_under_noise(block, 8, lam=1.0, repeats=10).jaccard > rg.expected_jaccard(64, 8)
    True
    """
    X = plain(block)
    check_real(X.dtype)
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
    if not (np.isfinite(sd) and sd >= 0):
        raise ValueError(f"sd must be a finite number, 0 or more; got {sd!r}.")
    _checked_count(repeats, "repeats")
    rng = np.random.default_rng(seed)
    lams = [float(value) for value in np.atleast_1d(np.asarray(lam, dtype=np.float64))]
    runs: list[list[Selection]] = []
    for _ in range(repeats):
        noisy = X + sd * rng.standard_normal(X.shape)
        source = Factor(noisy) if X.shape[0] < X.shape[1] else Moments.of(noisy)
        runs.append(solve(source, k, Problem(objective=objective, lam=lams)))
    words = f"{X.shape[0]} rows with noise of standard deviation {sd:g}"
    done = [Stability.of([run[i].columns for run in runs], X.shape[1], k, value, words) for i, value in enumerate(lams)]
    return done if np.ndim(lam) else done[0]


def _checked_count(count: int, what: str) -> None:
    if isinstance(count, bool) or count != int(count) or count < 2:
        raise ValueError(f"{what} must be a whole number, 2 or more; got {count!r}.")


def _checked_groups(moments: Moments) -> tuple[Moments, ...]:
    groups: tuple[Moments, ...] = getattr(moments, "groups", ())
    if len(groups) < 2:
        raise ValueError(
            f"the bootstrap needs moments with at least 2 row groups; got {len(groups)}. "
            "Make them in the pass: scan(source, groups=100)."
        )
    for i, group in enumerate(groups):
        if group.weight <= 0:
            raise ValueError(
                f"every group must have rows; group {i} of {len(groups)} has none. Scan with fewer groups."
            )
    return groups

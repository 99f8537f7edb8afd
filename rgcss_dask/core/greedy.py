"""The greedy selection: the next column is the one that lowers the regularised loss most."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate, kernels, steps
from rgcss_dask.core.accumulate import is_whole
from rgcss_dask.core.gram import INDEFINITE, Base, Factor, Gram, Sums, checked_gram, judged_by, not_a_gram
from rgcss_dask.core.moments import Moments, column_indices, takes_means
from rgcss_dask.core.selection import Selection, Stop
from rgcss_dask.core.workers import Workers
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]
Columns = Sequence[int] | Sequence[str] | NDArray[Any]

EPS = float(np.finfo(np.float64).eps)
OBJECTIVES = ("unselected", "all")
# Gains are known to this share of the loss at the start; closer ones are a tie, and the lowest index wins.
_ROUNDING = 16 * EPS
# A refresh is due when the loss has fallen to this share of the loss at the last one.
_REFRESH_SHARE = 1e-3
# With less than this share of the loss at the start, h and r are too small against the columns that paths share.
_SHARING_SHARE = 1e-4
# Entries of a G that is not in the cache of a core, so that paths gain by reading it in step.
_LARGE = 2**21


Source = Moments | ArrayLike | Factor


@overload
def select(
    source: Source,
    k: int,
    *,
    lam: float = 1.0,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    stop: Stop | None = None,
    bound: bool = False,
) -> Selection: ...


@overload
def select(
    source: Source,
    k: int,
    *,
    lam: Sequence[float] | NDArray[Any],
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    stop: Stop | None = None,
    bound: bool = False,
) -> list[Selection]: ...


def select(
    source: Source,
    k: int,
    *,
    lam: float | Sequence[float] | NDArray[Any] = 1.0,
    objective: str = "unselected",
    include: Columns = (),
    exclude: Columns = (),
    center: bool | ArrayLike = False,
    scale: float | str | ArrayLike | None = None,
    stop: Stop | None = None,
    bound: bool = False,
) -> Selection | list[Selection]:
    """Pick k columns, each the one that lowers the regularised loss most.

    With C the picked columns, the loss is the squared norm of A - C (C'C + lam I)^-1 C'A, over the columns not
    picked (``objective="unselected"``) or over all of them (``"all"``). ``lam=0`` is plain greedy column subset
    selection. Time O(k n^2): each pick reads half of the Gram once; memory one Gram and k n numbers, or up to 3 k n
    for each of several lambdas.

    Parameters
    ----------
    source : `Moments`, an n x n Gram, or `Factor` of a wide block.
    k : how many columns, those in ``include`` counted.
    lam : lambda on the prepared Gram, or several: their paths then share the reads of a large Gram.
    include, exclude : columns (indices or names) taken first, in this order, and columns never taken. Excluded
        columns still count in the loss.
    center, scale : preparation of `Moments`, see `Moments.preparation`.
    stop : end before k by loss or bound, see `Stop`.
    bound : also compute the tight lower bound after each pick; one eigenvalue decomposition, O(n^3).

    Returns
    -------
    `Selection`, or a list of them when ``lam`` is a sequence.

    Notes
    -----
    With M = I - C (C'C + lam I)^-1 C', H = A'MA and R = A'M^2 A, picking i lowers the loss by
    2 rho_i / alpha_i - R_ii eta_i / alpha_i^2, where alpha_i = lam + H_ii, eta_i = sum_j H_ij^2 and
    rho_i = sum_j H_ij R_ij. This is the paper's algorithm; as printed there it does not minimise the loss. Errata,
    each checked against brute force: in step 3, x_i'x_i multiplies the whole bracket -2/alpha_i - x_ii/alpha_i^2; in
    delta the last term is negative, and the third needs each pick's own (x~_ww - x_ww)/alpha_w^2 between W and
    W'; the update of x~_ii uses x~_ww - x_ww (not x~_ii - x_ii) and -x_wi^2/alpha_w (not -x_wi/alpha_w); the
    last term of the loss identity is divided by alpha_w^2.

    Subtracting large numbers loses digits, so eta and rho are recomputed from G and the picks whenever the loss has
    fallen far or a gain proves inexact; tracked and recomputed loss agree to 1e-9 of the loss plus 1e-12 of the
    start, plus what rounding in the Gram itself does (``Selection.rounding``). With lam near 0 that is more the less
    earlier picks have left of a column: where it shows there is a warning, and with some 1e-14 left of it a column
    is not picked any more.
    """
    base, prepared = _base(source, center, scale)
    rules = _Rules(base, k, objective, include, exclude, prepared.names, stop or Stop())
    lams = [evaluate.checked_lambda(value) for value in np.atleast_1d(np.asarray(lam, dtype=np.float64))]
    spectrum = base.spectrum() if bound or rules.stop.bound is not None else None
    with Workers() as workers, single_threaded_blas():
        in_step = len(lams) > 1 and base.matrix.size >= _LARGE
        paths = [_Path(base, rules, value, spectrum, in_step=in_step) for value in lams]
        first = base.first_sums(workers)
        for path in paths:
            path.begin(first, workers, alone=len(paths) == 1)
        if in_step:
            _walk_in_step(base, paths, workers)
        else:
            workers.map(_Path.walk, ((path, workers) for path in paths))
        # With a single thread of BLAS: more would go on waiting busily, and slow down whatever comes next.
        done = [path.result(prepared) for path in paths]
    # Of the smallest column: beside a larger one, a lambda that is rounding there may still be much here.
    positive = base.diagonal[base.diagonal > 0]
    smallest = evaluate.DOUBT * float(positive.min()) * base.unit if len(positive) else 0.0
    for remark in (remark for picked in done for remark in picked.remarks(k, smallest)):
        warnings.warn(remark, stacklevel=2)
    return done if np.ndim(lam) else done[0]


def _walk_in_step(base: Base, paths: list[_Path], workers: Workers) -> None:
    """Let all paths pick in step, so that they share what they need of G."""
    shared, running = _Shared(base, len(paths), workers), paths
    while running:
        going = workers.map(_Path.advance, ((path, workers) for path in running))
        running = [path for path, goes in zip(running, going, strict=True) if goes]
        shared.multiply([path for path in running if path.moved])


class _Shared:
    """The columns of G^2 that paths side by side have asked for: what one of them picks, others pick too."""

    def __init__(self, base: Base, paths: int, workers: Workers) -> None:
        self._base = base
        self._state = steps.State.of(base.matrix, 0, vectors=2 * paths)
        self._team = workers.team(self._state, alone=True)
        self._found: dict[int, Array] = {}

    def multiply(self, paths: list[_Path]) -> None:
        """Give each path the product of G with the column that it picked, or with its own h and r."""
        new = sorted({path.column for path in paths if path.shares} - self._found.keys())
        own = [path for path in paths if not path.shares]
        rows = [self._base.column(w) for w in new] + [row for path in own for row in path.state.masked]
        products = self._products(rows)
        self._found.update((w, product.copy()) for w, product in zip(new, products, strict=False))
        for path, product in zip(own, products[len(new) :].reshape(-1, 2, self._base.n), strict=True):
            path.state.product[:] = product
        for path in paths:
            if path.shares:
                path.state.twice[:] = self._found[path.column]

    def _products(self, rows: list[Array]) -> Array:
        """Multiply each by G: all on one reading of it."""
        self._state.now[steps.VECTORS] = len(rows) + len(rows) % 2
        for place, row in zip(self._state.masked, rows, strict=False):
            place[:] = row
        if rows:
            self._team.take(self._base.product_step)
            self._team.dismiss()
        return self._state.product[: len(rows)]


@dataclass
class _Rules:
    """What may be picked, how much of it, and what counts: the same for every lambda."""

    base: Base
    k: int
    objective: str
    include: Any
    exclude: Any
    names: tuple[str, ...] | None
    stop: Stop
    candidate: NDArray[np.bool_] = field(init=False)  # (n,)

    def __post_init__(self) -> None:
        n = self.base.n
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {OBJECTIVES}; got {self.objective!r}.")
        self.include = [int(i) for i in column_indices(self.include, n, self.names)]
        excluded = column_indices(self.exclude, n, self.names)
        both = sorted(set(self.include) & {int(i) for i in excluded})
        if both:
            raise ValueError(f"a column cannot be both included and excluded; got {both[0]} in both.")
        self.candidate = np.ones(n, dtype=bool)
        self.candidate[excluded] = False
        free = n - len(excluded)
        if not is_whole(self.k) or not 1 <= self.k <= free:
            raise ValueError(
                f"k must be a whole number from 1 to {free}, the columns that may be picked; got {self.k!r}."
            )
        if len(self.include) > self.k:
            raise ValueError(f"k must be at least the {len(self.include)} included columns; got {self.k}.")


class _Path:
    """One lambda's way through the columns: the picks so far, their factors, and the sums behind the scores.

    H = G - Y Y' and R = H - lam W'W, with Y = G_S' L^-T, W = L^-T Y' and L L' = G_SS + lam I, are never formed.
    """

    def __init__(self, base: Base, rules: _Rules, lam: float, spectrum: Array | None, *, in_step: bool) -> None:
        self.lam = lam
        # Beyond 2^300 times the data lambda changes no pick any more, and alpha^2 must stay finite.
        self._lam = min(lam / base.unit, 2.0**300 * max(float(base.diagonal.max(initial=0.0)), 1.0))
        self._base, self._rules = base, rules
        self._drops = rules.objective == "unselected"  # a picked column no longer counts in the loss
        self._spectrum = spectrum
        self._roots = np.sqrt(base.diagonal)
        self._floor = evaluate.DOUBT * base.diagonal  # more where the weights that picks have in a column magnify it
        self._free = rules.candidate.copy()
        self._gain = np.empty(base.n)
        # In step with other paths it is given products with G, first from what they share.
        self._in_step = self.shares = in_step
        self.state = steps.State.of(base.matrix, rules.k, lam=self._lam, shares=self.shares)
        self.state.now[steps.DROPS] = self._drops
        self.moved = False
        self._exact = 0.0
        self._columns: list[int] = []
        self._losses: list[float] = []
        self._untold = np.zeros(rules.k)  # what a loss may miss since rounding hides it
        self._loss = self._start = self._refreshed_at = float(base.diagonal.sum())
        self._refreshes = 0
        self._fresh = True  # no pick since the sums were computed from G
        self._end = False

    @property
    def column(self) -> int:
        """The last pick."""
        return self._columns[-1]

    def begin(self, sums: Sums, workers: Workers, *, alone: bool) -> None:
        """Take the sums before the first pick; a path that is alone has all threads to itself."""
        self._team = workers.team(self.state, alone=alone)
        self._set(sums)

    def walk(self, workers: Workers) -> None:
        """Make all picks."""
        while not workers.failed and self.advance(workers):
            pass

    def advance(self, workers: Workers) -> bool:
        """Settle the last pick and make the next, while the factors are in cache; False when there is none to make."""
        if self.moved:
            self.update()
            self.settle(workers)
        return not (self._columns and self.finished()) and self.pick(workers)

    def pick(self, workers: Workers) -> bool:
        """Choose the next column and find its column of H and R; False when none is left to choose."""
        looked_at = None
        while (w := self._choose()) is not None and w != looked_at and self._counts(w):
            self._look(w)
            if not self._fresh and not (self._counts(w) and self._trusted(w)):
                self.refresh(workers)
                self.shares = False  # what is shared loses digits sooner
                looked_at = None
            elif self._counts(w):
                if self._exact >= self._gain[w] - _ROUNDING * self._start:
                    break
                looked_at = w  # its gain is exact now, and lower: is it still the best?
        if w is None:
            self._end = True
            return False
        self.moved = self._counts(w)
        self._take(w)
        return True

    def _counts(self, w: int) -> bool:
        """Say whether anything is left in column ``w``; if not, to pick it changes nothing: its factors stay zero."""
        return bool(self.state.diag_h[w] > self._floor[w])

    def _choose(self) -> int | None:
        t, state = len(self._columns), self.state
        best = kernels.best_gain(
            state.eta,
            state.rho,
            state.diag_h,
            state.diag_r,
            self._floor,
            self._free,
            self._lam,
            self._drops,
            self._loss,
            _ROUNDING * self._start,
            self._gain,
        )
        if t < len(self._rules.include):
            return int(self._rules.include[t])
        if self._lam == 0.0 and not np.any(self._free & (state.diag_h > self._floor)):
            return None  # the rank is used up: what is left would be chosen by rounding
        return int(best)

    def _look(self, w: int) -> None:
        """Find h and r, columns ``w`` of H and R, and what the scores know of it, now exact."""
        state = self.state
        state.now[steps.COLUMN_AT] = w
        state.g[:] = self._base.column(w)
        self._team.take(steps.COLUMN)
        h, r, (xx, xy) = float(state.h[w]), float(state.r[w]), state.squares.tolist()
        state.diag_h[w], state.diag_r[w] = h, r
        self._floor[w] = max(self._floor[w], self._rounding_left(w))
        alpha = self._lam + h
        self._exact = 2.0 * xy / alpha - r / alpha * (xx / alpha) if self._counts(w) else 0.0
        if self._drops:
            self._exact, xx, xy = self._exact + r, xx + h * h, xy + h * r  # its own error leaves the loss
        state.eta[w], state.rho[w] = xx, xy

    def _rounding_left(self, w: int) -> float:
        """Return how much rounding in G would leave of column ``w`` if it were a mix of the picks."""
        t = len(self._columns)
        y, L = self.state.weights[0, :t], self.state.L[:t, :t]
        W = scipy.linalg.lapack.dtrtrs(L, y, lower=1, trans=1)[0] if t else y
        return float(evaluate.rounding_left(self._roots[w], W, self._roots[self._columns]))

    def _trusted(self, w: int) -> bool:
        """Say whether the tracked gain of ``w`` agrees with the exact one."""
        exact = self._exact
        tolerance = max(1e-6, 64 * EPS * self._start / self._loss) if self._loss > 0 else np.inf
        return bool(abs(exact - self._gain[w]) <= tolerance * abs(exact))

    def _take(self, w: int) -> None:
        """Make ``w`` a pick: the loss, and what still counts."""
        if self.moved:
            self._loss = max(self._loss - self._exact, 0.0)
            self.state.now[steps.PICK] = len(self._columns)
        else:
            self._leave_out(w)
        if self._drops:
            self.state.mask[w] = 0.0
        self._free[w] = False
        self._columns.append(w)
        self._losses.append(self._loss)

    def _leave_out(self, w: int) -> None:
        """Take a pick that rounding hides for a mix of earlier ones; an included one may have been more than that."""
        t, floor = len(self._columns), float(self._floor[w])
        if t < len(self._rules.include) and floor > 0.0:
            self._untold[t] += self._loss * min(2.0 * floor / (self._lam + floor), 1.0)
        if self._drops:
            self.shares = False  # it does not count any more, but has no factors from which that could follow

    def update(self) -> None:
        """Bring the factors and the sums up to date, with the products of G with the masked h and r."""
        product = steps.SHARED_PRODUCT if self.shares else steps.SCORES if self._in_step else self._base.product_step
        self._team.take(product, scores=True)
        self.state.now[steps.PAST] = steps.whole_vectors(len(self._columns))
        self._fresh = False

    def settle(self, workers: Workers) -> None:
        """Refresh when the loss has fallen so far that the tracked one has lost digits."""
        ends_sharing = self.shares and self._loss < _SHARING_SHARE * self._start
        if ends_sharing or self._loss < _REFRESH_SHARE * self._refreshed_at:
            self.refresh(workers)
            self.shares &= not ends_sharing
            self._losses[-1] = self._loss

    def refresh(self, workers: Workers) -> None:
        """Recompute the sums and the loss from G and the picks; the recurrences lose digits, G does not."""
        self._team.dismiss()
        state, t = self.state, len(self._columns)
        picks = np.array(self._columns, dtype=np.intp)
        Y = state.factors(t)
        W = scipy.linalg.solve_triangular(state.L[:t, :t], Y, lower=True, trans=1) if t else Y
        sums = self._base.sums(picks, Y, W, self._lam, state.mask, workers)
        # Rounding in G reaches H and R magnified by the weights: below that nothing can be told from it.
        floor = evaluate.rounding_left(self._roots, W, self._roots[picks])
        self._floor = np.maximum(self._floor, floor)
        rounding = floor * (EPS / evaluate.DOUBT)
        hidden = sums.diag_r <= rounding
        sums.diag_r[hidden] = 0.0
        self._untold[max(t - 1, 0)] += float((rounding * state.mask)[hidden].sum())
        self._set(sums)
        self._loss = float(sums.diag_r @ state.mask)
        self._fresh = True
        self._refreshed_at = self._loss
        self._refreshes += 1

    def _set(self, sums: Sums) -> None:
        self.state.eta[:], self.state.rho[:] = sums.eta, sums.rho
        self.state.diag_h[:], self.state.diag_r[:] = sums.diag_h, sums.diag_r

    def finished(self) -> bool:
        """Say whether k is reached or a stopping rule is met."""
        t = len(self._columns)
        if t == self._rules.k:
            return True
        bound = None
        if self._rules.stop.bound is not None and self._spectrum is not None:
            bound = evaluate.tight_bound(self._spectrum, t, self.lam, self._rules.objective) / self._base.unit
        return t >= len(self._rules.include) and self._rules.stop.met(self._loss, self._start, bound)

    def result(self, prepared: _Prepared) -> Selection:
        """Hand over the picks, in the units of the data."""
        self._check_definite()
        columns = np.array(self._columns, dtype=np.intp)
        unit, objective, names = self._base.unit, self._rules.objective, prepared.names
        bound = None
        if self._spectrum is not None:
            bound = evaluate.bounds(self._spectrum, len(columns), self.lam, objective).tight
        return Selection(
            columns,
            np.array(self._losses) * unit,
            self._start * unit,
            self.lam,
            objective,
            self._base.n,
            bound,
            None if names is None else tuple(names[i] for i in columns),
            prepared.mu,
            prepared.sigma,
            self._refreshes,
            self._end,
            self._rounding(columns) * unit,
            names,
            prepared.mu_rest,
        )

    def _check_definite(self) -> None:
        """Refuse a matrix in which a mix of columns would have a negative squared norm: what is left of one of them."""
        d, t, left = judged_by(self._base.diagonal), len(self._columns), self.state.diag_h
        negative = np.flatnonzero(left < -INDEFINITE * d)
        if len(negative):
            Y = self.state.factors(t)[:, negative]
            W = scipy.linalg.lapack.dtrtrs(self.state.L[:t, :t], Y, lower=1, trans=1)[0]
            smallest = float(np.min(left[negative] / (d[negative] + (W**2).T @ d[self._columns])))
            if smallest < -INDEFINITE:
                raise not_a_gram(f"an eigenvalue below {smallest:g} with all columns at length 1")

    def _rounding(self, columns: NDArray[np.intp]) -> Array:
        """Return how far rounding in G may have moved each loss.

        Row t of L^-1 makes what is left of pick t, at length 1, from the columns picked until then: their rounding,
        in G a share of their squared norms, is in the gain. What rounding hides was taken for zero.
        """
        t = len(columns)
        if t == 0:
            return np.empty(0)
        mixes = scipy.linalg.lapack.dtrtri(self.state.L[:t, :t], lower=1)[0]
        mixes *= np.sqrt(self._base.diagonal[columns])
        gains = np.diff(self._losses, prepend=self._start)
        moved = evaluate.DOUBT * np.abs(gains) * np.einsum("ij,ij->i", mixes, mixes)
        return np.minimum(np.cumsum(moved + self._untold[:t]), self._start)


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What the columns are called, and what was subtracted from each and divided by; None where there is none."""

    names: tuple[str, ...] | None = None
    mu: Array | None = None
    sigma: Array | None = None
    mu_rest: Array | None = None


def _base(source: Source, center: bool | ArrayLike, scale: float | str | ArrayLike | None) -> tuple[Base, _Prepared]:
    """Return the matrix to work on, and how it was prepared."""
    if isinstance(source, Moments):
        mu, sigma = source.preparation(center, scale)
        rest = source.mean_rest if takes_means(center) else None
        return Gram(source.gram(center, scale)), _Prepared(source.names, mu, sigma, rest)
    if not (center is False and (scale is None or scale is False)):
        raise ValueError("center and scale need moments; a Gram or a factor must be prepared before it is given.")
    if isinstance(source, Factor):
        return source, _Prepared()
    return Gram(checked_gram(source)), _Prepared()

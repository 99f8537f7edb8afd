"""The greedy selection: each pick is the column that lowers the regularised loss most."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.estimates import check_sketch, estimated
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.problem import Problem, Rules
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.sketch import Sketch
from rgcss_dask.core.solver.bases import is_base
from rgcss_dask.core.solver.checks import INDEFINITE, checked_gram, judged_by, not_a_gram
from rgcss_dask.core.solver.factor import Factor
from rgcss_dask.core.solver.gram import Base, GainTerms, Gram
from rgcss_dask.core.solver.grouped import pick_in_groups
from rgcss_dask.core.solver.pool import Pool, threads_for
from rgcss_dask.core.solver.recurrence import Candidate, Residual
from rgcss_dask.core.spectrum import Spectrum
from rgcss_dask.core.stop import Stop
from rgcss_dask.runtime.blas import single_threaded_blas

Array = NDArray[np.float64]

EPS = float(np.finfo(np.float64).eps)
# Accuracy of gains, as a share of the loss at the start; closer gains are tied, and the lowest index wins.
_ROUNDING = 16 * EPS
# A refresh is due when the loss has fallen to this share of the loss at the last refresh.
_REFRESH_SHARE = 1e-3
# From this size on, G fits into no cache, so all paths share its reads; for a smaller G at most `_TOGETHER` paths do.
_LARGE = 2**21
_TOGETHER = 7


Source = Moments | ArrayLike | Base
Watch = Callable[[Array, NDArray[np.bool_]], None]


def solve(
    source: Source, k: int, problem: Problem, *, bound: bool = False, quiet: bool = False, watch: Watch | None = None
) -> list[Selection]:
    """Solve a problem: one selection for each of its lambdas; ``quiet`` suppresses remarks.

    ``watch`` is called before each pick with the gains of all columns, and a mask of those that may be picked; losses
    on a sketch are then those of its own rows, not estimates.

    With M = I - C (C'C + lam I)^-1 C', H = A'MA and R = A'M^2 A, picking i lowers the loss by
    2 rho_i / alpha_i - R_ii eta_i / alpha_i^2, where alpha_i = lam + H_ii, eta_i = sum_j H_ij^2 and
    rho_i = sum_j H_ij R_ij. The recurrences lose digits by cancellation, so eta and rho are recomputed from G and the
    picks whenever the loss has fallen far or a gain proves inexact.
    """
    if isinstance(source, Sketch):
        check_sketch(source, k, bounded=bound or problem.stop.bound is not None, quiet=quiet)
    base, problem, known = _prepared(source, problem)
    rules = problem.rules(k, base.n, among=base.candidates)
    if not problem.lams:
        return []
    counts = rules.objective.counts(base.n)
    spectrum = base.spectrum(counts, rules.k) if bound or problem.stop.bound is not None else None
    # With costs, one selection is made by gain, and one by gain per cost.
    ways = [rules] if problem.aims.costs is None else [rules, rules.by_cost()]
    asked = [(way, lam) for way in ways for lam in problem.lams]
    with single_threaded_blas():  # idle BLAS threads would keep spinning and slow down what follows
        if problem.aims.column_groups:
            found = _in_groups(base, asked, spectrum, known, watch)
        else:
            found = _one_by_one(base, asked, spectrum, known, watch)
    per_way = len(problem.lams)
    done = [min(found[i::per_way], key=lambda picked: picked.last_loss) for i in range(per_way)]
    if isinstance(source, Sketch) and watch is None:
        done = [estimated(picked, source, _picker(problem, picked.k)) for picked in done]
    # For the smallest column: a lambda that is rounding for a large column may still matter for a small one.
    positive = base.diagonal[base.diagonal > 0]
    smallest = evaluate.DOUBT * float(positive.min()) * base.unit if len(positive) else 0.0
    for remark in (remark for picked in done if not quiet for remark in picked.remarks(k, smallest)):
        warnings.warn(remark, stacklevel=3)
    return done


def _picker(problem: Problem, k: int) -> Callable[[Array, float], NDArray[np.intp]]:
    """Return a function that picks k columns on prepared rows."""
    alike = replace(problem, stop=Stop())
    return lambda F, lam: solve(Factor(F), min(k, len(F)), alike.at(lam), quiet=True)[0].columns


def _one_by_one(
    base: Base,
    asked: list[tuple[Rules, float]],
    spectrum: Spectrum | None,
    known: dict[str, Any],
    watch: Watch | None,
) -> list[Selection]:
    """Pick columns one by one, for each lambda and each set of rules."""
    with Pool(threads_for(base.matrix.size)) as pool:
        terms = base.first_terms(asked[0][0].objective.counts(base.n), pool)
        paths = [_Path(base, rules, lam, terms.copy(), spectrum, watch) for rules, lam in asked]
        groups = _groups(base, paths)
        # A single group uses all threads for its products with G; several groups run in parallel, each on one thread.
        pool.map(_walk, ((base, group, pool if len(groups) == 1 else Pool(1)) for group in groups))
    return [path.result(**known) for path in paths]


def _in_groups(
    base: Base,
    asked: list[tuple[Rules, float]],
    spectrum: Spectrum | None,
    known: dict[str, Any],
    watch: Watch | None,
) -> list[Selection]:
    """Pick groups of columns, for each lambda and each set of rules; ``watch`` is not supported."""
    if watch is not None:
        raise ValueError(
            "column_groups need the products of all columns; a search for candidates has none. Leave column_groups out."
        )
    if base.candidates is not None:
        raise ValueError(
            "column_groups need the products of all columns with each other; these moments have only those of some "
            "candidates. Scan without candidates=, and give candidates= to the selection."
        )
    G = base.rows(np.arange(base.n)) / base.unit
    names = known.get("all_names")

    def answer(rules: Rules, lam: float) -> Selection:
        lams = rules.aims.lams(lam, base.n) / base.unit
        bound = None if spectrum is None else rules.bounds(spectrum, rules.k, lam).tight
        found, exhausted, spent = pick_in_groups(G, rules, lams, None if bound is None else bound / base.unit)
        columns = np.array(found, dtype=np.intp)
        losses = evaluate.prefix_losses(G, columns, lams[columns], objective=rules.objective)
        start = float(base.diagonal @ rules.objective.counts(base.n))
        return Selection(
            columns=columns,
            loss=losses * base.unit,
            start=start * base.unit,
            lam=lam,
            bound=None if bound is None else bound[: len(columns)],
            names=None if names is None else tuple(names[i] for i in columns),
            exhausted=exhausted,
            spent=spent,
            **{**known, "problem": known["problem"].at(lam)},
        )

    return [answer(*one) for one in asked]  # not in parallel: threads would compile the same kernel at once


def _groups(base: Base, paths: list[_Path]) -> list[list[_Path]]:
    """Divide the paths into groups that share reads of G: one group if G is large, else small groups."""
    groups = 1 if base.matrix.size >= _LARGE else math.ceil(len(paths) / _TOGETHER)
    edges = [len(paths) * i // groups for i in range(groups + 1)]
    return [paths[a:b] for a, b in pairwise(edges)]


def _walk(base: Base, paths: list[_Path], pool: Pool) -> None:
    """Advance all paths in lockstep, with one read of G for the products of all."""
    walking = paths
    while walking:
        looks = pool.map(_Path.advance, ((path, pool) for path in walking))
        walking = [path for path, goes_on in zip(walking, looks, strict=True) if goes_on]
        moved = [path for path in walking if path.moved]
        if moved:
            X = np.concatenate([path.vectors for path in moved])
            products = base.multiply(X, pool).reshape(len(moved), 2, base.n)
            pool.map(_Path.update, zip(moved, products, strict=True))


class _Path:
    """The selection path of one lambda."""

    def __init__(
        self, base: Base, rules: Rules, lam: float, terms: GainTerms, spectrum: Spectrum | None, watch: Watch | None
    ) -> None:
        self.lam, self._watch = lam, watch
        # Beyond 2^300 times the data a larger lambda changes no pick, and alpha^2 must stay finite.
        most = 2.0**300 * max(float(base.diagonal.max(initial=0.0)), 1.0)
        self._lams = np.minimum(rules.aims.lams(lam, base.n) / base.unit, most)
        self._base, self._rules = base, rules
        self._spectrum = spectrum
        self._roots = np.sqrt(base.diagonal)
        self._floor = evaluate.DOUBT * base.diagonal  # raised where the weights of the picks amplify it
        self._free = rules.allowed(())
        self._gain = np.empty(base.n)
        self._residual = Residual(base, rules.k, self._lams, rules.objective, terms)
        self.moved = False  # whether the last pick changed anything
        self._seen: Candidate | None = None  # the last column whose exact gain was computed
        self._exact = 0.0  # the exact gain of that column
        self._columns: list[int] = []
        self._losses: list[float] = []
        self._untold = np.zeros(rules.k)  # what a loss may lack because rounding hides it
        self._loss = self._start = self._refreshed_at = float(base.diagonal @ self._residual.counts)
        self._refreshes = 0
        self._fresh = True  # no pick since the last refresh
        self._end = False

    def advance(self, pool: Pool) -> bool:
        """Make the next pick; return False if no candidate is left."""
        if self._loss < _REFRESH_SHARE * self._refreshed_at:  # the tracked loss has lost digits
            self.refresh(pool)
            self._losses[-1] = self._loss
        if self._columns and self._finished():
            return False
        w = self._trusted_choice(pool)
        if w is None:
            self._end = True
            return False
        self._take(w)
        return True

    @property
    def vectors(self) -> Array:
        """What must be multiplied by G for the last pick, (2, n)."""
        assert self._seen is not None
        return self._seen.columns[2:]

    def update(self, products: Array) -> None:
        """Update the residual for the last pick, given the products of `vectors` with G."""
        assert self._seen is not None  # its exact gain was computed before it was picked
        self._residual.pick(self._seen, len(self._columns) - 1, products)
        self._fresh = False

    def _trusted_choice(self, pool: Pool) -> int | None:
        """Choose the next column by gains that agree with the exact ones; None if no column is left."""
        looked_at = None
        while (w := self._choose()) is not None and w != looked_at and self._has_more(w):
            self._look(w)
            if not self._fresh and not (self._has_more(w) and self._agrees(w)):
                self.refresh(pool)
                looked_at = None
            elif self._has_more(w):
                if self._exact >= self._gain[w] - _ROUNDING * self._start:
                    break
                looked_at = w  # its gain is exact now, and lower: check whether it is still the best
        return w

    def _has_more(self, w: int) -> bool:
        """Tell whether column ``w`` has a remainder above its floor; otherwise picking it changes nothing."""
        return bool(self._residual.terms.diag_h[w] > self._floor[w])

    def _choose(self) -> int | None:
        """Score every candidate, and return the best; included columns come first, regardless of their gain."""
        t, residual = len(self._columns), self._residual
        rounding = _ROUNDING * self._start
        best = residual.best(self._free, self._floor, self._rules.worth, self._loss, rounding, self._gain)
        if self._watch is not None:
            self._watch(self._gain, self._free)
        if t < len(self._rules.include):
            return self._rules.include[t]
        if not self._lams.any() and not np.any(self._free & (residual.terms.diag_h > self._floor)):
            return None  # the rank is exhausted: rounding would choose
        return None if best < 0 else best  # below 0 if the constraints allow no column

    def _look(self, w: int) -> None:
        """Compute columns ``w`` of H and R, and the exact gain of w."""
        seen = self._seen = self._residual.column(w, len(self._columns))
        left = evaluate.rounding_left(self._roots[w], seen.W, self._roots[self._columns])
        self._floor[w] = max(self._floor[w], float(left))
        self._exact = self._residual.gain(w) if self._has_more(w) else 0.0

    def _agrees(self, w: int) -> bool:
        """Tell whether the tracked gain of ``w`` agrees with the exact one."""
        tolerance = max(1e-6, 64 * EPS * self._start / self._loss) if self._loss > 0 else np.inf
        return bool(abs(self._exact - self._gain[w]) <= tolerance * abs(self._exact))

    def _take(self, w: int) -> None:
        """Pick ``w``: update the loss and the weights."""
        self.moved = self._has_more(w)
        if self.moved:
            self._loss = max(self._loss - self._exact, 0.0)
        else:
            self._leave_out(w)
        self._columns.append(w)
        self._free = self._rules.allowed(self._columns)
        self._losses.append(self._loss)

    def _leave_out(self, w: int) -> None:
        """Treat a pick below its floor as linearly dependent; an included one may have had a remainder."""
        t, floor = len(self._columns), float(self._floor[w])
        if t < len(self._rules.include) and floor > 0.0:
            self._untold[t] += self._loss * min(2.0 * floor / (float(self._lams[w]) + floor), 1.0)
        self._residual.leave(w)

    def refresh(self, pool: Pool) -> None:
        """Recompute the sums and the loss from G and the picks."""
        picks = np.array(self._columns, dtype=np.intp)
        residual = self._residual
        W = residual.refresh(picks, pool)
        terms = residual.terms
        # The weights amplify rounding in G to this size in H and R: smaller values cannot be distinguished from it.
        floor = evaluate.rounding_left(self._roots, W, self._roots[picks])
        self._floor = np.maximum(self._floor, floor)
        rounding = floor * (EPS / evaluate.DOUBT)
        hidden = terms.diag_r <= rounding
        terms.diag_r[hidden] = 0.0
        self._untold[max(len(picks) - 1, 0)] += float((rounding * residual.counts)[hidden].sum())
        self._loss = self._refreshed_at = float(terms.diag_r @ residual.counts)
        self._fresh = True
        self._refreshes += 1

    def _finished(self) -> bool:
        """Tell whether k is reached or a stopping rule is met."""
        t, rules, bound = len(self._columns), self._rules, None
        if t == rules.k:
            return True
        if rules.stop.bound is not None and self._spectrum is not None:
            bound = rules.bounds(self._spectrum, t, self.lam).tight[-1] / self._base.unit
        return t >= len(rules.include) and rules.stop.met(self._loss, self._start, bound)

    def result(self, n: int, problem: Problem, all_names: tuple[str, ...] | None = None, **known: Any) -> Selection:
        """Return the selection, in the units of the data."""
        self._check_definite()
        columns = np.array(self._columns, dtype=np.intp)
        unit, bound = self._base.unit, None
        if self._spectrum is not None:
            bound = self._rules.bounds(self._spectrum, len(columns), self.lam).tight
        return Selection(
            columns=columns,
            loss=np.array(self._losses) * unit,
            start=self._start * unit,
            lam=self.lam,
            n=n,
            bound=bound,
            names=None if all_names is None else tuple(all_names[i] for i in columns),
            refreshes=self._refreshes,
            exhausted=self._end and bool(self._free.any()),
            spent=self._end and not self._free.any(),
            rounding=self._rounding(columns) * unit,
            all_names=all_names,
            among=None if self._base.candidates is None else len(self._base.candidates),
            problem=problem.at(self.lam),
            **known,
        )

    def _check_definite(self) -> None:
        """Refuse a matrix in which the remainder of a column has a negative squared norm."""
        d, left = judged_by(self._base.diagonal), self._residual.terms.diag_h
        negative = np.flatnonzero(left < -INDEFINITE * d)
        if len(negative):
            W = self._residual.mixes(negative, len(self._columns))
            smallest = float(np.min(left[negative] / (d[negative] + (W**2).T @ d[self._columns])))
            if smallest < -INDEFINITE:
                raise not_a_gram(f"an eigenvalue below {smallest:g} with all columns at length 1")

    def _rounding(self, columns: NDArray[np.intp]) -> Array:
        """Return how far rounding in G may have moved each loss.

        What is left of pick t, at length 1, is a mix of the columns picked until then: their rounding, in G a share of
        their squared norms, is in the gain. What rounding hides was taken for zero.
        """
        t = len(columns)
        if t == 0:
            return np.empty(0)
        mixes = self._residual.unmixed(t) * np.sqrt(self._base.diagonal[columns])
        gains = np.diff(self._losses, prepend=self._start)
        moved = evaluate.DOUBT * np.abs(gains) * np.einsum("ij,ij->i", mixes, mixes)
        return np.minimum(np.cumsum(moved + self._untold[:t]), self._start)


def _prepared(source: Source, problem: Problem) -> tuple[Base, Problem, dict[str, Any]]:
    """Return the matrix to work on, the problem on it, and what a selection tells of how it was asked and prepared."""
    if isinstance(source, Moments):
        problem = problem.settled(source)
        preparation = problem.preparation(source)
        known = {"all_names": source.names, **preparation.known}
        base: Base = problem.base(source)
        n = source.n
    else:
        if problem.prepares:
            raise ValueError("center and scale need moments; a Gram or a factor must be prepared before it is given.")
        base = cast(Base, source) if is_base(source) else Gram(checked_gram(cast(ArrayLike, source)))
        known = {}
        n, problem = base.n, problem.settled_on(base.diagonal)
    asked = replace(problem, center=False, scale=None).without_stop()
    return base, problem.prepared(n), {**known, "n": n, "objective": problem.objective, "problem": asked}

"""The moments of a matrix: all that the rest of the package needs to know about its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels
from rgcss_dask.core.accumulate import Accumulator
from rgcss_dask.core.input_checks import checked_weights
from rgcss_dask.core.missing import plain
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.noise import Differences, merged_differences
from rgcss_dask.core.precision import EPS, faint
from rgcss_dask.core.sums import Sums
from rgcss_dask.core.triangle import Array, add_outer
from rgcss_dask.core.words import counted, listed
from rgcss_dask.runtime.disk_matrices import copied

# Rounding is far below this share of the squares, unless the squares underflowed.
LOST = 0.01
# A remaining weight below this share of the original weight is rounding.
NO_WEIGHT = 1e-12


@dataclass(frozen=True, eq=False)
class Moments(Sums):
    """Row count, column sums and product sums of a matrix about a shift; moments of several blocks can be merged.

    With x a row and w its weight: ``total`` is the sum of w (x - shift) and ``product`` the sum of
    w (x - shift)(x - shift)'. For floats the shift is the mean, so that a mean of 1e8 times the spread costs no
    digits; for small integers it is a constant, every number is an exact integer, and merging is an addition.

    Memory is one n x n float64 matrix, and one more for each fold and group kept apart. `scan` computes moments of data
    of any size; `Moments.of` computes moments of a block in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from rgcss_dask import Moments
    >>> rows = np.random.default_rng(0).integers(0, 255, size=(1000, 4), dtype="u1")
    >>> first, second = Moments.of(rows[:300]), Moments.of(rows[300:])
    >>> both = first.merge(second)
    >>> both
    <Moments of 1,000 rows and 4 columns>
    >>> np.array_equal(both.gram(), rows.T.astype(int) @ rows.astype(int))  # exact for 8-bit integers
    True
    """

    names: tuple[str, ...] | None = None  #: (n,) column names
    folds: tuple[Moments, ...] = ()  #: moments of each fold, for cross-validation
    groups: tuple[Moments, ...] = ()  #: moments of each group, a run of rows, for the bootstrap
    differences: Differences | None = None  #: differences of neighbouring rows, if requested; they estimate the noise

    # The kind of moments, and the names of arrays and numbers, for archives, checkpoints and handles.
    KIND: ClassVar[str] = "moments"
    ARRAYS: ClassVar[tuple[str, ...]] = ("shift", "total", "product", "rounding")
    NUMBERS: ClassVar[tuple[str, ...]] = ("rows", "weight", "exact", "dropped", "names")

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != self.n:
            raise ValueError(f"names must have one entry per column; got {len(self.names)} for {self.n} columns.")
        for kind in ("folds", "groups"):
            object.__setattr__(self, kind, tuple(_named(part, self.names) for part in getattr(self, kind)))

    @classmethod
    def of(cls, block: ArrayLike, weights: ArrayLike | None = None, *, names: Iterable[str] | None = None) -> Moments:
        """Compute the moments of a block of rows.

        Parameters
        ----------
        block : array of shape (m, n)
            Rows of any real dtype. 8-bit integers and booleans give exact integers. Values of any other type do too if
            all are whole, at most 65,535 in size, and their sums of squares are below 2^53.
        weights : array of shape (m,), optional
            Non-negative row weights. Integer weights keep exact data exact.
        names : iterable of str, optional
            The n column names.

        Returns
        -------
        Moments
            The moments of these rows.
        """
        X = plain(block)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
        accumulator = Accumulator(X.shape[1], X.dtype)
        accumulator.add(X, None if weights is None else checked_weights(weights, len(X)))
        return cls(*accumulator.numbers(), names=None if names is None else tuple(names))

    def __repr__(self) -> str:
        return f"<{self._in_words()}>"

    def _in_words(self) -> str:
        weight = "" if self.weight == self.rows else f" of weight {self.weight:,.6g}"
        kept = (counted(len(part), noun) for part, noun in ((self.folds, "fold"), (self.groups, "group")) if part)
        size = f"{counted(self.rows, 'row')}{weight} and {counted(self.n, 'column')}"
        return ", ".join((f"{self._title} of {size}", *kept, *([listed(self.names)] if self.names else [])))

    @property
    def _title(self) -> str:
        return "Moments"

    @property
    def scatter(self) -> Array:
        """Sum of products about the mean, (n, n)."""
        return self.gram(center=True)

    def merge(self, other: Moments, *, overwrite: bool = False) -> Moments:
        """Add the rows of ``other``: the result equals the moments of both blocks stacked.

        The sums are added if the shifts agree, otherwise updated as by Chan, Golub and LeVeque (1983).

        Parameters
        ----------
        other : Moments
            Moments of other rows of the same columns.
        overwrite : bool, default=False
            Reuse the memory of these moments for the result; they must not be used afterwards.

        Returns
        -------
        Moments
            The moments of all rows.
        """
        self._check_same_columns(other, "merge")
        merged = self._merged(other, overwrite=overwrite)
        return replace(
            merged,
            names=self.names if self.names is not None else other.names,
            folds=_merge_parts(self.folds, other.folds, "folds"),
            groups=_merge_parts(self.groups, other.groups, "groups"),
            differences=merged_differences(self.differences, other.differences),
        )

    def minus(self, other: Moments) -> Moments:
        """Subtract the rows of ``other``, such as an old window.

        Exact integers stay exact. With floats, digits are lost where ``other`` is larger than the remainder; if the
        moments of the remaining rows are available, merging those is better. A column whose spread is some tens of
        units in the last place of its mean may then count as constant: the values of all rows and of ``other`` are
        rounded, and the common part of their rounding is unknown. The result has no folds and groups.

        Parameters
        ----------
        other : Moments
            Moments of some of these rows.

        Returns
        -------
        Moments
            The moments of the remaining rows.
        """
        self._check_same_columns(other, "subtract")
        weight, rows = self.weight - other.weight, self.rows - other.rows
        rounding = 0.0 if self.exact and other.exact else NO_WEIGHT * self.weight
        if rows < 0 or weight < -rounding or (rows == 0 and weight > rounding):
            raise ValueError(
                f"cannot subtract more than is there: {other.rows} rows of weight {other.weight:g} "
                f"from {self.rows} rows of weight {self.weight:g}."
            )
        if weight <= rounding:  # no rows remain, or only rows of weight 0
            other = replace(other, weight=self.weight)
        left = self._merged(other, sign=-1.0)
        # Cancellation may give values slightly below zero; values far below show that the rows were never included.
        diagonal = left.squares
        if np.any(diagonal < -(1e-9 * self.squares + left.rounding)):
            worst = int(np.argmin(diagonal))
            raise ValueError(
                f"cannot subtract more than is there: column {worst} would be left with a negative sum of "
                "squares; these rows were not part of the moments."
            )
        np.maximum(diagonal, 0.0, out=diagonal)
        return replace(left, names=self.names)

    def take(self, columns: Sequence[int] | Sequence[str] | NDArray[Any]) -> Moments:
        """Return the moments of some columns, given by index or by name, in the given order.

        Parameters
        ----------
        columns : sequence of int or str
            Each column once.

        Returns
        -------
        Moments
            The moments of these columns.
        """
        index = column_indices(columns, self.n, self.names)
        return replace(
            self,
            shift=self.shift[index],
            total=self.total[index],
            product=self.product[np.ix_(index, index)],
            rounding=self.rounding[index],
            names=None if self.names is None else tuple(self.names[i] for i in index),
            folds=tuple(part.take(index) for part in self.folds),
            groups=tuple(part.take(index) for part in self.groups),
            differences=None if self.differences is None else self.differences.take(index),
        )

    def preparation(
        self, center: bool | ArrayLike = False, scale: float | str | ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Resolve ``center`` and ``scale`` to the vectors (mu, sigma) of x -> (x - mu) / sigma.

        As in scikit-learn's StandardScaler, a constant column is centred but not divided.

        Parameters
        ----------
        center : bool or array of shape (n,), default=False
            False, True (the mean) or n values.
        scale : {None, "std"}, bool, float or array of shape (n,), default=None
            None or False, ``"std"`` or True (the standard deviations), a number or n values.

        Returns
        -------
        pair of array of shape (n,)
            The values to subtract from each column and the values to divide by.
        """
        if isinstance(center, bool | np.bool_):
            mu = self.mean if center else np.zeros(self.n)
        else:
            mu = _vector(center, self.n, "center")
        return mu, self._sigma(scale)

    def gram(
        self,
        center: bool | ArrayLike = False,
        scale: float | str | ArrayLike | None = None,
        *,
        rest: Array | None = None,
    ) -> Array:
        """Compute the n x n Gram matrix of the prepared rows (x - mu) / sigma; see `preparation`.

        Without centring and scaling this is A'A, exact for exact moments.

        Parameters
        ----------
        center : bool or array of shape (n,), default=False
            Values to subtract, see `preparation`.
        scale : {None, "std"}, bool, float or array of shape (n,), default=None
            Values to divide by, see `preparation`.
        rest : array of shape (n,), optional
            Rounding errors of the values of ``center``, which are subtracted too, see `mean_rest`.

        Returns
        -------
        array of shape (n, n)
            The Gram matrix.
        """
        mu, sigma = self.preparation(center, scale)
        base = self._near(mu) if self.exact else self
        G: Array = base.product if base is not self else copied(base.product)  # moved sums are a copy already
        constant, _, terms = base._moves(center, mu, rest)
        G[constant, :] = 0.0
        G[:, constant] = 0.0
        add_outer(G, terms)
        kernels.mirror(G)
        if np.any(sigma != 1.0):
            G /= sigma[:, None]
            G /= sigma
        self._refuse_lost(self.rounding / sigma**2 > EPS * np.diagonal(G).max())
        return G

    def _moves(
        self, center: bool | ArrayLike, mu: Array, rest: Array | None
    ) -> tuple[NDArray[np.bool_], Array, list[tuple[Array, Array]]]:
        """Return the constant columns, mu less the shift, and the outer products that move the products to mu."""
        shift, total, constant = self.shift, self.total, np.zeros(self.n, dtype=bool)
        if not self.exact and self.weight > 0:
            constant = self.spread == 0
            shift, total = np.where(constant, self.mean, shift), np.where(constant, 0.0, total)
        if takes_means(center):
            return constant, total / self.weight, [(total, total / -self.weight)]
        d = mu - shift if rest is None else mu - shift + rest
        return constant, d, [(d, self.weight * d - total), (total, -d)]

    def _refuse_lost(self, matters: NDArray[np.bool_] | bool) -> None:
        """Refuse columns with values so small that their squares were lost, where that matters."""
        squares = self.squares + self.weight * self.shift**2
        lost = (self.rounding > LOST * squares) & (self.rounding < faint(np.float64)) & matters
        if lost.any():
            which = ", ".join(str(i) for i in np.flatnonzero(lost)[:8]) + (", ..." if lost.sum() > 8 else "")
            raise ValueError(
                "squares must be within the range of float64; the values of some columns are so small that theirs are "
                f"lost: {which}. Multiply the data by a constant before they are read, or leave these columns out."
            )

    def _sigma(self, scale: float | str | ArrayLike | None) -> Array:
        if isinstance(scale, bool | np.bool_):
            scale = "std" if scale else None
        if scale is None:
            return np.ones(self.n)
        if isinstance(scale, str):
            if scale != "std":
                raise ValueError(f"scale must be None, a number, 'std' or {self.n} values; got {scale!r}.")
            self._refuse_lost(True)
            spread = self.spread
            return np.where(spread > 0, spread, 1.0)
        sigma = np.full(self.n, float(scale)) if np.ndim(scale) == 0 else _vector(scale, self.n, "scale")  # type: ignore[arg-type]
        if not np.all((sigma > 0) & np.isfinite(sigma)):
            bad = int(np.flatnonzero(~((sigma > 0) & np.isfinite(sigma)))[0])
            raise ValueError(f"scale must be positive and finite; got {sigma[bad]:g} for column {bad}.")
        return sigma

    def _merged(self, other: Moments, sign: float = 1.0, *, overwrite: bool = False) -> Moments:
        """Add (or with ``sign=-1`` subtract) the rows of ``other``, without names, folds and groups."""
        return self._plus(other, sign, overwrite=overwrite)

    def _check_same_columns(self, other: Moments, verb: str) -> None:
        if self.KIND != other.KIND:
            raise ValueError(f"cannot {verb} {other.KIND} and {self.KIND}: make both in the same way.")
        if self.n != other.n:
            raise ValueError(f"cannot {verb} moments of different columns: {self.n} and {other.n} of them.")
        if self.names is not None and other.names is not None and self.names != other.names:
            j = next(i for i, (a, b) in enumerate(zip(self.names, other.names, strict=True)) if a != b)
            raise ValueError(
                f"cannot {verb} moments of different columns: column {j} is {self.names[j]!r} here and "
                f"{other.names[j]!r} there. Reorder with take()."
            )


def takes_means(center: bool | ArrayLike) -> bool:
    """Tell whether the column means are subtracted, rather than given values or nothing."""
    return isinstance(center, bool | np.bool_) and bool(center)


def _named(part: Moments, names: tuple[str, ...] | None) -> Moments:
    """Give a part the names of the whole if it has none."""
    return part if names is None or part.names is not None else replace(part, names=names)


def _vector(values: ArrayLike, n: int, what: str) -> Array:
    vector = plain(values).astype(np.float64)
    if vector.shape != (n,):
        raise ValueError(f"{what} must have one value per column; got shape {vector.shape} for {n} columns.")
    if not np.all(np.isfinite(vector)):
        column = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise ValueError(f"{what} must be finite; got {vector[column]} for column {column}.")
    return vector


def _merge_parts(a: tuple[Moments, ...], b: tuple[Moments, ...], what: str) -> tuple[Moments, ...]:
    if len(a) != len(b):
        raise ValueError(f"both moments must have the same number of {what}; got {len(a)} and {len(b)}.")
    return tuple(x.merge(y) for x, y in zip(a, b, strict=True))


def shape_of(name: str, height: int, n: int) -> tuple[int, ...]:
    """Return the shape of an array of moments with n columns, whose matrix has ``height`` rows."""
    return {"product": (height, n), "gaps": (height, n), "ones": (height,)}.get(name, (n,))

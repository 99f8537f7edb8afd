"""The moments of a matrix: all that the rest of the package ever needs to know of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Signed 8-bit products are at most 2**14, so a float32 sum of 1024 of them is at most 2**24: still exact.
EXACT_ROWS = 1024
# A raw 8-bit product is below 2**16, so that up to this weight every float64 sum of them is exact.
EXACT_WEIGHT = 2.0**37
# Columns of the upper triangle done at once, so that no second n x n matrix is needed when n is large.
TILE = 2048
# A column whose spread is below this share of its mean holds one value and rounding.
CONSTANT = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Moments:
    """Row count, column sums and product sums of a matrix about a shift, as a value that adds up.

    With x a row and w its weight: ``total`` is the sum of w (x - shift) and ``product`` the sum of
    w (x - shift)(x - shift)'. For floats the shift is the mean, so a mean 1e8 times the spread costs no digits;
    for 8-bit integers it is a constant, every number is an exact integer, and merging is plain addition.

    Memory is one n x n float64 matrix, and one more for each fold and group kept apart.
    """

    rows: int  # rows seen
    weight: float  # sum of their weights; equal to rows without weights
    shift: Array  # (n,)
    total: Array  # (n,)
    product: Array  # (n, n)
    exact: bool = False  # every number is an integer without rounding
    dropped: int = 0  # rows left out because of gaps
    names: tuple[str, ...] | None = None  # (n,) column names
    folds: tuple[Moments, ...] = ()  # the same rows apart, for cross-validation
    groups: tuple[Moments, ...] = ()  # the same rows apart in row order, for the bootstrap

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != self.n:
            raise ValueError(f"names must have one entry per column; got {len(self.names)} for {self.n} columns.")

    @classmethod
    def of(
        cls, block: ArrayLike, weights: ArrayLike | None = None, *, names: Iterable[str] | None = None
    ) -> Moments:
        """Take the moments of a block of rows.

        Parameters
        ----------
        block : (m, n) array of any real dtype. 8-bit integers and booleans give exact integers at single-precision speed.
        weights : (m,) non-negative row weights. Integers keep 8-bit data exact.
        names : n column names.
        """
        X = np.asarray(block)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
        accumulator = Accumulator(X.shape[1], X.dtype)
        accumulator.add(X, None if weights is None else checked_weights(weights, len(X)))
        return accumulator.moments(names=None if names is None else tuple(names))

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.shift)

    @property
    def mean(self) -> Array:
        """Column means, (n,)."""
        if self.weight <= 0:
            raise ValueError("the mean of no rows is not defined; these moments hold a weight of 0.")
        return self.shift + self.total / self.weight

    @property
    def scatter(self) -> Array:
        """Sum of products about the mean, (n, n)."""
        return self.gram(center=True)

    def merge(self, other: Moments) -> Moments:
        """Add the rows of ``other``: equal to the moments of both blocks stacked.

        An addition where the shifts agree, otherwise the update of Chan, Golub and LeVeque (1983).
        """
        self._check_same_columns(other, "merge")
        merged = _merge_numbers(self, other)
        return replace(
            merged,
            names=self.names if self.names is not None else other.names,
            folds=_merge_parts(self.folds, other.folds, "folds"),
            groups=_merge_parts(self.groups, other.groups, "groups"),
        )

    def minus(self, other: Moments) -> Moments:
        """Take the rows of ``other`` away again: an old window, for example.

        Exact integers stay exact. With floats, digits are lost where ``other`` is larger than what remains; merging
        what remains is better when it is at hand. Parts kept apart are not carried over.
        """
        self._check_same_columns(other, "subtract")
        if other.weight > self.weight or other.rows > self.rows:
            raise ValueError(
                f"cannot subtract more than is there: {other.rows} rows of weight {other.weight:g} "
                f"from {self.rows} rows of weight {self.weight:g}."
            )
        left = _merge_numbers(self, other, sign=-1.0)
        # What cancels exactly may come out a little below zero; what is far below was never part of these rows.
        diagonal = np.einsum("ii->i", left.product)
        if np.any(diagonal < -1e-9 * np.diagonal(self.product)):
            worst = int(np.argmin(diagonal))
            raise ValueError(
                f"cannot subtract more than is there: column {worst} would be left with a negative sum of squares; "
                "these rows were not part of the moments."
            )
        np.maximum(diagonal, 0.0, out=diagonal)
        return replace(left, names=self.names)

    def take(self, columns: Sequence[int] | Sequence[str] | NDArray[Any]) -> Moments:
        """Keep only some columns, given by index or by name, in the given order."""
        index = column_indices(columns, self.n, self.names)
        return replace(
            self,
            shift=self.shift[index],
            total=self.total[index],
            product=self.product[np.ix_(index, index)],
            names=None if self.names is None else tuple(self.names[i] for i in index),
            folds=tuple(part.take(index) for part in self.folds),
            groups=tuple(part.take(index) for part in self.groups),
        )

    def preparation(
        self, center: bool | ArrayLike = False, scale: float | str | ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Resolve ``center`` and ``scale`` to the vectors (mu, sigma) of x -> (x - mu) / sigma.

        ``center`` is False, True (the mean) or n values; ``scale`` is None, a number, ``"std"`` or n values.
        As in scikit-learn's StandardScaler a constant column is centred but not divided.
        """
        if isinstance(center, bool | np.bool_):
            mu = self.mean if center else np.zeros(self.n)
        else:
            mu = _vector(center, self.n, "center")
        return mu, self._sigma(scale)

    def gram(
        self, center: bool | ArrayLike = False, scale: float | str | ArrayLike | None = None
    ) -> Array:
        """Form the n x n Gram of the prepared rows (x - mu) / sigma; see `preparation`.

        Without centring and scaling this is A'A, exact for exact moments.
        """
        about_mean = isinstance(center, bool | np.bool_) and bool(center)
        mu, sigma = self.preparation(center, scale)
        base = _near(self, mu) if self.exact else self
        G: Array = np.array(base.product)
        if about_mean:
            _add_outer(G, [(base.total, base.total / -base.weight)])
            _mirror(G)
            constant = self.spread <= CONSTANT * np.abs(self.mean)
            G[constant, :] = 0.0
            G[:, constant] = 0.0
        else:
            d = mu - base.shift
            _add_outer(G, [(d, base.weight * d - base.total), (base.total, -d)])
            _mirror(G)
        if np.any(sigma != 1.0):
            G /= sigma[:, None]
            G /= sigma
        return G

    @property
    def spread(self) -> Array:
        """Standard deviation of each column (dividing by the weight), (n,)."""
        base = _near(self, self.mean) if self.exact else self
        variance = (np.diagonal(base.product) - base.total**2 / base.weight) / base.weight
        return np.sqrt(np.maximum(variance, 0.0))

    def _sigma(self, scale: float | str | ArrayLike | None) -> Array:
        if scale is None:
            return np.ones(self.n)
        if isinstance(scale, str):
            if scale != "std":
                raise ValueError(f"scale must be None, a number, 'std' or {self.n} values; got {scale!r}.")
            spread = self.spread
            return np.where(spread <= CONSTANT * np.abs(self.mean), 1.0, spread)
        sigma = np.full(self.n, float(scale)) if np.ndim(scale) == 0 else _vector(scale, self.n, "scale")  # type: ignore[arg-type]
        if not np.all((sigma > 0) & np.isfinite(sigma)):
            bad = int(np.flatnonzero(~((sigma > 0) & np.isfinite(sigma)))[0])
            raise ValueError(f"scale must be positive and finite; got {sigma[bad]:g} for column {bad}.")
        return sigma

    def _check_same_columns(self, other: Moments, verb: str) -> None:
        if self.n != other.n:
            raise ValueError(f"cannot {verb} moments of different columns: {self.n} and {other.n} of them.")
        if self.names is not None and other.names is not None and self.names != other.names:
            j = next(i for i, (a, b) in enumerate(zip(self.names, other.names, strict=True)) if a != b)
            raise ValueError(
                f"cannot {verb} moments of different columns: column {j} is {self.names[j]!r} here and "
                f"{other.names[j]!r} there. Reorder with take()."
            )


class Accumulator:
    """Moments in the making: blocks of rows are added in place, in one n x n matrix and fixed buffers."""

    def __init__(self, n: int, dtype: np.dtype[Any], *, precision: str = "double") -> None:
        check_real(dtype)
        self._eight_bit = dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize == 1)
        self._offset = 128.0 if dtype == np.uint8 else 0.0
        self._single = precision == "single" and dtype in (np.float32, np.float16)
        self._rows = 0
        self._weight = 0.0
        self._exact = self._eight_bit
        self._shift = np.full(n, self._offset)
        self._total = np.zeros(n)
        self._product = np.zeros((n, n))
        work = np.float32 if self._eight_bit or self._single else np.float64
        self._buffer = np.empty((block_rows(n, dtype, precision), n), work)
        self._tile = np.empty((min(n, TILE), n), work)

    def add(self, block: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        """Add the rows of a block; a value that is not finite is a `NotFiniteError` that gives its place."""
        integral = weights is None or weights.dtype.kind in "iub"
        if self._eight_bit and not integral:
            self._leave_exactness()
        step = len(self._buffer)
        for start in range(0, len(block), step):
            piece = block[start : start + step]
            w = None if weights is None else weights[start : start + step].astype(np.float64)
            try:
                self._add_exact(piece, w) if self._eight_bit else self._add_about_mean(piece, w)
            except NotFiniteError as error:
                raise NotFiniteError(start + error.row, error.column, error.value) from None
        self._rows += len(block)
        self._exact = self._exact and self._weight <= EXACT_WEIGHT

    def moments(self, *, names: tuple[str, ...] | None = None) -> Moments:
        """Hand over what was added; the accumulator must not be used after."""
        _mirror(self._product)
        return Moments(
            self._rows, self._weight, self._shift, self._total, self._product, self._exact, names=names
        )

    def _leave_exactness(self) -> None:
        """Go on in float64, as for any other dtype: weights with fractions cannot be exact."""
        self._eight_bit = self._exact = False
        self._buffer = self._buffer.astype(np.float64)
        self._tile = self._tile.astype(np.float64)

    def _add_exact(self, piece: NDArray[Any], weights: Array | None) -> None:
        X = self._buffer[: len(piece)]
        np.subtract(piece, np.float32(self._offset), out=X, casting="unsafe")
        if weights is None:
            self._weight += len(piece)
            self._total += np.ones(len(piece), np.float32) @ X
            self._add_products(X)
        else:  # products times a weight outgrow float32, not float64
            self._weight += float(weights.sum())
            wide = X.astype(np.float64)
            self._total += weights @ wide
            self._product += (wide * weights[:, None]).T @ wide

    def _add_about_mean(self, piece: NDArray[Any], weights: Array | None) -> None:
        X = self._buffer[: len(piece)]
        weight = float(len(piece) if weights is None else weights.sum())
        if weight == 0:
            return
        w = np.ones(len(piece)) if weights is None else weights
        np.copyto(X, piece, casting="unsafe")
        mean = (w.astype(X.dtype) @ X).astype(np.float64) / weight
        if not np.all(np.isfinite(mean)):
            _raise_not_finite(piece)
        # The shift in the buffer's own precision, so that what is subtracted is what is recorded.
        shift = mean.astype(X.dtype)
        np.subtract(X, shift, out=X)
        total = (w.astype(X.dtype) @ X).astype(np.float64)
        if weights is not None:
            np.multiply(X, np.sqrt(weights)[:, None], out=X, casting="unsafe")
        self._add_products(X)
        self._move_to_merged_mean(weight, shift.astype(np.float64), total)

    def _move_to_merged_mean(self, weight: float, shift: Array, total: Array) -> None:
        """Put the matrix, a sum about its old mean and about the block's, about the mean of all."""
        block = (weight, shift, total)
        if self._weight > 0:
            terms, block = _common_shift((self._weight, self._shift, self._total), block)
            _add_outer(self._product, terms)
        self._weight, self._shift, self._total = block

    def _add_products(self, X: NDArray[Any]) -> None:
        """Add X'X to the upper triangle, tile by tile: SYRK on the diagonal, GEMM right of it."""
        n = X.shape[1]
        for start, stop in _tiles(n):
            diagonal = self._tile[: stop - start, : stop - start] if n > TILE else self._tile
            np.matmul(X[:, start:stop].T, X[:, start:stop], out=diagonal)
            target = self._product[start:stop]
            np.add(target[:, start:stop], diagonal, out=target[:, start:stop])
            if stop < n:
                beside = self._tile[: stop - start, stop:]
                np.matmul(X[:, start:stop].T, X[:, stop:], out=beside)
                np.add(target[:, stop:], beside, out=target[:, stop:])


class NotFiniteError(ValueError):
    """A NaN or an infinity where numbers are needed, with its place in the block."""

    def __init__(self, row: int, column: int, value: float) -> None:
        super().__init__(f"values must be finite; row {row}, column {column} holds {value}.")
        self.row, self.column, self.value = row, column, value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.value)


def block_rows(n: int, dtype: np.dtype[Any], precision: str = "double") -> int:
    """Rows multiplied at once: enough to hide the addition of an n x n matrix, few enough to stay in cache."""
    short = dtype.itemsize == 1 or (precision == "single" and dtype.kind == "f" and dtype.itemsize <= 4)
    return EXACT_ROWS if short else int(np.clip(2**21 // n, 2048, 2**15))


def check_real(dtype: np.dtype[Any]) -> None:
    """Refuse what is not a matrix of real numbers."""
    if dtype.kind not in "biuf":
        raise TypeError(f"values must be real numbers (bool, integer or float); got dtype {dtype}.")


def checked_weights(weights: ArrayLike, rows: int) -> NDArray[Any]:
    """Return row weights as an array, or say what is wrong with them."""
    w = np.asarray(weights)
    check_real(w.dtype)
    if w.shape != (rows,):
        raise ValueError(f"weights must have one entry per row; got shape {w.shape} for {rows} rows.")
    if not np.all(w >= 0) or not np.all(np.isfinite(w)):
        bad = int(np.flatnonzero(~((w >= 0) & np.isfinite(w)))[0])
        raise ValueError(f"weights must be finite and not negative; row {bad} has {w[bad]}.")
    if rows and not np.any(w > 0):
        raise ValueError("weights must not all be zero; nothing would be left to add up.")
    return w


def column_indices(
    columns: Sequence[int] | Sequence[str] | NDArray[Any], n: int, names: tuple[str, ...] | None
) -> NDArray[np.intp]:
    """Turn column indices or names into indices, each valid and named once."""
    place = {name: i for i, name in enumerate(names or ())}
    index = []
    for column in columns:
        if isinstance(column, str):
            if column not in place:
                known = "these columns have no names" if names is None else "no column has that name"
                raise ValueError(f"column {column!r} is not there: {known}.")
            index.append(place[column])
        else:
            index.append(int(column))
    for i in index:
        if not 0 <= i < n:
            raise ValueError(f"a column index must be between 0 and {n - 1}; got {i}.")
    if len(set(index)) < len(index):
        twice = next(i for i in index if index.count(i) > 1)
        raise ValueError(f"a column must be given once; got {twice} {index.count(twice)} times.")
    return np.array(index, dtype=np.intp)


def _vector(values: ArrayLike, n: int, what: str) -> Array:
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (n,):
        raise ValueError(f"{what} must have one value per column; got shape {vector.shape} for {n} columns.")
    return vector


def _raise_not_finite(piece: NDArray[Any]) -> None:
    bad = np.argwhere(~np.isfinite(piece))
    if len(bad) == 0:
        raise OverflowError("the sum of a column exceeds the range of float64; divide the data by a constant first.")
    row, column = (int(i) for i in bad[0])
    raise NotFiniteError(row, column, float(piece[row, column]))


def _merge_parts(a: tuple[Moments, ...], b: tuple[Moments, ...], what: str) -> tuple[Moments, ...]:
    if len(a) != len(b):
        raise ValueError(f"both moments must have the same number of {what}; got {len(a)} and {len(b)}.")
    return tuple(x.merge(y) for x, y in zip(a, b, strict=True))


def _merge_numbers(a: Moments, b: Moments, sign: float = 1.0) -> Moments:
    """Add (or with ``sign=-1`` subtract) the rows of ``b``, names and parts aside."""
    rows, dropped = a.rows + int(sign) * b.rows, a.dropped + int(sign) * b.dropped
    weight = a.weight + sign * b.weight
    if b.weight == 0 or weight == 0 or a.weight == 0:
        keep = a if b.weight == 0 else b
        cleared = weight == 0
        return Moments(
            rows,
            weight,
            keep.shift,
            np.zeros(a.n) if cleared else keep.total,
            np.zeros((a.n, a.n)) if cleared else keep.product,
            keep.exact,
            dropped,
        )
    if a.exact and b.exact:
        b = _near(b, a.shift)
        total, product = a.total + sign * b.total, a.product + sign * b.product
        return Moments(rows, weight, a.shift, total, product, weight <= EXACT_WEIGHT, dropped)
    terms, (weight, shift, total) = _common_shift(
        (a.weight, a.shift, a.total), (b.weight, b.shift, b.total), sign
    )
    product = a.product + b.product if sign > 0 else a.product - b.product
    _add_outer(product, terms)
    _mirror(product)
    return Moments(rows, weight, shift, total, product, False, dropped)


_Sums = tuple[float, Array, Array]  # weight, shift, total


def _common_shift(a: _Sums, b: _Sums, sign: float = 1.0) -> tuple[list[tuple[Array, Array]], _Sums]:
    """Return the outer products that put both product sums about the common mean, and the merged sums.

    Moving a sum Q about c to c + d adds w d d' - s d' - d s'. Chan, Golub and LeVeque (1983) for s = 0.
    """
    (w_a, c_a, s_a), (w_b, c_b, s_b) = a, b
    weight = w_a + sign * w_b
    mean_a, mean_b = c_a + s_a / w_a, c_b + s_b / w_b
    mean = mean_a + (mean_b - mean_a) * (sign * w_b / weight)
    d_a, d_b = mean - c_a, mean - c_b
    terms = [(d_a, w_a * d_a - s_a), (s_a, -d_a), (d_b, sign * (w_b * d_b - s_b)), (s_b, -sign * d_b)]
    return terms, (weight, mean, (s_a - w_a * d_a) + sign * (s_b - w_b * d_b))


def _near(exact: Moments, point: Array) -> Moments:
    """Move exact moments to the integers nearest to ``point``; every number stays an exact integer."""
    shift = np.rint(point)
    d = shift - exact.shift
    if not d.any():
        return exact
    product = np.array(exact.product)
    _add_outer(product, [(d, exact.weight * d - exact.total), (exact.total, -d)])
    return replace(exact, shift=shift, total=exact.total - exact.weight * d, product=product)


def _tiles(n: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, TILE):
        yield start, min(start + TILE, n)


def _add_outer(G: Array, terms: list[tuple[Array, Array]]) -> None:
    """Add the outer products u v' to G in place, a band of rows at a time."""
    U = np.stack([u for u, _ in terms], axis=1)
    V = np.stack([v for _, v in terms])
    for start in range(0, len(G), 256):
        G[start : start + 256] += U[start : start + 256] @ V


def _mirror(G: Array) -> None:
    """Copy the upper triangle to the lower one, so that G is symmetric to the last bit."""
    for start in range(0, len(G), 256):
        stop = min(start + 256, len(G))
        corner = G[start:stop, start:stop]
        corner[...] = np.triu(corner) + np.triu(corner, 1).T
        G[stop:, start:stop] = G[start:stop, stop:].T

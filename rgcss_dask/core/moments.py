"""The moments of a matrix: all that the rest of the package ever needs to know of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.sparse_rows import SparseRows

Array = NDArray[np.float64]

# Signed 8-bit products are at most 2**14, so a float32 sum of 1024 of them is at most 2**24: still exact.
EXACT_ROWS = 1024
# A raw 8-bit product is below 2**16, so that up to this weight every float64 sum of them is exact.
EXACT_WEIGHT = 2.0**37
# Columns of the upper triangle done at once, so that no second n x n matrix is needed when n is large.
TILE = 2048
# A column whose spread is below this share of its mean holds one value and rounding.
CONSTANT = 16 * np.finfo(np.float64).eps
# A mean whose square is so many variances costs the product sum one digit of sixteen: move the shift.
DRIFT = 16.0
# Rows are multiplied as they are only where that costs no more than a bit.
UNSHIFTED = 1.0
# Rows looked at to judge where a block lies and how wide it spreads.
SAMPLE = 64


@dataclass(frozen=True, eq=False)
class Moments:
    """Row count, column sums and product sums of a matrix about a shift, as a value that adds up.

    With x a row and w its weight: ``total`` is the sum of w (x - shift) and ``product`` the sum of
    w (x - shift)(x - shift)'. For floats the shift is the mean, so a mean 1e8 times the spread costs no
    digits; for 8-bit integers it is a constant, every number is an exact integer, and merging is an addition.

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
    def of(cls, block: ArrayLike, weights: ArrayLike | None = None, *, names: Iterable[str] | None = None) -> Moments:
        """Take the moments of a block of rows.

        Parameters
        ----------
        block : (m, n) array of any real dtype. 8-bit integers and booleans give exact integers, at
            single-precision speed.
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

    def merge(self, other: Moments, *, overwrite: bool = False) -> Moments:
        """Add the rows of ``other``: equal to the moments of both blocks stacked.

        An addition where the shifts agree, otherwise the update of Chan, Golub and LeVeque (1983).
        ``overwrite`` lets the result take the memory of this value, which must not be used after.
        """
        self._check_same_columns(other, "merge")
        merged = _merge_numbers(self, other, overwrite=overwrite)
        return replace(
            merged,
            names=self.names if self.names is not None else other.names,
            folds=_merge_parts(self.folds, other.folds, "folds"),
            groups=_merge_parts(self.groups, other.groups, "groups"),
        )

    def minus(self, other: Moments) -> Moments:
        """Take the rows of ``other`` away again: an old window, for example.

        Exact integers stay exact. With floats, digits are lost where ``other`` is larger than what remains;
        merging what remains is better when it is at hand. Parts kept apart are not carried over.
        """
        self._check_same_columns(other, "subtract")
        if other.weight > self.weight or other.rows > self.rows:
            raise ValueError(
                f"cannot subtract more than is there: {other.rows} rows of weight {other.weight:g} "
                f"from {self.rows} rows of weight {self.weight:g}."
            )
        left = _merge_numbers(self, other, sign=-1.0)
        # What cancels may come out a little below zero; what is far below was never part of these rows.
        diagonal = np.einsum("ii->i", left.product)
        if np.any(diagonal < -1e-9 * np.diagonal(self.product)):
            worst = int(np.argmin(diagonal))
            raise ValueError(
                f"cannot subtract more than is there: column {worst} would be left with a negative sum of "
                "squares; these rows were not part of the moments."
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

    def gram(self, center: bool | ArrayLike = False, scale: float | str | ArrayLike | None = None) -> Array:
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

    def __init__(
        self,
        n: int,
        dtype: np.dtype[Any],
        *,
        precision: str = "double",
        threads: int = 1,
        beside: Accumulator | None = None,
    ) -> None:
        """Start with no rows; ``beside`` another accumulator of the same kind of rows, share its buffers.

        ``threads`` divide the tiles of a large matrix among them, with BLAS at one thread each.
        """
        self._work: _Workspace = _Workspace(n, dtype, precision, threads) if beside is None else beside._work
        self._rows = 0
        self._weight = 0.0
        self._shift = np.full(n, self._work.offset)
        self._total = np.zeros(n)
        self._product = np.zeros((n, n))

    def add(
        self, block: NDArray[Any] | SparseRows, weights: NDArray[Any] | None = None, *, also: Sequence[Accumulator] = ()
    ) -> None:
        """Add the rows of a block; a value that is not finite is a `NotFiniteError` that gives its place.

        ``also`` names further accumulators, which get the same rows for an addition instead of a product.
        """
        targets = (self, *also)
        if isinstance(block, SparseRows):
            if not self._work.exact and block.pays and _add_sparse(block, weights, targets):
                return
            block = np.asarray(block)
        if self._work.exact and weights is not None and weights.dtype.kind == "f":
            self._work.leave_exactness()
        for start in range(0, len(block), self._work.rows):
            piece = block[start : start + self._work.rows]
            w = None if weights is None else weights[start : start + len(piece)].astype(np.float64)
            try:
                # Whatever is not finite is found, and its place given, by the kernel itself.
                with np.errstate(invalid="ignore", over="ignore"):
                    (_add_exact if self._work.exact else _add_near_mean)(self._work, piece, w, targets)
            except NotFiniteError as error:
                raise NotFiniteError(start + error.row, error.column, error.value) from None
        for target in targets:
            target._rows += len(block)

    def moments(self, *, names: tuple[str, ...] | None = None, dropped: int = 0) -> Moments:
        """Hand over what was added; the accumulator must not be used after."""
        if not np.all(np.isfinite(np.diagonal(self._product))):
            column = int(np.flatnonzero(~np.isfinite(np.diagonal(self._product)))[0])
            raise OverflowError(
                f"the sum of squares of column {column} exceeds the range of float64; "
                "divide the data by a constant first."
            )
        exact = self._work.exact and self._weight <= EXACT_WEIGHT
        if not exact and self._weight > 0:
            self._move(self._shift + self._total / self._weight)
        _mirror(self._product)
        return Moments(self._rows, self._weight, self._shift, self._total, self._product, exact, dropped, names)

    def _move(self, shift: Array) -> None:
        """Put the sums about another shift: Q about c + d is Q + w d d' - s d' - d s'."""
        d = shift - self._shift
        if d.any():
            _add_outer(self._product, [(d, self._weight * d - self._total), (self._total, -d)])
            self._total = self._total - self._weight * d
        self._shift = shift

    def _take(self, weight: float, shift: Array, total: Array) -> None:
        """Count in a block whose products were added about ``shift``."""
        if self._weight == 0:
            self._shift, self._total = shift, total
        elif np.array_equal(shift, self._shift):
            self._total = self._total + total
        else:  # the sums now in the matrix are about two shifts: put both about the common mean
            terms, (_, self._shift, self._total) = _common_shift(
                (self._weight, self._shift, self._total), (weight, shift, total)
            )
            _add_outer(self._product, terms)
        self._weight += weight


class _Workspace:
    """The buffers in which a block of rows is converted, shifted and multiplied with itself."""

    def __init__(self, n: int, dtype: np.dtype[Any], precision: str, threads: int = 1) -> None:
        check_real(dtype)
        self.exact = dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize == 1)
        self.offset = 128.0 if dtype == np.uint8 else 0.0
        self.shift: NDArray[Any] | None = None  # (n,) that of the last block, unless exact
        self.rows = block_rows(n, dtype, precision)
        single = self.exact or (precision == "single" and dtype in (np.float32, np.float16))
        work = np.float32 if single else np.float64
        self.buffer: NDArray[Any] = np.empty((self.rows, n), work)
        self.ones: NDArray[Any] = np.ones(self.rows, work)
        threads = threads if n > TILE else 1
        self._tiles = [np.empty((min(n, TILE), min(n, TILE)), work) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads, "rgcss-tile") if threads > 1 else None

    def leave_exactness(self) -> None:
        """Go on in float64, as for any other dtype: weights with fractions cannot be exact."""
        self.exact = False
        self.buffer, self.ones = np.empty_like(self.buffer, dtype=np.float64), self.ones.astype(np.float64)
        self._tiles = [np.empty_like(tile, dtype=np.float64) for tile in self._tiles]

    def shifted(self, piece: NDArray[Any], shift: NDArray[Any] | np.floating[Any]) -> NDArray[Any]:
        """Return the rows less ``shift`` in the buffer, or as they are where there is nothing to do."""
        X = self.buffer[: len(piece)]
        if not np.any(shift):
            if piece.dtype == X.dtype and piece.flags.c_contiguous:
                return piece
            np.copyto(X, piece, casting="unsafe")
            return X
        if piece.dtype == X.dtype:
            np.subtract(piece, shift, out=X)
            return X
        for start in range(0, len(X), 64):  # convert, then subtract what is still in cache
            part = X[start : start + 64]
            np.copyto(part, piece[start : start + 64], casting="unsafe")
            np.subtract(part, shift, out=part)
        return X

    def add_products(self, X: NDArray[Any], targets: Sequence[Accumulator]) -> None:
        """Add X'X to the upper triangles, tile by tile: SYRK on the diagonal, GEMM right of it."""

        def add_tile(rows: slice, columns: slice) -> None:
            tile = self._tiles.pop()
            product = tile[: rows.stop - rows.start, : columns.stop - columns.start]
            np.matmul(X[:, rows].T, X[:, columns], out=product)
            for target in targets:
                corner = target._product[rows, columns]
                np.add(corner, product, out=corner)
            self._tiles.append(tile)

        tiles = list(_upper_tiles(X.shape[1]))
        if self._pool is None:
            for rows, columns in tiles:
                add_tile(rows, columns)
        else:  # tiles are the same for any number of threads, and so are the bits
            list(self._pool.map(add_tile, *zip(*tiles, strict=True)))


def _add_exact(work: _Workspace, piece: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]) -> None:
    X = work.shifted(piece, np.float32(work.offset))
    if weights is None:
        weight, total = float(len(piece)), (work.ones[: len(X)] @ X).astype(np.float64)
        work.add_products(X, targets)
    else:  # products times a weight outgrow float32, not float64
        wide = X.astype(np.float64)
        weight, total = float(weights.sum()), weights @ wide
        product = (wide * weights[:, None]).T @ wide
        for target in targets:
            target._product += product
    for target in targets:
        target._take(weight, target._shift, total)


def _add_near_mean(
    work: _Workspace, piece: NDArray[Any], weights: Array | None, targets: Sequence[Accumulator]
) -> None:
    """Add products about a shift near enough to the block's mean that centring costs no digits.

    That is the shift of the blocks before, at first zero, so that adding needs no move, nor even a copy of the rows,
    unless the data lie elsewhere.
    """
    weight = float(len(piece) if weights is None else weights.sum())
    if weight == 0:
        return
    # In the buffer's own precision, so that what is subtracted is what is recorded.
    shift = np.zeros(piece.shape[1], work.buffer.dtype) if work.shift is None else work.shift
    X = work.shifted(piece, shift)
    w = work.ones[: len(X)] if weights is None else weights.astype(X.dtype)
    total = (w @ X).astype(np.float64)
    if not np.all(np.isfinite(total)):
        _raise_not_finite(piece)
    d = total / weight
    if _has_drifted(X, d, shift, DRIFT if shift.any() else UNSHIFTED):
        shift = (shift + d).astype(X.dtype)
        X = work.shifted(piece, shift)
        total = (w @ X).astype(np.float64)
    work.shift = shift
    if weights is not None:
        X = np.multiply(X, np.sqrt(weights)[:, None], out=work.buffer[: len(X)], casting="unsafe")
    work.add_products(X, targets)
    for target in targets:
        target._take(weight, shift.astype(np.float64), total)


def _add_sparse(block: SparseRows, weights: NDArray[Any] | None, targets: Sequence[Accumulator]) -> bool:
    """Add products about zero, unless a column lies so far from it that centring would cost digits."""
    w = np.ones(len(block)) if weights is None else weights.astype(np.float64)
    weight = float(w.sum())
    total, squares = block.sums(w)
    if not np.all(np.isfinite(squares)):
        return False  # the dense way finds the place
    if weight > 0:
        mean = total / weight
        if np.any(mean**2 > DRIFT * np.maximum(squares / weight - mean**2, 0.0)):
            return False
        for target in targets:
            block.add_products(w, target._product)
            target._take(weight, np.zeros(len(total)), total)
    for target in targets:
        target._rows += len(block)
    return True


def _has_drifted(X: NDArray[Any], d: Array, shift: NDArray[Any], limit: float) -> bool:
    """Tell whether the mean of the shifted rows X is so far from 0 that a product about 0 loses digits."""
    variance = X[:: max(1, len(X) // SAMPLE)].var(axis=0)
    rounding = 4 * np.finfo(X.dtype).eps * np.abs(shift)
    return bool(np.any(d**2 > limit * variance + rounding**2))


class NotFiniteError(ValueError):
    """A NaN or an infinity where numbers are needed, with its place in the block."""

    def __init__(self, row: int, column: int, value: float, where: str = "") -> None:
        super().__init__(
            f"values must be finite; row {row}, column {column} {f'of {where} ' if where else ''}holds {value}. "
            "Use nan='drop' or nan='mean' to leave out rows with NaN or to fill it."
        )
        self.row, self.column, self.value, self.where = row, column, value, where

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.column, self.value, self.where)


def block_rows(n: int, dtype: np.dtype[Any], precision: str = "double") -> int:
    """Rows multiplied at once: many enough to hide the addition of an n x n matrix, and no more."""
    short = dtype.itemsize == 1 or (precision == "single" and dtype.kind == "f" and dtype.itemsize <= 4)
    return EXACT_ROWS if short else int(np.clip(2**21 // n, 1024, 2**15))


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


def _merge_numbers(a: Moments, b: Moments, sign: float = 1.0, overwrite: bool = False) -> Moments:
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
    combine = np.add if sign > 0 else np.subtract
    out = a.product if overwrite and a.product.flags.writeable else np.empty_like(a.product)
    if a.exact and b.exact:
        b = _near(b, a.shift)
        total, product = combine(a.total, b.total), combine(a.product, b.product, out=out)
        return Moments(rows, weight, a.shift, total, product, weight <= EXACT_WEIGHT, dropped)
    terms, (weight, shift, total) = _common_shift((a.weight, a.shift, a.total), (b.weight, b.shift, b.total), sign)
    product = combine(a.product, b.product, out=out)
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


def _upper_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of the tiles on and right of the diagonal."""
    strips = [slice(start, min(start + TILE, n)) for start in range(0, n, TILE)]
    for i, rows in enumerate(strips):
        for columns in strips[i:]:
            yield rows, columns


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

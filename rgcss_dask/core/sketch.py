"""Rows added up into a few, with random signs: a picture of any number of columns that merges as moments do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core import kernels
from rgcss_dask.core.accumulate import check_real, checked_rows, checked_weights, raise_not_finite
from rgcss_dask.core.hashing import hashed
from rgcss_dask.core.integers import EXACT_WEIGHT, is_exact
from rgcss_dask.core.missing import plain
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.precision import ROUNDING, doubt_of_values, resolution
from rgcss_dask.core.rectangle import Rectangle
from rgcss_dask.core.sparse_rows import SparseRows
from rgcss_dask.core.words import counted

Array = NDArray[np.float64]
RowNumbers = NDArray[np.uint64]

# Rows of a sketch for each column that is to be picked, by default: more lower the error as their root does.
ROWS_PER_PICK = 10
# With fewer for each pick, the picks are poor.
FEW_PER_PICK = 4
# Bytes of a sketch of some columns, for all its rows, that the second cache of a core holds beside the data.
_CACHED = 2**18
# So many squares of 8 bits, and sums of so many values, fit 32 bits.
_ROWS_OF_BYTES = 2**15


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(Rectangle):
    """Moments of which the products are estimated from d rows: each row of the data, with a random sign, is in one.

    ``product`` is the sketch of the rows less the shift, (d, n); which of its rows a row is added to, and with which
    sign, is drawn by the number of the row and a seed. Column sums and sums of squares are exact, and so are centring
    and scaling. Losses are estimates, with an error that falls as one over the root of d; picks are followed by an
    exact second pass in `select_wide`. `scan` makes a sketch with ``sketch=d``.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rows = np.random.default_rng(0).normal(size=(5000, 3)) @ np.random.default_rng(1).normal(size=(3, 40))
    >>> sketch = rg.scan(rows, sketch=60)
    >>> sketch
    <Sketch in 60 rows of 5,000 rows and 40 columns>
    >>> len(rg.select(sketch, 2))
    2
    """

    ones: Array = field(kw_only=True)  #: (d,) the sketch of a column of ones, by which it is centred
    seed: int = field(kw_only=True)  #: of the rows and signs drawn
    seen: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)  #: numbers of the rows in it; () for parts

    KIND: ClassVar[str] = "sketch"
    ARRAYS: ClassVar[tuple[str, ...]] = (*Rectangle.ARRAYS, "ones")
    NUMBERS: ClassVar[tuple[str, ...]] = (*Moments.NUMBERS, "seed", "seen")
    SUMS: ClassVar[tuple[str, ...]] = (*Rectangle.SUMS, "ones")
    _way_out: ClassVar[str] = (
        "A sketch estimates them: for exact losses, weights and bounds finish with rgcss_dask.select_wide(source, k)."
    )

    @classmethod
    def of(  # type: ignore[override]
        cls,
        block: ArrayLike,
        rows: int,
        weights: ArrayLike | None = None,
        *,
        first: int = 0,
        seed: int = 0,
        names: Iterable[str] | None = None,
    ) -> Sketch:
        """Sketch a block of rows.

        Parameters
        ----------
        block : array-like of shape (m, n)
            Rows of any real dtype.
        rows : int
            Rows of the sketch, d.
        weights : array-like of shape (m,), optional
            Non-negative row weights.
        first : int, default=0
            Number of the first row: rows that are to be in one sketch must have numbers of their own.
        seed : int, default=0
            Seed of the draws.
        names : iterable of str, optional
            Names of the n columns.

        Returns
        -------
        Sketch
            The sketch of these rows.
        """
        X = plain(block)
        if X.ndim != 2 or X.shape[1] == 0:
            raise ValueError(f"a block must have rows and columns; got shape {X.shape}.")
        sums = SketchSums(X.shape[1], X.dtype, rows, seed)
        numbers = np.arange(first, first + len(X), dtype=np.uint64)
        sums.add(X, numbers, None if weights is None else checked_weights(weights, len(X)))
        called = None if names is None else tuple(names)
        return replace(sums.finished(), names=called, seen=((first, first + len(X)),))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seen", tuple((int(a), int(b)) for a, b in self.seen))

    @property
    def height(self) -> int:
        """Rows of the sketch, d."""
        return len(self.ones)

    @property
    def _title(self) -> str:
        return f"Sketch in {counted(self.height, 'row')}"

    def _check_same_columns(self, other: Moments, verb: str) -> None:
        super()._check_same_columns(other, verb)
        if not isinstance(other, Sketch):
            return
        if (self.height, self.seed) != (other.height, other.seed):
            raise ValueError(
                f"cannot {verb} sketches that were drawn differently: {self.height} rows with seed {self.seed} here, "
                f"{other.height} with seed {other.seed} there. Scan both with the same sketch= and seed=."
            )
        twice = [(a, b) for a in self.seen for b in other.seen if max(a[0], b[0]) < min(a[1], b[1])]
        if verb == "merge" and twice:
            (start, stop), _ = twice[0]
            raise ValueError(
                f"rows in one sketch must have numbers of their own, or their signs agree; rows {start:,} to "
                f"{stop - 1:,} are in both. Scan all sources in one pass: scan([first, second], sketch=...)."
            )

    def _merged(self, other: Moments, sign: float = 1.0, *, overwrite: bool = False) -> Moments:
        merged = super()._merged(other, sign, overwrite=overwrite)
        assert isinstance(other, Sketch)  # of the same kind: it was checked
        assert isinstance(merged, Sketch)
        seen = _united(self.seen + other.seen) if sign > 0 else ()
        return replace(merged, seen=seen)

    def of_rows(self, ranges: Iterable[tuple[int, int]]) -> Sketch:
        """Return the same with the numbers of the rows in it, those that were there and these."""
        return replace(self, seen=_united((*self.seen, *ranges)))

    def times(self, count: float) -> Sketch:
        """Return the sums of every row so many times: the root of that in the sketch, whose squares are sums."""
        root = float(np.sqrt(count))
        known = super().times(count)
        return replace(known, product=root * self.product, ones=root * self.ones, exact=known.exact and root % 1 == 0)

    def _product_about(self, d: Array) -> Array:
        return self.product - np.outer(self.ones, d)

    def _moved_matrix(
        self, constant: NDArray[np.bool_], d: Array, terms: list[tuple[Array, Array]], sigma: Array
    ) -> Array:
        F = np.array(self.product)
        F[:, constant] = 0.0
        for row, one in zip(F, self.ones, strict=True):
            row -= one * d
        F /= sigma
        return F

    def factor(
        self, center: bool | ArrayLike, scale: float | str | ArrayLike | None, rest: Array | None = None
    ) -> Array:
        """Return the prepared sketch: F with F'F an estimate of the Gram, (d, n)."""
        return self.prepared(center, scale, rest=rest)[0]


def _united(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join ranges that touch."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


class SketchSums:
    """A sketch in the making: each row is added in place."""

    def __init__(self, n: int, dtype: np.dtype[Any], rows: int, seed: int) -> None:
        check_real(dtype)
        self._n, self._dtype, self._height, self._seed = n, dtype, checked_rows(rows), seed
        self._product = np.zeros((rows, n))
        self._ones = np.zeros(rows)
        self._total, self._squares = np.zeros(n), np.zeros(n)
        self._shift: Array | None = None
        self._rows, self._weight, self._whole = 0, 0.0, is_exact(dtype)
        self._unadded = 0  # rows that are in 32 bits only

    def add(self, block: NDArray[Any] | SparseRows, numbers: RowNumbers, weights: NDArray[Any] | None = None) -> None:
        """Add the rows of a block, given their numbers; a value that is not finite is an error that gives its place."""
        if len(block) == 0:
            return
        block = block if isinstance(block, SparseRows) else np.ascontiguousarray(block)
        places, signs = drawn(numbers, self._height, self._seed)
        w = np.ones(len(block)) if weights is None else weights.astype(np.float64)
        self._whole &= weights is None
        roots = signs * np.sqrt(w)
        with np.errstate(invalid="ignore", over="ignore"):
            self._add(block, places, signs, roots, w, weighted=weights is not None)
            if not np.all(np.isfinite(self._squares)):
                raise_not_finite(np.asarray(block))
        self._ones += np.bincount(places, roots, self._height)
        self._rows += len(block)
        self._weight += float(w.sum())

    def _add(
        self,
        block: NDArray[Any] | SparseRows,
        places: NDArray[np.int64],
        signs: Array,
        roots: Array,
        w: Array,
        *,
        weighted: bool,
    ) -> None:
        if isinstance(block, SparseRows):
            self._begin(np.zeros(self._n))
            block.add_signed(places, roots, w, self._product, self._total, self._squares)
        elif is_exact(self._dtype) and not weighted:
            self._begin(np.zeros(self._n))
            self._add_bytes(block, places, signs)
        else:
            shift = self._begin(block[:_NEAR].mean(axis=0, dtype=np.float64))
            step = max(1, _CACHED // (8 * self._height))
            for start in range(0, self._n, step):
                stop = min(start + step, self._n)
                sums = (self._product, self._total, self._squares)
                kernels.add_signed_rows(block, start, stop, shift, places, roots, w, *sums)

    def _add_bytes(self, block: NDArray[Any], places: NDArray[np.int64], signs: Array) -> None:
        """Add 8-bit integers in 32 bits, a strip of columns at a time, so that the strip of the sketch stays cached."""
        plus = signs.astype(np.int32)
        block = block.view(np.uint8) if block.dtype == np.bool_ else block
        for top in range(0, len(block), _ROWS_OF_BYTES):
            rows = slice(top, min(top + _ROWS_OF_BYTES, len(block)))
            if self._unadded + rows.stop - rows.start > _ROWS_OF_BYTES:
                self._add_strips()
            self._unadded += rows.stop - rows.start
            for start, (strip, sums) in self._strips.items():
                kernels.add_signed_bytes(block[rows], start, places[rows], plus[rows], strip, sums[0], sums[1])

    @cached_property
    def _strips(self) -> dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """The sums in 32 bits of some columns each, by the first of them."""
        step, n = max(64, _CACHED // (4 * self._height)), self._n
        widths = {start: min(step, n - start) for start in range(0, n, step)}
        return {a: (np.zeros((self._height, w), np.int32), np.zeros((2, w), np.int32)) for a, w in widths.items()}

    def _add_strips(self) -> None:
        """Add the sums in 32 bits to those in 64, before they may overflow."""
        if self._unadded == 0:
            return
        for start, (strip, sums) in self._strips.items():
            columns = slice(start, start + strip.shape[1])
            self._product[:, columns] += strip
            self._total[columns] += sums[0]
            self._squares[columns] += sums[1]
            strip.fill(0)
            sums.fill(0)
        self._unadded = 0

    def _begin(self, shift: Array) -> Array:
        """Keep to the first shift, which need only be near: what is not finite is found later."""
        if self._shift is None:
            self._shift = np.where(np.isfinite(shift), shift, 0.0)
        return self._shift

    def finished(self) -> Sketch:
        """Hand over what was added."""
        self._add_strips()
        shift = self._begin(np.zeros(self._n))
        exact = self._whole and self._weight <= EXACT_WEIGHT
        mean = shift + self._total / self._weight if self._weight > 0 else shift
        rounding = ROUNDING * self._squares + doubt_of_values(self._weight, mean, resolution(self._dtype))
        return Sketch(
            self._rows,
            self._weight,
            shift,
            self._total,
            self._product,
            np.zeros(self._n) if exact else rounding,
            exact,
            column_squares=self._squares,
            ones=self._ones,
            seed=self._seed,
        )


# Rows whose mean is near enough to subtract before squares are added up.
_NEAR = 64


def drawn(numbers: RowNumbers, height: int, seed: int) -> tuple[NDArray[np.int64], Array]:
    """Return for each row number the row of the sketch that it is added to, and its sign."""
    bits = hashed(numbers, seed, stream=2)
    places = ((bits >> np.uint64(1)) % np.uint64(height)).astype(np.int64)
    return places, np.where(bits & np.uint64(1), 1.0, -1.0)

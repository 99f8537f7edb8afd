"""What a pass reads and what it computes: the shape and cuts of the rows, the options, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.input_checks import checked_rows, is_whole

Cuts = NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
    """What the plan of a pass depends on, so that every machine cuts the same rows in the same places."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    cuts: Cuts  # first row, end of the last row, and each row between them where a read may begin
    whole: bool = False  # whether a span is read at once, as a block of a Dask array is
    sparse_bytes: int = 0  # mean bytes of a row that is read as a sparse one; 0 for dense rows
    beside: int | None = None  # bytes held beside the rows if chunks are decoded one after another into their place
    masked: bool = False  # whether a mask selects rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one dense row."""
        return max(1, self.columns * self.dtype.itemsize)

    def bytes_read(self, options: Options) -> int:
        """Bytes of one row as it is read; only sketches always take sparse rows without making them dense."""
        return self.sparse_bytes if self.sparse_bytes and options.sketch is not None else self.row_bytes


@dataclass(frozen=True)
class Options:
    """How the rows are processed, independent of their source."""

    folds: int = 0
    groups: int = 0
    seed: int = 0
    fraction: float | None = None
    nan: str = "raise"
    precision: str = "double"
    checksum: bool = False  # keep a checksum of the rows of each span
    noise: bool = False  # sum the squared differences of neighbouring rows
    group_rows: int | None = None  # the groups divide rows 0 to this; later rows make further groups of that size
    candidates: tuple[int, ...] | None = None  # columns whose products with all columns are summed; None: all
    sketch: int | None = None  # rows of a sketch that is computed instead of products
    blocks: bool = False  # folds are runs of neighbouring rows

    @property
    def matrices(self) -> int:
        """Matrices per part: imputation also needs the products of the gaps, or a sketch of them."""
        return 1 if self.nan != "mean" else 3 if self.sketch is None else 2

    @property
    def height(self) -> int:
        """Number of candidates of a band."""
        return len(self.candidates or ())

    def matrix_bytes(self, n: int) -> int:
        """Bytes of one matrix of sums over n columns."""
        if self.sketch is not None:
            return 8 * n * (self.sketch + 3)  # the sketch, the column sums, their squares and the shift
        return 8 * n * (n if self.candidates is None else len(self.candidates) + 1)

    def groups_among(self, rows: int) -> int:
        """Return the largest number of groups to which this many rows of a pass may belong."""
        if self.groups == 0 or self.group_rows is None:
            return self.groups
        return -(-rows * self.groups // self.group_rows) + 1  # the first group may have begun before these rows


def check_counts(rows: int, options: Options) -> None:
    """Refuse more folds or groups than the rows can fill, and options that exclude each other."""
    _check_parts(rows, options)
    _check_kind(options)
    if options.fraction is not None and not 0 < options.fraction <= 1:
        raise ValueError(f"rows as a fraction must be above 0 and at most 1; got {options.fraction}.")
    for what, value, known in _CHOICES:
        if getattr(options, what) not in known:
            raise ValueError(f"{what} must be one of {', '.join(map(repr, known))}; got {value(options)!r}.")


def _check_kind(options: Options) -> None:
    """Refuse combinations of options that cannot be computed."""
    if options.nan == "mean" and options.candidates is not None:
        raise ValueError(
            "gaps can be filled with means (nan='mean') where all products are added up, or a sketch; not with "
            "candidates=. Leave these out, read twice with rgcss_dask.select_wide(source, k, nan='mean'), drop rows "
            "with gaps (nan='drop'), or fill them before."
        )
    if options.candidates is not None and options.sketch is not None:
        raise ValueError("a pass adds up products of candidates or a sketch, not both: give one of them.")
    if options.sketch is not None:
        checked_rows(options.sketch)


def _check_parts(rows: int, options: Options) -> None:
    for what, count in (("folds", options.folds), ("groups", options.groups)):
        if not is_whole(count):
            raise ValueError(f"{what} must be a whole number; got {count!r}.")
        if count != 0 and not 2 <= count <= rows:
            raise ValueError(f"{what} must be between 2 and the number of rows, {rows:,}; got {count}.")
    if options.blocks and not options.folds:
        raise ValueError("blocks=True makes folds of neighbouring rows: say how many, such as folds=5.")


_CHOICES: Sequence[tuple[str, Any, tuple[str, ...]]] = (
    ("nan", lambda o: o.nan, ("raise", "drop", "mean")),
    ("precision", lambda o: o.precision, ("double", "single")),
)

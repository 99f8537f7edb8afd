"""Bootstrap resamples of row groups: their moments, computed from the sums of the groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import kernels, triangle
from rgcss_dask.core.evaluate import EPS
from rgcss_dask.core.integers import is_within
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.rectangle import Rectangle

Array = NDArray[np.float64]

# Rows of all groups' products processed at once: a buffer of groups x this x n.
BAND = 64


def resampled_moments(groups: Sequence[Moments], counts: Array) -> Iterator[Moments]:
    """Yield the sums of groups with multiplicities ``counts``, for each row of counts, of any kind."""
    if not isinstance(groups[0], Rectangle):
        yield from weighted_sums(groups, counts)
        return
    for count in counts:
        drawn = (group.times(times) for group, times in zip(groups, count, strict=True) if times)  # type: ignore[attr-defined]
        yield reduce(Moments.merge, drawn)


def weighted_sums(groups: Sequence[Moments], counts: Array) -> Iterator[Moments]:
    """Yield the moments of groups with multiplicities ``counts``, for each row of counts.

    All Grams come from one product of the counts with the groups' products, a band of rows at a time and only the upper
    triangle, so the groups are never copied whole. Each is then moved to the mean of its own resample: about one common
    shift, a single outlying group would cost every Gram its digits, even where it is not drawn.
    """
    n, resamples = groups[0].n, len(counts)
    products = np.empty((resamples, n, n))
    for start in range(0, n, BAND):
        stop = min(start + BAND, n)
        band = np.empty((len(groups), stop - start, n - start))
        for part, group in zip(band, groups, strict=True):
            part[...] = group.product[start:stop, start:]
        sums = (counts @ band.reshape(len(groups), -1)).reshape(resamples, stop - start, n - start)
        products[:, start:stop, start:] = sums
        products[:, stop:, start:stop] = sums[:, :, stop - start :].swapaxes(1, 2)
    sums_of_groups = _Groups.of(groups)
    for count, product in zip(counts, products, strict=True):
        yield sums_of_groups.resample(count, product)


@dataclass(frozen=True, eq=False)
class _Groups:
    """The sums of all groups without their products, (groups, ...)."""

    rows: Array
    weight: Array
    shift: Array
    total: Array
    rounding: Array
    off_mean: NDArray[np.bool_]  # (groups,) whether the shift differs from the mean significantly
    exact: bool  # sums of groups are exact integers
    names: tuple[str, ...] | None

    @classmethod
    def of(cls, groups: Sequence[Moments]) -> _Groups:
        rows, weight = (np.array([float(getattr(group, name)) for group in groups]) for name in ("rows", "weight"))
        shift, total, rounding = (
            np.array([getattr(g, name) for g in groups]) for name in ("shift", "total", "rounding")
        )
        squares = np.array([np.diagonal(group.product) for group in groups])
        off_mean = np.any(total**2 > weight[:, None] * (EPS * squares + rounding), axis=1)
        exact = all(group.exact for group in groups) and bool(np.all(shift == shift[0]))
        return cls(rows, weight, shift, total, rounding, off_mean, exact, groups[0].names)

    def resample(self, count: Array, product: Array) -> Moments:
        """Return the moments of a resample, from the weighted sum of the groups' products."""
        weight = count * self.weight
        if self.exact:
            shift, total = self.shift[0], count @ self.total
        else:
            shift, total = self._put_about_the_mean(weight, product)
        still_exact = self.exact and is_within(float(weight.sum()), shift, total, np.diagonal(product))
        numbers = (shift, total, product, count @ self.rounding, still_exact)
        return Moments(round(float(count @ self.rows)), float(weight.sum()), *numbers, names=self.names)

    def _put_about_the_mean(self, weight: Array, product: Array) -> tuple[Array, Array]:
        """Add w (D D' - t t') for each group: D goes from its mean to the new shift, t from its shift to its mean."""
        drawn = np.flatnonzero(weight)
        w, shifts = weight[drawn], self.shift[drawn]
        offsets = self.total[drawn] / self.weight[drawn, None]
        shift = shifts[0] + (w / w.sum()) @ (shifts - shifts[0] + offsets)
        D = (shift - shifts) - offsets
        off = self.off_mean[drawn]
        root = np.sqrt(w)[:, None]
        for tile in triangle.lower_tiles(len(shift)):
            triangle.add_products(root * D, product, *tile)
            if off.any():
                T = offsets[off]
                triangle.add_products(T, product, *tile, weighted=-w[off, None] * T)
        kernels.mirror(product)
        return shift, -(w @ D)


def planned_bytes(n: int, groups: int, k: int, at_once: int) -> int:
    """Return the bytes that `stability` needs besides the moments, to compute ``at_once`` Grams in one product."""
    band = min(BAND, n) * n * (groups + at_once + 3)  # of every group, of every resample, and temporary
    gram = 2 * n * n  # of the current resample: shifted and prepared
    vectors = n * (8 * groups + at_once + 2 * k + 64)
    return 8 * (at_once * n * n + band + gram + vectors)

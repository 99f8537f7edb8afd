from functools import reduce

import numpy as np
import pytest

from rgcss_dask.core.gaps import Gaps
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments


def with_gaps(rows, columns, share, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns)) + np.arange(columns) * 100.0
    A[rng.random(A.shape) < share] = np.nan
    return A


def imputed(A, w=None):
    w = np.ones(len(A)) if w is None else w
    mean = np.nansum(A * w[:, None], axis=0) / (w @ ~np.isnan(A))
    return np.where(np.isnan(A), mean, A)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.6])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_imputing_in_memory(share, weighted):
    A = with_gaps(500, 7, share)
    w = np.random.default_rng(1).random(500) if weighted else None
    pieces = [Gaps.of(A[a : a + 125], None if w is None else w[a : a + 125]) for a in range(0, 500, 125)]
    whole = reduce(Gaps.merge, pieces)
    got = whole.fill(whole.mean)
    wanted = Moments.of(imputed(A, w), w)
    np.testing.assert_allclose(got.mean, wanted.mean, rtol=1e-13)
    np.testing.assert_allclose(got.scatter, wanted.scatter, rtol=0, atol=1e-12 * wanted.scatter.max())
    np.testing.assert_allclose(got.gram(), wanted.gram(), rtol=1e-12)


def test_products_stay_symmetric_to_the_bit():
    """A checkpoint keeps half of them, and a resumed pass must have the same bits."""
    parts = [Gaps.of(block) for block in np.array_split(with_gaps(3_000, 30, 0.2), 7)]
    merged = reduce(Gaps.merge, parts)
    assert np.array_equal(merged.product, merged.product.T)


def test_a_part_is_filled_with_the_mean_of_the_whole():
    A = with_gaps(300, 4, 0.3)
    parts = [Gaps.of(A[:100]), Gaps.of(A[100:])]
    mean = parts[0].merge(parts[1]).mean
    wanted = Moments.of(imputed(A)[:100])
    np.testing.assert_allclose(parts[0].fill(mean).gram(), wanted.gram(), rtol=1e-12)


def test_a_column_that_begins_with_gaps_only():
    A = with_gaps(200, 3, 0.1)
    A[:100, 1] = np.nan
    whole = Gaps.of(A[:100]).merge(Gaps.of(A[100:]))
    np.testing.assert_allclose(whole.fill(whole.mean).scatter, Moments.of(imputed(A)).scatter, atol=1e-10)


def test_a_column_without_values_is_refused():
    A = with_gaps(20, 3, 0.1)
    A[:, 2] = np.nan
    with pytest.raises(ValueError, match="column 2 has none"):
        _ = Gaps.of(A).mean


def test_infinity_is_no_gap():
    A = with_gaps(20, 3, 0.1)
    A[7, 1] = np.inf
    with pytest.raises(NotFiniteError, match="row 7, column 1 holds inf"):
        Gaps.of(A)

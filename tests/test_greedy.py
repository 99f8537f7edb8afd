"""The greedy picks against brute force, in every shape and scale, and what it says to bad input."""

import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgcss_dask import Factor, Moments, Stop, select
from rgcss_dask.core import evaluate
from rgcss_dask.core.solver import kernels

OBJECTIVES = ["unselected", "all"]


def quiet_select(*args, **kwargs):
    """Select without the warnings about tiny lambdas and used-up rank, which have their own tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return select(*args, **kwargs)


@st.composite
def matrices(draw, max_rows=14, max_columns=9):
    """Tall, square and wide matrices; rank-deficient ones; duplicate, zero and constant columns."""
    m, n = draw(st.integers(1, max_rows)), draw(st.integers(1, max_columns))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rank = draw(st.integers(1, min(m, n)))
    A = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n)) if rank < min(m, n) else None
    A = rng.standard_normal((m, n)) if A is None else A
    for kind in draw(st.lists(st.sampled_from(["duplicate", "zero", "constant", "small"]), max_size=3)):
        i, j = rng.integers(n, size=2)
        A[:, j] = {"duplicate": A[:, i], "zero": 0.0, "constant": 3.0, "small": 1e-4 * A[:, j]}[kind]
    return A


lambdas = st.one_of(st.just(0.0), st.floats(-12, 12).map(lambda e: 10.0**e))


def check_every_pick(A, picked, lam, objective):
    """Each pick achieves what the best candidate would, as far as a Gram resolves, and the loss is the true one."""
    start = float(np.sum(A * A))
    resolved = 1e-12 * start
    for t, loss in enumerate(picked.loss):
        before = list(picked.columns[:t])
        achieved = oracle.loss(A, picked.columns[: t + 1], lam, objective)
        after = oracle.losses_after(A, before, lam, objective, set(range(A.shape[1])) - set(before))
        assert achieved <= min(after.values()) + 1e-9 * achieved + resolved
        assert abs(loss - achieved) <= 1e-9 * achieved + resolved


@settings(max_examples=150, deadline=None)
@given(A=matrices(), lam=lambdas, objective=st.sampled_from(OBJECTIVES), wide=st.booleans(), data=st.data())
def test_every_pick_is_the_best_one(A, lam, objective, wide, data):
    k = data.draw(st.integers(1, A.shape[1]))
    picked = quiet_select(Factor(A) if wide else A.T @ A, k, lam=lam, objective=objective)
    check_every_pick(A, picked, lam, objective)
    assert len(set(picked.columns)) == picked.k
    if lam == 0 and picked.k < k:  # the rank was used up
        assert oracle.loss(A, picked.columns, 0.0) <= 1e-12 * np.sum(A * A)
    else:
        assert picked.k == k


@settings(max_examples=150, deadline=None)
@given(
    A=matrices(),
    lams=st.lists(lambdas, min_size=2, max_size=3),
    objective=st.sampled_from(OBJECTIVES),
    wide=st.booleans(),
)
def test_every_pick_of_several_lambdas_in_lockstep_is_the_best_one(A, lams, objective, wide):
    together = quiet_select(Factor(A) if wide else A.T @ A, A.shape[1], lam=lams, objective=objective)
    for lam, picked in zip(lams, together, strict=True):
        check_every_pick(A, picked, lam, objective)


@pytest.mark.parametrize("seed", [42, 330, 378, 430, 1114, 1309, 1824, 2361, 2504, 2633, 2995])
@pytest.mark.parametrize("wide", [False, True])
def test_a_pick_that_turns_out_worse_than_another_gives_way(seed, wide):
    """One more pick exhausts the data, all gains are equal but for lambda, and one column is almost picked."""
    rng = np.random.default_rng(seed)
    m, n, rank = rng.integers(3, 12), rng.integers(4, 8), int(rng.integers(2, 4))
    A = rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))
    i, j = rng.integers(n, size=2)
    if i != j:
        A[:, j] = rng.standard_normal() * A[:, i] + 10.0 ** -rng.uniform(0, 5) * A[:, j]
    lams = [0.0, 10.0 ** rng.uniform(-12, 0)]
    picked = quiet_select(Factor(A) if wide else A.T @ A, rank, lam=lams)
    for lam, path in zip(lams, picked, strict=True):
        check_every_pick(A, path, lam, "unselected")


@settings(max_examples=60, deadline=None)
@given(
    A=matrices(),
    exponent=st.integers(-150, 150),
    lam=lambdas,
    objective=st.sampled_from(OBJECTIVES),
    wide=st.booleans(),
)
def test_the_scale_of_the_data_does_not_matter(A, exponent, lam, objective, wide):
    scale = 10.0**exponent
    scaled_lam = lam * scale * scale
    if not np.isfinite(scaled_lam) or (lam > 0 and scaled_lam == 0):
        return  # such a lambda cannot be given
    B = A * scale
    source = Factor(B) if wide else B.T @ B
    picked = quiet_select(source, A.shape[1], lam=scaled_lam, objective=objective)
    assert np.all(np.isfinite(picked.loss))
    check_every_pick(A, replace(picked, loss=picked.loss / scale / scale), lam, objective)


@settings(max_examples=40, deadline=None)
@given(A=matrices(), lam=lambdas, objective=st.sampled_from(OBJECTIVES), wide=st.booleans())
def test_fewer_picks_are_a_prefix_of_more(A, lam, objective, wide):
    source = Factor(A) if wide else A.T @ A
    full = quiet_select(source, A.shape[1], lam=lam, objective=objective)
    for k in range(1, full.k):
        part = quiet_select(source, k, lam=lam, objective=objective)
        assert np.array_equal(part.columns, full.columns[:k])
        np.testing.assert_allclose(part.loss, full.loss[:k], rtol=1e-9, atol=1e-12 * full.start)


@settings(max_examples=60, deadline=None)
@given(A=matrices(), lam=lambdas, objective=st.sampled_from(OBJECTIVES))
def test_the_loss_never_rises_and_the_bounds_hold(A, lam, objective):
    picked = quiet_select(A.T @ A, A.shape[1], lam=lam, objective=objective, bound=True)
    resolved = 1e-12 * picked.start
    assert np.all(np.diff(np.concatenate([[picked.start], picked.loss])) <= resolved)
    both = evaluate.bounds(np.linalg.svd(A, compute_uv=False) ** 2, min(A.shape), lam, objective)
    assert np.all(both.paper <= both.tight + resolved)
    for t in range(min(picked.k, min(A.shape))):
        true = oracle.loss(A, picked.columns[: t + 1], lam, objective)
        assert both.tight[t] <= true + resolved
        want = max(both.tight[t], oracle.least_left(A, t + 1))
        assert abs(picked.bound[t] - want) <= 1e-9 * want + resolved


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", [0.0, 0.3, 20.0])
def test_picks_depend_neither_on_row_order_nor_on_mixing_rows(objective, lam):
    rng = np.random.default_rng(7)
    A = rng.standard_normal((30, 12)) * rng.uniform(0.1, 3, 12)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    want = select(A.T @ A, 8, lam=lam, objective=objective)
    for B in (rng.permutation(A), Q @ A):
        got = select(B.T @ B, 8, lam=lam, objective=objective)
        assert np.array_equal(got.columns, want.columns)
        np.testing.assert_allclose(got.loss, want.loss, rtol=1e-10)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", [0.0, 0.3, 20.0])
def test_permuting_columns_permutes_picks(objective, lam):
    rng = np.random.default_rng(8)
    A = rng.standard_normal((30, 12)) * rng.uniform(0.1, 3, 12)
    order = rng.permutation(12)
    want = select(A.T @ A, 8, lam=lam, objective=objective)
    got = select(A[:, order].T @ A[:, order], 8, lam=lam, objective=objective)
    assert np.array_equal(order[got.columns], want.columns)


def test_the_papers_example():
    A = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [1, 0, 1, 1], [1, 1, 0, 0]], dtype=float)
    for objective, column in (("all", 3), ("unselected", 2)):  # columns 4 and 3 as the paper counts them
        picked = select(A.T @ A, 3, lam=1.0, objective=objective, include=[0, 1])
        assert list(picked.columns) == [0, 1, column]


def test_errata_are_documented():
    assert "errata are listed in the documentation" in " ".join(select.__doc__.split())
    page = (Path(__file__).parents[1] / "docs/explanation/errata.md").read_text()
    for word in ("Errata", "Step 3", "alpha_w^2"):
        assert word in page


def decaying(decades, seed):
    """Return a Gram whose singular values fall over so many decades."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((400, 120)))[0]
    V = np.linalg.qr(rng.standard_normal((120, 120)))[0]
    A = (U * (100.0 * np.logspace(0, -decades, 120))) @ V.T
    G = A.T @ A
    return (G + G.T) / 2


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("lam", [1e-4, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("decades", [6, 10])
def test_decaying_spectra_agree_with_extended_precision(decades, lam, objective):
    for seed in range(2):
        G = decaying(decades, seed)
        start = np.trace(G)
        want, losses, after = oracle.explicit(G, 100, lam, objective)
        got = quiet_select(G, 100, lam=lam, objective=objective)
        for t, (mine, theirs) in enumerate(zip(got.columns, want, strict=True)):
            before = losses[t - 1] if t else start
            if mine != theirs:
                assert before <= 1e-12 * start, f"pick {t} differs at a loss of {before / start:g}"
                assert after[t][mine] - after[t][theirs] <= 1e-15 * start
                break
            assert abs(got.loss[t] - losses[t]) <= 1e-9 * losses[t] + 1e-12 * start


def test_no_lambdas_give_no_selections():
    assert select(np.eye(3), 1, lam=[]) == []


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("wide", [False, True])
def test_several_lambdas_pick_as_they_would_alone(objective, wide):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((60, 90)) * rng.uniform(0.01, 3, 90)
    source = Factor(A) if wide else A.T @ A
    lams = [0.0, 1e-3, 0.1, 5.0, 1e4]
    together = select(source, 40, lam=lams, objective=objective)
    for lam, one in zip(lams, together, strict=True):
        alone = select(source, 40, lam=lam, objective=objective)
        assert one.lam == lam
        assert np.array_equal(one.columns, alone.columns)
        np.testing.assert_allclose(one.loss, alone.loss, rtol=1e-9, atol=1e-12 * alone.start)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("decades", [3, 6, 10])
def test_lambdas_in_lockstep_keep_the_digits_that_they_have_alone(decades, objective):
    """What is shared between lambdas loses digits sooner; a path that notices does without it from then on."""
    G = decaying(decades, seed=0)
    lams = [1e-4, 1e-2, 1.0, 1e2]
    together = quiet_select(G, 100, lam=lams, objective=objective)
    for lam, one in zip(lams, together, strict=True):
        alone = quiet_select(G, 100, lam=lam, objective=objective)
        resolved = int(np.sum(alone.loss > 1e-12 * alone.start))
        assert np.array_equal(one.columns[:resolved], alone.columns[:resolved])
        np.testing.assert_allclose(one.loss, alone.loss, rtol=1e-9, atol=1e-12 * alone.start)
        assert one.refreshes <= alone.refreshes + 2, "refreshes cost more than sharing saves"


@pytest.mark.parametrize("n", [3, 5, 700, 1501])
def test_tiles_and_remainders_cover_the_whole_matrix(n):
    """Sizes around every cut: rows in sixes, bands of a refresh, parts of a triangle."""
    rng = np.random.default_rng(n)
    A = rng.standard_normal((40, n))
    picked = select(A.T @ A, 3, lam=1e-6)
    wide = select(Factor(A), 3, lam=1e-6)
    assert np.array_equal(picked.columns, wide.columns)
    assert picked.loss[-1] == pytest.approx(oracle.loss(A, picked.columns, 1e-6), rel=1e-9)


def test_gcss_is_lambda_zero():
    rng = np.random.default_rng(5)
    A = rng.standard_normal((50, 20))
    E, picks = A.copy(), []
    for _ in range(10):  # Farahat's rule on the explicit residual
        G = E.T @ E
        score = np.where(np.diagonal(G) > 1e-9, (G * G).sum(axis=1) / np.maximum(np.diagonal(G), 1e-9), -1)
        w = int(np.argmax(score))
        picks.append(w)
        E = E - np.outer(E[:, w], E[:, w] @ E) / (E[:, w] @ E[:, w])
    for objective in OBJECTIVES:
        assert list(select(A.T @ A, 10, lam=0.0, objective=objective).columns) == picks


def test_included_columns_come_first_and_excluded_never():
    rng = np.random.default_rng(6)
    A = rng.standard_normal((40, 10))
    free = select(A.T @ A, 10, lam=0.5)
    banned = [int(free.columns[0]), int(free.columns[1])]
    picked = select(A.T @ A, 6, lam=0.5, include=[7, 3] if 7 not in banned else [3, 5], exclude=banned)
    assert list(picked.columns[:2]) == ([7, 3] if 7 not in banned else [3, 5])
    assert not set(picked.columns) & set(banned)
    for t in range(6):  # excluded columns still count in the loss
        assert picked.loss[t] == pytest.approx(oracle.loss(A, picked.columns[: t + 1], 0.5), rel=1e-9)


def test_columns_go_by_name():
    rng = np.random.default_rng(6)
    moments = Moments.of(rng.standard_normal((40, 4)), names=["a", "b", "c", "d"])
    picked = select(moments, 3, include=["c"], exclude=["a"])
    assert picked.names[0] == "c"
    assert "a" not in picked.names
    assert set(picked.names) == {"b", "c", "d"}


def test_the_lowest_index_wins_a_tie():
    rng = np.random.default_rng(9)
    A = rng.standard_normal((50, 8))
    doubled = np.hstack([A, A])
    for lam in (0.0, 1.0):
        picked = quiet_select(doubled.T @ doubled, 6, lam=lam)
        assert max(picked.columns) < 8 if lam == 0 else picked.columns[0] < 8


def test_of_equal_columns_the_lowest_comes_first_even_when_little_is_left():
    """With 20 columns and two copies of each, the loss falls to a millionth before the first copy is picked."""
    for seed in range(10):
        A = np.random.default_rng(seed).standard_normal((100, 20))
        G = np.tile(A.T @ A, (3, 3))
        G += 1e-15 * np.outer(np.diag(G), np.diag(G)) ** 0.5 * np.random.default_rng(seed).standard_normal((60, 60))
        for picked in select((G + G.T) / 2, 38, lam=[0.01, 0.1, 1.0]):
            order = {column: t for t, column in enumerate(picked.columns)}
            for column, t in order.items():
                assert all(order.get(lower, 99) < t for lower in range(column % 20, column, 20))


def test_a_copy_that_was_included_counts_no_more_for_several_lambdas():
    """It changes nothing, so that no factors of it say that its error is gone."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((50, 30))
    A[:, :2] *= 30
    A[:, 1] = A[:, 0]
    together = select(A.T @ A, 20, lam=[0.1, 1.0], include=[0, 1])
    for lam, picked in zip([0.1, 1.0], together, strict=True):
        alone = select(A.T @ A, 20, lam=lam, include=[0, 1])
        assert np.array_equal(picked.columns, alone.columns)
        np.testing.assert_allclose(picked.loss, alone.loss, rtol=1e-12)
        assert picked.loss[-1] == pytest.approx(oracle.loss(A, picked.columns, lam), rel=1e-9)


def test_a_gram_that_cannot_be_written_is_taken_as_it_is():
    """As from `np.load(mmap_mode="r")`: nothing is compiled anew for it."""
    G = np.random.default_rng(0).standard_normal((90, 30))
    G = G.T @ G
    want = select(G, 5)
    kinds = len(kernels.multiply_triangle.signatures)
    G.flags.writeable = False
    assert np.array_equal(select(G, 5).loss, want.loss)
    assert len(kernels.multiply_triangle.signatures) == kinds


def test_dead_and_constant_columns_are_never_picked_while_another_helps():
    rng = np.random.default_rng(10)
    A = rng.standard_normal((60, 12)) + 5
    A[:, [0, 4]] = 0.0
    A[:, 7] = 2.0
    moments = Moments.of(A)
    for lam in (0.0, 1e-3, 1.0, 1e6):
        for objective in OBJECTIVES:
            plain = quiet_select(moments, 10, lam=lam, objective=objective)
            assert not {0, 4} & set(plain.columns)
            centred = quiet_select(moments, 9, lam=lam, objective=objective, center=True, scale="std")
            assert not {0, 4, 7} & set(centred.columns)
            assert np.all(np.isfinite(centred.loss))


def test_dead_pixels_of_mnist(data_dir):
    train = np.load(data_dir / "mnist.npz")["train"][:4000]
    dead = set(np.flatnonzero(train.max(axis=0) == 0))
    assert len(dead) >= 67
    for lam in (0.0, 1.0):
        picked = quiet_select(Moments.of(train), 200, lam=lam, scale=255)
        assert picked.k == 200
        assert not dead & set(picked.columns)
        assert np.all(np.diff(picked.loss) <= 0)


def test_everything_zero_has_nothing_to_pick():
    with pytest.warns(UserWarning, match="picked 0 columns instead of 2"):
        assert select(np.zeros((3, 3)), 2, lam=0.0).k == 0
    assert list(select(np.zeros((3, 3)), 2, lam=1.0).columns) == [0, 1]


def test_k_beyond_the_rank_stops_with_a_warning():
    rng = np.random.default_rng(11)
    A = rng.standard_normal((50, 4)) @ rng.standard_normal((4, 9))
    with pytest.warns(UserWarning, match="picked 4 columns instead of 7: with lam=0"):
        picked = select(A.T @ A, 7, lam=0.0)
    assert picked.k == 4
    assert select(A.T @ A, 7, lam=1e-3).k == 7


def test_a_lambda_below_rounding_is_pointed_out():
    rng = np.random.default_rng(12)
    A = rng.standard_normal((50, 5)) * 1e6
    with pytest.warns(UserWarning, match="regularises nothing"):
        select(A.T @ A, 3, lam=1e-6)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_where_any_pick_would_explain_the_rest_noise_does_not_choose(wide, objective):
    """The gains are all equal then, but for rounding, which is largest in columns of which hardly anything is left."""
    for seed in range(20):
        A = np.random.default_rng(seed).standard_normal((8, 1000))
        picked = select(Factor(A) if wide else A.T @ A, 8, lam=0.0, objective=objective)
        left = oracle.residual(A, list(picked.columns[:-1]), 0.0)
        shares = np.sum(left**2, axis=0) / np.sum(A**2, axis=0)
        assert np.sum(shares < 1e-5) > 8, "there are such columns besides the picked ones"
        assert shares[picked.columns[-1]] > 1e-4


def nearly_dependent(seed, gap):
    """Return rows in which the last column is the first one, but for a little of what carries the others best."""
    A = np.random.default_rng(seed).standard_normal((15, 8))
    A[:, -1] = A[:, 0] + gap * np.linalg.svd(A[:, 1:-1])[0][:, 0]
    return A


@pytest.mark.parametrize("wide", [False, True])
def test_a_selection_knows_how_far_rounding_has_moved_its_losses(wide):
    moved = 0
    for seed in range(40):
        A = nearly_dependent(seed, 10.0 ** -np.random.default_rng(seed).uniform(3, 8))
        lams = [0.0, 1e-12, 1e-6]
        paths = quiet_select(Factor(A) if wide else A.T @ A, 8, lam=lams, include=[0])
        for lam, picked in zip(lams, paths, strict=True):
            true = np.array([oracle.loss(A, picked.columns[: t + 1], lam) for t in range(picked.k)])
            error, promised = np.abs(picked.loss - true), 1e-9 * true + 1e-12 * picked.start
            assert np.all(error <= promised + picked.rounding)
            moved += np.any(error > promised)
    assert moved > 10, "without near dependence there is nothing to know"


def test_a_column_that_is_nearly_a_mix_of_others_brings_a_warning():
    A = nearly_dependent(1, 1e-6)
    names = [f"gene {i}" for i in range(8)]
    with pytest.warns(UserWarning, match="column 'gene 7' is nearly a mix of those.*Exclude") as heard:
        picked = select(Moments.of(A, names=names), 8, lam=0.0, include=[0])
    assert len(heard) == 1
    assert picked.doubtful == 1
    with pytest.warns(UserWarning, match="nearly a mix") as heard:
        select(A.T @ A, 8, lam=[0.0, 1e-13], include=[0])
    assert len(heard) == 2
    assert len({str(warning.message) for warning in heard}) == 1, "Python shows the same words once"
    for way_out in ({"lam": 1e-3}, {"exclude": [7], "k": 7}):
        assert select(A.T @ A, **{"k": 8, "lam": 0.0, "include": [0], **way_out}).doubtful is None


@pytest.mark.parametrize("wide", [False, True])
def test_an_included_column_that_rounding_hides_is_not_taken_for_a_copy_in_silence(wide):
    A = nearly_dependent(2, 1e-8)
    source = Factor(A) if wide else A.T @ A
    with pytest.warns(UserWarning, match="column 7 is nearly a mix"):
        select(source, 4, lam=0.0, include=[0, 7])
    for lam in (0.0, 1e-14):
        picked = quiet_select(source, 4, lam=lam, include=[0, 7])
        assert picked.doubtful == 1
        true = np.array([oracle.loss(A, picked.columns[: t + 1], lam) for t in range(4)])
        assert np.all(np.abs(picked.loss - true) <= 1e-9 * true + 1e-12 * picked.start + picked.rounding)
        assert abs(picked.loss[1] - true[1]) > 1e-3 * picked.start, "which is why it has to be said"
    assert select(source, 4, lam=1.0, include=[0, 7]).doubtful is None


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("exponent", [-80, -90, -120, -150])
def test_columns_of_very_different_scales_are_columns_still(objective, exponent):
    A = np.random.default_rng(0).standard_normal((10, 5)) * 10.0 ** (exponent * np.array([0, 0, 1, 1, 0]))
    for source in (A.T @ A, Factor(A)):
        picked = quiet_select(source, 5, lam=0.0, objective=objective)
        assert set(picked.columns[:3]) == {0, 1, 4}
        assert set(picked.columns) <= set(range(5))
        assert np.all(np.isfinite(picked.rounding))


def test_stopping_at_a_share_of_the_loss():
    rng = np.random.default_rng(13)
    A = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 20)) + 0.1 * rng.standard_normal((60, 20))
    picked = select(A.T @ A, 20, lam=0.1, stop=Stop(loss=0.05))
    assert picked.loss[-1] <= 0.05 * picked.start < picked.loss[-2]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_stopping_near_the_bound(objective):
    rng = np.random.default_rng(14)
    A = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 20)) + 0.1 * rng.standard_normal((60, 20))
    full = select(A.T @ A, 20, lam=0.1, objective=objective, bound=True)
    ratios = full.loss[:-1] / full.bound[:-1]
    target = float(np.sort(ratios)[2]) * 1.0001
    picked = select(A.T @ A, 20, lam=0.1, objective=objective, stop=Stop(bound=target))
    assert picked.k == int(np.argmax(ratios <= target)) + 1
    assert picked.loss[-1] <= target * picked.bound[-1]


def test_more_memory_than_the_block_is_never_needed_for_a_wide_one():
    """Nothing n x n: at n = 4000 that alone would be 128 MB. (The full size is measured in test_memory.py.)"""
    A = np.random.default_rng(15).standard_normal((30, 4000))
    source = Factor(A)
    select(source, 2)
    tracemalloc.start()
    select(source, 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6


def test_a_sentence_for_people():
    A = np.random.default_rng(16).standard_normal((30, 6))
    assert str(select(A.T @ A, 2)).startswith("2 of 6 columns keep ")
    assert "no 2 columns can keep more than" in str(select(A.T @ A, 2, bound=True))


# The correlations of three columns, each pair of them over other rows.
WITH_GAPS = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
GRAM = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be a whole number from 1 to 3.*got 0"),
        ({"k": 4}, "k must be a whole number from 1 to 3.*got 4"),
        ({"k": 1.5}, "k must be a whole number.*got 1.5"),
        ({"k": 2.0}, "k must be a whole number.*got 2.0"),
        ({"k": 3, "exclude": [1]}, "from 1 to 2, the columns that may be picked; got 3"),
        ({"k": 1, "include": [0, 1]}, "k must be at least the 2 included columns; got 1"),
        ({"lam": -1.0}, "lam must be a finite number, 0 or more; got -1"),
        ({"lam": np.nan}, "lam must be a finite number.*nan"),
        ({"lam": np.inf}, "lam must be a finite number.*inf"),
        ({"lam": [1.0, -2.0]}, "lam must be a finite number.*-2"),
        ({"objective": "some"}, "objective must be 'unselected' or 'all'; got 'some'"),
        ({"include": [3]}, "a column index must be between 0 and 2; got 3"),
        ({"exclude": [-1]}, "a column index must be between 0 and 2; got -1"),
        ({"include": [1, 1]}, "a column must be given once; got 1 2 times"),
        ({"include": [1], "exclude": [1]}, "cannot be both included and excluded; got 1"),
        ({"include": ["a"]}, "column 'a' does not exist: these columns have no names"),
        ({"center": True}, "center and scale need moments"),
        ({"source": GRAM[0]}, "must have two dimensions"),
        ({"source": GRAM + np.triu(np.ones((3, 3)), 1)}, r"symmetric; entries \(0, 1\) and \(1, 0\) differ by 1"),
        ({"source": np.where(GRAM == 0.5, np.nan, GRAM)}, r"finite; entry \(1, 2\) is nan"),
        ({"source": -GRAM}, r"must have a diagonal of 0 or more; entry \(0, 0\) is -2"),
        ({"source": 1.0 - np.eye(3)}, r"may exceed the norms.*\(0, 1\) is 1, with 0 and 0 on.*distances"),
        ({"source": GRAM - 3 * (1.0 - np.eye(3))}, r"may exceed the norms.*\(0, 2\) is -3, with 2 and 1 on"),
        ({"source": GRAM.astype(complex)}, "real numbers"),
        ({"source": WITH_GAPS}, "positive semi-definite; this one has eigenvalue -0.8 with.*gaps.*set the negative"),
        ({"source": GRAM * 2.0**1022}, r"from 1.49e-154 to 1.34e\+154, .*; it is 1.5e\+154. Divide the data by"),
        (
            {"source": GRAM * 1e-310},
            "from 1.49e-154 to .*; it is 2.24e-155. Divide the data.* and lam by its square",
        ),
    ],
)
def test_bad_input_is_met_with_the_rule_the_value_and_the_way_out(change, message):
    arguments = {"source": GRAM, "k": 2, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        select(arguments.pop("source"), arguments.pop("k"), **arguments)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (np.ones(3), "must have rows and columns"),
        (np.ones((0, 3)), "must have rows and columns"),
        (np.array([[1.0, np.nan]]), "a factor must be finite"),
        (np.array([["a", "b"]]), "real numbers"),
        (np.array([[1e160, 2.0], [1.0, 2.0]]), r"the norm of all columns.* to 1.34e\+154.*it is 1e\+160. Divide"),
        (np.full((3, 2), 1.2e154), r"the norm of all columns.*it is 2.94e\+154. Divide"),
        (np.full((1, 3), 1e-170), "the norm of all columns.*it is 1.73e-170. Divide"),
    ],
)
def test_bad_factors(block, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Factor(block)


def test_data_near_both_ends_of_float64_is_scaled():
    A = np.random.default_rng(0).standard_normal((6, 4))
    want = select(Factor(A), 3, lam=0.5)
    for scale in (2.0**508, 2.0**-508):
        got = select(Factor(A * scale), 3, lam=0.5 * scale * scale)
        assert np.array_equal(got.columns, want.columns)
        np.testing.assert_allclose(got.loss / scale / scale, want.loss, rtol=1e-12)
    assert list(select(Factor(np.array([[1e-320, 0.0, 1.0]])), 1, lam=0.0).columns) == [2]


def with_gaps(n, seed=0):
    """Correlations of n columns of which each pair leaves out the rows where either has a gap."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((300, 5)) @ rng.standard_normal((5, n)) + 0.1 * rng.standard_normal((300, n))
    M = (rng.random(A.shape) > 0.1).astype(float)
    X = A * M
    G = (X.T @ X) / np.sqrt((X**2).T @ M * (M.T @ X**2))
    return (G + G.T) / 2


@pytest.mark.parametrize("n", [30, 600])
def test_correlations_with_gaps_are_refused(n):
    """They have negative eigenvalues, so that losses would be below their own bounds."""
    G = with_gaps(n)
    assert np.linalg.eigvalsh(G)[0] < -0.01
    for options in ({"bound": True}, {"k": 20, "lam": 0.0}, {"k": 20, "lam": 1e-3, "objective": "all"}):
        with pytest.raises(ValueError, match=r"must be positive semi-definite; .* eigenvalue .*-0.*fill the gaps"):
            select(G, **{"k": 2, **options})
    values, Q = np.linalg.eigh(G)
    way_out = (Q * np.maximum(values, 0.0)) @ Q.T
    picked = quiet_select((way_out + way_out.T) / 2, 20, bound=True)
    assert np.all(picked.bound <= picked.loss * (1 + 1e-9))


@pytest.mark.parametrize("n", [60, 600])
def test_rounding_of_single_precision_does_not_make_a_gram_indefinite(n):
    rng = np.random.default_rng(0)
    A = (rng.standard_normal((2000, 20)) @ rng.standard_normal((20, n)) + 3.0).astype(np.float32)
    A[:, :4] *= 1e-4
    G = A.T @ A
    assert np.linalg.eigvalsh(G.astype(np.float64))[0] < 0
    picked = quiet_select(G, 15, lam=1.0, bound=True)
    np.testing.assert_allclose(
        picked.loss, [oracle.loss(A, picked.columns[: t + 1], 1.0) for t in range(15)], rtol=1e-3
    )


def test_what_may_be_picked_is_spanned_and_no_more_is_said():
    A = np.array([[1.0, 1, 0], [0, 0, 0], [0, 0, 5]])
    with pytest.warns(UserWarning, match="they already span all columns that may be picked"):
        picked = select(A.T @ A, 2, lam=0.0, exclude=[2])
    assert picked.loss[-1] == 25.0


@pytest.mark.parametrize(("rule", "message"), [({"loss": 1.5}, "between 0 and 1"), ({"bound": 0.5}, "1 or more")])
def test_bad_stopping_rules(rule, message):
    with pytest.raises(ValueError, match=message):
        Stop(**rule)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rounding_is_never_picked_once_the_rank_is_used_up(objective):
    """Picks that depend on each other magnify the rounding of a Gram; what it leaves must not pass for a column."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((14, 5)) @ rng.standard_normal((5, 8))
        picked = quiet_select(A.T @ A, 8, lam=0.0, objective=objective)
        assert picked.k == 5, seed
        assert np.all(np.abs(picked.loss[-1]) <= 1e-12 * picked.start), seed


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_left_of_a_column_does_not_drown_in_the_number_of_columns(wide):
    """Column 1 is column 0 but for a millionth, which carries all others best."""
    rng = np.random.default_rng(0)
    m, n = 500, 2000
    large, cause = 1e6 * rng.standard_normal(m), rng.standard_normal(m)
    A = cause[:, None] + rng.standard_normal((m, n))
    A[:, 0], A[:, 1] = large, large + cause
    picked = quiet_select(Factor(A) if wide else Moments.of(A), 2, lam=0.0)
    assert list(picked.columns) == [0, 1]
    true = oracle.loss(A, [0, 1], 0.0)
    assert abs(picked.loss[-1] - true) <= 1e-9 * true + 1e-12 * picked.start + picked.rounding[-1]
    assert true < oracle.loss(A, [0, 2], 0.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("rank", [3, 40])
@pytest.mark.parametrize("kind", [lambda A: A.T @ A, Moments.of, Factor], ids=["gram", "moments", "factor"])
def test_the_rank_of_many_columns_is_found(kind, rank, objective):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((300, rank)) @ rng.standard_normal((rank, 2000)) * 10.0 ** rng.uniform(-6, 6, 2000)
        source = kind(A)
        picked = quiet_select(source, rank + 5, lam=0.0, objective=objective)
        assert picked.k == rank
        assert picked.loss[-1] <= 1e-12 * picked.start
        past = quiet_select(source, rank + 5, lam=1e-20 * np.sum(A * A, axis=0).min(), objective=objective)
        assert past.k == rank + 5
        assert np.all(np.isfinite(past.loss))
        assert np.all(past.loss[rank:] <= 1e-12 * picked.start)

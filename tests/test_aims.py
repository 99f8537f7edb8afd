"""Weights, targets, noise, penalties, candidates, costs and constraints, against brute force from the rows."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rgcss_dask import cross_validate, refine, scan, select, stability
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.moments import Moments

N = 8
pytestmark = pytest.mark.filterwarnings("ignore:picked .* no other keeps to:UserWarning")


def rows_of(seed, m=40, n=N):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, 4)) @ rng.standard_normal((4, n)) + 0.3 * rng.standard_normal((m, n)) + 1.0


def columns(draw, most=N):
    return draw(st.lists(st.integers(0, N - 1), min_size=1, max_size=most, unique=True))


MAKERS = {
    "column_weights": lambda draw, rng: {"column_weights": rng.uniform(0, 3, N) * (rng.random(N) < 0.8) + 1e-3},
    "targets": lambda draw, rng: {
        "targets": columns(draw, 3),
        "target_share": draw(st.sampled_from([1.0, 0.5, 0.1])),
    },
    "penalties": lambda draw, rng: {"penalties": rng.uniform(0.0, 3.0, N)},
    "noise": lambda draw, rng: {"noise": rng.uniform(0.0, 0.08, N)},
    "candidates": lambda draw, rng: {"candidates": sorted({0, 1, 2, 3, *columns(draw)})},
    "costs": lambda draw, rng: {"costs": rng.uniform(0.5, 2.0, N), "budget": draw(st.sampled_from([2.0, 4.0, 50.0]))},
    "limits": lambda draw, rng: {"limits": [(columns(draw), draw(st.integers(1, 2)))]},
    "distance": lambda draw, rng: {"places": rng.random((N, 2)), "distance": draw(st.sampled_from([0.2, 0.5]))},
}


@st.composite
def asked(draw):
    """Some of the options at once, for eight columns."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    some = draw(st.lists(st.sampled_from(sorted(MAKERS)), max_size=4, unique=True))
    return {name: value for option in some for name, value in MAKERS[option](draw, rng).items()}


def carried(X, aims, lam):
    """What brute force needs: columns, what they are to carry, weights, lambdas, and who may be picked."""
    n = X.shape[1]
    A, T = X, X
    if "noise" in aims:
        A, T = oracle.columns_and_signals(X, len(X) * np.asarray(aims["noise"]))
    w = np.array(aims.get("column_weights", np.ones(n)), dtype=float)
    targets = aims.get("targets", [])
    if targets:
        square = np.sum(X**2, axis=0)
        others = np.setdiff1d(np.arange(n), targets)
        share, wanted, rest = aims.get("target_share", 1.0), w[targets] @ square[targets], w[others] @ square[others]
        w[targets] *= share
        w[others] *= (1 - share) * wanted / rest if rest > 0 else 0.0
    free = [j for j in aims.get("candidates", range(n)) if j not in targets]
    return A, T, w, lam * np.asarray(aims.get("penalties", np.ones(n))), free


def allowed(aims, picked, free):
    """The columns that may be picked beside these, one by one."""
    found = []
    for j in free:
        both = [*picked, j]
        ok = j not in picked
        for members, most in aims.get("limits", []):
            ok &= len(set(both) & set(members)) <= most or j not in members
        if "distance" in aims:
            gaps = [np.linalg.norm(aims["places"][i] - aims["places"][j]) for i in picked]
            ok &= all(gap >= aims["distance"] for gap in gaps)
        if "budget" in aims:
            ok &= sum(aims["costs"][i] for i in both) <= aims["budget"]
        if ok:
            found.append(j)
    return found


def by_hand(A, T, w, lams, free, aims, k, objective, for_cost):
    """Greedy from the rows; a list of (picks so far, loss of each column that may come next)."""
    picked, steps = [], []
    before = oracle.loss_of_targets(A, T, [], lams, w, objective)
    while len(picked) < k and (next_ones := allowed(aims, picked, free)):
        after = {j: oracle.loss_of_targets(A, T, [*picked, j], lams, w, objective) for j in next_ones}
        cost = aims["costs"] if for_cost else np.ones(X_COLUMNS)
        best = max(after, key=lambda j: ((before - after[j]) / cost[j], -j))
        steps.append((list(picked), after))
        picked.append(best)
        before = after[best]
    return picked, before, steps


X_COLUMNS = N


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 999), asked(), st.sampled_from([0.0, 0.5, 20.0]), st.sampled_from(["unselected", "all"]))
def test_every_pick_is_the_best_there_is(seed, aims, lam, objective):
    X = rows_of(seed)
    A, T, w, lams, free = carried(X, aims, lam)
    counted = "all" if "noise" in aims else objective
    picked = select(Moments.of(X), min(4, len(free)), lam=lam, objective=objective, scale=1.0, **aims)
    ways = [by_hand(A, T, w, lams, free, aims, 4, counted, for_cost) for for_cost in ({False, "costs" in aims})]
    best = min(ways, key=lambda way: way[1])
    start = oracle.loss_of_targets(A, T, [], lams, w, counted)
    assert picked.start == pytest.approx(start, rel=1e-9)
    losses = [oracle.loss_of_targets(A, T, picked.columns[: t + 1], lams, w, counted) for t in range(picked.k)]
    np.testing.assert_allclose(picked.loss, losses, rtol=1e-7, atol=1e-9 * start)
    assert picked.last_loss == pytest.approx(best[1], rel=1e-7, abs=1e-9 * start)
    assert len(best[0]) == picked.k
    assert picked.objective == counted


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), asked(), st.sampled_from([0.0, 0.5]), st.sampled_from(["unselected", "all"]))
def test_swaps_lower_the_loss_and_keep_to_the_constraints(seed, aims, lam, objective):
    X = rows_of(seed)
    A, T, w, lams, free = carried(X, aims, lam)
    moments = Moments.of(X)
    picked = select(moments, min(3, len(free)), lam=lam, objective=objective, scale=1.0, **aims)
    better = refine(picked, moments)
    assert better.after <= better.before * (1 + 1e-9)
    columns = [int(j) for j in better.columns]
    assert set(columns) <= set(free)
    for j in columns:
        others = [i for i in columns if i != j]
        assert j in allowed(aims, others, free)
    loss = oracle.loss_of_targets(A, T, columns, lams, w, picked.objective)
    start = oracle.loss_of_targets(A, T, [], lams, w, picked.objective)
    assert better.after == pytest.approx(loss, rel=1e-7, abs=1e-9 * start)
    if better.settled:
        for place, j in enumerate(columns):
            others = [i for i in columns if i != j]
            for new in allowed(aims, others, [i for i in free if i not in columns]):
                swapped = [new if t == place else i for t, i in enumerate(columns)]
                other = oracle.loss_of_targets(A, T, swapped, lams, w, picked.objective)
                assert other >= loss * (1 - 1e-7) - 1e-9 * start


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), asked())
def test_held_out_losses_and_resamples_keep_to_what_is_asked(seed, aims):
    X = np.vstack([rows_of(seed), rows_of(seed + 1), rows_of(seed)[::-1]])
    moments = scan(X, folds=3, groups=6, progress=False)
    *_, free = carried(X, aims, 0.5)
    k = min(3, len(free))
    tuned = cross_validate(moments, k, lams=[0.1, 1.0], fixed_k=True, scale=1.0, **aims)
    assert np.all(np.isfinite(tuned.held_out_loss))
    assert set(tuned.selection.columns) <= set(free)
    agreed = stability(moments, k, resamples=3, scale=1.0, **aims)
    assert all(set(picks) <= set(free) for picks in agreed.picks)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), asked(), st.sampled_from([0.0, 0.5]), st.sampled_from(["unselected", "all"]))
def test_no_columns_are_better_than_the_bound(seed, aims, lam, objective):
    X = rows_of(seed)
    *_, free = carried(X, aims, lam)
    picked = select(Moments.of(X), min(3, len(free)), lam=lam, objective=objective, scale=1.0, bound=True, **aims)
    assert np.all(picked.bound <= picked.loss * (1 + 1e-9) + 1e-9 * picked.start)


def test_by_name_and_pattern_and_mapping():
    X = rows_of(0)
    names = [f"band_{i}" if i < 6 else f"y{i}" for i in range(N)]
    moments = Moments.of(X, names=names)
    named = select(moments, 3, scale=1.0, targets="y*", column_weights={"y6": 2.0}, penalties={"band_0": 5.0})
    index = select(
        moments, 3, scale=1.0, targets=[6, 7], column_weights=[1, 1, 1, 1, 1, 1, 2, 1], penalties=[5] + [1] * 7
    )
    assert np.array_equal(named.columns, index.columns)
    np.testing.assert_array_equal(named.loss, index.loss)
    assert not set(named.names) & {"y6", "y7"}


@pytest.mark.parametrize(
    ("aims", "words"),
    [
        ({"column_weights": -np.ones(N)}, "column_weights must be finite and 0 or more; column 0 has -1"),
        ({"column_weights": [np.nan] * N}, "column_weights must be finite"),
        ({"column_weights": np.zeros(N)}, "all are 0"),
        ({"column_weights": np.ones(3)}, "one number for each of 8 columns"),
        ({"column_weights": {"z": 1}}, "have no names"),
        ({"column_weights": "longitude"}, "'latitude'"),
        ({"column_weights": "latitude"}, "know their latitude"),
        ({"targets": [0], "exclude": [1], "include": [0]}, "column 0 is a target"),
        ({"targets": [0], "exclude": [0]}, "cannot be excluded too; got column 0"),
        ({"candidates": [0], "exclude": [0]}, "no column is left that may be picked"),
        ({"targets": range(N)}, "must be a candidate, not a target; none is left"),
        ({"targets": [0], "target_share": 0}, "target_share must be above 0"),
        ({"target_share": 0.5}, "target_share needs targets"),
        ({"targets": [9]}, "between 0 and 7"),
        ({"targets": ["a*"]}, "no column has a name like 'a\\*'"),
        ({"penalties": [-1.0] * N}, "penalties must be finite and 0 or more"),
        ({"costs": np.zeros(N), "budget": 1}, "costs must be finite and above 0"),
        ({"costs": np.full(N, 5.0), "budget": 1.0}, "some column must keep to the budget"),
        ({"budget": -1.0}, "budget must be a number above 0"),
        ({"limits": [([0, 1], 0)]}, "1 or more"),
        ({"limits": [([0, 1], 1)], "include": [0, 1]}, "keep to the limits; column 1"),
        ({"distance": 1.0}, "know where they lie"),
        ({"places": np.ones((N, 2))}, "places need distance"),
        ({"places": np.ones((3, 2)), "distance": 1.0}, "each of 8 columns"),
        ({"noise": np.full(N, 1e6)}, "noise must not exceed the variance of its column; column 0"),
        ({"noise": "columns"}, "'rows'"),
        ({"noise": "rows"}, "scan\\(source, noise=True\\)"),
        ({"column_groups": [[0, 1], [1, 2]]}, "must not overlap; column 1"),
    ],
)
def test_what_cannot_be_asked_is_refused(aims, words):
    with pytest.raises(ValueError, match=words):
        select(Moments.of(rows_of(0)), 2, scale=1.0, **aims)


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="weight"):
        select(rows_of(0), 2, weight=3)


def test_aims_by_index_are_settled_once():
    aims = Aims(targets=["b"], column_weights={"a": 2.0}).by_index(2, ("a", "b"))
    again = aims.by_index(2, None)
    assert np.array_equal(again.targets, aims.targets)
    assert np.array_equal(again.column_weights, [2.0, 1.0])


def best_in_groups(A, T, w, lams, free, groups, k, objective):
    """Greedy over groups and single columns, all tried from the rows."""
    grouped = {j for group in groups for j in group}
    units = [list(group) for group in groups if set(group) <= set(free)] + [[j] for j in free if j not in grouped]
    picked, loss = [], oracle.loss_of_targets(A, T, [], lams, w, objective)
    while fitting := [unit for unit in units if not set(unit) & set(picked) and len(picked) + len(unit) <= k]:
        after = [oracle.loss_of_targets(A, T, [*picked, *unit], lams, w, objective) for unit in fitting]
        loss = min(after)
        picked += fitting[int(np.argmin(after))]
    return picked, loss


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 999),
    st.sampled_from([[[0, 1], [2, 3, 4]], [[7, 2], [3, 5], [0, 1, 4]]]),
    st.sampled_from([0.0, 0.5, 20.0]),
    st.sampled_from(["unselected", "all"]),
    st.sampled_from([{}, {"targets": [6], "target_share": 0.5}, {"penalties": np.arange(N) / 3}]),
)
def test_groups_are_picked_whole_and_the_best_first(seed, groups, lam, objective, aims):
    X = rows_of(seed)
    A, T, w, lams, free = carried(X, aims, lam)
    moments = Moments.of(X)
    picked = select(moments, 5, lam=lam, objective=objective, scale=1.0, column_groups=groups, **aims)
    start = oracle.loss_of_targets(A, T, [], lams, w, objective)
    columns, loss = best_in_groups(A, T, w, lams, free, groups, 5, objective)
    assert picked.last_loss == pytest.approx(loss, rel=1e-7, abs=1e-9 * start)
    assert set(columns) == set(picked.columns) or lam == 0
    better = refine(picked, moments)
    chosen = set(better.columns.tolist())
    assert all(set(group) <= chosen or not set(group) & chosen for group in groups)
    assert better.after <= better.before * (1 + 1e-9)
    assert better.after == pytest.approx(
        oracle.loss_of_targets(A, T, list(better.columns), lams, w, objective), rel=1e-7, abs=1e-9 * start
    )


def test_groups_with_costs_folds_and_names():
    X = np.vstack([rows_of(3), rows_of(4)])
    moments = scan(X, folds=3, groups=6, progress=False)
    groups = {"first": [0, 1], "second": [2, 3, 4]}
    picked = select(moments, scale=1.0, column_groups=groups, costs=np.ones(N), budget=4)
    assert len(picked) == 4
    assert cross_validate(moments, 4, lams=[0.1, 1.0], fixed_k=True, scale=1.0, column_groups=groups).k == 4
    assert stability(moments, 4, resamples=3, scale=1.0, column_groups=groups).k == 4
    with pytest.raises(ValueError, match="effort needs single columns"):
        refine(picked, moments, effort=2)

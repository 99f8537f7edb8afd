"""Products of some candidates with all columns: every question among them is answered as from all products."""

import numpy as np
import oracle
import pytest
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.core.band import Band
from rgcss_dask.core.evaluate import bounds

RNG = np.random.default_rng(5)
A = RNG.normal(size=(2500, 6)) @ RNG.normal(size=(6, 30)) + 0.4 * RNG.normal(size=(2500, 30)) + 3.0
C = [3, 17, 4, 28, 22, 9, 0]
OTHERS = [j for j in range(30) if j not in C]
KINDS = {
    "double": A,
    "single": A.astype("f4"),
    "bytes": np.clip(A * 10, -128, 127).astype("i1"),
    "wide": (A * 99).astype("i4"),
}


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    weighted=st.sampled_from([None, "whole", "broken"]),
    prepared=st.sampled_from([{"scale": 1.0}, {"center": True, "scale": 1.0}, {"center": True, "scale": "std"}]),
    objective=st.sampled_from(["unselected", "all"]),
    lam=st.sampled_from([0.0, 1.0, 1e3]),
    parts=st.booleans(),
)
def test_among_candidates_all_is_as_from_all_products(kind, weighted, prepared, objective, lam, parts):
    X, w = KINDS[kind], {None: None, "whole": RNG.integers(0, 4, len(A)), "broken": RNG.random(len(A))}[weighted]
    asked = {"weights": w, **({"folds": 3, "groups": 4} if parts else {})}
    band, whole = rg.scan(X, candidates=C, **asked), rg.scan(X, **asked)
    question = {"lam": lam, "objective": objective, **prepared}
    picked = rg.select(band, 4, **question)
    same = rg.select(whole, 4, exclude=OTHERS, **question)
    assert list(picked.columns) == list(same.columns)
    np.testing.assert_allclose(picked.loss, same.loss, rtol=1e-9)
    np.testing.assert_allclose(picked.weights(band), same.weights(whole), atol=1e-9)
    swapped, again = rg.refine(picked, band), rg.refine(same, whole, exclude=OTHERS)
    assert list(swapped.columns) == list(again.columns)
    assert swapped.after == pytest.approx(again.after, rel=1e-9)
    if parts:
        tuned, as_tuned = (
            rg.cross_validate(source, 3, lams=[0.1, 10.0], objective=objective, **prepared, **more)
            for source, more in ((band, {}), (whole, {"exclude": OTHERS}))
        )
        np.testing.assert_allclose(tuned.mean, as_tuned.mean, rtol=1e-9)


def test_losses_and_weights_are_those_of_the_rows():
    picked = rg.select(rg.scan(A, candidates=C), 3, lam=2.0)
    assert picked.loss[-1] == pytest.approx(oracle.loss(A, picked.columns, 2.0), rel=1e-10)
    E = np.delete(A - A[:, picked.columns] @ picked.weights(rg.scan(A, candidates=C)), picked.columns, axis=1)
    assert float(np.sum(E * E)) == pytest.approx(picked.loss[-1], rel=1e-10)


@pytest.mark.parametrize("objective", ["unselected", "all"])
@pytest.mark.parametrize("lam", [0.0, 30.0])
def test_the_bound_holds_for_every_choice_among_the_candidates_and_is_tighter(objective, lam):
    X = A[:200]
    picked = rg.select(rg.scan(X, candidates=C), 2, lam=lam, objective=objective, bound=True, scale=1.0)
    pairs = [(i, j) for i in C for j in C if i < j]
    assert picked.bound[-1] <= min(oracle.loss(X, pair, lam, objective) for pair in pairs) * (1 + 1e-9)
    anywhere = bounds(np.linalg.eigvalsh(X.T @ X)[::-1], 2, lam, objective).tight
    assert picked.bound[-1] >= anywhere[-1] * (1 - 1e-9)
    assert "of the 7 candidates" in picked.sentence


@pytest.mark.parametrize("dtype", ["f8", "f4", "i1"])
def test_sparse_rows_give_what_dense_ones_do(dtype):
    X = scipy.sparse.random(800, 30, 0.1, format="csr", rng=1, dtype="f8")
    X.data = np.round(X.data * 9 + 1)
    X = X.astype(dtype)
    sparse, dense = rg.scan(X, candidates=C, folds=2), rg.scan(X.toarray(), candidates=C, folds=2)
    for center in (False, True):
        np.testing.assert_allclose(sparse.prepared(center, None)[0], dense.prepared(center, None)[0], atol=1e-8)
    np.testing.assert_allclose(sparse.spread, dense.spread)


def test_parts_add_up_in_any_order_and_can_be_taken_away():
    X = KINDS["bytes"]
    whole, one, two = Band.of(X, C), Band.of(X[:999], C), Band.of(X[999:], C)
    for merged in (one.merge(two), two.merge(one)):
        assert merged.exact
        np.testing.assert_array_equal(merged.product, whole.product)
        np.testing.assert_array_equal(merged.column_squares, whole.column_squares)
    left = whole.minus(one)
    np.testing.assert_array_equal(left.product, two.product)
    some = whole.take([9, 3, 12])
    np.testing.assert_array_equal(some.product, Band.of(X[:, [9, 3, 12]], [1, 0]).product)


def test_kept_appended_and_merged(tmp_path):
    array = zarr.create_array(tmp_path / "a.zarr", shape=(2000, 30), chunks=(100, 30), dtype="i1")
    array[:] = KINDS["bytes"][:2000]
    names = {"folds": 3, "candidates": C}
    first = rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr", **names)
    assert rg.load(tmp_path / "m.zarr").candidates == first.candidates
    array.resize((2500, 30))
    array[2000:] = KINDS["bytes"][2000:]
    grown, once = rg.append(tmp_path / "m.zarr", tmp_path / "a.zarr"), rg.scan(tmp_path / "a.zarr", **names)
    for one, other in ((grown, once), *zip(grown.folds, once.folds, strict=True)):
        np.testing.assert_array_equal(one.product, other.product)
    rg.scan(KINDS["bytes"], archive=tmp_path / "n.zarr", **names)
    both = rg.merge([tmp_path / "m.zarr", tmp_path / "n.zarr"])
    np.testing.assert_array_equal(both.product, grown.merge(rg.load(tmp_path / "n.zarr")).product)
    with pytest.raises(ValueError, match="candidates"):
        rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr", folds=3, candidates=C[:3])


def test_a_result_and_a_report_say_that_candidates_were_compared(tmp_path):
    picked = rg.select(rg.scan(A, candidates=C), 3, scale=1.0)
    picked.save(tmp_path / "r.json")
    assert rg.load_result(tmp_path / "r.json").selection.among == len(C)
    rg.report(picked, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "of the best combinations of the candidates" in page
    assert "principal component" not in page


def test_bad_input_is_refused():
    band = rg.scan(A, candidates=C)
    with pytest.raises(ValueError, match="must be one that may be picked; column 1"):
        rg.select(band, 3, include=[1], scale=1.0)
    with pytest.raises(ValueError, match="k must be a whole number from 1 to 7"):
        rg.select(band, 8, scale=1.0)
    with pytest.raises(ValueError, match="different candidates"):
        band.merge(rg.scan(A, candidates=C[:3]))
    with pytest.raises(ValueError, match="cannot merge moments and band"):
        band.merge(rg.scan(A))
    with pytest.raises(ValueError, match="Gram of all 30 columns is not known"):
        band.gram()
    with pytest.raises(ValueError, match="candidates must name a column"):
        rg.scan(A, candidates=[])
    with pytest.raises(ValueError, match="once"):
        rg.scan(A, candidates=[1, 1])
    with pytest.raises(ValueError, match="nan='mean'"):
        rg.scan(A, candidates=C, nan="mean")
    with pytest.raises(MemoryError, match="products of 7 candidates"):
        rg.scan(A, candidates=C, memory=1000)
    gap = A.copy()
    gap[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7, column 2"):
        rg.scan(gap, candidates=C)
    assert rg.scan(gap, candidates=C, nan="drop").dropped == 1

"""Leading eigenvalues and the trace: bounds that stay bounds, beside those of all eigenvalues."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rgcss_dask import Moments, load_result, select
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.cli import cli
from rgcss_dask.core import evaluate, spectrum
from rgcss_dask.core.objective import OBJECTIVES
from rgcss_dask.core.result import make_result
from rgcss_dask.core.solver import gram, leading
from rgcss_dask.core.solver.gram import Gram
from rgcss_dask.reporting import write_report


@pytest.fixture(autouse=True, scope="module")
def few():
    """Take the leading eigenvalues of small matrices too, in blocks that leave room for it."""
    with pytest.MonkeyPatch.context() as patch:
        for where, name, value in (
            (gram, "SMALL", 8),
            (leading, "_BLOCK", 4),
            (leading, "_MOST", 1.0),
            (spectrum, "FEW", 0),
        ):
            patch.setattr(where, name, value)
        yield


def matrix(kind, n, seed):
    rng = np.random.default_rng(seed)
    if kind == "equal":
        return np.kron(np.eye(n // 8), np.ones((8, 8)))
    A = {
        "flat": lambda: rng.normal(size=(3 * n, n)),
        "decaying": lambda: rng.normal(size=(2 * n, n)) * np.geomspace(1, 1e-7, n),
        "repeated": lambda: np.repeat(rng.normal(size=(n, n // 8)), 8, axis=1),
        "of low rank": lambda: rng.normal(size=(3, n)),
        "bytes": lambda: rng.integers(0, 256, size=(4 * n, n)).astype(float),
        "tiny": lambda: 1e-140 * rng.normal(size=(2 * n, n)),
    }[kind]()
    return A.T @ A


KINDS = ["flat", "decaying", "repeated", "equal", "of low rank", "bytes", "tiny"]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(4, 10),
    st.integers(1, 7),
    st.integers(0, 99),
    st.sampled_from(sorted(OBJECTIVES)),
    st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
)
def test_the_bound_of_the_leading_eigenvalues_is_one_and_close(kind, eights, k, seed, objective, lam):
    G = matrix(kind, 8 * eights, seed)
    found = Gram(G).spectrum(np.ones(len(G)), k)
    every = np.maximum(np.linalg.eigvalsh(G)[::-1], 0.0)
    got = OBJECTIVES[objective].bounds(found, k, lam).tight
    want = evaluate.bounds(every, k, lam, objective).tight
    rounding = 1e-13 * every.sum()  # of the eigenvalues that it is compared with
    assert np.all(got <= want + rounding)
    # Each eigenvalue may be taken three times its residual too high, and that of all k is a millionth at most.
    assert np.all(got >= want - 3.1e-6 * every.sum())


@pytest.mark.parametrize("kind", ["flat", "decaying", "repeated", "bytes"])
def test_so_are_the_eigenvalues_and_few_are_worked_out(kind):
    G = matrix(kind, 64, 0)
    found, every = Gram(G).spectrum(np.ones(64), 5), np.linalg.eigvalsh(G)[::-1]
    assert not found.is_whole
    np.testing.assert_allclose(found.values, every[:5], rtol=1e-6)
    assert np.all(every[:5] <= found.values + found.doubt)
    assert 5 * found.doubt < 1e-5 * every.sum()


def test_eigenvalues_that_were_missed_are_noticed(monkeypatch):
    """Directions that miss the first eigenvector: the Ritz values are exact, and still not the leading ones."""
    G = matrix("decaying", 64, 0)
    vectors = np.linalg.eigh(G)[1][:, ::-1]
    monkeypatch.setattr(leading, "_directions", lambda *given: vectors[:, 1:6])
    assert leading.leading(G, lambda X: X @ G, 5) is None
    found = Gram(G).spectrum(np.ones(64), 5)
    assert found.is_whole
    np.testing.assert_array_equal(found.values[:5], np.linalg.eigvalsh(G)[::-1][:5])


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_a_selection_of_many_columns_has_its_bound_and_stops_by_it(objective):
    G = matrix("decaying", 80, 1)
    picked = select(G, 6, lam=0.1, objective=objective, bound=True)
    assert np.all(picked.bound <= picked.loss)
    want = evaluate.bounds(np.linalg.eigvalsh(G)[::-1], 6, 0.1, objective).tight
    np.testing.assert_allclose(picked.bound, want, rtol=1e-4)


@pytest.fixture
def result():
    moments = Moments.of(np.random.default_rng(3).normal(size=(300, 64)) * np.geomspace(1, 0.01, 64))
    return make_result(moments, select(moments, 4)), make_result(moments, select(moments, 4), paper_bound=True)


def test_a_result_of_many_columns_says_the_same_without_the_papers_bound(result):
    few, every = result
    assert (len(few.spectrum), few.paper_bound) == (4, None)
    assert (len(every.spectrum), len(every.paper_bound)) == (64, 4)
    assert few.sentence == every.sentence
    np.testing.assert_allclose(few.components_explained, every.components_explained, rtol=1e-6)
    np.testing.assert_allclose(few.selection.bound, every.selection.bound, rtol=1e-5)


def test_such_a_result_comes_back_and_is_shown(result, tmp_path):
    for i, one in enumerate(result):
        save_result(one, tmp_path / f"{i}.json")
        back = load_result(tmp_path / f"{i}.json")
        np.testing.assert_array_equal(back.spectrum, one.spectrum)
        write_report(back, tmp_path / f"{i}.html")
    few, every = ((tmp_path / f"{i}.html").read_text() for i in (0, 1))
    assert "below the bound." in few
    assert "below the bounds" in every
    assert '"format": 3' in (tmp_path / "0.json").read_text()
    assert '"format": 2' in (tmp_path / "1.json").read_text()


def test_the_papers_bound_is_there_for_who_asks_the_command(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 64)))
    for flag, count in (([], 4), (["--paper-bound"], 64)):
        out = str(tmp_path / "r.json")
        told = CliRunner().invoke(cli, ["select", str(tmp_path / "x.npy"), "-k", "4", "-o", out, *flag])
        assert told.exit_code == 0, told.output
        assert len(load_result(out).spectrum) == count

"""Panels of genes: picks as brute force makes them, in every form that an AnnData has, and what goes wrong."""

import warnings

import matplotlib as mpl
import numpy as np
import oracle
import pytest
import scipy.sparse
import zarr

import rgcss_dask as rg
from rgcss_dask import plots
from rgcss_dask.core.errors import WrongKindError

mpl.use("Agg")
anndata = pytest.importorskip("anndata")
pd = pytest.importorskip("pandas")

TYPES = ("B", "NK", "T")
CELLS, GENES, K = 90, 14, 4


def quietly(function, *args):
    """Call what announces the formats of anndata's next version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


def made():
    """Return log-normalised cells of three types, of which ten genes are marked."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(TYPES, (45, 30, 15))
    level = rng.gamma(0.7, 1.5, (len(TYPES), GENES))
    counts = rng.poisson(level[[TYPES.index(kind) for kind in kinds]] * rng.gamma(4, 0.25, (CELLS, 1)))
    var = pd.DataFrame({"highly_variable": np.arange(GENES) % 4 != 3}, index=[f"g{i}" for i in range(GENES)])
    # A category without cells, as is left behind when cells are taken out.
    obs = pd.DataFrame({"kind": pd.Categorical(kinds, [*TYPES, "gone"])}, index=[f"c{i}" for i in range(CELLS)])
    return anndata.AnnData(scipy.sparse.csr_matrix(np.log1p(counts).astype("f4")), obs=obs, var=var)


@pytest.fixture
def cells():
    return made()


def loss(adata, picks, share, lam=1.0):
    """Work out what picks leave of genes and types, from the rows; each type counts alike."""
    A = adata.X.toarray().astype(float)[:, adata.var["highly_variable"]]
    T = (np.asarray(adata.obs["kind"])[:, None] == np.array(TYPES)).astype(float)
    weights = 1.0 / T.sum(axis=0)
    A, T = A - A.mean(axis=0), T - T.mean(axis=0)
    places = list(np.flatnonzero(adata.var["highly_variable"]))
    C = A[:, [places.index(j) for j in picks]]
    left = [M - C @ np.linalg.solve(C.T @ C + lam * np.eye(len(picks)), C.T @ M) for M in (A, T)]
    rest = [i for i, j in enumerate(places) if j not in picks]
    of_genes = np.sum(left[0][:, rest] ** 2)
    of_types = np.sum(left[1] ** 2 @ weights)
    start = np.sum(A**2), np.sum(T**2 @ weights)
    return (1 - share) * of_genes / start[0] + share * of_types / start[1], of_genes / start[0], left[1], T


def greedy_with_swaps(adata, share, k=K):
    """Add the best gene k times, then swap while that helps: the rows, and nothing of the package."""
    free = list(np.flatnonzero(adata.var["highly_variable"]))
    worth = lambda picks: loss(adata, picks, share)[0]  # noqa: E731
    picks = []
    for _ in range(k):
        picks.append(min((j for j in free if j not in picks), key=lambda j: worth([*picks, j])))
    while True:
        swaps = [[*picks[:i], j, *picks[i + 1 :]] for i in range(k) for j in free if j not in picks]
        best = min(swaps, key=worth)
        if worth(best) >= worth(picks) * (1 - 1e-10):
            return picks
        picks = best


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_picks_are_those_of_brute_force(cells, share):
    panel = rg.gene_panel(cells, K, cell_types="kind", share=share, lam=1.0)
    picks = [int(j) for j in panel.columns]
    expected = greedy_with_swaps(cells, share)
    assert loss(cells, picks, share)[0] <= loss(cells, expected, share)[0] * (1 + 1e-9)
    _, of_genes, left, T = loss(cells, picks, share)
    assert panel.genes_explained[-1] == pytest.approx(1 - of_genes)
    np.testing.assert_allclose(panel.types_explained[-1], 1 - np.sum(left**2, axis=0) / np.sum(T**2, axis=0))
    assert panel.types == TYPES
    assert list(panel.cells) == [45, 30, 15]
    dense = cells.X.toarray()
    for j, kind in enumerate(TYPES):
        np.testing.assert_allclose(panel.means[j], dense[cells.obs["kind"] == kind][:, picks].mean(axis=0), rtol=1e-6)


def test_without_types_picks_are_those_of_the_oracle(cells):
    panel = rg.gene_panel(cells, 1, lam=1.0)
    A = cells.X.toarray()[:, cells.var["highly_variable"]].astype(float)
    assert list(panel.selection.columns) == oracle.select(A - A.mean(axis=0), 1, 1.0)
    assert not panel.types
    assert list(rg.gene_panel(cells, K).columns) == list(rg.gene_panel(cells, K, "kind", share=0).columns)


def test_lambda_is_for_each_cell_by_default(cells):
    assert rg.gene_panel(cells, K).selection.lam == pytest.approx(0.05 * CELLS)
    assert cells.uns["gene_panel"]["params"]["lam"] == pytest.approx(0.05 * CELLS)


def test_picks_are_written_as_scanpy_does(cells, tmp_path):
    panel = rg.gene_panel(cells, K, cell_types="kind", key_added="few")
    assert list(cells.var_names[cells.var["few"]]) == sorted(panel.names, key=list(cells.var_names).index)
    ranked = cells.var["few_rank"].dropna().sort_values()
    assert tuple(ranked.index) == panel.names
    assert list(ranked) == [1, 2, 3, 4]
    quietly(cells.write_h5ad, tmp_path / "noted.h5ad")
    noted = anndata.read_h5ad(tmp_path / "noted.h5ad").uns["few"]
    assert noted["params"]["share"] == 0.3
    assert tuple(noted["genes"]) == panel.names
    np.testing.assert_allclose(noted["cell_types_explained"], panel.types_explained)
    other = made()
    panel.annotate(other)
    assert other.var["few"].equals(cells.var["few"])
    rg.gene_panel(other, K, inplace=False)
    assert "gene_panel" not in other.var
    with pytest.raises(ValueError, match="panel is of 14 genes in a certain order; the AnnData has 3 genes"):
        panel.annotate(other[:, :3].copy())


def forms(cells, folder):
    """Yield the same cells in every form."""
    yield cells
    thick = anndata.AnnData(cells.X.toarray(), obs=cells.obs, var=cells.var)
    yield thick
    for name, adata in (("csr", cells), ("dense", thick)):
        quietly(adata.write_h5ad, folder / f"{name}.h5ad")
        quietly(adata.write_zarr, folder / f"{name}.zarr")
        yield folder / f"{name}.h5ad"
        yield str(folder / f"{name}.zarr")
        yield zarr.open_group(folder / f"{name}.zarr", mode="r")
        yield anndata.read_h5ad(folder / f"{name}.h5ad", backed="r")
    yield anndata.concat([cells, cells[:0]], merge="same")
    layered = anndata.AnnData(obs=cells.obs, var=cells.var, layers={"log": cells.X})
    quietly(layered.write_h5ad, folder / "layer.h5ad")
    quietly(layered.write_zarr, folder / "layer.zarr")
    yield layered, {"layer": "log"}
    yield folder / "layer.h5ad", {"layer": "log"}
    yield folder / "layer.zarr", {"layer": "log"}
    yield zarr.open_group(folder / "layer.zarr", mode="r"), {"layer": "log"}


def test_every_form_of_anndata_gives_the_same(cells, tmp_path):
    base = rg.gene_panel(made(), K, cell_types="kind")
    for form in forms(cells, tmp_path):
        adata, options = form if isinstance(form, tuple) else (form, {})
        panel = rg.gene_panel(adata, K, cell_types="kind", **options)
        assert panel.names == base.names
        np.testing.assert_allclose(panel.types_explained, base.types_explained, rtol=1e-9)
        if isinstance(adata, anndata.AnnData):
            assert adata.var["gene_panel"].sum() == K


def test_a_view_becomes_an_object_of_its_own(cells):
    view = cells[cells.obs["kind"] != "T"]
    with pytest.warns(anndata.ImplicitModificationWarning):
        panel = rg.gene_panel(view, K, cell_types="kind")
    assert panel.types == ("B", "NK")
    assert view.var["gene_panel"].sum() == K
    assert "gene_panel" not in cells.var
    copied = cells[cells.obs["kind"] != "T"].copy()
    assert rg.gene_panel(copied, K, cell_types="kind").names == panel.names


def test_a_file_is_left_as_it_is(cells, tmp_path):
    quietly(cells.write_h5ad, tmp_path / "cells.h5ad")
    before = (tmp_path / "cells.h5ad").read_bytes()
    rg.gene_panel(anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r"), K)
    rg.gene_panel(tmp_path / "cells.h5ad", K)
    assert (tmp_path / "cells.h5ad").read_bytes() == before


def test_genes_that_are_included_excluded_and_read(cells):
    panel = rg.gene_panel(cells, K, include=["g3", "g5"], exclude="g1*")
    assert panel.names[:2] == ("g3", "g5")  # g3 is not highly variable
    assert not [name for name in panel.names if name.startswith("g1")]
    cells.var["mine"] = [name in ("g0", "g1", "g2", "g4") for name in cells.var_names]
    assert set(rg.gene_panel(cells, 3, highly_variable="mine").names) < {"g0", "g1", "g2", "g4"}
    everything = rg.gene_panel(cells, GENES, highly_variable=False)
    assert sorted(everything.columns) == list(range(GENES))


def test_duplicate_names_are_told_apart_by_position(cells):
    cells.var_names = ["twin" if i < 2 else f"g{i}" for i in range(GENES)]
    panel = rg.gene_panel(cells, K, include=[1])
    assert panel.columns[0] == 1
    assert cells.var["gene_panel"].to_numpy()[1]
    with pytest.raises(ValueError, match=r"2 columns are called 'twin'. Give the index instead"):
        rg.gene_panel(cells, K, include=["twin"])


def test_types_may_be_given_as_values(cells):
    base = rg.gene_panel(cells, K, cell_types="kind", inplace=False)
    numbers = np.array([TYPES.index(kind) for kind in cells.obs["kind"]])
    for types in (cells.obs["kind"], list(cells.obs["kind"]), numbers, numbers.astype(float)):
        assert rg.gene_panel(cells, K, types, inplace=False).names == base.names


def test_it_answers_as_other_answers_do(cells, tmp_path):
    panel = rg.gene_panel(cells, K, cell_types="kind")
    assert panel.sentence.startswith("4 of 11 genes keep ")
    assert "of what tells 3 cell types apart; least of " in panel.sentence
    frame = panel.to_frame()
    assert list(frame["gene"]) == list(panel.names)
    assert set(frame["highest_in"]) <= set(TYPES)
    labels = [line.get_label() for line in panel.plot().lines]
    assert {"picked columns", "genes", "cell types, mean", "cell types, least"} <= set(labels)
    rg.report(panel, tmp_path / "page.html")
    assert "g" in (tmp_path / "page.html").read_text()
    panel.save(tmp_path / "result.json")
    assert rg.load_result(tmp_path / "result.json").selection.names == panel.names


def test_genes_are_drawn_by_the_type_in_which_they_are_highest(cells):
    panel = rg.gene_panel(cells, K, cell_types="kind")
    axes = plots.cell_types(panel)
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert sorted(shown) == sorted(panel.names)
    drawn = np.asarray(axes.images[0].get_array())
    assert list(drawn.argmax(axis=0)) == sorted(drawn.argmax(axis=0))
    assert drawn[:, 0].max() == pytest.approx(1.0)
    column = panel.means[:, panel.names.index(shown[0])]
    np.testing.assert_allclose(drawn[:, 0], column / column.max())
    with pytest.raises(ValueError, match="picked with cell_types; give them"):
        plots.cell_types(rg.gene_panel(cells, K))


def test_values_that_are_not_log_normalised_are_told(cells):
    counts = cells.copy()
    counts.X = np.expm1(cells.X.toarray()).round()
    with pytest.warns(UserWarning, match="whole numbers only, as counts are"):
        rg.gene_panel(counts, K, cell_types="kind")
    scaled = cells.copy()
    scaled.X = cells.X.toarray() - 1.0
    with pytest.warns(UserWarning, match="values below 0, as scaled ones are"):
        rg.gene_panel(scaled, K)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell_types": "type"}, r"obs has no column 'type'; the columns there are: kind\."),
        ({"cell_types": ["B"] * 3}, "cell_types must have a type for each of 90 cells; got 3"),
        ({"cell_types": ["B"] * 89 + [None]}, "1 of 90 have none. Leave these cells out"),
        ({"cell_types": ["B"] * 89 + [np.nan]}, "1 of 90 have none"),
        ({"cell_types": ["B"] * 89 + ["T"]}, "of 'T' there is one"),
        ({"cell_types": ["B"] * 90}, "there is only 'B'"),
        ({"cell_types": "kind", "share": 1.5}, "share must be from 0 to 1"),
        ({"include": ["G1"]}, "column 'G1' does not exist: no column has that name; similar names: 'g1'"),
        ({"include": ["g1"], "exclude": ["g1"]}, "a gene cannot be both included and excluded; got 'g1'"),
        ({"exclude": "x*"}, r"no column has a name like 'x\*'"),
        ({"highly_variable": "hvg"}, "var has no column 'hvg' that marks"),
        ({"highly_variable": "score"}, r"var\['score'\] must be True or False"),
        ({"k": 12}, "from 1 to 11, the genes that may be picked: highly variable, or included"),
        ({"k": 0}, "k must be a whole number from 1 to 11"),
        ({"k": 2, "include": ["g0", "g1", "g2"]}, "from 3, for those included, to 11"),
        ({"layer": "log"}, "there is no layer 'log' in the AnnData; the layers there are: none"),
    ],
)
def test_what_is_wrong_is_said(cells, options, message):
    cells.var["score"] = 0.5
    with pytest.raises(ValueError, match=message):
        rg.gene_panel(cells, **{"k": K, **options})
    assert "gene_panel" not in cells.var


def test_what_holds_no_anndata_is_said(cells, tmp_path):
    del cells.var["highly_variable"]
    with pytest.raises(ValueError, match=r"var has no column 'highly_variable'.*highly_variable=False to take all"):
        rg.gene_panel(cells, K)
    with pytest.raises(WrongKindError, match=r"picked from an AnnData, or the path of an .h5ad file or Zarr store"):
        rg.gene_panel(cells.X, K)
    zarr.create_array(tmp_path / "rows.zarr", data=np.eye(3))
    with pytest.raises(ValueError, match=r"there is none at .*rows.zarr"):
        rg.gene_panel(tmp_path / "rows.zarr", K)
    with pytest.raises(ValueError, match=r"there is none at .*nowhere.zarr"):
        rg.gene_panel(tmp_path / "nowhere.zarr", K)
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    with pytest.raises(ValueError, match=r"group.zarr is a Zarr group; an array is needed"):
        rg.gene_panel(tmp_path / "group.zarr", K)
    gaps = made()
    gaps.X = gaps.X.toarray()
    gaps.X[3, 0] = np.nan
    with pytest.raises(ValueError, match="cell 'c3' has nan for gene 'g0'"):
        rg.gene_panel(gaps, K)


def test_types_as_a_series_belong_to_the_cells_that_it_names(cells):
    names = rg.gene_panel(cells, K, "kind", inplace=False).names
    turned = cells.obs["kind"][::-1]
    assert rg.gene_panel(cells, K, turned, inplace=False).names == names
    assert rg.gene_panel(cells, K, turned.to_numpy(), inplace=False).names != names  # in the order of the cells
    unnamed = cells.obs["kind"].reset_index(drop=True)
    assert rg.gene_panel(cells, K, unnamed, inplace=False).names == names


def test_a_cell_with_a_gap_is_named(cells):
    cells.X = cells.X.toarray()
    cells.X[7, 5] = np.nan
    with pytest.raises(ValueError, match=r"cell 'c7' has nan for gene 'g5'\. Leave such cells or genes out"):
        rg.gene_panel(cells, K, "kind")

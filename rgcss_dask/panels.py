"""Gene panels: a few genes from which the expression of other genes and the cell types are rebuilt."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.cluster.progress import Callback
from rgcss_dask.cluster.remote_moments import RemoteMoments
from rgcss_dask.core.aims import chosen
from rgcss_dask.core.input_checks import NotFiniteError, is_whole
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.panel import GenePanel
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.words import listed
from rgcss_dask.estimator.supervised import carrying_y
from rgcss_dask.runtime.extras import imported
from rgcss_dask.scanning.scan import scan
from rgcss_dask.selecting import select
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.beside import Targets, with_targets
from rgcss_dask.sources.cells import BY, Cells
from rgcss_dask.sources.views import ColumnsSource

Index = NDArray[np.intp]
Genes = Sequence[int] | Sequence[str] | NDArray[Any] | str

HIGHLY_VARIABLE = "highly_variable"
# Share of the cell types in the loss, and lambda for each cell: chosen with examples/benchmarks/panels.py, on other
# data splits than those its page reports.
SHARE, LAMBDA = 0.3, 0.05
# A mean further below 0 than this, in standard deviations, is not rounding.
_BELOW = -1e-6


def gene_panel(
    adata: Any,
    k: int,
    cell_types: Any = None,
    *,
    share: float = SHARE,
    include: Genes = (),
    exclude: Genes = (),
    highly_variable: bool | str = True,
    layer: str | None = None,
    lam: float | None = None,
    effort: int = 0,
    key_added: str = "gene_panel",
    inplace: bool = True,
    progress: bool | Callback | None = None,
) -> GenePanel:
    """Pick k genes from which the other genes and the cell types are rebuilt with the smallest loss.

    The expression of all genes, and the type of each cell, are rebuilt from the picked genes by least squares. Genes
    are picked one by one, then swapped as long as that lowers the loss. Values should be log-normalised: each gene
    counts by its variance, which preserves the distances between cells. The cells are read once, in O(cells n^2) time
    for n genes (less for sparse matrices) and with n^2 numbers of memory; the selection then takes a second or two.

    Parameters
    ----------
    adata : AnnData or path
        An AnnData in memory or backed by a file, or the path of an .h5ad file or of a Zarr store, which are read in
        ranges of cells. Sparse matrices must be stored by rows (CSR).
    k : int
        Number of genes, including those in ``include``.
    cell_types : str or array of shape (cells,), optional
        The column of ``obs`` with the type of each cell, or the types themselves, in the order of the cells; a pandas
        Series whose index holds the names of the cells may be in any order. All types count alike, whatever their
        number of cells. Without it only the genes count.
    share : float, default=0.3
        Share of the cell types in the loss before the first pick, from 0 to 1; the genes make up the rest. A larger
        share preserves distances between cells less well. With 0 the types do not influence the picks, but the panel
        still reports how well it explains them.
    include, exclude : genes, optional
        Genes to pick first, and genes that must not be picked, by names, patterns such as ``"MT-*"``, or positions.
        The loss still counts excluded genes.
    highly_variable : bool or str, default=True
        Read the genes marked in ``var["highly_variable"]``, or in another column of ``var``, and those in ``include``;
        with False read all genes.
    layer : str, optional
        Name of a layer to read instead of X.
    lam : float, optional
        Lambda of the regularised loss, see `select`. By default 0.05 times the number of cells, as if the picked genes
        had noise of variance 0.05: panels then recognise types better in new cells and preserve distances as well.
    effort : int, default=0
        Number of additional searches for swaps, see `refine`.
    key_added : str, default="gene_panel"
        Name of the results in the AnnData, see `GenePanel.annotate`.
    inplace : bool, default=True
        Write the results into the AnnData object. Data at a path are never changed, nor is the file of a backed object
        until the object is written.
    progress : bool or callable, optional
        Progress of the reading, see `scan`.

    Returns
    -------
    GenePanel
        The genes in pick order, with how much of the genes and of each cell type they explain.

    See Also
    --------
    rgcss_dask.plots.cell_types : draws the mean of each picked gene in each cell type.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rng = np.random.default_rng(0)
    >>> kinds = np.repeat(["B", "NK", "T"], [80, 60, 60])
    >>> level = {kind: rng.gamma(1.0, 1.0, 30) for kind in ("B", "NK", "T")}
    >>> cells = anndata.AnnData(np.log1p(rng.poisson([level[kind] for kind in kinds])))
    >>> cells.obs["kind"] = kinds
    >>> panel = rg.gene_panel(cells, 6, cell_types="kind", highly_variable=False)
    >>> panel
    6 of 30 genes keep 50.8 % of the variation, and 85.5 % of what tells 3 cell types apart; least of NK, 81.1 %.
    Picked, in order: 11, 20, 19, 9, 29, 16.
    >>> int(cells.var["gene_panel"].sum())
    6
    """
    cells = Cells.of(adata, layer)
    places, aims = _genes(cells, k, include, exclude, highly_variable)
    if not 0 <= share <= 1:
        raise ValueError(f"share must be from 0 to 1, the share of the cell types in the loss; got {share!r}.")
    targets = None if cell_types is None else _types(cells, cell_types)
    source: Source = ColumnsSource(cells.matrix, places)
    try:
        moments = scan(source if targets is None else with_targets(source, targets), progress=progress)
    except NotFiniteError as error:
        raise ValueError(
            f"values must be finite; cell {cells.obs.index[error.row]!r} has {error.value} for gene {error.name!r}. "
            "Leave such cells or genes out, or fill the gaps before."
        ) from None
    moments = moments.fetch() if isinstance(moments, RemoteMoments) else moments
    _warn_of_values(moments, len(places))
    aims |= _carrying(moments, targets, share)
    lam = LAMBDA * moments.weight if lam is None else float(lam)
    picked = select(moments, k, lam=lam, center=True, refine=True, effort=effort, **aims)
    asked = {"k": k, "cell_types": cell_types if isinstance(cell_types, str) else None, "lam": lam, "layer": layer}
    asked |= {"share": None if targets is None else share, "highly_variable": highly_variable, "key_added": key_added}
    types = () if targets is None or targets.classes is None else tuple(str(name) for name in targets.classes)
    panel = GenePanel.of(moments, picked, places, cells.matrix.shape[1], types, asked)
    if inplace and not isinstance(adata, str | Path) and hasattr(adata, "uns"):
        panel.annotate(adata)
    return panel


def _genes(
    cells: Cells, k: int, include: Genes, exclude: Genes, highly_variable: bool | str
) -> tuple[Index, dict[str, Any]]:
    """Return the positions of the genes to read, and the included and excluded ones among them; check the options."""
    n, names = cells.matrix.shape[1], cells.matrix.names
    first, never = chosen(include, n, names), chosen(exclude, n, names)
    both = np.intersect1d(first, never)
    if len(both):
        name = both[0] if names is None else names[both[0]]
        raise ValueError(f"a gene cannot be both included and excluded; got {name!r} in both.")
    read = _marked(cells.var, highly_variable)
    read[first] = True
    places = np.flatnonzero(read)
    free = len(np.setdiff1d(places, never))
    if not is_whole(k) or not max(1, len(first)) <= k <= free:
        among = "" if highly_variable is False else ": highly variable, or included; highly_variable=False takes all"
        raise ValueError(
            f"k must be a whole number from {f'{len(first)}, for those included,' if len(first) else 1} to {free}, the "
            f"genes that may be picked{among}; got {k!r}."
        )
    never = np.intersect1d(never, places)
    return places, {"include": np.searchsorted(places, first), "exclude": np.searchsorted(places, never)}


def _marked(var: Any, highly_variable: bool | str) -> NDArray[np.bool_]:
    """Return which genes to read: those marked in a column of var, or all."""
    if highly_variable is False:
        return np.ones(len(var), dtype=bool)
    name = HIGHLY_VARIABLE if highly_variable is True else highly_variable
    if name not in var:
        raise ValueError(
            f"var has no column {name!r} that marks the genes to choose from: make it with "
            "scanpy.pp.highly_variable_genes, or give highly_variable=False to take all genes."
        )
    marks = np.array(var[name])
    if marks.dtype != bool:
        raise ValueError(f"var[{name!r}] must be True or False for each gene; got dtype {marks.dtype}.")
    return marks


def _types(cells: Cells, cell_types: Any) -> Targets:
    """Return an indicator for each cell type."""
    pandas = imported("pandas", extra="anndata", by=BY)
    if isinstance(cell_types, str) and cell_types not in cells.obs:
        there = listed(list(cells.obs.columns)) if len(cells.obs.columns) else "none"
        raise ValueError(f"obs has no column {cell_types!r}; the columns there are: {there}.")
    what = f"obs[{cell_types!r}]" if isinstance(cell_types, str) else "cell_types"
    given = cells.obs[cell_types] if isinstance(cell_types, str) else _in_order(cell_types, cells.obs.index)
    labels = pandas.Series(np.asarray(given, dtype=object))
    if len(labels) != cells.matrix.shape[0]:
        raise ValueError(f"{what} must have a type for each of {cells.matrix.shape[0]:,} cells; got {len(labels):,}.")
    missing = int(labels.isna().sum())
    if missing:
        raise ValueError(
            f"{what} must have a type for each cell; {missing:,} of {len(labels):,} have none. Leave these cells out, "
            "adata[adata.obs[...].notna()].copy(), or give them a type of their own."
        )
    counts = labels.astype(str).value_counts()
    alone = sorted(counts.index[counts < 2])
    if alone or len(counts) < 2:
        found = f"of {alone[0]!r} there is one" if alone else f"there is only {counts.index[0]!r}"
        raise ValueError(f"{what} must have two types or more, of two cells or more each; {found}.")
    return Targets.of(labels.astype(str).to_numpy(dtype=str), len(labels))


def _in_order(cell_types: Any, names: Any) -> Any:
    """Return the types in the order of the cells, if they are a Series that has the names of all cells."""
    pandas = imported("pandas", extra="anndata", by=BY)
    named = isinstance(cell_types, pandas.Series) and cell_types.index.is_unique and names.is_unique
    return cell_types.reindex(names) if named and names.isin(cell_types.index).all() else cell_types


def _carrying(moments: Moments, targets: Targets | None, share: float) -> dict[str, Any]:
    """Return the options of `select` that make the cell types targets."""
    if targets is None:
        return {}
    n = moments.n - len(targets.names)
    if share == 0:  # the indicators of the types have no weight, but the panel reports their shares
        return {"candidates": np.arange(n), "column_weights": np.repeat([1.0, 0.0], [n, moments.n - n])}
    aims = carrying_y(Problem(center=True), moments, targets, share).aims
    return {"column_weights": aims.column_weights, "targets": aims.targets, "target_share": share}


def _warn_of_values(moments: Moments, n: int) -> None:
    """Warn if the sums over all cells show that the values are not log-normalised."""
    if moments.exact:
        found = "whole numbers only, as counts are"
    elif np.any(moments.mean[:n] < _BELOW * moments.spread[:n]):
        found = "values below 0, as scaled ones are"
    else:
        return
    warnings.warn(
        f"genes count by their variance, which suits log-normalised values; there are {found}. Give X or a layer after "
        "scanpy.pp.normalize_total and scanpy.pp.log1p.",
        stacklevel=3,
    )

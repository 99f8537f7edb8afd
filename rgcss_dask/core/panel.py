"""`GenePanel`: picked genes, and what they carry of all genes and of each cell type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.answer import AboutSelection
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.words import counted, percent

Array = NDArray[np.float64]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False, repr=False)
class GenePanel(AboutSelection):
    """Genes in the order they were picked, and how much of all genes and of each cell type they explain.

    Made by `gene_panel`. What `select` returns is in ``selection``: its columns are the genes that were read, with an
    indicator for each cell type behind them.

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
    >>> panel.types
    ('B', 'NK', 'T')
    >>> panel.means.shape
    (3, 6)
    """

    selection: Selection
    places: Index  #: (n,) where the genes that were read are among all genes
    total: int  #: all genes
    genes_explained: Array  #: (k,) share of the variation of the genes that were read, after each pick
    types: tuple[str, ...]  #: (q,) cell types
    cells: NDArray[np.intp]  #: (q,) how many cells each type has
    types_explained: Array  #: (k, q) share of what tells each type from the others, after each pick
    means: Array  #: (q, k) mean of each picked gene in the cells of each type
    asked: dict[str, Any]  #: the options

    @classmethod
    def of(
        cls, moments: Moments, picked: Selection, places: Index, total: int, types: tuple[str, ...], asked: Any
    ) -> GenePanel:
        """Work out what picked genes carry, from moments of genes with the indicators of cell types behind them."""
        n, S = len(places), picked.columns
        G = moments.gram(center=True)
        losses = evaluate.prefix_column_losses(G, S, picked.lam)
        start = np.diagonal(G)
        genes = evaluate.sum_prefixes(losses[:, :n], S, "unselected")
        cells = moments.mean[n:] * moments.weight
        return cls(
            selection=picked,
            places=places,
            total=total,
            genes_explained=evaluate.explained_share(genes, float(start[:n].sum())),
            types=types,
            cells=cells.round().astype(np.intp),
            types_explained=1.0 - losses[:, n:] / start[n:],
            # The centred product of an indicator and a gene: the sum of the gene over the type, less its mean there.
            means=moments.mean[S] + G[n:, S] / cells[:, None],
            asked=asked,
        )

    @property
    def columns(self) -> Index:  # type: ignore[override]
        """Where the picked genes are among all genes, in pick order, (k,)."""
        return self.places[self.selection.columns]

    @property
    def support(self) -> NDArray[np.bool_]:
        """Which of all genes are picked, (all genes,)."""
        return np.isin(np.arange(self.total), self.columns)

    @property
    def ranking(self) -> Array:
        """The place of each gene in the panel, from 1 on, and NaN of all others, (all genes,)."""
        ranking = np.full(self.total, np.nan)
        ranking[self.columns] = np.arange(1, len(self) + 1)
        return ranking

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        verb = "keeps" if len(self) == 1 else "keep"
        kept = percent(self.genes_explained[-1])
        said = f"{len(self):,} of {counted(len(self.places), 'gene')} {verb} {kept} of the variation"
        if not self.types:
            return f"{said}."
        last = self.types_explained[-1]
        return (
            f"{said}, and {percent(float(last.mean()))} of what tells {counted(len(self.types), 'cell type')} apart; "
            f"least of {self.types[int(last.argmin())]}, {percent(float(last.min()))}."
        )

    def annotate(self, adata: Any) -> None:
        """Write the panel into an AnnData, as scanpy does: two columns of ``var`` and an entry of ``uns``.

        With ``key_added="gene_panel"``, ``adata.var["gene_panel"]`` tells which genes are picked,
        ``adata.var["gene_panel_rank"]`` in which order, and ``adata.uns["gene_panel"]`` holds the options and figures.
        A file that backs the AnnData stays as it is until it is written.

        Parameters
        ----------
        adata : AnnData
            With the genes that the panel was picked from.
        """
        names = [str(name) for name in adata.var_names]
        if len(names) != self.total or [names[j] for j in self.columns] != list(self.names or ()):
            raise ValueError(
                f"the panel is of {self.total:,} genes in a certain order; the AnnData has {len(names):,} genes, or "
                "others in these places. Give one with the same genes."
            )
        key = str(self.asked["key_added"])
        adata.var[key] = self.support
        adata.var[f"{key}_rank"] = self.ranking
        adata.uns[key] = self._noted()

    def _noted(self) -> dict[str, Any]:
        """Return the options and figures as files of AnnData can hold them."""
        noted: dict[str, Any] = {
            "params": {name: value for name, value in self.asked.items() if value is not None},
            "genes": np.array(self.names, dtype=object),
            "genes_explained": self.genes_explained,
        }
        if self.types:
            noted["cell_types"] = np.array(self.types, dtype=object)
            noted["cell_types_explained"] = self.types_explained
            noted["means"] = self.means
        return noted

    @property
    def compared(self) -> dict[str, Array]:
        """Shares of the genes, and of what tells the cell types apart, after each pick, by label."""
        if not self.types:
            return {}
        types = self.types_explained
        return {
            "genes": self.genes_explained,
            "cell types, mean": types.mean(axis=1),
            "cell types, least": types.min(axis=1),
        }

    def _table(self) -> dict[str, Any]:
        table = {"gene": list(self.names or ()), "column": self.columns, "genes_explained": self.genes_explained}
        if not self.types:
            return table
        return table | {
            "types_explained": self.types_explained.mean(axis=1),
            "highest_in": [self.types[j] for j in self.means.argmax(axis=0)],
        }

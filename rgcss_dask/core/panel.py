"""`GenePanel`: picked genes, and how much of all genes and of each cell type they explain."""

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
    """Genes in pick order, and how much of all genes and of each cell type they explain.

    Made by `gene_panel`. The ``selection`` is that of `select`: its columns are the genes that were read, followed by
    an indicator for each cell type.

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
    places: Index  #: (n,) indices of the genes that were read among all genes
    total: int  #: number of all genes
    genes_explained: Array  #: (k,) share of the variation of the genes that were read, after each pick
    types: tuple[str, ...]  #: (q,) cell types
    cells: NDArray[np.intp]  #: (q,) number of cells of each type
    types_explained: Array  #: (k, q) share of the variation between each type and the others, after each pick
    means: Array  #: (q, k) mean of each picked gene in the cells of each type
    asked: dict[str, Any]  #: the options of `gene_panel`

    @classmethod
    def of(
        cls, moments: Moments, picked: Selection, places: Index, total: int, types: tuple[str, ...], asked: Any
    ) -> GenePanel:
        """Compute the figures of picked genes from moments of the genes, followed by indicators of the cell types."""
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
            # The centred product of indicator and gene: the gene's sum over the type, less its mean there.
            means=moments.mean[S] + G[n:, S] / cells[:, None],
            asked=asked,
        )

    @property
    def columns(self) -> Index:  # type: ignore[override]
        """Indices of the picked genes among all genes, in pick order, (k,)."""
        return self.places[self.selection.columns]

    @property
    def support(self) -> NDArray[np.bool_]:
        """Mask of the picked genes among all genes, (all genes,)."""
        return np.isin(np.arange(self.total), self.columns)

    @property
    def ranking(self) -> Array:
        """Rank of each gene in the panel, from 1, and NaN for all other genes, (all genes,)."""
        ranking = np.full(self.total, np.nan)
        ranking[self.columns] = np.arange(1, len(self) + 1)
        return ranking

    @property
    def sentence(self) -> str:
        """Summarise the panel in one sentence."""
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

        With ``key_added="gene_panel"``, ``adata.var["gene_panel"]`` marks the picked genes,
        ``adata.var["gene_panel_rank"]`` holds their rank, and ``adata.uns["gene_panel"]`` the options and figures. The
        file of a backed AnnData does not change until the AnnData is written.

        Parameters
        ----------
        adata : AnnData
            An AnnData with the genes from which the panel was picked.
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
        """Return the options and figures in types that AnnData files can hold."""
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
        """Explained shares of the genes and of the differences between cell types after each pick, by label."""
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

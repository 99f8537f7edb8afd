"""A panel of genes
================

Pick the genes from which the other genes and the cell types are rebuilt best, from cells in a sparse Zarr store, read
in ranges.

Run: python examples/06_gene_panel.py [cells] [genes]
"""

import sys
import tempfile
import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse

import rgcss_dask as rg
from rgcss_dask import plots

TYPES = 6
PROGRAMS = 12


def make_cells(cells: int, genes: int) -> anndata.AnnData:
    """Return log-normalised counts of genes that vary together in programs; each type has its own mix of these."""
    rng = np.random.default_rng(0)
    program = rng.integers(0, PROGRAMS, genes)
    kind = rng.choice(TYPES, cells, p=np.arange(1, TYPES + 1) / np.arange(1, TYPES + 1).sum())
    own = np.arange(PROGRAMS) % TYPES == np.arange(TYPES)[:, None]
    active = rng.random((cells, PROGRAMS)) < np.where(own, 0.8, 0.08)[kind]
    height = rng.random(genes)
    blocks = []
    for start in range(0, cells, 5000):
        rate = 0.01 + 2.0 * active[start : start + 5000, program] * height
        blocks.append(scipy.sparse.csr_matrix(np.log1p(rng.poisson(rate)).astype(np.float32)))
    names = pd.Index([f"gene{i}.program{p}" for i, p in enumerate(program)])
    obs = pd.DataFrame({"celltype": pd.Categorical([f"type {i}" for i in kind])}, index=[f"c{i}" for i in range(cells)])
    return anndata.AnnData(scipy.sparse.vstack(blocks, format="csr"), obs=obs, var=pd.DataFrame(index=names))


def main(cells: int = 50_000, genes: int = 2000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "cells.zarr")
        made = make_cells(cells, genes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # anndata announces the file format of its next version
            made.write_zarr(store)
        share = made.X.nnz / (cells * genes)
        print(f"{cells:,} cells x {genes:,} genes, {share:.1%} not zero, in {store.name}")
        # Cells are read in ranges and multiplied as sparse rows.
        panel = rg.gene_panel(store, 2 * PROGRAMS, cell_types="celltype", highly_variable=False)
        print(panel)
        print(panel.to_frame().head())
        panel.plot()
        plots.cell_types(panel)
        covered = {name.split(".")[1] for name in panel.names or ()}
        print(f"{len(covered)} of {PROGRAMS} programs have a gene in the panel.")
        panel.annotate(made)  # writes the results as scanpy does
        print(f"{made.var['gene_panel'].sum()} genes are marked in adata.var.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""A panel of genes
================

Pick the genes from which the others can be rebuilt best, from single cells in a sparse archive.

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

PROGRAMS = 12


def make_cells(cells: int, genes: int) -> anndata.AnnData:
    """Return counts of genes that are switched on together, in programs; some 5 % of them are not zero."""
    rng = np.random.default_rng(0)
    program = rng.integers(0, PROGRAMS, genes)
    blocks = []
    for start in range(0, cells, 5000):
        active = rng.random((min(5000, cells - start), PROGRAMS)) < 0.15
        rate = 0.01 + 0.6 * active[:, program] * rng.random(genes)
        blocks.append(scipy.sparse.csr_matrix(np.log1p(rng.poisson(rate)).astype(np.float32)))
    names = pd.Index([f"gene{i}.program{p}" for i, p in enumerate(program)])
    return anndata.AnnData(X=scipy.sparse.vstack(blocks, format="csr"), var=pd.DataFrame(index=names))


def main(cells: int = 50_000, genes: int = 2000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "cells.zarr")
        made = make_cells(cells, genes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # anndata announces the format of its next version
            made.write_zarr(store)
        print(
            f"{cells:,} cells x {genes:,} genes, {100 * made.X.nnz / (cells * genes):.1f} % not zero, in {store.name}"
        )
        moments = rg.scan(store, folds=3)  # cells are read by row ranges, and multiplied as sparse rows
        tuned = rg.cross_validate(moments, 2 * PROGRAMS, center=True, fixed_k=True)
        print(tuned.selection)
        print("Panel:", ", ".join(tuned.selection.names or ()))
        plots.redundancy(tuned)
        covered = {name.split(".")[1] for name in tuned.selection.names or ()}
        print(f"{len(covered)} of {PROGRAMS} programs have a gene in the panel.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Many columns
===============

Pick from so many columns that their products do not fit into memory: a sketch finds candidates, a second pass is exact.

Run: python examples/08_many_columns.py [rows] [columns] [picks]
"""

import sys

import numpy as np
import scipy.sparse

import rgcss_dask as rg

PROGRAMS = 30


def make_counts(rows: int, columns: int) -> scipy.sparse.csr_array:
    """Return sparse counts of columns that vary together in programs; some 3 % of them are not zero."""
    rng = np.random.default_rng(0)
    program = rng.integers(0, PROGRAMS, columns)
    places, values = [], []
    for p in range(PROGRAMS):
        on = np.flatnonzero(rng.random(rows) < 0.04)
        members = np.flatnonzero(program == p)
        i, j = np.nonzero(rng.random((len(on), len(members))) < 0.8)
        places.append(np.stack([on[i], members[j]]))
        values.append(3.0 + rng.poisson(2.0, len(i)))
    return scipy.sparse.csr_array((np.concatenate(values), np.concatenate(places, axis=1)), (rows, columns), dtype="f4")


def main(rows: int = 10_000, columns: int = 12_000, picks: int = 16) -> rg.Selection:
    """Preview the picks after one pass, then pick exactly with a second pass."""
    counts = make_counts(rows, columns)
    stored = counts.nnz / (rows * columns)
    print(
        f"{rows:,} rows x {columns:,} columns, {stored:.1%} not zero; n x n would take {8 * columns**2 / 1e9:.3g} GB."
    )

    sketch = rg.scan(counts, sketch=20 * picks)
    print(f"\nOne reading, {sketch!r}:")
    print(rg.select(sketch, picks, center=True, scale=1.0).sentence)

    print("\nTwo readings:")
    picked = rg.select_wide(counts, picks, center=True, scale=1.0, say=print)
    print(f"{picked.sentence}\nChosen from {picked.among} candidates; the loss and the weights are exact.")
    return picked


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

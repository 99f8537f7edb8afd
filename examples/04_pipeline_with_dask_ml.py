"""In a dask-ml pipeline
=====================

Scale, pick columns and cluster Dask arrays that are larger than memory.

Run: python examples/04_pipeline_with_dask_ml.py [rows]
"""

import sys

import dask.array as da
import numpy as np
from dask_ml.cluster import KMeans
from dask_ml.preprocessing import StandardScaler
from sklearn.pipeline import make_pipeline

from rgcss_dask import RGCSS

GROUPS, COLUMNS = 4, 60


def make_data(rows: int) -> tuple[da.Array, da.Array]:
    """Four groups of rows in a few dimensions, mapped to many columns on very different scales."""
    random = da.random.default_rng(0)
    group = random.integers(0, GROUPS, rows, chunks=rows // 10)
    centres = 6 * np.random.default_rng(1).standard_normal((GROUPS, 5))
    hidden = group.map_blocks(lambda g: centres[g], chunks=(group.chunks[0], (5,)), new_axis=1, dtype=float)
    mixing = np.random.default_rng(2).standard_normal((5, COLUMNS)) * np.geomspace(0.01, 100, COLUMNS)
    noise = random.standard_normal((rows, 5), chunks=(rows // 10, 5))
    return (hidden + noise) @ mixing, group


def main(rows: int = 200_000) -> None:
    X, group = make_data(rows)
    pipeline = make_pipeline(StandardScaler(), RGCSS(5), KMeans(GROUPS, random_state=0)).fit(X)
    labels = pipeline.predict(X)  # lazy
    table = np.zeros((GROUPS, GROUPS), dtype=int)
    np.add.at(table, da.compute(group, labels), 1)
    print("Rows of each group (down) in each cluster found from 5 of 60 columns (across):")
    print(table)
    inside = RGCSS(5, center=True, scale="std").fit(X)  # scales in its single pass: no scaler and no second pass
    print(f"Columns {inside.selected_.tolist()}; the same as after StandardScaler: ", end="")
    inside.selection_.plot()
    print(inside.selected_.tolist() == pipeline[1].selected_.tolist())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

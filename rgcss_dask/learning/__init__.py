"""The work behind a selection: clusters and classes learnt by dask-ml from all columns, and from the picked ones."""

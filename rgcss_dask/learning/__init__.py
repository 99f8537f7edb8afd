"""Downstream tasks: clustering and classification by dask-ml on all columns and on the picked columns."""

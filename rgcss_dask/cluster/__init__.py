"""Dask clusters: connection, versions, visibility of files, execution of tasks, placement of moments."""

"""The one pass over the rows, on threads or on a Dask cluster."""

"""A Dask cluster as it is: who is there, what they see, where tasks run and where moments stay."""

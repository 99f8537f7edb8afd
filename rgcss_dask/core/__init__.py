"""The mathematics: arrays in, arrays out. No files, no Dask."""

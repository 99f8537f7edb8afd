"""Lets ``python -m rgcss_dask`` do what ``rgcss`` does."""

from rgcss_dask.cli import main

main()

"""Conversion of files to Zarr matrices, and of matrices to reduced or reconstructed ones, out of core."""

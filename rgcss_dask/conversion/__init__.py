"""Matrices made from files and from other matrices, out of core."""

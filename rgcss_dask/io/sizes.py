"""Parsing of memory sizes such as "4 GB"."""

from __future__ import annotations

import re

from rgcss_dask.compat import parse_bytes


def parse_memory(memory: int | float | str) -> int:
    """Return a number of bytes, given as a number or as text such as "4 GB"."""
    text = str(memory).lower().strip().removesuffix("ytes")
    try:
        count = parse_bytes(text) if re.search(r"\d", text) else 0  # Dask reads "GB" as 1 GB, and "" as 1 byte
    except (ValueError, OverflowError):
        count = 0
    if not 1 <= count < 2**63:
        raise ValueError(f"memory must be a number of bytes such as 4e9 or '4 GB'; got {memory!r}.")
    return count

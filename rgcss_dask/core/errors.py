"""Errors raised on purpose that are neither invalid values nor failures of files and stores.

TypeError and RuntimeError are usually bugs; these subclasses are not.
"""

from __future__ import annotations


class WrongKindError(TypeError):
    """An argument has an unsupported type."""


class TooManyColumnsError(MemoryError):
    """The products of all columns do not fit into memory; two passes can avoid them."""


class HinderedError(RuntimeError):
    """The environment prevents the work: workers die, versions differ, files disappear."""

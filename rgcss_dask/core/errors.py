"""Errors that are raised on purpose and are neither wrong values nor troubles of files and stores.

Python raises TypeError and RuntimeError itself where a program is wrong; what is a class of this package is no bug.
"""

from __future__ import annotations


class WrongKindError(TypeError):
    """What was given is of a kind that is not taken."""


class TooManyColumnsError(MemoryError):
    """The products of all columns do not fit into memory; two readings can do without them."""


class HinderedError(RuntimeError):
    """The work cannot be done for what goes on around it: workers that die, other versions, files that vanish."""

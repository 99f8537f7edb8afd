"""Which errors are reported in one line, because users can fix them, and which are bugs of this package."""

from __future__ import annotations

import traceback

import click

from rgcss_dask import __version__

# Errors that users can fix: values that were refused, here or by a library (OverflowError: too large); files, stores
# and connections; memory; a package that is not installed; wrong usage of a command; and all error classes of this
# package. TypeError, RuntimeError, LookupError and others that are not raised on purpose are bugs.
MENDABLE = (ValueError, OverflowError, OSError, MemoryError, ImportError, click.ClickException)


def is_bug(error: BaseException) -> bool:
    """Tell whether an error is a bug, that is, not raised on purpose."""
    return not isinstance(error, MENDABLE) and type(error).__module__.split(".")[0] != "rgcss_dask"


def one_line(error: BaseException) -> str:
    """Describe an error in one line; a bug is marked as such."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    text = " ".join(text.split()) or type(error).__name__
    return f"a bug in rgcss_dask: {type(error).__name__}: {text}" if is_bug(error) else text


def report(error: BaseException) -> str:
    """Return the traceback of a bug, with a request to report it."""
    where = "".join(traceback.format_exception(error))
    return (
        f"{where}This is a bug in rgcss_dask {__version__}, not a mistake of yours: please report it with these lines "
        "and the command."
    )

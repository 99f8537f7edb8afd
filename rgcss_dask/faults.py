"""Which errors are told in one line, because users can mend them, and which are bugs of this package."""

from __future__ import annotations

import traceback

import click

from rgcss_dask import __version__

# A value that was refused, here or by a library (OverflowError: one too large); files, stores and connections; memory;
# a package that is not installed; a command that is used wrongly. Besides these, every class of this package's own.
# TypeError, RuntimeError, LookupError and the like come out of nowhere, and then nobody but us can mend them.
MENDABLE = (ValueError, OverflowError, OSError, MemoryError, ImportError, click.ClickException)


def is_bug(error: BaseException) -> bool:
    """Tell whether an error was not raised on purpose."""
    return not isinstance(error, MENDABLE) and type(error).__module__.split(".")[0] != "rgcss_dask"


def one_line(error: BaseException) -> str:
    """Say what went wrong in one line, and of a bug that it is one."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    text = " ".join(text.split()) or type(error).__name__
    return f"a bug in rgcss_dask: {type(error).__name__}: {text}" if is_bug(error) else text


def report(error: BaseException) -> str:
    """Say where a bug is, and ask for it to be reported."""
    where = "".join(traceback.format_exception(error))
    return (
        f"{where}This is a bug in rgcss_dask {__version__}, and no mistake of yours: please report it with these "
        "lines and the command that was given."
    )

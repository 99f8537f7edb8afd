"""The command line: each command parses its options, calls one function of the package, and prints the result."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
import traceback
import warnings

import click

from rgcss_dask import __version__
from rgcss_dask.cli.matrices import apply, convert, inspect
from rgcss_dask.cli.pages import batch, demo, downstream, report
from rgcss_dask.cli.passes import merge, scan, verify
from rgcss_dask.cli.selections import select, tune
from rgcss_dask.cli.talk import by_options, say
from rgcss_dask.faults import is_bug, one_line
from rgcss_dask.faults import report as report_of

# The commands import the package when they run: `rgcss --help` must not wait for Dask and scikit-learn.


def main() -> None:
    """Run a command; exit code 0: success, 1: an error or a bug, 2: wrong usage, 130: Ctrl-C."""
    debug = "--debug" in sys.argv
    # The command has finished: Ctrl-C while the interpreter shuts down must not change the exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *place, **more: say(
            f"warning: {by_options(' '.join(str(message).split()))}"
        )
        _run(debug)


def _run(debug: bool) -> None:
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted. Finished work is kept; the same command resumes from there.")
        _leave(130, debug)
    except Exception as error:
        if is_bug(error):
            say(report_of(error))
        else:
            if debug:
                traceback.print_exc()
            say(f"error: {by_options(one_line(error))}")
        _leave(1, debug)


def _leave(code: int, debug: bool) -> None:
    """Exit during work, and silence what libraries log about the interrupted tasks."""
    if not debug:
        atexit.register(_hush)  # registered last, so it runs first
    sys.exit(code)


def _hush() -> None:
    logging.disable()
    sys.unraisablehook = lambda ignored: None
    threading.excepthook = lambda ignored: None


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rgcss")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def cli(debug: bool) -> None:
    """Pick the few columns of a tall matrix from which all others can be rebuilt.

    \b
    rgcss demo                                     see an example
    rgcss convert table.csv data.zarr              convert to a Zarr matrix
    rgcss scan data.zarr -o moments.zarr --folds 5 read it once, keep its moments
    rgcss select moments.zarr -k 64 -o result.json pick columns, as often as you like
    rgcss report result.json -o report.html        show the result

    Shell completion: eval "$(_RGCSS_COMPLETE=bash_source rgcss)", likewise zsh_source and fish_source.
    """


for _command in (apply, batch, convert, demo, downstream, inspect, merge, report, scan, select, tune, verify):
    cli.add_command(_command)

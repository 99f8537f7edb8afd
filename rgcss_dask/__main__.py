"""The entry point of ``rgcss`` and ``python -m rgcss_dask``: it handles Ctrl-C during imports too."""

import sys


def main() -> None:
    """Load the command line and run a command."""
    try:
        from rgcss_dask.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before the command started.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

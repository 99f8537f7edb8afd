"""Where ``rgcss`` and ``python -m rgcss_dask`` begin: Ctrl-C is heeded while the rest is being loaded, too."""

import sys


def main() -> None:
    """Load the command line and run a command."""
    try:
        from rgcss_dask.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything was begun.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()

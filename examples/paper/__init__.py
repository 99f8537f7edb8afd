"""Every experiment of the paper, rerun: `python -m examples.paper --data FOLDER --quick` (or `--full`)."""

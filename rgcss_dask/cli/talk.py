"""Shared by all commands: messages, row counters, and the connection to a cluster."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import click
from click.core import ParameterSource


def say(message: str) -> None:
    """Print a message to stderr; results go to stdout."""
    from rgcss_dask.io.safe_text import shown

    click.echo(shown(message), err=True)


def by_options(message: str) -> str:
    """Shorten each argument that a message names as nan='drop' (--nan drop) to the option of the command line."""
    return re.sub(r"\b\w+=(?:'[^']*'|[\w.]+) \((--[^()]+)\)", r"\1", message)


def printed(content: Any, words: str, *, as_json: bool) -> None:
    """Print the result of a command, as JSON or as text."""
    from rgcss_dask.io.safe_text import kept, shown

    click.echo(json.dumps(kept(content)) if as_json else shown(words))


def refuse_given(rule: str, *names: str) -> None:
    """Refuse options that were given but would be ignored."""
    context = click.get_current_context()
    given = [f"--{name}" for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given:
        raise click.UsageError(f"{rule}; leave out {', '.join(given)}.")


@contextmanager
def connected(cluster: dict[str, Any]) -> Iterator[None]:
    """Make a Dask client current while the command runs, if one is asked for."""
    if all(value is None for value in cluster.values()):
        yield
        return
    from rgcss_dask.cluster.connection import Cluster, connected

    # For a lost scheduler, the client logs up to 35 lines; the error that follows says the same in one line.
    logger = logging.getLogger("distributed.client")
    level = logger.level
    if "--debug" not in sys.argv:
        logger.setLevel(logging.CRITICAL)
    try:
        with connected(Cluster(**cluster), say):
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def row_counters(*doing: str) -> Iterator[tuple[Callable[[int], None], ...]]:
    """Show a row counter for each step, on a terminal; the number of rows of a text file is unknown until its end."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    shown = Progress(
        TextColumn("{task.description} {task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with shown:
        tasks = [shown.add_task(what, total=None, visible=False) for what in doing]
        yield tuple(partial(_count, shown, task) for task in tasks)


def _count(shown: Any, task: Any, rows: int) -> None:
    shown.update(task, advance=rows, visible=True)

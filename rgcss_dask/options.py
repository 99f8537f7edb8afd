"""Options of the command line: parameter types, and options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    Parsed = click.ParamType[Any]
else:  # generic only in the newest releases of click
    Parsed = click.ParamType


class Separator(Parsed):
    """One character, or the usual ways to write a tab."""

    name = "CHARACTER"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Read the word tab, or a backslash and t, as a tab: a real tab is hard to type in a shell."""
        text = "\t" if value in ("\\t", "tab") else str(value)
        if len(text) != 1:
            self.fail(f"{value!r} is neither one character, such as ';', nor 'tab'.", param, ctx)
        return text


class Scale(Parsed):
    """A number, or ``std``."""

    name = "std|NUMBER"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        """Return ``std`` unchanged, anything else as a number."""
        try:
            return "std" if value == "std" else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither 'std' nor a number.", param, ctx)


class Lambda(Parsed):
    """One number, several numbers separated by commas, or ``cv``."""

    name = "NUMBER|LIST|cv"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | tuple[float, ...]:
        """Return ``cv`` unchanged, anything else as numbers."""
        if not isinstance(value, str) or value == "cv":
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is neither 'cv' nor numbers separated by commas.", param, ctx)


class ImageShape(Parsed):
    """Height and width, such as 28x28."""

    name = "HxW"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Split at the x."""
        parts = str(value).lower().split("x")
        if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not of the form 28x28.", param, ctx)
        return int(parts[0]), int(parts[1])


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: Decorator) -> Decorator:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


nan_option = click.option(
    "--nan",
    type=click.Choice(["raise", "drop", "mean"]),
    default="raise",
    show_default=True,
    help="If a value is missing: stop with an error, leave out the row, or use the mean of the column.",
)
missing_option = click.option("--missing", type=click.Choice(["raise", "fill"]), default="raise", show_default=True)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace a file that this package did not write.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
memory_option = click.option("--memory", metavar="SIZE", help="Memory limit for each process, such as 2GiB.")


def _unlock(ctx: Any, param: Any, forced: bool) -> None:
    if forced:
        from rgcss_dask.io.claim import force_unlock  # noqa: PLC0415 (a slow import, which --help does not need)

        token = force_unlock.set(True)
        ctx.call_on_close(lambda: force_unlock.reset(token))


unlock_option = click.option(
    "--force-unlock",
    is_flag=True,
    expose_value=False,
    callback=_unlock,
    help="Take over the claim of a process on another machine at once, without waiting for its heartbeats to stop.",
)


def _gather_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the cluster options to a command as one dictionary."""
    names = ("scheduler", "scheduler_file", "workers", "tls_ca", "tls_cert", "tls_key", "timeout")

    @wraps(command)
    def gathered(**given: Any) -> Any:
        return command(cluster={name: given.pop(name) for name in names}, **given)

    return gathered


cluster_options = _together(
    click.option("--scheduler", metavar="ADDRESS", help="Use the Dask cluster with this scheduler address."),
    click.option("--scheduler-file", type=click.Path(), help="Use the Dask cluster described in this scheduler file."),
    click.option("--workers", type=click.IntRange(1), help="Start this many local worker processes for this command."),
    click.option(
        "--tls-ca", type=click.Path(), help="Certificate authority that signed the certificates of the cluster (PEM)."
    ),
    click.option("--tls-cert", type=click.Path(), help="Client certificate (PEM)."),
    click.option("--tls-key", type=click.Path(), help="Key of the client certificate (PEM)."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="How long to wait for the scheduler (default 30 s), and for the first worker (default 300 s).",
    ),
    _gather_cluster,
)
question_options = _together(
    click.option("--objective", type=click.Choice(["unselected", "all"]), default="unselected", show_default=True),
    click.option("--center", is_flag=True, help="Subtract the column means first."),
    click.option("--scale", type=Scale(), help="Divide by standard deviations, or by a number, first."),
    click.option(
        "--include",
        metavar="COLUMNS",
        multiple=True,
        help="Columns to pick first, by name or index, separated by commas; may be given several times.",
    ),
    click.option(
        "--exclude", metavar="COLUMNS", multiple=True, help="Columns that must not be picked, given in the same way."
    ),
    click.option(
        "--refine/--no-refine",
        default=None,
        help="Swap picked columns for others as long as that lowers the loss; by default only where it takes seconds.",
    ),
    click.option(
        "--effort",
        type=click.IntRange(0),
        metavar="N",
        help="Repeat the search for better picks N times from other starting picks.",
    ),
    click.option("--exact", is_flag=True, help="Search all subsets for the best one, for at most a minute."),
    click.option(
        "--stop-loss",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Stop when the loss is at most this share of the loss before the first pick, such as 0.05.",
    ),
    click.option(
        "--stop-bound",
        type=click.FloatRange(1),
        metavar="FACTOR",
        help="Stop when the loss is at most this factor times the lower bound, such as 1.1.",
    ),
    click.option(
        "--paper-bound", is_flag=True, help="Also compute the paper's bound; this takes long with many columns."
    ),
)
convert_options = _together(
    click.option("--dataset", help="The array to read from an .npz, HDF5 or .mat file."),
    click.option("--columns", metavar="NAME", multiple=True, help="Take only these columns."),
    click.option("--drop", metavar="NAME", multiple=True, help="Leave out these columns."),
    click.option("--numeric-only", is_flag=True, help="Leave out every column that does not hold numbers."),
    click.option(
        "--indicators",
        metavar="NAME",
        multiple=True,
        help="Columns of categories: each value becomes a column NAME=VALUE of 0 and 1. '*' means all columns of text.",
    ),
    click.option(
        "--no-header",
        is_flag=True,
        help="The first line of a text table is a row of data; the columns are named c0, c1, ...",
    ),
    click.option("--sep", type=Separator(), help="Field separator of a text table; detected if not given."),
    click.option("--decimal", type=click.Choice([".", ","]), default=".", show_default=True, help="Decimal sign."),
    click.option(
        "--na",
        metavar="WORD",
        multiple=True,
        help="A word for a missing value, in addition to NA and other usual ones.",
    ),
    click.option("--encoding", help="Encoding of a text table, such as latin-1; default UTF-8."),
)

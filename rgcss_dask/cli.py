"""The command line: each command parses, calls one function of the package, and prints."""

from __future__ import annotations

import click

from rgcss_dask import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rgcss")
def main() -> None:
    """Find the few columns of a tall matrix that carry the rest."""


@main.command()
@click.option("-k", default=10, show_default=True, help="How many pixels to pick.")
def demo(k: int) -> None:
    """Pick the pixels of handwritten digits from which the others can be told."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 (a second of imports that --help does not need)

    from rgcss_dask.greedy import select  # noqa: PLC0415
    from rgcss_dask.moments import Moments  # noqa: PLC0415

    digits = load_digits().data.astype("uint8")
    picked = select(Moments.of(digits), k, lam=1.0, center=True, bound=True)
    chosen = {int(column): place for place, column in enumerate(picked.columns, start=1)}
    click.echo(f"{len(digits)} handwritten digits of 8 x 8 pixels; picked pixels in the order they were picked:\n")
    for row in range(8):
        click.echo("  " + " ".join(f"{chosen.get(8 * row + column, '.'):>3}" for column in range(8)))
    click.echo(f"\n{picked}")

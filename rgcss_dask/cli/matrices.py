"""Commands that write or inspect matrices: convert, apply, inspect."""

from __future__ import annotations

from typing import Any

import click

from rgcss_dask.cli.talk import printed, refuse_given, row_counters, say
from rgcss_dask.options import convert_options, json_option, missing_option, unlock_option

LISTED = 40  # names that `inspect` shows

# The commands import the package when they run: `rgcss --help` must not wait for Dask and scikit-learn.


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.argument("target", type=click.Path())
@convert_options
@json_option
@unlock_option
def convert(source: tuple[str, ...], target: str, as_json: bool, **asked: Any) -> None:
    """Convert .npy, .npz, .csv, .tsv, .parquet, .h5, .mat, IDX or Zarr files to a Zarr matrix.

    Several files, or the files of a pattern, are stacked in natural order: day-2 before day-10. A column is given by
    its whole name or by a pattern in quotes; an option may be given several times. All columns that hold no numbers are
    listed in one error before anything is written.

    \b
    rgcss convert 'day-*.csv' data.zarr
    rgcss convert adult.csv adult.zarr --drop id --drop 'date*' --na '?' --indicators sex --indicators race
    rgcss convert messwerte.csv data.zarr --sep ';' --decimal , --encoding latin-1 --numeric-only

    Example: rgcss convert table.csv data.zarr --drop id
    """
    from rgcss_dask.conversion.convert import convert as run
    from rgcss_dask.sources.registry import open_source

    with row_counters("looked through", "written") as (looked, told):
        rows = run(list(source), target, told=told, looked=looked, say=say, **asked)
    columns = open_source(target).shape[1]
    content = {"target": target, "rows": rows, "columns": columns}
    printed(content, f"{rows:,} rows x {columns:,} columns in {target}", as_json=as_json)


@click.command()
@click.argument("result")
@click.argument("data")
@click.option("-o", "--output", required=True, help="The Zarr array to write: a local path.")
@click.option("--reconstruct", is_flag=True, help="Write all columns, rebuilt from the picked ones.")
@click.option(
    "--dtype",
    help="With --reconstruct: dtype to write, such as float64; default float32, or the integer dtype of DATA.",
)
@missing_option
@json_option
@unlock_option
def apply(
    result: str, data: str, output: str, reconstruct: bool, dtype: str | None, missing: str, as_json: bool
) -> None:
    """Write the picked columns of a matrix, or all columns rebuilt from them, to a new Zarr array.

    Works out of core, and resumes after an interruption. Example: rgcss apply result.json data.zarr -o reduced.zarr
    """
    from rgcss_dask.archive.result_file import load_result
    from rgcss_dask.conversion.apply_selection import write_reconstruction, write_reduced
    from rgcss_dask.io.outputs import refuse_inputs

    if not reconstruct:
        refuse_given("without --reconstruct, picked columns keep their dtype", "dtype")
    refuse_inputs(output, [result])
    found = load_result(result)
    with row_counters("written") as (told,):
        options: dict[str, Any] = {"missing": missing, "told": told}
        if reconstruct:
            rows = write_reconstruction(found.selection, found.weights, data, output, dtype=dtype, **options)
        else:
            rows = write_reduced(found.selection, data, output, **options)
    columns = found.n if reconstruct else found.k
    content = {"output": output, "rows": rows, "columns": columns}
    printed(content, f"{rows:,} rows x {columns:,} columns in {output}", as_json=as_json)


@click.command()
@click.argument("path")
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Describe a matrix, an archive of moments, an unfinished scan, or a result.

    Example: rgcss inspect moments.zarr
    """
    from rgcss_dask.archive.inspection import describe

    content = describe(path)
    printed(content, "\n".join(f"{key:12s} {_in_words(value)}" for key, value in content.items()), as_json=as_json)


def _in_words(value: Any) -> str:
    """Format a JSON value for people; strings in quotes, because names may contain commas."""
    from rgcss_dask.core.words import digits
    from rgcss_dask.io.safe_text import plain

    if isinstance(value, list):
        shown = ", ".join(repr(plain(entry)) if isinstance(entry, str) else str(entry) for entry in value[:LISTED])
        left = len(value) - LISTED
        return shown if left <= 0 else f"{shown} and {left:,} more (--json has all)"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_in_words(entry)}" for key, entry in value.items())
    return "none" if value is None else digits(value) if isinstance(value, float) else str(value)

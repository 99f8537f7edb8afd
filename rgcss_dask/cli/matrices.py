"""Commands that make or look at matrices: convert, apply, inspect."""

from __future__ import annotations

import click

from rgcss_dask.cli.talk import printed, row_counter
from rgcss_dask.options import (
    json_option,
    missing_option,
)


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.argument("target", type=click.Path())
@click.option("--dataset", help="Which array of an .npz, HDF5 or .mat file.")
@json_option
def convert(source: tuple[str, ...], target: str, dataset: str | None, as_json: bool) -> None:
    """Turn .npy, .npz, .csv, .tsv, .parquet, .h5, .mat, IDX or Zarr into a Zarr matrix.

    Patterns and several files are stacked; a pattern counts as people do, day-2 before day-10. Example:
    rgcss convert 'day-*.csv' data.zarr
    """
    from rgcss_dask.conversion.convert import convert as run

    with row_counter() as told:
        rows = run(list(source), target, dataset=dataset, told=told)
    printed({"target": target, "rows": rows}, f"{rows:,} rows in {target}", as_json=as_json)


@click.command()
@click.argument("result")
@click.argument("data")
@click.option("-o", "--output", required=True, help="The Zarr array to make: a local path.")
@click.option("--reconstruct", is_flag=True, help="Write all columns, rebuilt from the picked ones.")
@missing_option
@json_option
def apply(result: str, data: str, output: str, reconstruct: bool, missing: str, as_json: bool) -> None:
    """Write the picked columns of a matrix, or all rebuilt from them, to a new Zarr array.

    Works out of core, and goes on where it was interrupted. Example: rgcss apply result.json data.zarr -o reduced.zarr
    """
    from rgcss_dask.archive.result_file import load_result
    from rgcss_dask.conversion.apply_selection import write_reconstruction, write_reduced
    from rgcss_dask.io.outputs import refuse_inputs

    refuse_inputs(output, [result])
    found = load_result(result)
    with row_counter() as told:
        if reconstruct:
            rows = write_reconstruction(found.selection, found.weights, data, output, missing=missing, told=told)
        else:
            rows = write_reduced(found.selection, data, output, missing=missing, told=told)
    columns = found.n if reconstruct else found.k
    content = {"output": output, "rows": rows, "columns": columns}
    printed(content, f"{rows:,} rows x {columns:,} columns in {output}", as_json=as_json)


@click.command()
@click.argument("path")
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Say what is in a matrix, an archive of moments, an unfinished scan, or a result.

    Example: rgcss inspect moments.zarr
    """
    from rgcss_dask.archive.inspection import describe

    content = describe(path)
    printed(content, "\n".join(f"{key:12s} {value}" for key, value in content.items()), as_json=as_json)

"""Commands that read rows or merge moments: scan, verify, merge."""

from __future__ import annotations

from typing import Any

import click

from rgcss_dask.cli.talk import connected, printed, refuse_given, say
from rgcss_dask.options import (
    cluster_options,
    json_option,
    memory_option,
    missing_option,
    nan_option,
    unlock_option,
)


@click.command()
@click.argument("data")
@click.option("-o", "--output", required=True, help="Where to save the moments: a path or URL.")
@click.option("--folds", type=int, help="Number of folds to keep for cross-validation.")
@click.option("--blocks", is_flag=True, help="Make each fold a run of neighbouring rows, for time series.")
@click.option("--groups", type=int, help="Number of row groups to keep for the stability of the picks.")
@click.option(
    "--candidates",
    metavar="COLUMNS",
    multiple=True,
    help="The only columns that may be picked later: only their products are computed.",
)
@click.option(
    "--sketch",
    type=click.IntRange(1),
    metavar="ROWS",
    help="Make a sketch with this many rows: for any number of columns, with estimated losses; use about 10 per pick.",
)
@click.option("--append", is_flag=True, help="Add the new rows of a grown matrix to the moments.")
@click.option("--overwrite", is_flag=True, help="Replace moments, or an unfinished scan, of different data or options.")
@nan_option
@missing_option
@click.option("--precision", type=click.Choice(["double", "single"]), default="double", show_default=True)
@click.option("--noise", is_flag=True, help="Also estimate the noise of each column from neighbouring rows.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the assignment of rows to folds.")
@memory_option
@cluster_options
@json_option
@unlock_option
def scan(
    data: str,
    output: str,
    folds: int | None,
    blocks: bool,
    groups: int | None,
    candidates: tuple[str, ...],
    sketch: int | None,
    append: bool,
    overwrite: bool,
    nan: str,
    missing: str,
    precision: str,
    noise: bool,
    seed: int,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
) -> None:
    """Read a matrix once and keep its moments.

    The same command resumes an interrupted scan; a scan that --nan raise ended resumes with --nan drop. With --append
    the new rows make further groups, as large as the first ones. DATA may be a pattern in quotes: the matrices are
    stacked in natural order, day-2 before day-10. Example: rgcss scan data.zarr -o moments.zarr --folds 5 --groups 40
    """
    from rgcss_dask.core.names import as_written
    from rgcss_dask.scanning import append as grow
    from rgcss_dask.scanning import scan as one_pass
    from rgcss_dask.workflow import open_matrix

    if append:
        kept = ("folds", "blocks", "groups", "candidates", "sketch", "nan", "missing", "precision", "noise", "seed")
        refuse_given("--append uses the options of the archive", *kept, "overwrite")
    with connected(cluster):
        if append:
            moments = grow.append(output, data, memory=memory)
        else:
            options: dict[str, Any] = {"nan": nan, "missing": missing, "precision": precision, "seed": seed}
            options |= {"folds": folds, "blocks": blocks, "groups": groups, "noise": noise, "overwrite": overwrite}
            options["sketch"] = sketch
            source = open_matrix(data, missing=missing, say=say)
            options["candidates"] = as_written(candidates, source.names) or None
            moments = one_pass.scan(source, memory=memory, archive=output, **options)
    dropped = f", {moments.dropped:,} dropped" if moments.dropped else ""
    content = {"output": output, "rows": moments.rows, "columns": moments.n, "dropped": moments.dropped}
    words = f"{moments.rows:,} rows{dropped} x {moments.n:,} columns{' (exact integers)' if moments.exact else ''}"
    words = words if sketch is None else f"a sketch in {sketch:,} rows of {words}"
    printed(content, f"{words} in {output}", as_json=as_json)


@click.command()
@click.argument("data")
@click.argument("moments")
@cluster_options
@json_option
def verify(data: str, moments: str, cluster: dict[str, Any], as_json: bool) -> int:
    """Read a matrix again and name the rows that have changed since the scan; the exit code is then 1.

    It detects flipped bits in chunks without checksums, and rows that were overwritten. Rows that were added after the
    scan are ignored. Example: rgcss verify data.zarr moments.zarr
    """
    from rgcss_dask.scanning.verify import verify as run

    with connected(cluster):
        found = run(data, moments)
    different = [{"start": one.start, "stop": one.stop, "reason": one.reason} for one in found.differences]
    content = {"rows": found.rows, "spans": found.spans, "different": different}
    printed(content, str(found), as_json=as_json)
    return 0 if found else 1


@click.command()
@click.argument("archives", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Where to write the merged moments.")
@json_option
@unlock_option
def merge(archives: tuple[str, ...], output: str, as_json: bool) -> None:
    """Merge archives of moments of the same columns, as if their rows had been one matrix.

    The output may be one of the archives: the others are then added to it, each once.
    Example: rgcss merge 2024.zarr 2025.zarr -o both.zarr
    """
    from rgcss_dask.archive.merging import merge as run

    moments = run(list(archives), output)
    content = {"output": output, "rows": moments.rows, "columns": moments.n}
    printed(content, f"{moments.rows:,} rows x {moments.n:,} columns in {output}", as_json=as_json)

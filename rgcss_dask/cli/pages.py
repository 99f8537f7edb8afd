"""The commands report, downstream, batch and demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rgcss_dask.cli.talk import connected, printed, refuse_given, say
from rgcss_dask.options import (
    ImageShape,
    cluster_options,
    json_option,
    memory_option,
    missing_option,
    overwrite_option,
)


@click.command()
@click.argument("result")
@click.option("-o", "--output", required=True, help="The HTML file to write.")
@click.option("--image-shape", type=ImageShape(), help="The columns are pixels of images of this shape.")
@click.option("--rows", help="A matrix; a few of its rows are shown beside their reconstructions.")
@click.option("--score", is_flag=True, help="Read all of --rows, and report how much of them is explained.")
@overwrite_option
@missing_option
@json_option
def report(
    result: str,
    output: str,
    image_shape: tuple[int, int] | None,
    rows: str | None,
    score: bool,
    overwrite: bool,
    missing: str,
    as_json: bool,
) -> None:
    """Write one self-contained HTML page about a result.

    Example: rgcss report result.json -o report.html --image-shape 28x28 --rows data.zarr
    """
    from rgcss_dask.archive.result_file import load_result
    from rgcss_dask.io.outputs import refuse_inputs
    from rgcss_dask.reporting import report as scored
    from rgcss_dask.reporting import write_report
    from rgcss_dask.sources.registry import open_source

    if rows is None:
        refuse_given("--score needs --rows", "score")
    refuse_inputs(output, [result])
    shown = None if rows is None else open_source(rows, missing=missing)
    options: dict[str, Any] = {"image_shape": image_shape, "rows": shown, "overwrite": overwrite}
    if not score:
        write_report(load_result(result), output, **options)
        printed({"output": output}, f"Report in {output}", as_json=as_json)
        return
    written = scored(load_result(result), output, **options)
    printed({"output": output, "score": written.score}, f"Report in {written}", as_json=as_json)


@click.command()
@click.argument("result")
@click.argument("data")
@click.option(
    "--labels",
    required=True,
    metavar="FILE",
    help="The class of each row: a Zarr array, an .npy file, or a text file with one line per row.",
)
@click.option("--task", type=click.Choice(["cluster", "classify"]), help="Do only this task.")
@click.option(
    "--clusters", type=click.IntRange(2), help="Number of clusters to find; by default the number of classes."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Number of repeats, for standard errors."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the first repeat.")
@click.option("--nan", type=click.Choice(["raise", "mean"]), default="raise", show_default=True)
@click.option("-o", "--output", metavar="HTML", help="Also write the report of the result, including these figures.")
@overwrite_option
@missing_option
@memory_option
@json_option
def downstream(
    result: str,
    data: str,
    labels: str,
    task: str | None,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Learn clusters and classes from all columns and from the picked ones, and compare accuracy and time.

    Uses dask-ml, out of core, in the threads of this process. FILE has one label per row of DATA, in the same order.
    Example: rgcss downstream result.json data.zarr --labels labels.npy -o report.html
    """
    from rgcss_dask.archive.result_file import load_result
    from rgcss_dask.io.outputs import refuse_inputs
    from rgcss_dask.learning.downstream import downstream as run
    from rgcss_dask.reporting import report as write
    from rgcss_dask.reporting import report_place

    if output is not None:
        refuse_inputs(output, [result, data, labels])
        report_place(output, overwrite=overwrite)
    elif overwrite:
        refuse_given("nothing is written without --output", "overwrite")
    found = load_result(result)
    options: dict[str, Any] = asked if task is None else {**asked, "tasks": task}
    done = run(found, data, labels, **options)
    where = "" if output is None else f"\nReport in {output}"
    if output is not None:
        write(found, output, downstream=done, overwrite=overwrite)
    printed(done.said | {"output": output}, f"{done}{where}", as_json=as_json)


@click.command()
@click.argument("jobs", type=click.Path())
@click.option("--only", metavar="I/N", help="Run the I-th of N equal shares of the jobs, counted from 1.")
@click.option("--summary", help="Where to write the summary (default: summary.json beside JOBS).")
@overwrite_option
@memory_option
@cluster_options
@json_option
def batch(
    jobs: str,
    only: str | None,
    summary: str | None,
    overwrite: bool,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
) -> int:
    """Run the jobs of a TOML file; a rerun does only the jobs that are missing or failed.

    Example: rgcss batch jobs.toml --only 3/10
    """
    from rgcss_dask.batch import run_batch, table

    with connected(cluster):
        done = run_batch(jobs, only=only, memory=memory, summary=summary, overwrite=overwrite, say=say)
    printed(done, table(done), as_json=as_json)
    return 1 if any(job["status"] == "failed" for job in done["jobs"]) else 0


@click.command()
@click.option("--rows", type=click.IntRange(1000), default=300_000, show_default=True, help="Number of rows.")
@click.option("-k", type=click.IntRange(1, 784), default=64, show_default=True, help="Number of pixels to pick.")
@click.option("--folder", default="rgcss-demo", show_default=True, help="Folder for all files of the demo.")
@json_option
def demo(rows: int, k: int, folder: str, as_json: bool) -> None:
    """Write a tall matrix of handwritten digits and pick the pixels from which the others can be rebuilt.

    Takes about a minute. Example: rgcss demo --rows 1000000
    """
    from rgcss_dask.demo import run_demo

    content = run_demo(Path(folder), rows=rows, k=k, say=say)
    printed(content, content["words"], as_json=as_json)

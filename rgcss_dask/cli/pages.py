"""Commands that show or do all of it: report, downstream, batch, demo."""

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
@click.option("--rows", help="A matrix from which to show a few rows beside their reconstructions.")
@click.option("--score", is_flag=True, help="Read all of --rows, and say how much of them is explained.")
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
        refuse_given("nothing can be scored without --rows", "score")
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
@click.option("--labels", required=True, metavar="FILE", help="The class of each row: Zarr, .npy, or lines of text.")
@click.option("--task", type=click.Choice(["cluster", "classify"]), help="Do only this.")
@click.option("--clusters", type=click.IntRange(2), help="How many to find; by default as many as there are classes.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="For standard errors.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first repeat.")
@click.option("--nan", type=click.Choice(["raise", "mean"]), default="raise", show_default=True)
@click.option("-o", "--output", metavar="HTML", help="Write the report of the result too, with these figures in it.")
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
    """Learn clusters and classes from all columns and from the picked ones, to see what these lose and save.

    With dask-ml, out of core, in the threads of this process. FILE has a label for each row of DATA, in their order.
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
@click.option("--only", metavar="I/N", help="Do the I-th of N equal shares of the jobs, counted from 1.")
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
    """Do many archives, each with its options; a rerun does what is missing or failed.

    Example: rgcss batch jobs.toml --only 3/10
    """
    from rgcss_dask.batch import run_batch, table

    with connected(cluster):
        done = run_batch(jobs, only=only, memory=memory, summary=summary, overwrite=overwrite, say=say)
    printed(done, table(done), as_json=as_json)
    return 1 if any(job["status"] == "failed" for job in done["jobs"]) else 0


@click.command()
@click.option("--rows", type=click.IntRange(1000), default=300_000, show_default=True, help="Rows of the archive.")
@click.option("-k", type=click.IntRange(1, 784), default=64, show_default=True, help="How many pixels to pick.")
@click.option("--folder", default="rgcss-demo", show_default=True, help="Where to put everything.")
@json_option
def demo(rows: int, k: int, folder: str, as_json: bool) -> None:
    """Make a tall archive of handwritten digits and find the pixels that carry the rest.

    Takes about a minute. Example: rgcss demo --rows 1000000
    """
    from rgcss_dask.demo import run_demo

    content = run_demo(Path(folder), rows=rows, k=k, say=say)
    printed(content, content["words"], as_json=as_json)

"""The command line: each command parses, calls one function of the package, and prints."""

from __future__ import annotations

import atexit
import json
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rgcss_dask import __version__
from rgcss_dask.faults import is_bug, one_line
from rgcss_dask.faults import report as report_of
from rgcss_dask.options import (
    ImageShape,
    Lambda,
    cluster_options,
    json_option,
    memory_option,
    missing_option,
    overwrite_option,
    question_options,
)

# Imports of the package stand in the commands: `rgcss --help` must not wait for Dask and scikit-learn.


def main() -> None:
    """Run a command; exit with 0 when done, 1 for an error in one line or a bug, 2 for wrong usage, 130 for Ctrl-C."""
    debug = "--debug" in sys.argv
    # What is done is done: Ctrl-C while Python puts itself away must not end in death by a signal.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *place, **more: say(f"warning: {' '.join(str(message).split())}")
        _run(debug)


def _run(debug: bool) -> None:
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted. What was finished is kept; the same command goes on from there.")
        _leave(130, debug)
    except Exception as error:
        if is_bug(error):
            say(report_of(error))
        else:
            if debug:
                traceback.print_exc()
            say(f"error: {one_line(error)}")
        _leave(1, debug)


def _leave(code: int, debug: bool) -> None:
    """Exit in the middle of work: what the libraries then say about work cut off is no news to the user."""
    if not debug:
        atexit.register(_hush)  # registered last, runs first
    sys.exit(code)


def _hush() -> None:
    logging.disable()
    sys.unraisablehook = lambda ignored: None
    threading.excepthook = lambda ignored: None


def say(message: str) -> None:
    """Talk goes to stderr, results to stdout."""
    from rgcss_dask.io.safe_text import shown

    click.echo(shown(message), err=True)


def _print(content: Any, words: str, *, as_json: bool) -> None:
    from rgcss_dask.io.safe_text import kept, shown

    click.echo(json.dumps(kept(content)) if as_json else shown(words))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rgcss")
@click.option("--debug", is_flag=True, help="Show where an error came from.")
def cli(debug: bool) -> None:
    """Find the few columns of a tall matrix that carry the rest.

    \b
    rgcss demo                                     see it work
    rgcss convert table.csv data.zarr              make a Zarr matrix
    rgcss scan data.zarr -o moments.zarr --folds 5 read it once
    rgcss select moments.zarr -k 64 -o result.json ask as often as you like
    rgcss report result.json -o report.html        look at the answer

    Shell completion: eval "$(_RGCSS_COMPLETE=bash_source rgcss)", likewise zsh_source and fish_source.
    """


def _refuse_given(rule: str, *names: str) -> None:
    """Refuse options that were given and would not be heeded."""
    context = click.get_current_context()
    given = [f"--{name}" for name in names if context.get_parameter_source(name) is not ParameterSource.DEFAULT]
    if given:
        raise click.UsageError(f"{rule}; leave out {', '.join(given)}.")


@contextmanager
def _connected(cluster: dict[str, Any]) -> Iterator[None]:
    """Make a Dask client current while the command runs, if one is asked for."""
    if all(value is None for value in cluster.values()):
        yield
        return
    from rgcss_dask.cluster.connection import Cluster, connected

    # What its client logs of a scheduler that is lost, 35 lines at times, is said in one by the error that follows.
    logger = logging.getLogger("distributed.client")
    level = logger.level
    if "--debug" not in sys.argv:
        logger.setLevel(logging.CRITICAL)
    try:
        with connected(Cluster(**cluster), say):
            yield
    finally:
        logger.setLevel(level)


@cli.command()
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

    with _row_counter() as told:
        rows = run(list(source), target, dataset=dataset, told=told)
    _print({"target": target, "rows": rows}, f"{rows:,} rows in {target}", as_json=as_json)


@contextmanager
def _row_counter() -> Iterator[Callable[[int], None]]:
    """Count rows on a terminal; the number of rows of a text file is not known before its end."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    shown = Progress(
        TextColumn("writing {task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with shown:
        task = shown.add_task("rows", total=None)
        yield lambda rows: shown.update(task, advance=rows)


@cli.command()
@click.argument("data")
@click.option("-o", "--output", required=True, help="Where to keep the moments: a path or URL.")
@click.option("--folds", type=int, help="Keep so many folds apart, to cross-validate.")
@click.option("--groups", type=int, help="Keep so many groups of rows apart, to see how stable the picks are.")
@click.option("--append", is_flag=True, help="Add the new rows of a grown matrix to the moments.")
@click.option("--overwrite", is_flag=True, help="Replace moments, or an unfinished scan, of other data or options.")
@click.option("--nan", type=click.Choice(["raise", "drop", "mean"]), default="raise", show_default=True)
@missing_option
@click.option("--precision", type=click.Choice(["double", "single"]), default="double", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the assignment of rows to folds.")
@memory_option
@cluster_options
@json_option
def scan(
    data: str,
    output: str,
    folds: int | None,
    groups: int | None,
    append: bool,
    overwrite: bool,
    nan: str,
    missing: str,
    precision: str,
    seed: int,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
) -> None:
    """Read a matrix once and keep its moments.

    An interrupted scan goes on when the same command is given again, and one that --nan raise ended with --nan drop.
    With --append the rows that came since make further groups, as large as the first ones. DATA may be a pattern in
    quotes: the archives are stacked as people count, day-2 before day-10. Example:
    rgcss scan data.zarr -o moments.zarr --folds 5 --groups 40
    """
    from rgcss_dask.scanning import append as grow
    from rgcss_dask.scanning import scan as one_pass
    from rgcss_dask.workflow import open_matrix

    if append:
        kept = ("folds", "groups", "nan", "missing", "precision", "seed", "overwrite")
        _refuse_given("--append goes by the options of the archive", *kept)
    with _connected(cluster):
        if append:
            moments = grow.append(output, data, memory=memory)
        else:
            options: dict[str, Any] = {"nan": nan, "missing": missing, "precision": precision, "seed": seed}
            options |= {"folds": folds, "groups": groups, "overwrite": overwrite}
            source = open_matrix(data, missing=missing, say=say)
            moments = one_pass.scan(source, memory=memory, archive=output, **options)
    dropped = f", {moments.dropped:,} dropped" if moments.dropped else ""
    content = {"output": output, "rows": moments.rows, "columns": moments.n, "dropped": moments.dropped}
    words = f"{moments.rows:,} rows{dropped} x {moments.n:,} columns{' (exact integers)' if moments.exact else ''}"
    _print(content, f"{words} in {output}", as_json=as_json)


@cli.command()
@click.argument("data")
@click.option("-k", type=click.IntRange(1), default=10, show_default=True, help="How many columns.")
@click.option("--lam", type=Lambda(), help="Lambda; by default cv if the moments have folds, else 1.")
@question_options
@click.option("--folds", type=int, default=0, help="Folds to keep when DATA is a matrix and not moments.")
@click.option("-o", "--output", help="Write the result as JSON, for `rgcss report` and `rgcss apply`.")
@overwrite_option
@memory_option
@cluster_options
@json_option
def select(
    data: str,
    k: int,
    lam: str | tuple[float, ...] | None,
    folds: int,
    output: str | None,
    overwrite: bool,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
    **asked: Any,
) -> None:
    """Pick the columns from which the others can be told best.

    DATA is an archive of moments, or a matrix, which is then read once. With several lambdas there is one result each.
    Example: rgcss select moments.zarr -k 64 --center -o result.json
    """
    from rgcss_dask.workflow import Question, result_places

    if lam == "cv" and not folds:
        folds = 5
    lams: list[Any] = [lam] if lam is None or isinstance(lam, str) else list(lam)
    questions = [Question(k=k, lam=one, **asked) for one in lams]
    outputs = result_places(data, output, lams, overwrite)
    with _connected(cluster):
        _answer(data, questions, outputs, overwrite=overwrite, as_json=as_json, folds=folds, memory=memory)


@cli.command()
@click.argument("data")
@click.option("-k", type=click.IntRange(1), default=64, show_default=True, help="The most columns.")
@click.option("--lams", type=Lambda(), help="Lambdas to try; by default 13 placed by the spectrum.")
@click.option("--one-se", is_flag=True, help="The smallest model within a standard error of the best.")
@question_options
@click.option("-o", "--output", help="Write the result as JSON, for `rgcss report` and `rgcss apply`.")
@overwrite_option
@memory_option
@cluster_options
@json_option
def tune(
    data: str,
    k: int,
    lams: tuple[float, ...] | str | None,
    one_se: bool,
    output: str | None,
    overwrite: bool,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
    **asked: Any,
) -> None:
    """Choose lambda and the number of columns by cross-validation; no further pass is needed.

    Example: rgcss tune moments.zarr -k 64 --one-se -o result.json
    """
    from rgcss_dask.workflow import Question, result_places

    if isinstance(lams, str):
        raise click.UsageError("--lams takes numbers with commas between them; cross-validation is what tune does.")
    question = Question(k=k, lam="cv", lams=lams, choose_k=True, one_se=one_se, **asked)
    outputs = result_places(data, output, [None], overwrite)
    with _connected(cluster):
        _answer(data, [question], outputs, overwrite=overwrite, as_json=as_json, folds=5, memory=memory)


def _answer(
    data: str,
    questions: list[Any],
    outputs: list[str | None],
    *,
    overwrite: bool,
    as_json: bool,
    folds: int,
    memory: str | None,
) -> None:
    from rgcss_dask.archive.result_file import save_result
    from rgcss_dask.workflow import answer, open_moments

    source, provenance = open_moments(data, folds=folds, memory=memory, say=say)
    contents = []
    for question, path in zip(questions, outputs, strict=True):
        result = answer(source, question, provenance, say)
        if path is not None:
            save_result(result, path, overwrite=overwrite)
        contents.append(_summary(result, path))
        if not as_json:
            _print({}, _words(result, path), as_json=False)
    if as_json:
        _print(contents if len(contents) > 1 else contents[0], "", as_json=True)


def _summary(result: Any, path: str | None) -> dict[str, Any]:
    picked = result.selection
    return {
        "columns": [int(column) for column in picked.columns],
        "names": [result.label(column) for column in picked.columns],
        "loss": picked.loss.tolist(),
        "explained": picked.explained.tolist(),
        "lambda": picked.lam,
        "sentence": result.sentence,
        "output": path,
    }


def _words(result: Any, path: str | None) -> str:
    from rgcss_dask.io.safe_text import plain

    labels = [plain(result.label(column)) for column in result.selection.columns]
    lines = [
        f"Picked, lambda = {result.selection.lam:.4g}: {', '.join(labels)}",
        f"Condition number of the picked columns: {result.condition}.",
        result.sentence,
    ]
    return "\n".join(lines if path is None else [*lines, f"Result in {path}; next: rgcss report {path} -o report.html"])


@cli.command()
@click.argument("archives", nargs=-1, required=True)
@click.option("-o", "--output", required=True, help="Where to write the merged moments.")
@json_option
def merge(archives: tuple[str, ...], output: str, as_json: bool) -> None:
    """Add up archives of moments of the same columns, as if their rows had been one matrix.

    The output may be one of them: the others are then added to it, each once.
    Example: rgcss merge 2024.zarr 2025.zarr -o both.zarr
    """
    from rgcss_dask.archive.merging import merge as run

    moments = run(list(archives), output)
    content = {"output": output, "rows": moments.rows, "columns": moments.n}
    _print(content, f"{moments.rows:,} rows x {moments.n:,} columns in {output}", as_json=as_json)


@cli.command()
@click.argument("data")
@click.argument("moments")
@cluster_options
@json_option
def verify(data: str, moments: str, cluster: dict[str, Any], as_json: bool) -> int:
    """Read a matrix again and name the rows that are not what was summed; the exit code is then 1.

    It finds what changed since the scan: flipped bits in chunks without checksums, rows that were written over. Rows
    that were added since are not looked at. Example: rgcss verify data.zarr moments.zarr
    """
    from rgcss_dask.scanning.verify import verify as run

    with _connected(cluster):
        found = run(data, moments)
    different = [{"start": one.start, "stop": one.stop, "reason": one.reason} for one in found.differences]
    content = {"rows": found.rows, "spans": found.spans, "different": different}
    _print(content, str(found), as_json=as_json)
    return 0 if found else 1


@cli.command()
@click.argument("path")
@json_option
def inspect(path: str, as_json: bool) -> None:
    """Say what is in a matrix, an archive of moments, an unfinished scan, or a result.

    Example: rgcss inspect moments.zarr
    """
    from rgcss_dask.archive.inspection import describe

    content = describe(path)
    _print(content, "\n".join(f"{key:12s} {value}" for key, value in content.items()), as_json=as_json)


@cli.command()
@click.argument("result")
@click.option("-o", "--output", required=True, help="The HTML file to write.")
@click.option("--image-shape", type=ImageShape(), help="The columns are pixels of images of this shape.")
@click.option("--rows", help="A matrix from which to show a few rows beside their reconstructions.")
@overwrite_option
@missing_option
@json_option
def report(
    result: str,
    output: str,
    image_shape: tuple[int, int] | None,
    rows: str | None,
    overwrite: bool,
    missing: str,
    as_json: bool,
) -> None:
    """Write one self-contained HTML page about a result.

    Example: rgcss report result.json -o report.html --image-shape 28x28 --rows data.zarr
    """
    from rgcss_dask.archive.result_file import load_result
    from rgcss_dask.io.outputs import refuse_inputs
    from rgcss_dask.report import write_report
    from rgcss_dask.sources.registry import open_source

    refuse_inputs(output, [result])
    shown = None if rows is None else open_source(rows, missing=missing)
    write_report(load_result(result), output, image_shape=image_shape, rows=shown, overwrite=overwrite)
    _print({"output": output}, f"Report in {output}", as_json=as_json)


@cli.command()
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
    with _row_counter() as told:
        if reconstruct:
            rows = write_reconstruction(found.selection, found.weights, data, output, missing=missing, told=told)
        else:
            rows = write_reduced(found.selection, data, output, missing=missing, told=told)
    columns = found.n if reconstruct else found.k
    content = {"output": output, "rows": rows, "columns": columns}
    _print(content, f"{rows:,} rows x {columns:,} columns in {output}", as_json=as_json)


@cli.command()
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

    with _connected(cluster):
        done = run_batch(jobs, only=only, memory=memory, summary=summary, overwrite=overwrite, say=say)
    _print(done, table(done), as_json=as_json)
    return 1 if any(job["status"] == "failed" for job in done["jobs"]) else 0


@cli.command()
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
    _print(content, content["words"], as_json=as_json)

"""Commands that pick columns: select, tune."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from rgcss_dask.cli.aims import aims_of, aims_options
from rgcss_dask.cli.talk import connected, printed, say
from rgcss_dask.options import (
    Lambda,
    cluster_options,
    json_option,
    memory_option,
    nan_option,
    overwrite_option,
    question_options,
)


@click.command()
@click.argument("data")
@click.option("-k", type=click.IntRange(1), help="Number of columns (default 10); with --explained, the maximum.")
@click.option(
    "--explained",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Pick the fewest columns, in order, that explain this share, such as 0.9.",
)
@click.option("--lam", type=Lambda(), help="Lambda; by default cv if the moments have folds, else 1.")
@question_options
@aims_options
@click.option("--folds", type=int, default=0, help="Number of folds to make if DATA is a matrix and not moments.")
@nan_option
@click.option("-o", "--output", help="Write the result as JSON, for `rgcss report` and `rgcss apply`.")
@overwrite_option
@memory_option
@cluster_options
@json_option
def select(
    data: str,
    lam: str | tuple[float, ...] | None,
    folds: int,
    nan: str,
    output: str | None,
    overwrite: bool,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
    aims: dict[str, Any],
    **asked: Any,
) -> None:
    """Pick the columns from which the others can be rebuilt best.

    DATA is an archive of moments, or a matrix, which is then read once. Several lambdas give one result each.
    Example: rgcss select moments.zarr -k 64 --center -o result.json
    """
    from rgcss_dask.workflow import Question, result_places

    if lam == "cv" and not folds:
        folds = 5
    lams: list[Any] = [lam] if lam is None or isinstance(lam, str) else list(lam)
    questions = [Question(lam=one, **asked) for one in lams]
    outputs = result_places(data, output, lams, overwrite)
    with connected(cluster):
        reading = {"folds": folds, "memory": memory, "nan": nan}
        _answer(data, questions, outputs, aims, overwrite=overwrite, as_json=as_json, **reading)


@click.command()
@click.argument("data")
@click.option("-k", type=click.IntRange(1), help="Maximum number of columns (default 64).")
@click.option("--lams", type=Lambda(), help="Lambdas to try; by default 13, computed from the spectrum.")
@click.option("--one-se", is_flag=True, help="Choose the smallest model within one standard error of the best.")
@question_options
@aims_options
@nan_option
@click.option("-o", "--output", help="Write the result as JSON, for `rgcss report` and `rgcss apply`.")
@overwrite_option
@memory_option
@cluster_options
@json_option
def tune(
    data: str,
    lams: tuple[float, ...] | str | None,
    one_se: bool,
    nan: str,
    output: str | None,
    overwrite: bool,
    memory: str | None,
    cluster: dict[str, Any],
    as_json: bool,
    aims: dict[str, Any],
    **asked: Any,
) -> None:
    """Choose lambda and the number of columns by cross-validation; without another pass over the rows.

    Example: rgcss tune moments.zarr -k 64 --one-se -o result.json
    """
    from rgcss_dask.workflow import Question, result_places

    if isinstance(lams, str):
        raise click.UsageError("--lams takes numbers separated by commas; tune always cross-validates.")
    question = Question(lam="cv", lams=lams, choose_k=True, one_se=one_se, **asked)
    outputs = result_places(data, output, [None], overwrite)
    with connected(cluster):
        reading = {"folds": 5, "memory": memory, "nan": nan}
        _answer(data, [question], outputs, aims, overwrite=overwrite, as_json=as_json, **reading)


def _answer(
    data: str,
    questions: list[Any],
    outputs: list[str | None],
    aims: dict[str, Any],
    *,
    overwrite: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    from rgcss_dask.archive.result_file import save_result
    from rgcss_dask.core.aims import Aims
    from rgcss_dask.core.names import as_written
    from rgcss_dask.workflow import answer, open_moments

    asked = () if any(aims.values()) else questions  # aims need the products of all columns
    source, provenance = open_moments(data, say=say, questions=asked, noise=aims.get("noise") == ("rows",), **reading)
    carried = Aims(**aims_of(aims, source.names))
    contents = []
    for given, path in zip(questions, outputs, strict=True):
        named = {name: as_written(getattr(given, name), source.names) for name in ("include", "exclude")}
        question = replace(given, **named, aims=carried)
        result = answer(source, question, provenance, say)
        if path is not None:
            save_result(result, path, overwrite=overwrite)
        contents.append(_summary(result, path))
        if not as_json:
            printed({}, _words(result, path), as_json=False)
    if as_json:
        printed(contents if len(contents) > 1 else contents[0], "", as_json=True)


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

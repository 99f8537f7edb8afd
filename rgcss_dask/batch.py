"""Batches of jobs from a TOML file: a failed job does not stop the others, a rerun does only what is missing."""

from __future__ import annotations

import hashlib
import json
import os
import string
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rgcss_dask.archive.archive import folder_of, read_record
from rgcss_dask.archive.ownership import foreign, has_batch_mark, is_begun, mark_for_batch, refuse_foreign
from rgcss_dask.archive.result_file import load_result, result_place, save_result
from rgcss_dask.cluster.waiting import NoWorkersError
from rgcss_dask.core.aims import Aims
from rgcss_dask.faults import is_bug, one_line
from rgcss_dask.faults import report as report_of
from rgcss_dask.io.files import Folder, is_url, place_of
from rgcss_dask.io.outputs import Places, refuse_others
from rgcss_dask.io.safe_text import kept
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.reporting import report_place, write_report
from rgcss_dask.sources.base import Reading, Source
from rgcss_dask.sources.registry import matches, open_source
from rgcss_dask.workflow import Question, answer, open_matrix, provenance_of, scan_or_read_twice

Say = Callable[[str], None]

KIND = "rgcss_dask summary"

SCAN = ("folds", "blocks", "groups", "sketch", "nan", "missing", "precision", "memory", "seed")
ASK = tuple(field.name for field in fields(Question) if field.name != "aims")
AIMS = tuple(field.name for field in fields(Aims))
ENDINGS = {"moments": ".moments.zarr", "result": ".json", "report": ".html"}
OUT = tuple(ENDINGS)
SHOW = ("image_shape",)


@dataclass(frozen=True)
class BatchJob:
    """One matrix, the options of its job, and the places of the results."""

    data: str
    options: dict[str, Any]
    moments: str
    result: str
    report: str | None

    @property
    def places(self) -> dict[str, str]:
        """The places that the job writes to."""
        return {name: getattr(self, name) for name in OUT if getattr(self, name) is not None}

    @property
    def source(self) -> Source:
        """The matrix, opened with the options of the job."""
        return open_source(self.data, missing=self.options.get("missing", "raise"))

    @property
    def fingerprint(self) -> str:
        """Identify data and options, so that a job is repeated after either has changed."""
        source = self.source
        stamps = source.stamps(source.cuts[[0, -1]])
        content = json.dumps([self.data, list(source.shape), stamps, self.options], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def run_batch(
    jobs: str | Path,
    *,
    only: str | None = None,
    memory: int | float | str | None = None,
    summary: str | None = None,
    overwrite: bool = False,
    say: Say = print,
) -> dict[str, Any]:
    """Run the jobs of a TOML file; write and return a summary.

    The file has a table ``[defaults]`` and tables ``[[jobs]]``; the options of a job override the defaults. ``data`` is
    a matrix or a pattern; ``moments``, ``result`` and ``report`` are the places to write to, in which {stem} stands for
    the name of the data; the other options are those of `scan` and of `workflow.Question`. ``memory`` is used for the
    jobs that do not set it; it is a property of the machine, so another value does not repeat a finished job. Files in
    the way of a result or report are replaced if a batch or a command wrote them, others only with ``overwrite``.
    """
    budget = None if memory is None else parse_memory(memory)
    path = Path(jobs)
    every = read_jobs(path)
    share = _share(only, len(every))
    place = summary or str(path.with_name(_summary_name(only)))
    _check_summary(place, path, every, overwrite=overwrite)
    done: list[dict[str, Any]] = []
    notes: list[str] = []
    for number in share:
        state = _run(every[number], budget, notes.append, say, overwrite=overwrite)
        done.append({"number": number + 1, **state})
        say(f"{number + 1}/{len(every)} {state['status']:8s} {state['data']}: {state['words']}")
    if notes:
        say(notes[0] + (f" The same holds for {len(notes) - 1:,} more." if len(notes) > 1 else ""))
    content = {"kind": KIND, "file": str(path), "only": only, "jobs": done}
    folder, name = _summary_place(place, overwrite=overwrite)
    folder.write(name, json.dumps(kept(content), indent=1).encode())
    return content


def read_jobs(path: Path) -> list[BatchJob]:
    """Read the list of jobs in a fixed order, with patterns expanded."""
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}.") from None
    tables = content.get("jobs", [])
    if not isinstance(tables, list) or not tables:
        raise ValueError(f'{path} must have at least one table [[jobs]] with data = "archive.zarr".')
    _check_names(path, content, tables)
    found = [job for table in tables for job in _jobs({**content.get("defaults", {}), **table}, path.parent)]
    _check_places(path, found)
    return found


def _check_places(path: Path, jobs: list[BatchJob]) -> None:
    """Refuse a list whose jobs would write to one place twice, or over data, into data, or over the list."""
    read, written = Places([path, *(job.data for job in jobs)]), Places()
    for job in jobs:
        own = Places()
        for where, place in job.places.items():
            touched = read.touched(place)
            if touched:
                raise ValueError(
                    f'{where} = "{place}" of {path} {touched}, which is data and must not be overwritten. Give '
                    f'it another name, such as {where} = "out/{{stem}}{ENDINGS[where]}".'
                )
            touched = own.touched(place) or written.touched(place)
            if touched:
                who = "the same job" if own.touched(place) else "two jobs"
                raise ValueError(
                    f"{who} of {path} would write {place}, which {touched}; use {{stem}} in {where}, and a name of its "
                    "own, to tell them apart."
                )
            own.add(place)
        for place in job.places.values():
            written.add(place)


def _check_summary(place: str, path: Path, jobs: list[BatchJob], *, overwrite: bool) -> None:
    """Refuse a summary that would overwrite the list, its data or an output of a job."""
    touched = Places([path, *(other for job in jobs for other in (job.data, *job.places.values()))]).touched(place)
    if touched:
        raise ValueError(
            f"the summary must have a place of its own; {place} {touched}, which is the list of jobs, its data or an "
            "output of one of its jobs. Set another place with summary=... or --summary."
        )
    _summary_place(place, overwrite=overwrite)


def _normal(address: str) -> str:
    """Return the same address for all spellings of one place."""
    address = address.removeprefix("file://")
    return address.rstrip("/") if is_url(address) else os.path.realpath(address)


def _check_names(path: Path, content: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    known = {"data", *SCAN, *ASK, *AIMS, *OUT, *SHOW}
    for table in [content.get("defaults", {}), *tables]:
        for name in table:
            if name not in known:
                raise ValueError(f"{path} has an unknown option {name!r}; known are {', '.join(sorted(known))}.")
    for name in content:
        if name not in ("defaults", "jobs"):
            raise ValueError(f"{path} has an unknown table [{name}]; known are [defaults] and [[jobs]].")
    if any("data" not in table for table in tables):
        raise ValueError(f'every table [[jobs]] of {path} must have data = "archive.zarr" or a pattern.')


def _jobs(table: dict[str, Any], folder: Path) -> list[BatchJob]:
    pattern = str(table.pop("data"))
    where = pattern if is_url(pattern) else str(folder / pattern)
    found = matches(where, Reading()) if "*" in pattern else [where]
    options = {name: value for name, value in table.items() if name not in OUT}
    jobs = [BatchJob(data, options, *_places(data, table, folder)) for data in found]
    made = {_normal(job.moments): job for job in jobs}  # the pattern may match moments of an earlier run
    return [job for job in jobs if made.get(_normal(job.data), job) is job or foreign(folder_of(job.data))]


def _places(data: str, table: dict[str, Any], folder: Path) -> tuple[str, str, str | None]:
    stem = Path(data.rstrip("/")).stem

    def place(template: str) -> str:
        _check_template(template)
        name = template.format(stem=stem)
        return name if is_url(name) else str(folder / name)

    moments, result, report = (table.get(name, "{stem}" + ending) for name, ending in ENDINGS.items())
    return place(moments), place(result), place(report) if report else None


def _check_template(template: str) -> None:
    """Refuse all fields but {stem}: no other has a value, and a format could produce gigabytes of blanks."""
    try:
        fields = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        raise ValueError(f"the place {template!r} is not valid: {error}. Write {{{{ for a brace.") from None
    if any(field != ("stem", "", None) for field in fields):
        raise ValueError(
            f"in the place of an output {{stem}} stands for the name of the data, and nothing else in "
            f"braces has a meaning; got {template!r}."
        )


def _run(job: BatchJob, memory: int | None, note: Say, say: Say, *, overwrite: bool) -> dict[str, Any]:
    """Run one job; an error becomes its status."""
    began = time.perf_counter()
    state = {"data": job.data, "result": job.result, "report": job.report}
    try:
        fingerprint = job.fingerprint
        status, words = "kept", _done_before(job, fingerprint)
        if words is None:
            status, words = "done", _work(job, fingerprint, memory, note, say, overwrite=overwrite)
    except NoWorkersError:  # every other job would wait as long and fail too
        raise
    except Exception as error:
        status, words = "failed", one_line(error)
        if is_bug(error):
            say(report_of(error))
    return {**state, "status": status, "words": words, "seconds": round(time.perf_counter() - began, 3)}


def _done_before(job: BatchJob, fingerprint: str) -> str | None:
    try:
        result = load_result(job.result)
    except (OSError, ValueError):
        return None
    return None if _missing(job.report) or result.provenance.get("job") != fingerprint else result.sentence


def _missing(report: str | None) -> bool:
    if report is None:
        return False
    folder, name = place_of(report)
    return not folder.exists(name)


def _work(job: BatchJob, fingerprint: str, memory: int | None, note: Say, say: Say, *, overwrite: bool) -> str:
    result_place(job.result, overwrite=overwrite)
    if job.report is not None:
        report_place(job.report, overwrite=overwrite)
    for place in job.places.values():
        if not is_url(place):
            Path(place).parent.mkdir(parents=True, exist_ok=True)
    aims = Aims(**{name: job.options[name] for name in AIMS if name in job.options})
    asked = {name: _hashable(job.options[name]) for name in ASK if name in job.options}
    question = Question(**asked, aims=aims)
    options = {"memory": memory, "noise": aims.noise == "rows"} | {
        name: job.options[name] for name in SCAN if name in job.options
    }
    source = open_matrix(job.data, missing=options.get("missing", "raise"), say=note)
    own = _is_own(folder_of(job.moments))  # may be replaced if data or options have changed
    kept = {"archive": job.moments, "overwrite": own or overwrite, "progress": False}
    moments = scan_or_read_twice(source, () if aims.said else (question,), say=say, **kept, **options)
    provenance = provenance_of(job.moments)
    result = answer(moments, question, {**provenance, "job": fingerprint}, say=lambda message: None)
    if job.report is not None:
        shape = job.options.get("image_shape")
        image = shape and (int(shape[0]), int(shape[1]))
        write_report(result, job.report, image_shape=image, rows=job.source, overwrite=overwrite)
    save_result(result, job.result, overwrite=overwrite)  # last, because a job with a result counts as done
    return result.sentence


def _is_own(folder: Folder) -> bool:
    """Tell whether a batch made the content of a folder; mark an empty folder as made by one."""
    if has_batch_mark(folder):
        return True
    refuse_foreign(folder)
    if read_record(folder) is not None or is_begun(folder):
        return False
    mark_for_batch(folder)
    return True


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _share(only: str | None, count: int) -> range:
    """Return the jobs of the I-th of N shares: every N-th job, so that the shares take about the same time."""
    if only is None:
        return range(count)
    first, _, parts = only.partition("/")
    if not (first.isdigit() and parts.isdigit() and 1 <= int(first) <= int(parts)):
        raise ValueError(f"--only must be I/N with I from 1 to N, such as 3/10; got {only!r}.")
    return range(int(first) - 1, count, int(parts))


def _summary_name(only: str | None) -> str:
    return "summary.json" if only is None else f"summary-{only.replace('/', '-of-')}.json"


def _summary_place(path: str, *, overwrite: bool) -> tuple[Folder, str]:
    return refuse_others(path, f'"kind": "{KIND}"'.encode(), "a summary", overwrite=overwrite)


def table(content: dict[str, Any]) -> str:
    """Format a summary as lines of text."""
    jobs = content["jobs"]
    counts = {status: sum(job["status"] == status for job in jobs) for status in ("done", "kept", "failed")}
    lines = [f"{job['status']:8s} {job['seconds']:8.1f} s  {job['data']}: {job['words']}" for job in jobs]
    kept = f", {counts['kept']} done before" if counts["kept"] else ""
    return "\n".join([*lines, f"{counts['done']} done{kept}, {counts['failed']} failed."])

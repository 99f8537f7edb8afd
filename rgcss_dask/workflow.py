"""From an address to a result: the steps that the command line, the demo and batch jobs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rgcss_dask.answering import answered_by, improved, resampled, validated, validated_for_share, validated_swaps
from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.inspection import unfinished
from rgcss_dask.archive.result_file import result_place
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.names import as_written
from rgcss_dask.core.problem import Problem
from rgcss_dask.core.refinement import swaps_asked
from rgcss_dask.core.result import Result
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.stop import Stop
from rgcss_dask.core.tuning import CrossValidation
from rgcss_dask.core.wide import Rows
from rgcss_dask.core.words import size
from rgcss_dask.io.files import Folder, order_in_words
from rgcss_dask.io.outputs import refuse_inputs
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.origin import PickedFrom, as_asked
from rgcss_dask.runtime.memory_limit import default_budget
from rgcss_dask.scanning.given import are_few, provenance_from, rows_of
from rgcss_dask.scanning.given import is_archive as is_archive
from rgcss_dask.scanning.scan import scan
from rgcss_dask.selecting import DEFAULT_COLUMNS, TRIED_COLUMNS, most_columns, stop_at, warn_of_shortfall
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.chunk_checksums import advice
from rgcss_dask.sources.registry import StackedSource, addresses, open_source
from rgcss_dask.two_readings import band_of_candidates

Say = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """What a command or a batch job asks of a matrix."""

    k: int | None = None  # default: as many as a share needs, else 10; with choose_k the maximum, default 64
    explained: float | None = None  # pick the fewest columns, in order, that explain this share
    lam: float | str | None = None  # a number, "cv", or None: cross-validated if there are folds, else 1
    lams: tuple[float, ...] | None = None  # grid of the cross-validation, by default from the spectrum
    choose_k: bool = False  # cross-validate the number of columns too, up to k
    one_se: bool = False
    objective: str = "unselected"
    center: bool = False
    scale: float | str | None = None
    include: tuple[Any, ...] = ()
    exclude: tuple[Any, ...] = ()
    refine: bool | None = None  # swap picks; None: only if that takes a second or two, and only on a Gram
    effort: int | None = None  # number of further searches from other starting picks
    exact: bool = False  # search all subsets, for at most a minute
    stop_loss: float | None = None  # stop when the loss is at most this share of the start
    stop_bound: float | None = None  # stop when the loss is at most this factor times the lower bound
    paper_bound: bool = False  # also compute the paper's bound, which needs all eigenvalues
    aims: Aims = field(default_factory=Aims)  # what the picks must explain, and which columns may be picked

    @property
    def most(self) -> int:
        """The maximum number of columns, once it is known."""
        if self.k is None:
            raise RuntimeError("the number of columns to pick is not known yet")
        return self.k

    @property
    def searches(self) -> bool:
        """Whether a search for better picks was asked for explicitly."""
        return bool(self.refine or self.effort or self.exact)

    @property
    def problem(self) -> Problem:
        """The problem of every selection, without lambda, which may have to be chosen first."""
        return Problem(
            objective=self.objective,
            include=self.include,
            exclude=self.exclude,
            center=self.center,
            scale=self.scale,
            stop=stop_at(self.explained, Stop(self.stop_loss, self.stop_bound)),
            aims=self.aims,
        )

    @property
    def said(self) -> dict[str, Any]:
        """The options as a result records them."""
        own = {name: value for name, value in asdict(replace(self, aims=Aims())).items() if name != "aims"}
        return as_asked({**own, **self.aims.said})


def open_moments(
    address: str,
    *,
    folds: int = 0,
    memory: str | None = None,
    nan: str = "raise",
    say: Say = print,
    questions: Sequence[Question] = (),
    **options: Any,
) -> tuple[Moments | Rows, dict[str, Any]]:
    """Load an archive of moments, or scan a matrix; with fewer rows than columns, load the rows.

    If there are too many columns for a Gram, make two passes: one for candidates, one for their products.
    """
    folder = archives.folder_of(address, options.get("storage_options"))
    if is_archive(address, options.get("storage_options")):
        if nan != "raise":
            raise ValueError(
                f"nan is for rows that are read now; {address} holds moments, whose gaps were left out or filled when "
                f"they were made. Leave out nan={nan!r} (--nan)."
            )
        moments, record = archives.read(folder)
        return moments, provenance_from(folder.address, record)
    source = _matrix_at(address, folder, say)
    provenance = {"address": source.address, "shape": list(source.shape), "dtype": str(source.dtype)}
    provenance |= {} if nan == "raise" else {"nan": nan}
    budget = default_budget() if memory is None else parse_memory(memory)
    m, n = source.shape
    if are_few(source.shape, budget):
        say(f"{m:,} rows are fewer than {n:,} columns: working on the rows themselves ({size(m * n * 8)}).")
        return rows_of(source, nan=nan, folds=folds), provenance
    say(f"{address} holds rows, not moments; reading it once. `rgcss scan` saves the moments for later questions.")
    options |= {"folds": folds or None, "memory": memory, "nan": nan}
    return scan_or_read_twice(source, questions, say=say, **options), provenance


def scan_or_read_twice(source: Source, questions: Sequence[Question], *, say: Say, **options: Any) -> Moments:
    """Scan; with too many columns for memory, find candidates for the questions, and scan for these only."""
    try:
        return scan(source, **options)
    except TooManyColumnsError:
        if not questions:
            raise
    k, problem = _together(questions, source)
    unasked = {name: value for name, value in options.items() if name != "noise"}  # noise needs all products
    return band_of_candidates(source, k, problem, say=say, **unasked)


def _together(questions: Sequence[Question], source: Source) -> tuple[int, Problem]:
    """Return the maximum number of columns of the questions, and one problem with all their lambdas."""
    first, n = questions[0], source.shape[1]
    lams = [1.0 if isinstance(question.lam, str | None) else float(question.lam) for question in questions]
    include, exclude = (as_written(given, source.names) for given in (first.include, first.exclude))
    asked = replace(first, include=include, exclude=exclude)
    most = asked.k if asked.k is not None else min(_count(n, asked, source.names), TRIED_COLUMNS)
    return most, asked.problem.at(lams)


def open_matrix(
    address: str, *, missing: str = "raise", storage_options: dict[str, Any] | None = None, say: Say = print
) -> Source:
    """Open a matrix; report the order of stacked files, and whether chunks have no checksums."""
    source = open_source(address, missing=missing, storage_options=storage_options)
    if isinstance(source, StackedSource):
        say(f"reading {order_in_words([part.address for part in source.parts])}.")
    if source.unguarded:
        say(advice(source.address, source.unguarded))
    return source


def _matrix_at(address: str, folder: Folder, say: Say) -> Source:
    try:
        return open_matrix(address, storage_options=folder.storage_options, say=say)
    except FileNotFoundError:
        if unfinished(folder) is None:
            raise
    raise ValueError(
        f"moments or a matrix are needed; {address} holds an unfinished scan. Give the same `rgcss scan` command "
        "again: it resumes from its checkpoints. With other options, add --overwrite."
    )


def result_places(data: str, output: str | None, lams: Sequence[Any], overwrite: bool) -> list[str | None]:
    """Return the place of the result of each lambda; refuse places that must not be written before any data is read."""
    if output is None:
        return [None] * len(lams)
    if len(set(lams)) < len(lams):
        raise ValueError(f"each lambda must be given once, so that each has a result of its own; got {lams}.")
    short = [f"{lam:g}" for lam in lams] if len(lams) > 1 else []
    # All digits, if six do not tell them apart.
    ends = short if len(set(short)) == len(short) else [repr(lam) for lam in lams]
    suffix = Path(output).suffix
    places = [f"{output.removesuffix(suffix)}-{end}{suffix}" for end in ends] or [output]
    for place in places:
        refuse_inputs(place, addresses(data))
        result_place(place, overwrite=overwrite)
    return [*places]


def provenance_of(address: str) -> dict[str, Any]:
    """Return the origin of the moments of an archive, without reading them."""
    folder = archives.folder_of(address)
    return provenance_from(folder.address, archives.require(folder))


def answer(source: Moments | Rows, question: Question, provenance: dict[str, Any], say: Say = print) -> Result:
    """Pick columns and compute everything that a report shows."""
    question = _sensible(source, question, say)
    if isinstance(source, Rows):
        source = _fitting(source, question, say)
    tuned = None
    if question.lam == "cv":
        tuned = _tune(source, question)
        picked = tuned.selection
        say(tuned.words.rsplit("\n", 1)[0])
    else:
        picked = _select(source, question)
    warn_of_shortfall(picked, question.explained, question.most)
    if question.searches or (isinstance(source, Moments) and swaps_asked(question.refine, picked.n, picked.k)):
        picked = _improved(picked, source, question, say)
        if tuned is not None:
            tuned = validated_swaps(tuned, picked, source, question.problem, effort=question.effort or 0)
            say(tuned.kept_words)
    trust = None
    if isinstance(source, Moments) and source.groups and picked.k:
        trust = resampled(source, picked.k, question.problem.at(picked.lam)).summary
        say(trust.words)
    origin = PickedFrom(source, {**provenance, "asked": question.said}, None if tuned is None else tuned.summary)
    return origin.result(picked, trust=trust, paper_bound=question.paper_bound)


def _improved(picked: Selection, source: Moments | Rows, question: Question, say: Say) -> Selection:
    """Swap picked columns for better ones, and report the improvement."""

    def told(made: int, most: int, loss: float) -> None:
        say(f"{made} of {most} more searches made; the lowest loss is {loss:.6g}.")

    better = improved(picked, source, effort=question.effort or 0, exact=question.exact, told=told)
    if better.swaps or question.searches:
        say(better.sentence)
    return better.selection


def _fitting(rows: Rows, question: Question, say: Say) -> Moments | Rows:
    """Replace rows by their moments if the question needs a Gram."""
    if not question.exact and question.aims.suit_rows:
        return rows
    say(f"These options need the Gram of all {rows.n:,} columns: forming it from the rows.")
    noise, folds = isinstance(question.aims.noise, str), len(rows.folds) or None
    # scan refuses moments that do not fit into memory.
    moments = scan(rows.block, weights=rows.weights, noise=noise, folds=folds, progress=False)
    return replace(moments, names=rows.names, dropped=rows.dropped)


def _sensible(source: Moments | Rows, question: Question, say: Say) -> Question:
    """Fill in defaults, and report them."""
    if question.explained is not None and question.choose_k:
        raise ValueError("explained and choose_k both choose the number of columns; give one of them.")
    if question.lam is None:
        if source.folds:
            question = replace(question, lam="cv")
        else:
            say("lambda = 1, because there are no folds to cross-validate with; `rgcss scan --folds 5` makes them.")
            question = replace(question, lam=1.0)
    return question if question.k is not None else replace(question, k=_count(source.n, question, source.names))


def _count(n: int, question: Question, names: tuple[str, ...] | None) -> int:
    """Return the default number of columns to pick or to try, of n."""
    if question.explained is not None or question.aims.budget is not None:
        return most_columns(n, names, None, question.problem, tunes=question.lam == "cv")
    usual = TRIED_COLUMNS if question.choose_k else DEFAULT_COLUMNS
    return max(min(usual, question.problem.free(n, names)), len(question.include))


def _tune(moments: Moments | Rows, question: Question) -> CrossValidation:
    if question.explained is not None:
        return validated_for_share(moments, question.most, question.problem, lams=question.lams)
    rule: dict[str, Any] = {"one_se": question.one_se, "fixed_k": not question.choose_k}
    return validated(moments, question.most, question.problem, lams=question.lams, **rule)


def _select(source: Moments | Rows, question: Question) -> Selection:
    return answered_by(source, question.most, question.problem.at(float(question.lam or 0.0)))[0]

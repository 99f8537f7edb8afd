"""Bytes and rows: where a pass is cut into spans, how their results are merged, and what fits in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.accumulate import block_rows, buffer_bytes, checked_rows, is_whole
from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.integers import LIBRARY, may_be_small

Cuts = NDArray[np.int64]

SPAN_BYTES = 2**28  # of data in a span, so that a lost one is soon read again
SPAN_ROWS = 2**15  # of 8 bits at least, so that making and merging an n x n matrix is a few per cent of the work
SKETCH_SPAN = 16  # times the bytes of its sketch, at least
SPAN_COUNT = 32  # at least, if the rows allow it, so that threads stay busy and progress is seen
SPAN_LIMIT = 2**12  # at most; with the merges, a graph of under 10,000 tasks
READ_BYTES = 2**22  # asked of the store at once
# The same where sparse rows are added to a sketch: they go all over it, so that many are to share each visit.
SPARSE_BYTES = 2**26
SKETCH_ROWS = 2**4  # the same where rows are added to a sketch, which has no products
BAND_ROWS, BAND_BYTES = 2**6, 2**26  # the same, at least, for products of some candidates with very many columns
CELL_ROWS = 2**10  # read at once, at least, for each part kept apart, so that its products stay large
# A checkpoint takes about as long as the products of 1,000 rows: a few per cent of this many.
SAVE_ROWS = 2**15
SAVE_FILES = 8  # checkpoints that are put together in one
# Results merged one after another: few of spans, because a worker that reads lets a merge wait; more of those above.
FAN, HIGH_FAN = 4, 32
# Results of this size are merged one after another, so many in a run, by a process that reads one span at a time: then
# two of them are alive, one more for each level of runs, and not ten.
CHAIN_BYTES, LONG_RUN = 2**29, 128
# The store's bytes, the decoded chunk and the rows put together from it, measured for Zarr; and where a read waits for
# a network, the rows before it, which are multiplied meanwhile.
READ_COPIES = 4
UNEVEN = 1.25  # of a fold's share of some thousand rows, at most
SQUARES = 32  # n x n matrices that a pass with folds and groups may need: fewer that do not fit are too many columns
TILE_THREADS = 16  # at most, for one span
OVERHEAD = 56 * 2**20  # graph, thread stacks, compiled kernels and what the allocator keeps; measured: 52 MB


@dataclass(frozen=True)
class Geometry:
    """What the plan may depend on, so that every machine cuts the same rows in the same places."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    cuts: Cuts  # first and last row, and each row in between where a read may begin
    whole: bool = False  # a span is read at once, as a block of a Dask array is
    sparse_bytes: int = 0  # of a row on average, where rows are read as sparse ones; 0: they are dense
    beside: int | None = None  # bytes held beside rows where one chunk after another is decoded into its place
    masked: bool = False  # only some rows count

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored."""
        return max(1, self.columns * self.dtype.itemsize)

    def bytes_read(self, options: Options) -> int:
        """Bytes of one row as it is read; only sketches are sure to take sparse rows as they are."""
        return self.sparse_bytes if self.sparse_bytes and options.sketch is not None else self.row_bytes


@dataclass(frozen=True)
class Options:
    """What is done with the rows, wherever they are."""

    folds: int = 0
    groups: int = 0
    seed: int = 0
    fraction: float | None = None
    nan: str = "raise"
    precision: str = "double"
    checksum: bool = False  # of what is read, kept to recognise it later
    noise: bool = False  # look at differences of neighbouring rows
    group_rows: int | None = None  # that the groups divide, from row 0; later rows make further groups of that size
    candidates: tuple[int, ...] | None = None  # columns whose products with all are added up; None: all columns
    sketch: int | None = None  # rows of a sketch that takes the place of products
    blocks: bool = False  # folds are runs of neighbouring rows

    @property
    def matrices(self) -> int:
        """Matrices per part: imputation needs the products of the gaps too, or their sketch."""
        return 1 if self.nan != "mean" else 3 if self.sketch is None else 2

    @property
    def height(self) -> int:
        """Candidates, of a band."""
        return len(self.candidates or ())

    def matrix_bytes(self, n: int) -> int:
        """Bytes of one matrix of sums over n columns."""
        if self.sketch is not None:
            return 8 * n * (self.sketch + 3)  # with sums of columns, their squares and shift
        return 8 * n * (n if self.candidates is None else len(self.candidates) + 1)

    def groups_among(self, rows: int) -> int:
        """Count the groups that so many rows of a pass may belong to, at most."""
        if self.groups == 0 or self.group_rows is None:
            return self.groups
        return -(-rows * self.groups // self.group_rows) + 1  # the first may have been begun before


@dataclass(frozen=True)
class Node:
    """A span, or the merge of two nodes."""

    start: int  # row
    stop: int
    left: int | None = None  # index of a node
    right: int | None = None
    saved: bool = False  # its result is worth a checkpoint

    @property
    def name(self) -> str:
        """The rows of the node, as a file name."""
        return f"{self.start}-{self.stop}"


@dataclass(frozen=True)
class Plan:
    """Spans, the tree that merges them, and how many may run at once in how much memory."""

    geometry: Geometry
    options: Options
    nodes: tuple[Node, ...]  # children before parents; the last is the root
    parents: tuple[int | None, ...]
    read_rows: int
    concurrency: int
    tile_threads: int  # that share the tiles of one span, where memory allows fewer spans than threads
    memory: int  # bytes, at most

    @property
    def spans(self) -> list[int]:
        """Indices of the nodes that read."""
        return [i for i, node in enumerate(self.nodes) if node.left is None]

    def saved_below(self, index: int) -> list[str]:
        """Return the names of the saved nodes that the node's own checkpoint stands for."""
        below = [i for i in (self.nodes[index].left, self.nodes[index].right) if i is not None]
        names = []
        while below:
            node = self.nodes[below.pop()]
            if node.saved:
                names.append(node.name)
            else:
                below += [i for i in (node.left, node.right) if i is not None]
        return names

    def path_up(self, index: int) -> Iterator[int]:
        """Yield the node and its ancestors."""
        here: int | None = index
        while here is not None:
            yield here
            here = self.parents[here]

    def reads(self, node: Node) -> Iterator[tuple[int, int]]:
        """Yield the row ranges in which a span is read: whole chunks, a few megabytes at a time."""
        if self.geometry.whole:  # the blocks are at hand; no need to keep to their edges
            yield from pairwise([*range(node.start, node.stop, self.read_rows), node.stop])
            return
        yield from reads_between(self.geometry.cuts, node.start, node.stop, self.read_rows)


def make_plan(geometry: Geometry, options: Options, *, budget: int, threads: int, cluster: bool = False) -> Plan:
    """Cut and stack the spans, and let as many run at once as ``budget`` bytes allow.

    On a cluster results also wait for workers that read, and on their way from one to the other.

    Raises
    ------
    MemoryError
        When not even one span at a time fits; the message says what would.
    """
    _check_matrix_fits(geometry, options, budget)
    chain = is_chain(geometry, options)
    edges = span_edges(geometry, options, parts=parts_of_span(geometry, options) if chain else 1)
    nodes = _with_saves(_stack(edges, chain=chain))
    parents: list[int | None] = [None] * len(nodes)
    for i, node in enumerate(nodes):
        for child in (node.left, node.right):
            if child is not None:
                parents[child] = i
    read_rows = _read_rows(geometry, options)
    spans, largest = len(edges) - 1, _largest_read(geometry, edges, read_rows)
    needs = [
        memory_need(
            geometry,
            options,
            spans=spans,
            read_rows=largest,
            concurrency=c,
            tile_threads=_tile_threads(threads, c),
            chain=chain,
            cluster=cluster,
        )
        for c in range(1, 2 if chain else max(1, min(threads, spans)) + 1)
    ]
    if needs[0] > budget:
        squares = options.candidates is None and options.sketch is None
        kind = TooManyColumnsError if squares and 8 * geometry.columns**2 > budget // SQUARES else MemoryError
        raise kind(_refusal(geometry, options, needs[0], budget, largest))
    concurrency = sum(need <= budget for need in needs)
    return Plan(
        geometry=geometry,
        options=options,
        nodes=tuple(nodes),
        parents=tuple(parents),
        read_rows=read_rows,
        concurrency=concurrency,
        tile_threads=_tile_threads(threads, concurrency),
        memory=needs[concurrency - 1],
    )


def parts_of_span(geometry: Geometry, options: Options) -> int:
    """Count the parts kept apart that the rows of one span may belong to; of groups, as they are runs, two or so."""
    return max(1, options.folds) + min(2, options.groups_among(geometry.rows))


def is_chain(geometry: Geometry, options: Options) -> bool:
    """Tell whether results are so large that few may be alive; those of candidates are made by one thread each."""
    matrix = options.matrix_bytes(geometry.columns) * options.matrices
    return options.candidates is None and matrix * parts_of_span(geometry, options) >= CHAIN_BYTES


def span_edges(geometry: Geometry, options: Options | None = None, *, parts: int = 1) -> Cuts:
    """Return the rows at which spans begin and end; of more rows where more parts have to be merged after them."""
    g = geometry
    sketch = options is not None and options.sketch is not None
    rows = max(
        least_rows(g, parts, sketch=sketch),
        min(SPAN_BYTES // g.row_bytes, -(-g.rows // SPAN_COUNT)),
        -(-g.rows // SPAN_LIMIT),
    )
    if g.whole:  # all of a span is in memory at once, so no more than must be
        rows = max(READ_BYTES // g.row_bytes, -(-g.rows // SPAN_LIMIT))
    elif options is not None and options.sketch is not None:  # adding sketches up should take no time beside reading
        rows = max(rows, SKETCH_SPAN * options.matrix_bytes(g.columns) // g.bytes_read(options))
    return thinned(g.cuts, rows)


def least_rows(geometry: Geometry, parts: int = 1, *, sketch: bool = False) -> int:
    """Return how many rows a span has at least: fewer where products take longer, as of wide types if dense."""
    sparse = 0 < 4 * geometry.sparse_bytes <= geometry.row_bytes and not sketch
    return parts * SPAN_ROWS // min(geometry.dtype.itemsize**2, 2 if sparse else 8)


def memory_need(
    geometry: Geometry,
    options: Options,
    *,
    spans: int,
    read_rows: int,
    concurrency: int,
    tile_threads: int,
    chain: bool,
    cluster: bool = False,
) -> int:
    """Count the bytes a pass may hold at once, in each process."""
    n = geometry.columns
    matrix = options.matrix_bytes(n) * options.matrices
    groups = options.groups_among(geometry.rows)
    shared = options.folds > 0 and options.groups > 0
    work = buffer_bytes(n, geometry.dtype, options.precision, threads=tile_threads, shared=shared)
    if options.candidates is not None:  # rows in double precision and weighted candidates, a product, and one moved
        rows = min(read_rows, block_rows(n, geometry.dtype, options.precision))
        work = 8 * rows * (n + len(options.candidates)) + 3 * matrix
    if options.sketch is not None:  # the row numbers, and where two are merged about one mean, both moved
        work = 3 * matrix + 64 * read_rows + matrix // 2  # sums in 32 bits
    gaps = 0 if options.matrices == 1 else 2 * matrix + 2 * 8 * read_rows * n
    library = LIBRARY if options.candidates is None and options.sketch is None and may_be_small(geometry.dtype) else 0
    alive = results_alive(spans, concurrency, chain=chain, cluster=cluster)
    apart = options.folds or (0 if groups else 1)
    if groups:  # results are of runs of rows, so that a group is in two of them only where one ends
        groups += alive - 1 + (groups if cluster else 0)  # and while a result is sent, it is in two places
    # In the end there are the sums of all rows, made of those of the parts, two at a time; gaps are filled beside them.
    sums = max(alive * apart, apart + 2) + groups
    reading = _reading_bytes(geometry, options, read_rows)
    return OVERHEAD + library + concurrency * (work + gaps + reading) + sums * matrix


def _reading_bytes(geometry: Geometry, options: Options, rows: int) -> int:
    """Count the bytes that a read of so many rows holds, with the rows of one fold gathered from it."""
    read = rows * geometry.bytes_read(options)
    held = READ_COPIES * read if geometry.beside is None else min(READ_COPIES * read, read + geometry.beside)
    gathered = UNEVEN / options.folds if options.folds and not options.blocks else 0.0
    if geometry.masked or options.fraction is not None:
        gathered = max(gathered, 1.0)
    if options.nan == "drop":  # gathered once more without those that have gaps
        gathered += gathered or 1.0
    return held + int(gathered * read)


def results_alive(spans: int, concurrency: int, *, chain: bool, cluster: bool) -> int:
    """Count the results that a process holds at once, those in the making counted."""
    if spans == 1:
        return 1
    if cluster:  # in a chain, one that goes to another worker and one that has come
        waiting = levels(spans, chain=chain) + 2 if chain else results_at_hand(spans, concurrency)
        return concurrency + waiting
    # Depth first there is one for each level; of several threads some are ahead, by up to a run in all.
    ahead = 1 if concurrency == 1 else 3 * concurrency - 1
    return min(spans, levels(spans, chain=chain) + ahead)


def _tile_threads(threads: int, concurrency: int) -> int:
    return min(TILE_THREADS, max(1, threads // concurrency))


def thinned(cuts: Cuts, rows: int) -> Cuts:
    """Keep the fewest cuts that are about ``rows`` apart, or the next one where the chunks are larger."""
    kept = [int(cuts[0])]
    while kept[-1] < cuts[-1]:
        after = int(np.searchsorted(cuts, kept[-1] + rows, "right")) - 1
        after = max(after, int(np.searchsorted(cuts, kept[-1], "right")))
        kept.append(int(cuts[after]))
    return np.array(kept, dtype=np.int64)


def reads_between(cuts: Cuts, start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges from ``start`` to ``stop`` that end at cuts, about ``rows`` long."""
    inside = cuts[np.searchsorted(cuts, start, "right") : np.searchsorted(cuts, stop)]
    yield from pairwise(thinned(np.concatenate([[start], inside, [stop]]), rows).tolist())


def _read_rows(geometry: Geometry, options: Options) -> int:
    parts = max(1, options.folds) * (2 if options.groups else 1)
    least = CELL_ROWS if options.sketch is None else SKETCH_ROWS
    if options.candidates is not None:  # of very long rows some are enough for fast products
        least = min(least, max(BAND_ROWS, BAND_BYTES // geometry.row_bytes))
    sparse = options.sketch is not None and geometry.sparse_bytes > 0
    return max((SPARSE_BYTES if sparse else READ_BYTES) // geometry.bytes_read(options), least * parts)


def _largest_read(geometry: Geometry, edges: Cuts, read_rows: int) -> int:
    if geometry.whole:
        return int(np.diff(edges).max())
    # A read ends at the last cut within read_rows, or holds one chunk.
    return int(min(np.diff(edges).max(), max(read_rows, np.diff(geometry.cuts).max())))


def results_at_hand(spans: int, threads: int) -> int:
    """Count the results that a worker of a cluster holds at most, to be merged.

    A walk of the tree, depth first, holds one for each level. Each thread has one under way, and until the scheduler
    has heard of it the inputs of its last merge. A whole run may wait while the worker to merge it reads.
    """
    return levels(spans) + 3 * threads + FAN - 1


def levels(spans: int, *, chain: bool = False) -> int:
    """Count the levels of the tree above so many spans."""
    return len(_fans(spans, chain=chain))


def merges_in_a_row(spans: int, *, chain: bool = False) -> int:
    """Count the merges on the longest way from a span to the root: one merge for each further member of its runs."""
    return sum(fan - 1 for fan in _fans(spans, chain=chain))


def _fans(spans: int, *, chain: bool) -> list[int]:
    """Return how many results are merged one after another at each level, at most."""
    fans: list[int] = []
    while spans > 1:
        fans.append(min(spans, HIGH_FAN if fans else LONG_RUN if chain else FAN))
        spans = -(-spans // fans[-1])
    return fans


def _stack(edges: Cuts, *, chain: bool) -> list[Node]:
    """Merge runs of neighbours, one after the other, then runs of those, until one is left; in a chain, long runs.

    So there is one result in the making for each level, and few levels: ten times as many rows need hardly more memory.
    """
    nodes = [Node(int(a), int(b)) for a, b in pairwise(edges)]
    level = list(range(len(nodes)))
    for fan in _fans(len(nodes), chain=chain):
        runs = [level[i : i + fan] for i in range(0, len(level), fan)]
        level = []
        for left, *others in runs:
            for right in others:
                nodes.append(Node(nodes[left].start, nodes[right].stop, left, right))
                left = len(nodes) - 1
            level.append(left)
    return nodes


def _with_saves(nodes: list[Node]) -> list[Node]:
    """Mark for a checkpoint each node whose rows are in none yet, if they are many, or that stands for many others."""
    marked, unsaved, files = [], [0] * len(nodes), [0] * len(nodes)
    for i, node in enumerate(nodes):
        below = [j for j in (node.left, node.right) if j is not None]
        unsaved[i] = sum(unsaved[j] for j in below) if below else node.stop - node.start
        files[i] = sum(files[j] for j in below)
        saved = unsaved[i] >= SAVE_ROWS or files[i] >= SAVE_FILES
        if saved:
            unsaved[i], files[i] = 0, 1
        marked.append(replace(node, saved=saved))
    return marked


def _check_matrix_fits(geometry: Geometry, options: Options, budget: int) -> None:
    matrix = options.matrix_bytes(geometry.columns)
    if matrix > budget and (options.candidates is not None or options.sketch is not None):
        what = (
            f"a sketch in {options.sketch:,} rows of"
            if options.sketch
            else f"products of {options.height:,} candidates with"
        )
        raise MemoryError(
            f"{what} {geometry.columns:,} columns must fit in memory; that needs {size(matrix)} and there are "
            f"{size(budget)}. Give fewer {'rows (sketch=...)' if options.sketch else 'candidates'} or more memory "
            "(memory=...)."
        )
    if matrix > budget:
        raise TooManyColumnsError(
            f"an n x n matrix must fit in memory; {geometry.columns:,} columns need {size(matrix)} and "
            f"there are {size(budget)}. Keep fewer columns, give more memory (memory=...), pick in two readings with "
            "rgcss_dask.select_wide(source, k), or, when there are fewer rows than columns, select from the rows "
            "themselves: rgcss_dask.Factor(rows)."
        )


def _refusal(geometry: Geometry, options: Options, least: int, budget: int, read_rows: int) -> str:
    parts = max(1, options.folds) + options.groups
    advice = f"Give at least memory={least:_} bytes"
    if parts > 1:
        kind = "sketch" if options.sketch is not None else "n x n matrix" if options.candidates is None else "products"
        advice += f", keep fewer parts apart (now {parts}, each with its own {kind})"
    if options.candidates is None and options.sketch is None:
        advice += ", pick in two readings with rgcss_dask.select_wide(source, k)"
    if _reading_bytes(geometry, options, read_rows) > least // 2:
        advice += f", or rewrite the array in smaller chunks (now {size(read_rows * geometry.row_bytes)} of rows)"
    return (
        f"the memory budget is too small: {geometry.columns:,} columns need at least {size(least)} and there "
        f"are {size(budget)}. {advice}."
    )


def size(count: int) -> str:
    """Write a number of bytes for people."""
    # Not by Dask's `format_bytes`: the core knows no Dask, and budgets are given in GB and not in GiB.
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def _check_kind(options: Options) -> None:
    """Refuse what cannot be added up together."""
    if options.nan == "mean" and options.candidates is not None:
        raise ValueError(
            "gaps can be filled with means (nan='mean') where all products are added up, or a sketch; not with "
            "candidates=. Leave these out, read twice with rgcss_dask.select_wide(source, k, nan='mean'), drop rows "
            "with gaps (nan='drop'), or fill them before."
        )
    if options.candidates is not None and options.sketch is not None:
        raise ValueError("a pass adds up products of candidates or a sketch, not both: give one of them.")
    if options.sketch is not None:
        checked_rows(options.sketch)


def check_counts(rows: int, options: Options) -> None:
    """Refuse numbers of folds and groups that rows cannot fill, and what does not go together."""
    _check_parts(rows, options)
    _check_kind(options)
    if options.fraction is not None and not 0 < options.fraction <= 1:
        raise ValueError(f"rows as a fraction must be above 0 and at most 1; got {options.fraction}.")
    for what, value, known in _CHOICES:
        if getattr(options, what) not in known:
            raise ValueError(f"{what} must be one of {', '.join(map(repr, known))}; got {value(options)!r}.")


def _check_parts(rows: int, options: Options) -> None:
    for what, count in (("folds", options.folds), ("groups", options.groups)):
        if not is_whole(count):
            raise ValueError(f"{what} must be a whole number; got {count!r}.")
        if count != 0 and not 2 <= count <= rows:
            raise ValueError(f"{what} must be between 2 and the number of rows, {rows:,}; got {count}.")
    if options.blocks and not options.folds:
        raise ValueError("blocks=True makes folds of neighbouring rows: say how many, such as folds=5.")


_CHOICES: Sequence[tuple[str, Any, tuple[str, ...]]] = (
    ("nan", lambda o: o.nan, ("raise", "drop", "mean")),
    ("precision", lambda o: o.precision, ("double", "single")),
)

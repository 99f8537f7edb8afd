"""The plan of a pass: how rows are cut into spans, how results are merged, and how much memory this needs."""

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

SPAN_BYTES = 2**28  # bytes of data in a span, so that a lost span is soon read again
# Rows of a span at 8 bits a value, at least: making and merging an n x n matrix is then a few per cent of the work.
SPAN_ROWS = 2**15
SKETCH_SPAN = 16  # bytes of a span, at least, as a multiple of the bytes of its sketch
SPAN_COUNT = 32  # spans, at least, if the rows allow it, so that all threads have work and progress is visible
SPAN_LIMIT = 2**12  # spans, at most: together with the merges, the graph has fewer than 10,000 tasks
READ_BYTES = 2**22  # bytes of one read
# Bytes of one read of sparse rows for a sketch: they write all over the sketch, so many rows should share a visit.
SPARSE_BYTES = 2**26
SKETCH_ROWS = 2**4  # rows of one read for each part kept apart, at least, for a sketch, which has no products
BAND_ROWS, BAND_BYTES = 2**6, 2**26  # the same for a band, if rows are very long: this many rows, and this many bytes
CELL_ROWS = 2**10  # rows of one read for each part kept apart, at least, so that products are fast
# Rows between checkpoints: saving one takes about as long as the products of 1,000 rows, a few per cent of these.
SAVE_ROWS = 2**15
SAVE_FILES = 8  # checkpoints that are merged into one
# Results merged one after another: few at the level of spans, because a merge waits while its worker reads; more above.
FAN, HIGH_FAN = 4, 32
# Results of this many bytes are merged in a chain: a process reads one span at a time and merges runs of up to LONG_RUN
# results one after another. Two results are then alive, and one more for each level of runs, instead of ten.
CHAIN_BYTES, LONG_RUN = 2**29, 128
# Copies held during a read, measured for Zarr: the stored bytes, the decoded chunk and the rows assembled from it. The
# fourth copy is the previous read, which is multiplied while the next one waits for a network.
READ_COPIES = 4
UNEVEN = 1.25  # rows of the largest fold among some thousand rows, at most, as a multiple of the mean
SQUARES = 32  # if memory holds fewer n x n matrices than this, too many columns are the reason why a pass does not fit
TILE_THREADS = 16  # threads for one span, at most
OVERHEAD = 56 * 2**20  # bytes of the graph, thread stacks, compiled kernels and the allocator; measured: 52 MB


@dataclass(frozen=True)
class Geometry:
    """What the plan of a pass depends on, so that every machine cuts the same rows in the same places."""

    rows: int
    columns: int
    dtype: np.dtype[Any]
    cuts: Cuts  # first row, end of the last row, and each row between them where a read may begin
    whole: bool = False  # whether a span is read at once, as a block of a Dask array is
    sparse_bytes: int = 0  # mean bytes of a row that is read as a sparse one; 0 for dense rows
    beside: int | None = None  # bytes held beside the rows if chunks are decoded one after another into their place
    masked: bool = False  # whether a mask selects rows

    @property
    def row_bytes(self) -> int:
        """Bytes of one dense row."""
        return max(1, self.columns * self.dtype.itemsize)

    def bytes_read(self, options: Options) -> int:
        """Bytes of one row as it is read; only sketches always take sparse rows without making them dense."""
        return self.sparse_bytes if self.sparse_bytes and options.sketch is not None else self.row_bytes


@dataclass(frozen=True)
class Options:
    """How the rows are processed, independent of their source."""

    folds: int = 0
    groups: int = 0
    seed: int = 0
    fraction: float | None = None
    nan: str = "raise"
    precision: str = "double"
    checksum: bool = False  # keep a checksum of the rows of each span
    noise: bool = False  # sum the squared differences of neighbouring rows
    group_rows: int | None = None  # the groups divide rows 0 to this; later rows make further groups of that size
    candidates: tuple[int, ...] | None = None  # columns whose products with all columns are summed; None: all
    sketch: int | None = None  # rows of a sketch that is computed instead of products
    blocks: bool = False  # folds are runs of neighbouring rows

    @property
    def matrices(self) -> int:
        """Matrices per part: imputation also needs the products of the gaps, or a sketch of them."""
        return 1 if self.nan != "mean" else 3 if self.sketch is None else 2

    @property
    def height(self) -> int:
        """Number of candidates of a band."""
        return len(self.candidates or ())

    def matrix_bytes(self, n: int) -> int:
        """Bytes of one matrix of sums over n columns."""
        if self.sketch is not None:
            return 8 * n * (self.sketch + 3)  # the sketch, the column sums, their squares and the shift
        return 8 * n * (n if self.candidates is None else len(self.candidates) + 1)

    def groups_among(self, rows: int) -> int:
        """Return the largest number of groups to which this many rows of a pass may belong."""
        if self.groups == 0 or self.group_rows is None:
            return self.groups
        return -(-rows * self.groups // self.group_rows) + 1  # the first group may have begun before these rows


@dataclass(frozen=True)
class Node:
    """A span, or the merge of two nodes."""

    start: int  # row number
    stop: int
    left: int | None = None  # index of a child node
    right: int | None = None
    saved: bool = False  # whether its result gets a checkpoint

    @property
    def name(self) -> str:
        """The rows of the node, as the name of its checkpoint."""
        return f"{self.start}-{self.stop}"


@dataclass(frozen=True)
class Plan:
    """The spans, the tree that merges them, how many spans may run at once, and how much memory they need."""

    geometry: Geometry
    options: Options
    nodes: tuple[Node, ...]  # children before parents; the last is the root
    parents: tuple[int | None, ...]
    read_rows: int
    concurrency: int
    tile_threads: int  # threads that share the tiles of one span, if memory allows fewer spans than threads
    memory: int  # most bytes that the pass holds

    @property
    def spans(self) -> list[int]:
        """Indices of the leaves of the tree."""
        return [i for i, node in enumerate(self.nodes) if node.left is None]

    def saved_below(self, index: int) -> list[str]:
        """Return the names of the checkpoints that the node's own checkpoint replaces."""
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
        """Yield the row ranges of the reads of a span: whole chunks, a few megabytes each."""
        if self.geometry.whole:  # the blocks are already in memory, so reads need not end at chunk edges
            yield from pairwise([*range(node.start, node.stop, self.read_rows), node.stop])
            return
        yield from reads_between(self.geometry.cuts, node.start, node.stop, self.read_rows)


def make_plan(geometry: Geometry, options: Options, *, budget: int, threads: int, cluster: bool = False) -> Plan:
    """Cut the rows into spans, build the tree that merges them, and run as many spans at once as ``budget`` allows.

    On a cluster the plan also counts results that wait while workers read, and results in transfer between workers.

    Raises
    ------
    MemoryError
        When not even one span at a time fits; the message gives the memory needed.
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
    """Return to how many parts kept apart the rows of a span may belong: all folds, and at most two groups."""
    return max(1, options.folds) + min(2, options.groups_among(geometry.rows))


def is_chain(geometry: Geometry, options: Options) -> bool:
    """Tell whether results are so large that few may be alive; never for bands, which one thread each computes."""
    matrix = options.matrix_bytes(geometry.columns) * options.matrices
    return options.candidates is None and matrix * parts_of_span(geometry, options) >= CHAIN_BYTES


def span_edges(geometry: Geometry, options: Options | None = None, *, parts: int = 1) -> Cuts:
    """Return the rows at which spans begin and end; spans are longer where more parts have to be merged after them."""
    g = geometry
    sketch = options is not None and options.sketch is not None
    rows = max(
        least_rows(g, parts, sketch=sketch),
        min(SPAN_BYTES // g.row_bytes, -(-g.rows // SPAN_COUNT)),
        -(-g.rows // SPAN_LIMIT),
    )
    if g.whole:  # all of a span is in memory at once, so that it is kept as short as possible
        rows = max(READ_BYTES // g.row_bytes, -(-g.rows // SPAN_LIMIT))
    elif options is not None and options.sketch is not None:  # so that merging takes little time compared with reading
        rows = max(rows, SKETCH_SPAN * options.matrix_bytes(g.columns) // g.bytes_read(options))
    return thinned(g.cuts, rows)


def least_rows(geometry: Geometry, parts: int = 1, *, sketch: bool = False) -> int:
    """Return the smallest number of rows of a span: fewer for types whose products take longer."""
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
    """Return the most bytes that a pass may hold at once, in each process."""
    n = geometry.columns
    matrix = options.matrix_bytes(n) * options.matrices
    groups = options.groups_among(geometry.rows)
    shared = options.folds > 0 and options.groups > 0
    work = buffer_bytes(n, geometry.dtype, options.precision, threads=tile_threads, shared=shared)
    if options.candidates is not None:  # rows and weighted candidates in double precision, a product and its moved copy
        rows = min(read_rows, block_rows(n, geometry.dtype, options.precision))
        work = 8 * rows * (n + len(options.candidates)) + 3 * matrix
    if options.sketch is not None:  # row numbers; and when two sketches are merged, both about the common mean
        work = 3 * matrix + 64 * read_rows + matrix // 2  # sums in 32 bits
    gaps = 0 if options.matrices == 1 else 2 * matrix + 2 * 8 * read_rows * n
    library = LIBRARY if options.candidates is None and options.sketch is None and may_be_small(geometry.dtype) else 0
    alive = results_alive(spans, concurrency, chain=chain, cluster=cluster)
    apart = options.folds or (0 if groups else 1)
    if groups:  # groups are runs of rows: two results share a group only where one result ends within it
        groups += alive - 1 + (groups if cluster else 0)  # while a result is sent, both processes hold it
    # At the end the sums of all rows are made from those of two parts at a time; gaps are filled beside them.
    sums = max(alive * apart, apart + 2) + groups
    reading = _reading_bytes(geometry, options, read_rows)
    return OVERHEAD + library + concurrency * (work + gaps + reading) + sums * matrix


def _reading_bytes(geometry: Geometry, options: Options, rows: int) -> int:
    """Return the bytes that a read of ``rows`` rows holds, with a copy of the rows of one fold."""
    read = rows * geometry.bytes_read(options)
    held = READ_COPIES * read if geometry.beside is None else min(READ_COPIES * read, read + geometry.beside)
    gathered = UNEVEN / options.folds if options.folds and not options.blocks else 0.0
    if geometry.masked or options.fraction is not None:
        gathered = max(gathered, 1.0)
    if options.nan == "drop":  # copied once more without the rows that have gaps
        gathered += gathered or 1.0
    return held + int(gathered * read)


def results_alive(spans: int, concurrency: int, *, chain: bool, cluster: bool) -> int:
    """Return how many results a process holds at once, including unfinished ones."""
    if spans == 1:
        return 1
    if cluster:  # in a chain, also one result that is being sent and one that was received
        waiting = levels(spans, chain=chain) + 2 if chain else results_at_hand(spans, concurrency)
        return concurrency + waiting
    # Depth first, each level holds one result; with several threads some spans are ahead, by up to a run in all.
    ahead = 1 if concurrency == 1 else 3 * concurrency - 1
    return min(spans, levels(spans, chain=chain) + ahead)


def _tile_threads(threads: int, concurrency: int) -> int:
    return min(TILE_THREADS, max(1, threads // concurrency))


def thinned(cuts: Cuts, rows: int) -> Cuts:
    """Keep the fewest cuts that are at most ``rows`` apart; a chunk with more rows than that stays whole."""
    kept = [int(cuts[0])]
    while kept[-1] < cuts[-1]:
        after = int(np.searchsorted(cuts, kept[-1] + rows, "right")) - 1
        after = max(after, int(np.searchsorted(cuts, kept[-1], "right")))
        kept.append(int(cuts[after]))
    return np.array(kept, dtype=np.int64)


def reads_between(cuts: Cuts, start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges from ``start`` to ``stop`` that end at cuts, with at most ``rows`` rows or one chunk."""
    inside = cuts[np.searchsorted(cuts, start, "right") : np.searchsorted(cuts, stop)]
    yield from pairwise(thinned(np.concatenate([[start], inside, [stop]]), rows).tolist())


def _read_rows(geometry: Geometry, options: Options) -> int:
    parts = max(1, options.folds) * (2 if options.groups else 1)
    least = CELL_ROWS if options.sketch is None else SKETCH_ROWS
    if options.candidates is not None:  # very long rows: fewer of them suffice for fast products
        least = min(least, max(BAND_ROWS, BAND_BYTES // geometry.row_bytes))
    sparse = options.sketch is not None and geometry.sparse_bytes > 0
    return max((SPARSE_BYTES if sparse else READ_BYTES) // geometry.bytes_read(options), least * parts)


def _largest_read(geometry: Geometry, edges: Cuts, read_rows: int) -> int:
    if geometry.whole:
        return int(np.diff(edges).max())
    # A read ends at the last cut within read_rows, or holds one larger chunk.
    return int(min(np.diff(edges).max(), max(read_rows, np.diff(geometry.cuts).max())))


def results_at_hand(spans: int, threads: int) -> int:
    """Return how many results a worker of a cluster holds at most, finished or not.

    A depth-first walk of the tree holds one result for each level. Each thread computes one more and still holds the
    two inputs of its last merge until the scheduler frees them. A whole run may wait while its worker reads.
    """
    return levels(spans) + 3 * threads + FAN - 1


def levels(spans: int, *, chain: bool = False) -> int:
    """Return the number of levels of the tree above ``spans`` spans."""
    return len(_fans(spans, chain=chain))


def merges_in_a_row(spans: int, *, chain: bool = False) -> int:
    """Return the most merges between a span and the root: for each run on the way, its length less one."""
    return sum(fan - 1 for fan in _fans(spans, chain=chain))


def _fans(spans: int, *, chain: bool) -> list[int]:
    """Return for each level the most results that are merged one after another."""
    fans: list[int] = []
    while spans > 1:
        fans.append(min(spans, HIGH_FAN if fans else LONG_RUN if chain else FAN))
        spans = -(-spans // fans[-1])
    return fans


def _stack(edges: Cuts, *, chain: bool) -> list[Node]:
    """Build the tree: merge runs of neighbouring spans, then runs of results, until one is left; long runs in chains.

    Each level has one unfinished result, and there are few levels: ten times as many rows need hardly more memory.
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
    """Mark nodes for checkpoints: nodes with many rows that no checkpoint has, or that replace many checkpoints."""
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
    """Format a number of bytes for people."""
    # Dask's `format_bytes` is not used: the core must not import Dask, and budgets are given in GB, not GiB.
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"


def _check_kind(options: Options) -> None:
    """Refuse combinations of options that cannot be computed."""
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
    """Refuse more folds or groups than the rows can fill, and options that exclude each other."""
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

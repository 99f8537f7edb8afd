"""The plan of a pass: spans, their merges, and as many of them at once as memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rgcss_dask.core.accumulate import buffer_bytes
from rgcss_dask.core.errors import TooManyColumnsError
from rgcss_dask.core.floats import block_rows
from rgcss_dask.core.integers import LIBRARY, may_be_small
from rgcss_dask.core.merge_tree import Node, build_tree, is_chain, parents_of, results_alive
from rgcss_dask.core.pass_options import Cuts, Geometry, Options
from rgcss_dask.core.spans import largest_read, parts_of_span, reads_between, rows_of_read, span_edges
from rgcss_dask.core.words import size
from rgcss_dask.runtime.disk_matrices import LEAST

# Copies held during a read, measured for Zarr: the stored bytes, the decoded chunk and the rows assembled from it. The
# fourth copy is the previous read, which is multiplied while the next one waits for a network.
READ_COPIES = 4
UNEVEN = 1.25  # rows of the largest fold among some thousand rows, at most, as a multiple of the mean
SQUARES = 32  # if memory holds fewer n x n matrices than this, too many columns are the reason why a pass does not fit
TILE_THREADS = 16  # threads for one span, at most
OVERHEAD = 56 * 2**20  # bytes of the graph, thread stacks, compiled kernels and the allocator; measured: 52 MB


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
    memory: int  # most bytes that the pass holds in memory
    disk: int = 0  # most bytes of matrices that it keeps on a disk, because they do not fit into memory

    @property
    def edges(self) -> Cuts:
        """The rows at which spans begin, and the end of the last one."""
        return np.array([self.nodes[i].start for i in self.spans] + [self.nodes[-1].stop], dtype=np.int64)

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


def make_plan(
    geometry: Geometry,
    options: Options,
    *,
    budget: int,
    threads: int,
    cluster: bool = False,
    free_disk: int | None = None,
) -> Plan:
    """Cut the rows into spans, build the tree that merges them, and run as many spans at once as ``budget`` allows.

    On a cluster the plan also counts results that wait while workers read, and results in transfer between workers.
    Matrices that do not fit into memory go to a disk with ``free_disk`` bytes, if there is one. Spans stay the same.

    Raises
    ------
    MemoryError
        When not even one span at a time fits; the message gives the memory needed.
    """
    try:
        return _plan(geometry, options, budget=budget, threads=threads, cluster=cluster)
    except TooManyColumnsError:
        if free_disk is None or cluster or not _may_be_on_disk(geometry, options):
            raise
    return _plan(geometry, options, budget=budget, threads=threads, free_disk=free_disk)


def _plan(
    geometry: Geometry,
    options: Options,
    *,
    budget: int,
    threads: int,
    cluster: bool = False,
    free_disk: int | None = None,
) -> Plan:
    """Return the plan with all matrices in memory, or with all on a disk that has ``free_disk`` bytes."""
    on_disk = free_disk is not None
    if not on_disk:
        _check_matrix_fits(geometry, options, budget)
    chain = is_chain(geometry, options)
    edges = span_edges(geometry, options, parts=parts_of_span(geometry, options) if chain else 1)
    nodes = build_tree(edges, chain=chain)
    read_rows = rows_of_read(geometry, options)
    spans, largest = len(edges) - 1, largest_read(geometry, edges, read_rows)

    def need(concurrency: int, *, on_disk: bool) -> int:
        return memory_need(
            geometry,
            options,
            spans=spans,
            read_rows=largest,
            concurrency=concurrency,
            tile_threads=_tile_threads(threads, concurrency),
            chain=chain,
            cluster=cluster,
            on_disk=on_disk,
        )

    needs = [need(c, on_disk=on_disk) for c in range(1, 2 if chain else max(1, min(threads, spans)) + 1)]
    if needs[0] > budget:
        squares = options.candidates is None and options.sketch is None
        kind = TooManyColumnsError if squares and 8 * geometry.columns**2 > budget // SQUARES else MemoryError
        raise kind(_refusal(geometry, options, needs[0], budget, largest, on_disk=on_disk))
    disk = need(1, on_disk=False) - needs[0]
    if free_disk is not None and disk > free_disk:
        raise TooManyColumnsError(_disk_refusal(geometry, options, disk, free_disk))
    concurrency = sum(held <= budget for held in needs)
    return Plan(
        geometry=geometry,
        options=options,
        nodes=nodes,
        parents=parents_of(nodes),
        read_rows=read_rows,
        concurrency=concurrency,
        tile_threads=_tile_threads(threads, concurrency),
        memory=needs[concurrency - 1],
        disk=disk,
    )


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
    on_disk: bool = False,
) -> int:
    """Return the most bytes that a pass may hold in memory at once, in each process; matrices may be on a disk."""
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
    return OVERHEAD + library + concurrency * (work + gaps + reading) + (0 if on_disk else sums * matrix)


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


def _may_be_on_disk(geometry: Geometry, options: Options) -> bool:
    """Tell whether the matrices of a pass may be on a disk: those of large products, one for each part."""
    products = options.candidates is None and options.sketch is None and options.matrices == 1
    large = options.matrix_bytes(geometry.columns) >= LEAST
    return products and large and is_chain(geometry, options)


def _tile_threads(threads: int, concurrency: int) -> int:
    return min(TILE_THREADS, max(1, threads // concurrency))


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
            "rgcss_dask.select_wide(source, k), keep the matrix on a disk (name a folder in rgcss.scratch of Dask's "
            "configuration), or, when there are fewer rows than columns, select from the rows themselves: "
            "rgcss_dask.Factor(rows)."
        )


def _disk_refusal(geometry: Geometry, options: Options, need: int, free: int) -> str:
    parts = max(1, options.folds) + options.groups
    fewer = "" if parts == 1 else f", keep fewer parts apart (now {parts}, each with its own n x n matrix)"
    return (
        "n x n matrices that do not fit into memory must fit on the disk of rgcss.scratch; those of "
        f"{geometry.columns:,} columns need {size(need)} and {size(free)} are free. Name a folder on a larger "
        f"disk{fewer}, or pick in two readings with rgcss_dask.select_wide(source, k)."
    )


def _refusal(geometry: Geometry, options: Options, least: int, budget: int, read_rows: int, *, on_disk: bool) -> str:
    parts = max(1, options.folds) + options.groups
    advice = f"Give at least memory={least:_} bytes"
    if parts > 1:
        kind = "sketch" if options.sketch is not None else "n x n matrix" if options.candidates is None else "products"
        advice += f", keep fewer parts apart (now {parts}, each with its own {kind})"
    if options.candidates is None and options.sketch is None:
        advice += ", pick in two readings with rgcss_dask.select_wide(source, k)"
        if not on_disk and _may_be_on_disk(geometry, options):
            advice += ", keep the matrices on a disk (name a folder in rgcss.scratch of Dask's configuration)"
    if _reading_bytes(geometry, options, read_rows) > least // 2:
        advice += f", or rewrite the array in smaller chunks (now {size(read_rows * geometry.row_bytes)} of rows)"
    return (
        f"the memory budget is too small: {geometry.columns:,} columns need at least {size(least)} and there "
        f"are {size(budget)}. {advice}."
    )

"""The tree that merges the results of spans: its shape, its checkpoints, and how many results are alive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from rgcss_dask.core.pass_options import Cuts, Geometry, Options
from rgcss_dask.core.spans import parts_of_span

# Rows between checkpoints: saving one takes about as long as the products of 1,000 rows, a few per cent of these.
SAVE_ROWS = 2**15
SAVE_FILES = 8  # checkpoints that are merged into one
# Results merged one after another: few at the level of spans, because a merge waits while its worker reads; more above.
FAN, HIGH_FAN = 4, 32
# Results of this many bytes are merged in a chain: a process reads one span at a time and merges runs of up to LONG_RUN
# results one after another. Two results are then alive, and one more for each level of runs, instead of ten.
CHAIN_BYTES, LONG_RUN = 2**29, 128


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


def is_chain(geometry: Geometry, options: Options) -> bool:
    """Tell whether results are so large that few may be alive; never for bands, which one thread each computes."""
    matrix = options.matrix_bytes(geometry.columns) * options.matrices
    return options.candidates is None and matrix * parts_of_span(geometry, options) >= CHAIN_BYTES


def build_tree(edges: Cuts, *, chain: bool) -> tuple[Node, ...]:
    """Return the spans between the edges, and the merges above them: children before parents, the root last."""
    return tuple(_with_saves(_stack(edges, chain=chain)))


def parents_of(nodes: tuple[Node, ...]) -> tuple[int | None, ...]:
    """Return the index of the parent of each node; none for the root."""
    parents: list[int | None] = [None] * len(nodes)
    for i, node in enumerate(nodes):
        for child in (node.left, node.right):
            if child is not None:
                parents[child] = i
    return tuple(parents)


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


def _fans(spans: int, *, chain: bool) -> list[int]:
    """Return for each level the most results that are merged one after another."""
    fans: list[int] = []
    while spans > 1:
        fans.append(min(spans, HIGH_FAN if fans else LONG_RUN if chain else FAN))
        spans = -(-spans // fans[-1])
    return fans


def levels(spans: int, *, chain: bool = False) -> int:
    """Return the number of levels of the tree above ``spans`` spans."""
    return len(_fans(spans, chain=chain))


def merges_in_a_row(spans: int, *, chain: bool = False) -> int:
    """Return the most merges between a span and the root: for each run on the way, its length less one."""
    return sum(fan - 1 for fan in _fans(spans, chain=chain))


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


def results_at_hand(spans: int, threads: int) -> int:
    """Return how many results a worker of a cluster holds at most, finished or not.

    A depth-first walk of the tree holds one result for each level. Each thread computes one more and still holds the
    two inputs of its last merge until the scheduler frees them. A whole run may wait while its worker reads.
    """
    return levels(spans) + 3 * threads + FAN - 1


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

"""The tasks of a pass, one for each span and each merge that no checkpoint has: as a graph, or done at once."""

from __future__ import annotations

from typing import Any

from dask.task_spec import Task, TaskRef

from rgcss_dask.cluster.execution import Graph
from rgcss_dask.core.partial_sums import PartialSums
from rgcss_dask.scanning.tasks import (
    Elsewhere,
    Finish,
    PassJob,
    TaskNode,
    run_finish,
    run_merge,
    run_saved,
    run_span,
)
from rgcss_dask.sources.row_vectors import RowVector


def build_graph(job: PassJob, vectors: dict[str, RowVector], finish: Finish = run_finish) -> tuple[Graph, str, int]:
    """Return the graph of the remaining work, the key of the result, and the number of rows in checkpoints."""
    plan, job_key = job.plan, f"rgcss-job-{job.token}"
    saved = set() if job.checkpoints is None else job.checkpoints.names()
    graph, inputs = _inputs(job, vectors)
    graph[job_key] = job

    def key_of(i: int) -> tuple[str, int]:
        kind = "span" if plan.nodes[i].left is None or is_saved(i) else "merge"
        return f"rgcss-{kind}-{job.token}", i

    def is_saved(i: int) -> bool:
        return plan.nodes[i].saved and plan.nodes[i].name in saved

    todo, resumed = [len(plan.nodes) - 1], 0
    while todo:
        i = todo.pop()
        node = plan.nodes[i]
        if is_saved(i):
            graph[key_of(i)] = Task(key_of(i), run_saved, TaskNode.of(job, i), _data_producer=True)
            resumed += node.stop - node.start
        elif node.left is None or node.right is None:
            graph[key_of(i)] = _span_task(key_of(i), job_key, i, *inputs[i])
        else:
            graph[key_of(i)] = (run_merge, TaskNode.of(job, i), key_of(node.left), key_of(node.right))
            todo += [node.left, node.right]
    end = f"rgcss-moments-{job.token}"
    graph[end] = (finish, plan.options, job.source.names, key_of(len(plan.nodes) - 1))
    return graph, end, resumed


def run_tree(job: PassJob, vectors: dict[str, RowVector], finish: Finish = run_finish) -> Any:
    """Do all tasks of a pass in the calling thread, in the order of the tree: the same sums as those of a graph.

    There must be no checkpoints, and no inputs that Dask computes.
    """
    nodes, inputs = job.plan.nodes, _inputs(job, vectors)[1]

    def summed(i: int) -> PartialSums | Elsewhere:
        left, right = nodes[i].left, nodes[i].right
        if left is None or right is None:
            return run_span(job, i, *inputs[i])
        return run_merge(TaskNode.of(job, i), summed(left), summed(right))

    parts = summed(len(nodes) - 1)
    assert isinstance(parts, PartialSums)  # there are no checkpoints
    return finish(job.plan.options, job.source.names, parts)


def _span_task(key: Any, job_key: str, i: int, blocks: list[Any], weights: Any, mask: Any) -> Any:
    """Return the task of a span. A task without inputs is queued and goes to whichever worker is free.

    The flag ``_data_producer`` makes Dask queue it. Without the flag Dask would decide this by the number of spans
    alone, and would send few spans to the workers that hold the job.
    """
    if blocks or isinstance(weights, tuple) or isinstance(mask, tuple):  # keys of inputs that Dask computes first
        return (run_span, job_key, i, blocks, weights, mask)
    return Task(key, run_span, TaskRef(job_key), i, [], weights, mask, _data_producer=True)


def _inputs(job: PassJob, vectors: dict[str, RowVector]) -> tuple[Graph, dict[int, tuple[Any, Any, Any]]]:
    """Return the graphs on which spans depend, and the inputs of each span: blocks, weights and mask."""
    edges = job.plan.edges
    graph, blocks = job.source.blocks(edges)
    given: dict[str, list[Any]] = {}
    for name in ("weights", "rows"):
        more, given[name] = vectors[name].inputs(edges) if name in vectors else ({}, [None] * len(blocks))
        graph = {**graph, **more}
    each = zip(blocks, given["weights"], given["rows"], strict=True)
    return graph, dict(zip(job.plan.spans, each, strict=True))

"""The single pass over the rows, on threads or on a Dask cluster, which returns moments."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.ownership import drop_checkpoints, refuse_foreign
from rgcss_dask.archive.pass_identity import differences, open_checkpoints, refuse_other
from rgcss_dask.cluster.execution import (
    ClusterReport,
    ThreadReport,
    run_on_cluster,
    run_on_threads,
)
from rgcss_dask.cluster.progress import Callback, Reporter, display
from rgcss_dask.cluster.remote_moments import RemoteMoments, archived, left_on_cluster, loaded
from rgcss_dask.cluster.versions import check_cluster
from rgcss_dask.cluster.visibility import check_visible, look, seal
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import Read
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.plan import Plan
from rgcss_dask.core.problem import Columns
from rgcss_dask.io.claim import claimed, refuse_lost
from rgcss_dask.io.files import Folder
from rgcss_dask.io.outputs import refuse_inputs
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.disk_matrices import matrices_on_disk
from rgcss_dask.scanning.graph import build_graph, run_tree
from rgcss_dask.scanning.request import Request, candidate_places, make_request
from rgcss_dask.scanning.tasks import Finish, PassJob, run_finish
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.registry import open_source
from rgcss_dask.sources.xarray import along

LOGGER = logging.getLogger("rgcss_dask")


def scan(
    source: Any,
    *,
    folds: int | None = None,
    blocks: bool = False,
    groups: int | None = None,
    candidates: Columns | None = None,
    sketch: int | None = None,
    weights: Any = None,
    rows: Any = None,
    nan: str = "raise",
    missing: str = "raise",
    precision: str = "double",
    noise: bool = False,
    memory: int | float | str | None = None,
    archive: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | Callback | None = None,
    seed: int = 0,
    storage_options: dict[str, Any] | None = None,
) -> Moments:
    """Read a matrix once and return its moments, from which everything else is computed.

    The work goes to the active `distributed.Client` if there is one, otherwise to Dask's threads, with BLAS limited to
    one thread in each. Data in the memory of this process are always processed here. The result has the same bits for
    any number of threads and workers, and also if the pass was interrupted and resumed. If the cluster has no workers,
    the call waits for them for 300 seconds, or for ``rgcss.timeout`` of the Dask configuration. Every worker must have
    access to the source. A worker whose copy has other file sizes, or other bytes in the sampled parts of a span, is
    refused.

    On a cluster the moments stay on the worker that computed them. The returned object behaves as `Moments` and fetches
    an array when the array is first used; `select` and the other functions run on that worker (``where``). Use the
    object while the client is open, or give an archive, from which the moments are read after the cluster is closed. If
    the worker is lost later, the moments are read from the archive, or computed by another pass if there is no archive.

    The time is O(m n^2) for m rows. The memory is a few n x n matrices for each fold and group, whatever m is.

    Parameters
    ----------
    source : array-like, data frame, path or list of these
        What holds the m x n matrix: the path or URL of a Zarr array; a pattern such as ``"day-*.zarr"`` (stacked in
        natural order, day-2 before day-10); an .npy file; a Zarr, NumPy, SciPy sparse or Dask array; a pandas, polars
        or Dask data frame; an Arrow table; an Xarray DataArray; an AnnData or the path of its Zarr store; or a list of
        these, stacked. Convert other files with `convert`.
    folds : int, optional
        Number of folds whose moments are kept apart, for cross-validation. A row is assigned to a fold by a hash of its
        number and ``seed``, so that the folds do not depend on the chunks.
    blocks : bool, default=False
        Make each fold a run of neighbouring rows. Where neighbouring rows are alike (a time series, the pictures of
        one person), folds of randomly drawn rows make the cross-validated loss too optimistic for new data. Rows cannot
        be appended to an archive with such folds.
    groups : int, optional
        Number of groups, runs of neighbouring rows, whose moments are kept apart for the bootstrap.
    candidates : sequence of int or str, optional
        Columns, by index or name, from which a selection chooses. Only the products of these c columns with all columns
        are summed, m c n multiplications instead of m n^2, and a `Band` is returned. Picks, losses, weights and
        cross-validation among the candidates are exact, and the loss counts all columns.
    sketch : int, optional
        Number d of rows of a `Sketch` that is computed instead of products. It takes d n numbers for any number n of
        columns, and the pass runs at about the speed of reading. Column sums and sums of squares are exact, losses are
        estimates; `select_wide` computes exact results with a second pass.
    weights : array of shape (m,), path or Dask array, optional
        Non-negative weights of the rows.
    rows : slice, float, array of bool of shape (m,) or str, optional
        Read only these rows: a slice, a fraction chosen at random by ``seed``, or a mask. For a DataArray: the name of
        the dimension that is the rows (the first one by default); the others are columns.
    nan : {"raise", "drop", "mean"}, default="raise"
        ``"raise"`` raises an error that names a value that is not finite, ``"drop"`` leaves out rows with such values
        and counts them, ``"mean"`` fills gaps with the mean of the column, exactly.
    missing : {"raise", "fill"}, default="raise"
        ``"raise"`` raises an error that names a chunk missing from the store, ``"fill"`` reads it as the fill value.
    precision : {"double", "single"}, default="double"
        ``"single"`` multiplies float32 data in float32 and sums the products in float64.
    noise : bool, default=False
        Also sum the squared differences of neighbouring rows, which estimate the noise in each column if rows follow
        each other in time or along a line of an image. `select` with ``noise="rows"`` needs them.
    memory : int, float or str, optional
        Bytes, or text such as ``"4 GB"``, that the pass may use in each process; by default a share of the free
        memory. A pass that does not fit is refused before any data are read.
    archive : str or Path, optional
        Path or URL where the moments are kept, with checkpoints until the pass is finished. The same call resumes an
        interrupted pass and loads the moments of a finished one. A call with ``nan="drop"`` resumes a pass that stopped
        with ``nan="raise"``; a pass with other data or options is refused.
    overwrite : bool, default=False
        Replace what ``archive`` holds for other data or options: a finished archive, which stays until the new one is
        complete, or the checkpoints of an unfinished pass.
    progress : bool or callable, optional
        A function that is called with a `Progress`, or whether to show a progress bar (by default on a terminal).
    seed : int, default=0
        Seed of the folds and of the fraction of rows.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Moments
        Row count, means and products, with the requested folds and groups.

    See Also
    --------
    append : add the new rows of a source that has grown.
    verify : read again and compare.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> import rgcss_dask as rg
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> array = zarr.create_array("data.zarr", data=rows, chunks=(100, 8))
    >>> moments = rg.scan("data.zarr", folds=5, groups=10)
    >>> moments
    <Moments of 1,000 rows and 8 columns, 5 folds, 10 groups>
    >>> np.allclose(moments.mean, rows.mean(axis=0))
    True
    """
    source, rows = along(source, rows)
    opened = open_source(source, missing=missing, storage_options=storage_options)
    request = make_request(
        opened,
        Options(
            folds or 0,
            groups or 0,
            seed,
            None,
            nan,
            precision,
            archive is not None,
            noise,
            candidates=None if candidates is None else candidate_places(candidates, opened),
            sketch=sketch,
            blocks=blocks,
        ),
        weights=weights,
        rows=rows,
        reading=Reading(missing, storage_options or {}),
        memory=memory,
    )
    if archive is None:
        return run(request, progress=progress, stay=True).moments
    folder = archives.folder_of(archive, storage_options)
    refuse_foreign(folder)
    refuse_inputs(archive, opened.places)
    with claimed(folder):
        record = archives.read_record(folder)
        if record is None or (overwrite and differences(record.fingerprint, request.fingerprint)):
            result = run(request, folder=folder, progress=progress, stay=True, overwrite=overwrite)
            refuse_lost(folder)  # workers do not hold the lease and cannot tell whether it was lost
            moments = _kept(result, folder, request.record(result.reads))
            drop_checkpoints(folder)
            return moments
        refuse_other(folder.address, record.fingerprint, request.fingerprint)
        archives.tidy(folder, record)
        client = request.where.client
        return archives.read(folder)[0] if client is None else loaded(client, folder)


@dataclass(frozen=True)
class PassResult:
    """The result of a pass (moments, or sums to be merged into others) and the spans that were read."""

    moments: Any
    reads: tuple[Read, ...]
    shared: bool = True  # whether workers can write to the folder of the archive


def _kept(result: PassResult, folder: Folder, record: archives.Record) -> Moments:
    """Write the moments of a pass to its archive, on the worker that holds them if it can, and return them."""
    if isinstance(result.moments, RemoteMoments) and result.shared:
        return archived(result.moments, folder, record)
    archives.write(folder, result.moments, record)  # this process writes: the worker's file system is not shared
    return result.moments


def run(
    request: Request,
    *,
    folder: Folder | None = None,
    progress: bool | Callback | None = None,
    stay: bool = False,
    finish: Finish = run_finish,
    overwrite: bool = False,
) -> PassResult:
    """Run the pass, with checkpoints in the folder of an archive if there is one.

    With ``stay`` a result computed on a cluster stays there and a handle is returned; otherwise it is fetched.
    """
    if request.small and folder is None:
        return _run_here(request, progress, finish)
    plan, token, client = request.plan, uuid.uuid4().hex[:12], request.where.client
    shared, sights, seals = True, {}, {}
    if client is not None:
        check_cluster(client)
        shared, sights = check_visible(client, request.paths, folder), look(request.paths)
        seals = {i: seal(request.stored, plan.nodes[i].start, plan.nodes[i].stop) for i in plan.spans}
    checkpoints = None
    if folder is not None and shared:
        checkpoints = open_checkpoints(folder, request.fingerprint, overwrite=overwrite)
    with display(progress) as tell:
        reporter = _reporter(tell, plan)
        report: Any = ThreadReport(reporter) if client is None else ClusterReport(f"rgcss-{token}")
        threads = 0 if client is None else request.where.threads
        job = PassJob(
            token=token,
            plan=plan,
            source=request.source,
            checkpoints=checkpoints,
            worker_threads=threads,
            report=report,
            budget=request.budget,
            budget_asked=request.budget_asked,
            sights=sights,
            stored=request.stored,
            seals=seals,
        )
        graph, key, resumed = build_graph(job, request.vectors, finish)
        reporter.add(resumed, resumed=True)
        what = f"{plan.geometry.rows} rows of {request.source.address}"
        LOGGER.info("reading %s, %d of them resumed, in %d spans", what, resumed, len(plan.spans))
        began = time.perf_counter()
        if client is None:
            with matrices_on_disk(request.scratch):
                moments, reads = run_on_threads(graph, key, report, plan.concurrency)
        elif stay:
            moments, reads = left_on_cluster(client, graph, key, report, reporter)
        else:
            (moments, reads), _ = run_on_cluster(client, graph, key, report, reporter)
        reporter.finish()
        LOGGER.info("read %s in %.2f s", what, time.perf_counter() - began)
    return PassResult(moments, reads, shared)


def _run_here(request: Request, progress: bool | Callback | None, finish: Finish) -> PassResult:
    """Run a small pass over rows in memory in the calling thread, without a graph."""
    with display(progress) as tell, single_threaded_blas():
        reporter = _reporter(tell, request.plan)
        job = PassJob("", request.plan, request.source, None, 0, ThreadReport(reporter))
        moments, reads = run_tree(job, request.vectors, finish)
        reporter.finish()
    return PassResult(moments, reads)


def _reporter(tell: Callback, plan: Plan) -> Reporter:
    return Reporter(tell, rows=plan.geometry.rows, row_bytes=plan.geometry.row_bytes, spans=len(plan.spans))

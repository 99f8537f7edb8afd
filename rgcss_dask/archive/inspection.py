"""Describing a file or folder: a matrix, moments, an unfinished scan, or a result."""

from __future__ import annotations

from typing import Any

from rgcss_dask.archive import archive as archives
from rgcss_dask.archive.ownership import CHECKPOINTS, is_begun
from rgcss_dask.archive.pass_identity import checkpoint_count
from rgcss_dask.archive.result_file import load_result
from rgcss_dask.core.words import size
from rgcss_dask.io.files import Folder, order_in_words
from rgcss_dask.sources.registry import StackedSource, open_source


def describe(path: str, storage_options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Describe the content of a path or URL in a few JSON values."""
    if path.lower().endswith(".json"):
        return _result(path)
    folder = archives.folder_of(path, storage_options)
    record = archives.read_record(folder)
    if record is not None:
        return _moments(path, storage_options)
    checkpoints = unfinished(folder)
    if checkpoints is not None:
        return {
            "kind": "unfinished scan",
            "checkpoints": checkpoints,
            "way on": "give the same `rgcss scan` command again; it resumes from here. With other options: --overwrite",
        }
    return _matrix(path, storage_options)


def unfinished(folder: Folder) -> int | None:
    """Return the number of checkpoints of an unfinished pass, or None if there is none."""
    return checkpoint_count(folder.within(CHECKPOINTS)) if is_begun(folder) else None


def _moments(path: str, storage_options: dict[str, Any] | None) -> dict[str, Any]:
    moments, record = archives.read(archives.folder_of(path, storage_options))
    return {
        "kind": "moments",
        "rows": moments.rows,
        "columns": moments.n,
        "exact": moments.exact,
        "dropped": moments.dropped,
        "folds": len(moments.folds),
        "groups": len(moments.groups),
        "names": None if moments.names is None else list(moments.names),
        "source": record.source.get("address"),
        "options": {key: value for key, value in record.options.items() if value},
        "history": record.history,
    }


def _result(path: str) -> dict[str, Any]:
    result = load_result(path)
    return {
        "kind": "result",
        "answer": result.sentence,
        "columns": [result.label(column) for column in result.selection.columns],
        "lambda": result.selection.lam,
        "objective": result.selection.objective,
        "condition": str(result.condition),
        "rows": result.rows,
        "asked": result.provenance.get("asked"),
        "source": result.provenance.get("address") or result.provenance.get("moments"),
        "created": result.created,
    }


def _matrix(path: str, storage_options: dict[str, Any] | None) -> dict[str, Any]:
    source = open_source(path, storage_options=storage_options)
    m, n = source.shape
    parts = [part.address for part in source.parts] if isinstance(source, StackedSource) else []
    return {
        "kind": "matrix",
        **({"archives": order_in_words(parts)} if parts else {}),
        "rows": m,
        "columns": n,
        "dtype": str(source.dtype),
        "size": size(m * n * source.dtype.itemsize),
        "chunks": len(source.cuts) - 1,
        **({"checksums": f"none ({source.unguarded})"} if source.unguarded else {}),
        "names": None if source.names is None else list(source.names),
    }

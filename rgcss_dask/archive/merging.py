"""Merging archives, each once, into a new archive or into one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from rgcss_dask.archive.archive import Record, dated, folder_of, read, refuse_imputed, write
from rgcss_dask.archive.ownership import drop_versions, refuse_foreign
from rgcss_dask.core.moments import Moments
from rgcss_dask.io.claim import claimed
from rgcss_dask.io.files import Folder
from rgcss_dask.io.outputs import Places, refuse_inputs
from rgcss_dask.io.safe_text import without_secrets

Found = list[tuple[Moments, Record]]


def merge(
    paths: Sequence[str | Path], into: str | Path | None = None, *, storage_options: dict[str, Any] | None = None
) -> Moments:
    """Merge archives of the same columns, as if their rows had been one matrix.

    Parameters
    ----------
    paths : sequence of str or Path
        Archives with the same columns and the same numbers of folds and groups. They are not changed.
    into : str or Path, optional
        Where to write the result; by default it is only returned. It may be one of the archives: then the others are
        added to it, each once. The same call again adds nothing, and the archive can still be appended to.
    storage_options : dict, optional
        Options for the file system of a URL.

    Returns
    -------
    Moments
        The moments of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> for year in (2024, 2025):
    ...     rows = np.random.default_rng(year).normal(size=(100, 3))
    ...     moments = rg.scan(rows, archive=f"{year}.zarr")
    >>> rg.merge(["2024.zarr", "2025.zarr"], "both.zarr")
    <Moments of 200 rows and 3 columns>
    """
    if len(paths) == 0:
        raise ValueError("paths must name at least one archive; got an empty list.")
    if into is None:
        return _sum(_read_all(paths, storage_options))
    onto = [path for path in paths if Places([path]).touched(into).startswith("is ")]
    if len(onto) > 1:
        raise ValueError(f"the archive to which others are added must be given once; got {into} {len(onto)} times.")
    folder = folder_of(into, storage_options)
    refuse_foreign(folder)
    refuse_inputs(into, [path for path in paths if path not in onto])
    words = "merged from " + ", ".join(without_secrets(path) for path in paths)
    if onto:
        with claimed(folder):  # before reading, or rows that another process adds meanwhile would be lost
            return _add(folder, paths, _read_all(paths, storage_options), paths.index(onto[0]), words)
    found = _read_all(paths, storage_options)
    moments = _sum(found)
    lineage = [one for _, record in found for one in record.lineage]
    with claimed(folder):
        write(folder, moments, replace(Record.empty(words), lineage=lineage))
    return moments


def _add(folder: Folder, paths: Sequence[str | Path], found: Found, index: int, words: str) -> Moments:
    """Add archives to one of them, unless an earlier call that was killed has done so already."""
    moments, base = found[index]
    others = [(path, record) for i, (path, (_, record)) in enumerate(zip(paths, found, strict=True)) if i != index]
    within = [path for path, record in others if set(record.lineage) & set(base.lineage)]
    if all(record.lineage[-1] in base.lineage for _, record in others):
        drop_versions(folder, base.lineage[-1])
        return moments
    if within:
        raise ValueError(
            f"rows must be counted once; some or all rows of {within[0]} are in {folder.address} already. Leave it "
            "out, or merge the original archives into a new one."
        )
    lineage = [*base.lineage, *(one for _, record in others for one in record.lineage)]
    # This fingerprint fits no single scan; spans and options stay, so that rows can be appended.
    merged = [*base.fingerprint.get("merged", []), *(record.lineage[-1] for _, record in others)]
    fingerprint, history = {**base.fingerprint, "merged": merged}, [*base.history, dated(words)]
    moments = _sum(found)
    write(folder, moments, replace(base, fingerprint=fingerprint, history=history, lineage=lineage))
    return moments


def _read_all(paths: Sequence[str | Path], storage_options: dict[str, Any] | None) -> Found:
    found = [read(folder_of(path, storage_options)) for path in paths]
    for path, (_, record) in zip(paths, found, strict=True):
        refuse_imputed(record, str(path), "merge")
    return found


def _sum(found: Found) -> Moments:
    return reduce(Moments.merge, [moments for moments, _ in found])

"""A matrix written to Zarr row by row, out of core: a draft that can be gone on with, then renamed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from rgcss_dask.sources.zarr import COLUMN_NAMES
from rgcss_dask.storage.files import is_url

CHUNK_BYTES = 2**24
DRAFT = "rgcss_dask_draft"  # attribute of a draft: what it is made from
DONE = "rows"  # file in a draft: how many rows are written

Rows = NDArray[Any]
Blocks = Callable[[int], Iterable[Rows]]  # rows from the given one on, in blocks of any length
Told = Callable[[int], None]


def chunk_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Return the rows of a chunk: whole rows, some 16 MB."""
    return max(1, CHUNK_BYTES // (n * dtype.itemsize))


def write_matrix(
    path: str | Path,
    blocks: Blocks,
    n: int,
    dtype: np.dtype[Any],
    *,
    made_from: dict[str, Any],
    names: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    chunk: int | None = None,
    told: Told | None = None,
) -> int:
    """Write blocks of rows to a Zarr array (format 3, crc32c) and return how many rows there are.

    What is under ``path`` appears when it is complete. Until then a draft lies beside it; the same call again goes on
    where it ended, if ``made_from`` (anything JSON that identifies the rows) is the same, and begins anew otherwise.
    """
    final = checked_target(path)
    draft = final.with_name(final.name + ".draft")
    chunk = chunk or chunk_rows(n, dtype)
    array, done = _open_draft(draft, n, dtype, chunk, made_from)
    if told is not None:
        told(done)
    for block in _whole_chunks(blocks(done), chunk):
        array.resize((done + len(block), n))
        array[done:] = block
        done += len(block)
        _note(draft, done)
        if told is not None:
            told(len(block))
    if done == 0:
        shutil.rmtree(draft)
        raise ValueError(f"there are no rows to write to {final}.")
    _finish(array, attributes or {}, names)
    (draft / DONE).unlink()
    draft.rename(final)
    return done


def checked_target(path: str | Path) -> Path:
    """Return where to write, or say why not there."""
    if is_url(str(path)):
        raise ValueError(f"the target must be a local path; got {path}. Write it locally and copy it.")
    final = Path(path).expanduser().absolute()
    if final.exists():
        raise FileExistsError(f"{final} is there already. Remove it, or give another name.")
    if not final.parent.is_dir():
        raise FileNotFoundError(f"the folder {final.parent} is not there. Make it first, or give another path.")
    return final


def _open_draft(
    draft: Path, n: int, dtype: np.dtype[Any], chunk: int, made_from: dict[str, Any]
) -> tuple[zarr.Array[Any], int]:
    identity = json.loads(json.dumps({**made_from, "columns": n, "dtype": dtype.str, "chunk": chunk}))
    if draft.exists():
        try:
            array = zarr.open_array(draft, mode="r+", config={"write_empty_chunks": True})
            done = int((draft / DONE).read_text())
            if array.attrs.get(DRAFT) == identity and done % chunk == 0 and done <= array.shape[0]:
                return array, done
        except (OSError, ValueError, KeyError):
            pass  # not a draft that can be gone on with
        if not _is_draft(draft):
            raise FileExistsError(f"{draft} is where rows are written first, and is something else. Move it away.")
        shutil.rmtree(draft)
    array = zarr.create_array(
        draft,
        shape=(0, n),
        chunks=(chunk, n),
        dtype=dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
        attributes={DRAFT: identity},
        config={"write_empty_chunks": True},  # a chunk of zeros that is not there could not be told from a lost one
    )
    _note(draft, 0)
    return array, 0


def _is_draft(path: Path) -> bool:
    """Tell whether a folder was begun here, be it only just."""
    try:
        return DRAFT in json.loads((path / "zarr.json").read_text())["attributes"]
    except (OSError, ValueError, KeyError):
        return path.is_dir() and all(file.suffix == ".partial" for file in path.iterdir())


def _note(draft: Path, rows: int) -> None:
    note = draft / f"{DONE}.part"
    note.write_text(str(rows))
    note.replace(draft / DONE)


def _finish(array: zarr.Array[Any], attributes: dict[str, Any], names: Sequence[str] | None) -> None:
    kept = {**attributes, **({} if names is None else {COLUMN_NAMES: [str(name) for name in names]})}
    array.attrs.put(kept)


def _whole_chunks(blocks: Iterable[Rows], chunk: int) -> Iterator[Rows]:
    """Cut blocks anew so that all but the last have the rows of a chunk: a chunk is written once."""
    waiting: list[Rows] = []
    held = 0
    for block in blocks:
        waiting.append(block)
        held += len(block)
        if held >= chunk:
            joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            whole = held - held % chunk
            for start in range(0, whole, chunk):
                yield joined[start : start + chunk]
            waiting, held = [joined[whole:]], held - whole
    if held:
        yield np.concatenate(waiting)

"""Writing a matrix to Zarr row by row, out of core: a draft that can be resumed, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from rgcss_dask.io.claim import NAME as CLAIM
from rgcss_dask.io.claim import claimed, refuse_lost
from rgcss_dask.io.files import Folder, is_url
from rgcss_dask.io.zarr_store import CODECS, COLUMN_NAMES

CHUNK_BYTES = 2**24
ENDING = ".draft"  # of the draft folder beside the target, which contains
MATRIX = "matrix.zarr"  # the rows written so far, and
RECORD = "draft.json"  # the origin of the rows and the number of rows written, with a
MARK, FORMAT = "rgcss_dask_draft", 1

Block = NDArray[Any]  # consecutive rows
Blocks = Callable[[int], Iterable[Block]]  # yields rows from the given one on, in blocks of any length
Told = Callable[[int], None]
Identity = Callable[[], dict[str, Any] | None]  # JSON that identifies the rows; None if unknown


def chunk_rows(n: int, dtype: np.dtype[Any]) -> int:
    """Return the number of rows per chunk, for chunks of whole rows of some 16 MB."""
    return max(1, CHUNK_BYTES // (n * dtype.itemsize))


def write_matrix(
    path: str | Path,
    blocks: Blocks,
    n: int,
    dtype: np.dtype[Any],
    *,
    made_from: Identity,
    names: Sequence[str] | None = None,
    attributes: dict[str, Any] | None = None,
    chunk: int | None = None,
    told: Told | None = None,
) -> int:
    """Write blocks of rows to a Zarr array (format 3, crc32c), and return the number of rows.

    The array appears under ``path`` when it is complete. Until then a draft lies beside it; the same call resumes the
    draft if ``made_from`` returns the same, and starts again otherwise.
    """
    final, chunk = checked_target(path), chunk or chunk_rows(n, dtype)
    layout = {"columns": n, "dtype": dtype.str, "chunk": chunk}
    folder, claim = Folder(str(final.parent)), f"{final.name}.{CLAIM}"
    with claimed(folder, claim):  # first, so that two calls do not write to the same draft
        draft = _Draft(final.with_name(final.name + ENDING), _identity(made_from, layout), (chunk, n))
        if final.exists():
            return draft.cleared(final)
        array, done = draft.opened(dtype)
        if told is not None:
            told(done)
        for block in _whole_chunks(blocks(done), chunk):
            array.resize((done + len(block), n))
            array[done:] = block
            done += len(block)
            draft.note(done)
            if told is not None:
                told(len(block))
        if done == 0:
            draft.remove()
            raise ValueError(f"there must be rows to write; there are none for {final}.")
        draft.check(_identity(made_from, layout))
        _finish(array, attributes or {}, names)
        refuse_lost(folder, claim)
        draft.publish(final)
        return done


def checked_target(path: str | Path) -> Path:
    """Return the absolute path of the target, or raise an error if it cannot be written."""
    if is_url(str(path)):
        raise ValueError(f"the target must be a local path; got {path}. Write it locally and copy it.")
    final = Path(path).expanduser().absolute()
    if final.exists() and not _may_be_left(final):
        raise _taken(final)
    if not final.parent.is_dir():
        raise FileNotFoundError(f"the folder {final.parent} does not exist. Create it first, or give another path.")
    return final


def _may_be_left(final: Path) -> bool:
    """Tell whether a draft or claim lies beside the target, which a killed process may have left."""
    ours = (final.name + ENDING, f"{final.name}.{CLAIM}")  # claims on claims begin like the second
    return any(name == ours[0] or name.startswith(ours[1]) for name in os.listdir(final.parent))


def _taken(final: Path) -> FileExistsError:
    return FileExistsError(f"{final} exists already. Remove it, or give another name.")


@dataclass(frozen=True)
class _Draft:
    """A folder with a matrix that is being written, and a record that marks the folder as ours.

    The record is written before the matrix and removed after it, so that a draft is recognised at any moment.
    """

    path: Path
    made_from: Any  # JSON, or None if unknown
    chunks: tuple[int, int]

    def opened(self, dtype: np.dtype[Any]) -> tuple[zarr.Array[Any], int]:
        """Return the matrix and the number of rows written so far, by an earlier call with the same rows."""
        if self.path.exists():
            rows = self._rows_of_the_same()
            if rows is not None and (self.path / MATRIX / "zarr.json").is_file():
                for left in (self.path / MATRIX).rglob("*.partial"):
                    left.unlink()
                return zarr.open_array(self.path / MATRIX, mode="r+", config={"write_empty_chunks": True}), rows
            self.remove()
        self.path.mkdir()
        self.note(0)
        array = zarr.create_array(
            self.path / MATRIX,
            shape=(0, self.chunks[1]),
            chunks=self.chunks,
            dtype=dtype,
            compressors=CODECS,
            config={"write_empty_chunks": True},  # so that a missing chunk always means a lost chunk
        )
        return array, 0

    def note(self, rows: int) -> None:
        """Record the number of rows written."""
        note = self.path / f"{RECORD}.part"
        note.write_text(json.dumps({MARK: FORMAT, "rows": rows, "made_from": self.made_from}))
        note.replace(self.path / RECORD)

    def check(self, now: Any) -> None:
        """Refuse if the source changed while its rows were read."""
        if now != self.made_from:
            raise ValueError(
                f"the rows must not change while they are written to {self.path}; they did, so it may hold old and new "
                "rows. Make the same call again when they no longer change: it starts again."
            )

    def publish(self, final: Path) -> None:
        """Rename the matrix to its final name, and remove the draft."""
        (self.path / MATRIX).rename(final)
        self.remove()

    def cleared(self, final: Path) -> int:
        """Clean up after a call that was killed after renaming; refuse a target of any other origin."""
        rows, waits = self._rows_of_the_same(), (self.path / MATRIX).exists()
        if not waits and self._is_ours():
            self.remove()
        if rows is None or waits:
            raise _taken(final)
        return rows

    def remove(self) -> None:
        """Remove the draft, the record last; refuse a folder that is not a draft."""
        if not self._is_ours():
            raise FileExistsError(f"{self.path} must be free for the draft; it is something else. Move it away.")
        shutil.rmtree(self.path / MATRIX, ignore_errors=True)
        for name in (f"{RECORD}.part", RECORD):
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()

    def _is_ours(self) -> bool:
        if not self.path.is_dir():
            return False
        names = {path.name for path in self.path.iterdir()}
        return names <= {f"{RECORD}.part"} or (
            names <= {f"{RECORD}.part", RECORD, MATRIX} and self._record() is not None
        )

    def _record(self) -> dict[str, Any] | None:
        try:
            found = dict(json.loads((self.path / RECORD).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return found if found.get(MARK) == FORMAT and isinstance(found.get("rows"), int) else None

    def _rows_of_the_same(self) -> int | None:
        record = self._record()
        same = record is not None and self.made_from is not None and record.get("made_from") == self.made_from
        return int(record["rows"]) if record is not None and same else None


def _identity(made_from: Identity, layout: dict[str, Any]) -> Any:
    found = made_from()
    return None if found is None else json.loads(json.dumps({**found, **layout}))


def _finish(array: zarr.Array[Any], attributes: dict[str, Any], names: Sequence[str] | None) -> None:
    kept = {**attributes, **({} if names is None else {COLUMN_NAMES: [str(name) for name in names]})}
    array.attrs.put(kept)


def _whole_chunks(blocks: Iterable[Block], chunk: int) -> Iterator[Block]:
    """Regroup blocks into whole chunks, except the last, so that each chunk is written once."""
    waiting: list[Block] = []
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

"""Conversion of files of other formats to Zarr matrices, out of core."""

from __future__ import annotations

import glob
import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rgcss_dask.conversion.arrays import IdxTable, NpzTable, hdf5_or_mat, imported, npy_table, zarr_table
from rgcss_dask.conversion.asked import Asked
from rgcss_dask.conversion.table import Block, Table
from rgcss_dask.conversion.usable import Layout, laid_out
from rgcss_dask.core.errors import WrongKindError
from rgcss_dask.io.files import in_order, is_url
from rgcss_dask.io.matrix_writer import Told, write_matrix
from rgcss_dask.io.outputs import refuse_inputs

Say = Callable[[str], None]


def convert(
    source: str | Path | list[str],
    target: str | Path,
    *,
    dataset: str | None = None,
    columns: str | Iterable[str] = (),
    drop: str | Iterable[str] = (),
    numeric_only: bool = False,
    indicators: str | Iterable[str] = (),
    no_header: bool = False,
    sep: str | None = None,
    decimal: str = ".",
    na: str | Iterable[str] = (),
    encoding: str | None = None,
    told: Told | None = None,
    looked: Told | None = None,
    say: Say | None = None,
) -> int:
    """Convert files to one Zarr matrix with chunks of whole rows, checksums and column names; return its rows.

    Memory is a few chunks, whatever the size. A text table is read twice; the first reading finds out what each column
    holds. Every column that cannot be used is listed in one error before anything is written. After an interruption the
    same call resumes if the store can tell that the rows have not changed; otherwise it starts again.

    Parameters
    ----------
    source : str, Path or list of str
        .npy, .npz, .csv, .tsv, .txt, .parquet, .h5 / .hdf5, .mat, MNIST IDX (also .gz), a Zarr array. A list of
        files or a pattern such as ``"day-*.csv"`` is stacked in natural order, with the columns in the order of the
        first file. The first line of a text table names the columns. Nulls become NaN; integer columns of a Parquet
        file become float64 unless its statistics show that they have no nulls. Images become rows of pixels.
    target : str or Path
        Local path of the Zarr array to write.
    dataset : str, optional
        The array to read from an .npz, HDF5 or .mat file with several matrices.
    columns : str or iterable of str, optional
        The columns to take, by default all: names, or patterns such as ``"pixel*"``. An existing name is matched
        exactly, even if it contains wildcards. Columns without names are called c0, c1 and so on.
    drop : str or iterable of str, optional
        The columns to leave out, given in the same way.
    numeric_only : bool, default=False
        Leave out every column that holds neither numbers nor true/false values, or has no value at all.
    indicators : str or iterable of str, optional
        Columns of categories. Each becomes one column COLUMN=VALUE of 0 and 1 for each value; all of them are NaN where
        the value is missing. A pattern, such as ``"*"``, matches columns of text only; a name matches any column.
    no_header : bool, default=False
        The first line of a text table is a row of data.
    sep : str, optional
        The field separator of a text table; detected by default. A blank stands for one or more blanks.
    decimal : {".", ","}, default="."
        The decimal sign of a text table.
    na : str or iterable of str, optional
        Words for a missing value in a text table, such as ``"?"`` or ``"-999"``, besides the usual ones.
    encoding : str, optional
        The encoding of a text table, by default UTF-8.
    told : callable, optional
        Called with the number of rows after each chunk is written.
    looked : callable, optional
        Called with the number of rows after each block of the first reading of a text table.
    say : callable, optional
        Called with a message about columns that were left out.

    Returns
    -------
    int
        The number of rows that were written.

    Examples
    --------
    >>> import pandas as pd
    >>> import rgcss_dask as rg
    >>> survey = pd.DataFrame({"id": [1, 2, 3], "age": ["31", "?", "45"], "city": ["Rome", "Oslo", "Rome"]})
    >>> survey.to_csv("survey.csv", index=False)
    >>> rg.convert("survey.csv", "survey.zarr", drop="id", na="?", indicators="city")
    3
    >>> rg.scan("survey.zarr", nan="mean").names
    ('age', 'city=Oslo', 'city=Rome')
    """
    asked = Asked.of(
        dataset=dataset,
        columns=columns,
        drop=drop,
        numeric_only=numeric_only,
        indicators=indicators,
        no_header=no_header,
        sep=sep,
        decimal=decimal,
        na=na,
        encoding=encoding,
    )
    paths = _paths(source)
    refuse_inputs(target, paths)
    tables = [open_table(path, asked) for path in paths]
    _check_heeded(asked, paths)

    def states() -> list[Any]:
        return [[path, table.state(path)] for path, table in zip(paths, tables, strict=True)]

    before = states()
    with _reading(", ".join(paths[:3])):
        layout = laid_out(paths, tables, asked, looked or (lambda rows: None), say or (lambda words: None))
    if before != states():
        raise ValueError(f"the files must not change while they are read; one of {', '.join(paths)} did. Try again.")

    def made_from() -> dict[str, Any] | None:
        now = states()
        known = all(state is not None for _, state in now)
        return {"files": now, **asdict(asked), "names": layout.names} if known else None

    return write_matrix(
        target,
        lambda start: _stacked(paths, tables, layout, start),
        len(layout.columns),
        layout.dtype,
        made_from=made_from,
        names=layout.names if layout.named else None,
        told=told,
    )


def _stacked(paths: list[str], tables: list[Table], layout: Layout, start: int) -> Iterator[Block]:
    """Yield the rows of all tables, one below the other, from a given one on."""
    before = 0
    for path, table in zip(paths, tables, strict=True):
        if table.rows is None or start < before + table.rows:
            with _reading(path):
                yield from table.blocks(max(0, start - before), layout.columns, layout.dtype)
        assert table.rows is not None, "a table knows its number of rows after its last block"
        before += table.rows


def open_table(path: str, asked: Asked) -> Table:
    """Open a file by the ending of its name."""
    if is_url(path) or Path(path).is_dir():
        return zarr_table(path, asked)
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no file {path}.")
    opened = _kind(path)
    if opened is None:
        known = ", ".join(ending for endings in KINDS for ending in endings)
        raise ValueError(f"a file must have a name that ends in one of {known}, or be a folder; got {path}.")
    with _reading(path):
        return opened(path, asked)


def _kind(path: str) -> Callable[[str, Asked], Table] | None:
    name = path.lower().removesuffix(".gz")
    for endings, opened in KINDS.items():
        if name.endswith(endings) or (opened is IdxTable and "-idx" in name):
            return opened
    return None


def _check_heeded(asked: Asked, paths: list[str]) -> None:
    """Refuse options of text tables if no file is a text table: they would be ignored."""
    if asked.of_text and not any(_kind(path) is _text for path in paths if not is_url(path)):
        raise ValueError(
            f"{', '.join(asked.of_text)} can be given for text tables only, such as .csv; {paths[0]} is not one. Leave "
            f"{'it' if len(asked.of_text) == 1 else 'them'} out."
        )


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name a damaged file in the error: the library of each format raises errors of its own."""
    try:
        yield
    except gzip.BadGzipFile as error:
        raise ValueError(
            f"{path} must be complete, and compressed as its name says: {error}. Copy it again."
        ) from error
    except (ValueError, OSError, MemoryError, ImportError, WrongKindError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path} must be complete, and of the format that its name says; reading it ended with "
            f"{type(error).__name__}: {error}. Copy it again, or rename it by its format."
        ) from error


def _text(path: str, asked: Asked) -> Table:
    imported("pyarrow.csv", "parquet")
    from rgcss_dask.conversion.text import TextTable  # noqa: PLC0415 (Arrow is slow to import)

    return TextTable(path, asked)


def _parquet(path: str, asked: Asked) -> Table:
    imported("pyarrow.parquet", "parquet")
    from rgcss_dask.conversion.columnar import ParquetTable  # noqa: PLC0415 (Arrow is slow to import)

    return ParquetTable(path, asked)


def _paths(source: str | Path | list[str]) -> list[str]:
    if isinstance(source, list):
        found = [path for one in source for path in _paths(one)]
    elif "*" in str(source) and not is_url(str(source)):
        found = in_order(glob.glob(str(source)))
    else:
        found = [str(source)]
    if not found:
        raise FileNotFoundError(f"no file matches {source}.")
    return found


KINDS: dict[tuple[str, ...], Callable[[str, Asked], Table]] = {
    (".npy",): npy_table,
    (".npz",): NpzTable,
    (".csv", ".tsv", ".txt", ".data"): _text,
    (".parquet", ".pq"): _parquet,
    (".h5", ".hdf5", ".mat"): hdf5_or_mat,
    ("-ubyte", ".idx"): IdxTable,
    (".zip",): zarr_table,
}

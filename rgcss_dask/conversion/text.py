"""Text tables: separator, encoding and the content of each column are detected."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from rgcss_dask.conversion.asked import Asked, unique
from rgcss_dask.conversion.columnar import LARGEST, ColumnarTable, add_values, identifies
from rgcss_dask.conversion.table import DATES, FLAGS, LARGE, NOTHING, NUMBERS, TEXT, Content, Told, numbered

SAMPLE = 2**18  # characters read to detect the separator
BLOCK = 2**22  # bytes read at once
WIDE = 2**26  # the same, if rows are longer than the sample; it is the longest possible row
SEPARATORS = "\t;|,"  # in order of preference, because numbers and text may contain commas
BLANKS = " "  # one or more
NO_VALUE = [*pacsv.ConvertOptions().null_values, "None", "<NA>"]  # the missing values of pandas
DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b|\d{1,2}:\d{2}\b")
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
FEW = 8  # distinct values that are kept


class TextTable(ColumnarTable):
    """A text table, usually with a header line."""

    def __init__(self, path: str, asked: Asked) -> None:
        self._path, self._asked = path, asked
        self._encoding = _normal(asked.encoding or _by_mark(path))
        self._sep = asked.sep or ","
        sample = self._sample()
        self._block = BLOCK if len(sample) < SAMPLE or len(sample.splitlines()) > 1 else WIDE
        self._sep = asked.sep or _separator(sample, path)
        self._na = pa.array([*NO_VALUE, *asked.na], pa.string())
        self._na_numbers = [float(word) for word in asked.na if _is_number(word)]
        with self._explained(), self._open(()) as reader:
            names = reader.schema.names
        self.given = numbered(len(names)) if asked.no_header else tuple(name.strip() for name in names)
        self._raw = names
        self.names = unique(self.given)
        if not asked.no_header:
            self._check_header()

    def _check_header(self) -> None:
        """Refuse a first line of numbers.

        Such a line may be a row of a file without a header, or a header of years or wavelengths. A wrong guess would
        lose or invent a row without notice.
        """
        named = [name for name in self.given if name]
        # The names that pandas gives.
        if all(_is_number(name) for name in named) and named != [str(i) for i in range(len(named))]:
            shown = ", ".join(named[:3]) + (", ..." if len(named) > 3 else "")
            raise ValueError(
                f"the first line of a text table must name the columns; {self._path} begins with numbers ({shown}). "
                "Insert a line of names, or give --no-header (no_header=True) if there is none; if the numbers are "
                "names, add a letter to them, such as x2024."
            )

    def contents(self, names: Sequence[str], categories: set[str], told: Told) -> dict[str, Content]:
        """Read the whole table once, because text may appear in the last row of a column."""
        unnamed = [i for i, name in enumerate(self.given) if not name and self.names[i] in names]
        if unnamed:
            raise ValueError(
                f"every column of a text table must have a name; field {unnamed[0] + 1} of the first line of "
                f"{self._path} is empty. Name it, or, if it holds row numbers or nothing, leave it out with --drop '' "
                "(drop=[''])."
            )
        found = {name: Content(values=set() if name in categories else None) for name in names}
        row = 0
        for batch in self._batches(names):
            for name, column in zip(names, batch, strict=True):
                self._look(found[name], column, row)
                if name in categories:
                    add_values(found[name], column)
            row += len(batch[0])
            told(len(batch[0]))
        self.rows = row
        return found

    def _look(self, content: Content, column: Any, row: int) -> None:
        if len(content.odd) >= FEW:  # the column is text, whatever follows
            return
        values = self._parsed(column)
        if column.null_count == len(column):
            content.kinds.add(NOTHING)
        elif values is not None and np.nanmax(np.abs(values), initial=0) > LARGEST and _whole(column, values):
            content.kinds.add(LARGE)
            content.example = content.example or _shown(column, np.abs(values) > LARGEST, row)
        elif values is not None:
            content.kinds.add(NUMBERS)
        elif _flags(column) is not None:
            content.kinds.add(FLAGS)
            content.example = content.example or _shown(column, np.ones(len(column), dtype=bool), row)
        else:
            self._look_at_text(content, column, row)

    def _look_at_text(self, content: Content, column: Any, row: int) -> None:
        """Keep an example, and the first few distinct values that are not numbers."""
        plain = pc.replace_substring(column, ",", ".") if self._asked.decimal == "," else column
        wrong = np.asarray(pc.fill_null(pc.invert(pc.match_substring_regex(plain, NUMBER)), False))
        if not wrong.any():  # they look like numbers, for example with thousands separators
            wrong = np.asarray(column.is_valid())
        odd = pc.unique(column.filter(pa.array(wrong))).to_pylist()
        if not content.kinds & {TEXT, DATES}:
            content.example = _shown(column, wrong, row)
            content.identifies = identifies(len(odd), int(wrong.sum()))
        content.kinds.add(DATES if DATE.match(odd[0]) else TEXT)
        content.numeric += int(len(wrong) - wrong.sum() - column.null_count)
        content.odd |= set(odd[: FEW - len(content.odd)])

    def _numbers(self, column: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        values = self._parsed(column)
        if values is None:
            values = _flags(column)
        if values is None:
            raise ValueError(f"column {name!r} of {self._path} changed while it was read. Make the same call again.")
        return values

    def _parsed(self, column: Any) -> NDArray[np.float64] | None:
        """Convert a column of text to numbers, with NaN for missing values, or return None if that is not possible."""
        if self._asked.decimal == ",":
            if pc.any(pc.match_substring(column, ".")).as_py():
                return None  # the point may separate thousands
            column = pc.replace_substring(column, ",", ".")
        try:
            values = pc.cast(column, pa.float64())
        except pa.ArrowInvalid:
            return None
        found = np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)
        for no_value in self._na_numbers:
            found[found == no_value] = np.nan
        return found

    def _batches(self, names: Sequence[str]) -> Iterator[list[Any]]:
        index = [self.place[name] for name in names]
        with self._explained(), self._open(self._raw) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield [self._cleaned(batch.column(i)) for i in index]

    def _cleaned(self, column: Any) -> Any:
        """Strip blanks, and replace words for missing values by null."""
        column = pc.utf8_trim_whitespace(column)
        gone = pc.is_in(column, value_set=self._na)
        return pc.if_else(gone, pa.scalar(None, pa.string()), column)

    @contextmanager
    def _open(self, raw: Sequence[str]) -> Iterator[Any]:
        """Open the table with the columns ``raw`` as text; without ``raw``, with types guessed by Arrow."""
        with (
            _binary(self._path) as file,
            pacsv.open_csv(
                pa.PythonFile(_SingleBlanks(file) if self._sep == BLANKS else file, mode="r"),
                pacsv.ReadOptions(
                    block_size=self._block, autogenerate_column_names=self._asked.no_header, encoding=self._encoding
                ),
                pacsv.ParseOptions(
                    # In a table of one column, an empty line is a row with a missing value.
                    delimiter=self._sep,
                    newlines_in_values=True,
                    ignore_empty_lines=len(raw) != 1,
                ),
                pacsv.ConvertOptions(column_types=dict.fromkeys(raw, pa.string()), strings_can_be_null=False),
            ) as reader,
        ):
            yield reader

    def _lines(self) -> IO[str]:
        encoding = "utf-8-sig" if self._encoding == "utf8" else self._encoding
        return io.TextIOWrapper(_binary(self._path), encoding=encoding, newline="")

    def _sample(self) -> str:
        with self._lines() as file, self._explained():
            return file.read(SAMPLE)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Replace a parser error by one that names the line of the table."""
        try:
            yield
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise self._why(error) from error

    def _why(self, error: Exception) -> ValueError:
        """Return an error that names the line that cannot be read."""
        try:
            ragged = self._ragged()
        except UnicodeError as wrong:
            return self._undecodable(wrong)
        except csv.Error:
            ragged = None
        if ragged is not None:
            return ragged
        return ValueError(f"{self._path} must be a text table; reading it ended with: {error}. Check the file.")

    def _ragged(self) -> ValueError | None:
        """Find the first line with more or fewer fields than the first one."""
        with self._lines() as file:
            lines = (" ".join(line.split()) for line in file) if self._sep == BLANKS else file
            rows = csv.reader(lines, delimiter=self._sep)
            filled = (row for row in rows if row)
            first = next(filled, None)
            if first is None:
                return ValueError(f"a table must have lines; {self._path} is empty. Copy it again.")
            for number, row in enumerate(filled):
                if len(row) == len(first):
                    continue
                if number == 0 and len(row) > len(first) and not self._asked.no_header:
                    return ValueError(
                        f"every column of a text table must have a name; rows of {self._path} have more fields than "
                        "its first line. Name all columns, or remove row names from the file."
                    )
                return ValueError(
                    f"every line of a text table must have as many fields as the first; line {rows.line_num:,} of "
                    f"{self._path} has {len(row)}, the first {len(first)}, with {self._sep!r} between them. Correct "
                    "the line, or give the separator with --sep (sep=)."
                )
        return None

    def _undecodable(self, error: UnicodeError) -> ValueError:
        return ValueError(
            f"a text table must be in the encoding in which it is read; {self._path} is not "
            f"{'UTF-8' if self._encoding == 'utf8' else self._encoding}: {self._wrong_byte() or error}. Give the "
            "encoding with --encoding (encoding=): latin-1 for western Europe, cp1252 from Windows."
        )

    def _wrong_byte(self) -> str:
        """Find the first line that is not in the encoding; not for UTF-16, whose lines cannot be decoded alone."""
        with _binary(self._path) as file:
            for number, line in enumerate(file if "16" not in self._encoding else (), 1):
                try:
                    line.decode("utf-8" if self._encoding == "utf8" else self._encoding)
                except UnicodeDecodeError as wrong:
                    return f"line {number:,} has the byte 0x{line[wrong.start]:02x}"
        return ""


class _SingleBlanks(io.RawIOBase):
    """A byte stream in which runs of blanks are single blanks, and lines have none at their ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._rest = file, b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        while len(self._rest) < size or size < 0:
            lines = self._file.readlines(2**20)
            if not lines:
                break
            self._rest += b"".join(b" ".join(line.split()) + b"\n" for line in lines)
        wanted = len(self._rest) if size < 0 else size
        found, self._rest = self._rest[:wanted], self._rest[wanted:]
        return found


def _binary(path: str) -> IO[bytes]:
    return gzip.open(path) if path.lower().endswith(".gz") else Path(path).open("rb")  # type: ignore[return-value]


def _normal(encoding: str) -> str:
    """Return the encoding; all spellings of UTF-8 become "utf8", for which Arrow has its own decoder."""
    return "utf8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding


def _by_mark(path: str) -> str:
    with _binary(path) as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8"


def _separator(sample: str, path: str) -> str:
    """Return the separator on which all lines agree, else the most frequent one in the first line."""
    lines = sample.splitlines(keepends=True)
    if len(sample) == SAMPLE:
        lines = lines[:-1] or lines
    for sep in SEPARATORS:
        counts = Counter(len(row) for row in csv.reader(lines, delimiter=sep) if row)
        if len(counts) == 1 and next(iter(counts)) > 1:
            return sep
    words = [len(line.split()) for line in lines if line.strip()] or [0]
    if 1 < words[0] == Counter(words).most_common(1)[0][0] and not any(sep in sample for sep in SEPARATORS):
        return BLANKS
    first_line = next((line for line in lines if line.strip()), "")
    usual = "\t" if ".tsv" in path.lower() else ","
    most = max(SEPARATORS, key=lambda sep: (first_line.count(sep), sep == usual))
    return most if most in first_line else usual


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flags(column: Any) -> NDArray[np.float64] | None:
    """Return 1 and 0 for true and false, or None if there are other values."""
    words = pc.utf8_lower(column)
    if not pc.all(pc.is_in(words.drop_null(), value_set=pa.array(["true", "false"]))).as_py():
        return None
    return np.array(pc.cast(pc.equal(words, "true"), pa.int8()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _whole(column: Any, values: NDArray[np.float64]) -> bool:
    """Tell whether a number beyond 2^53 is written as a whole number."""
    large = column.filter(pa.array(np.abs(values) > LARGEST))
    return bool(pc.any(pc.match_substring_regex(large, r"^[+-]?\d+$")).as_py())


def _shown(column: Any, where: NDArray[np.bool_], row: int) -> str:
    """Format the first of the marked values with its row number."""
    i = int(np.argmax(where))
    value = str(column[i].as_py())
    return f"{value[:30] + '...' if len(value) > 33 else value!r} in row {row + i + 1:,}"

"""Read rows of texts from a file, standard input or arguments; an invalid row carries its error."""

from __future__ import annotations

import gzip
import sys
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns, extract
from cenote.files.formats import SUFFIXES, Record, count_records, read_records

STDIN = "-"

# seconds of work per slice, characters of the first slice, and the largest growth from one slice to the next
SLICE_S, FIRST_CHARS, MAX_GROWTH = 1.0, 1024, 8
MIN_CHARS_PER_ROW = 8  # also rows without text cost time, for special tokens


@dataclass(slots=True)
class InputRow:
    """One row of the input: its texts (two for a pair), or its error."""

    index: int  # its position in the input from 0; in JSON lines that of its line, blank ones counted
    texts: tuple[str, ...] = ()
    id: Any = None
    error: str | None = None
    file: str | None = None  # of inputs with several files


class ArgumentSource:
    """Texts given as arguments."""

    can_resume = True

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        self.texts = rows

    def rows(self) -> Generator[InputRow, None, None]:
        return (_validate_row(InputRow(index, texts)) for index, texts in enumerate(self.texts))

    def count(self) -> int:
        return len(self.texts)

    def identity(self) -> object:
        return [list(texts) for texts in self.texts]


class FileSource:
    """A file, or standard input, read row by row."""

    def __init__(self, path: str, column_options: ColumnOptions, format: str | None = None) -> None:
        self.path = path
        self.column_options = column_options
        self.format = format or detect_format(path, "jsonl" if column_options.is_pairs else "txt")
        self.can_resume = path != STDIN  # standard input may differ the next time

    def rows(self) -> Generator[InputRow, None, None]:
        if self.format == "txt" and self.column_options != ColumnOptions():
            feature = "pairs" if self.column_options.is_pairs else "columns"
            raise BadRequest(f"{self.path} has one text per line; {feature} need jsonl, json, csv, tsv or parquet")
        with open_input(self.path) as stream:
            for index, (record, columns) in enumerate(read_records(stream, self.format, self.column_options)):
                if record is not None:
                    yield make_row(index, record, columns)

    def count(self) -> int | None:
        """Return the number of rows, or None if it is unknown before reading them."""
        if self.path == STDIN:
            return None
        with open_input(self.path) as stream:
            return count_records(stream, self.format)

    def identity(self) -> object:
        """Return a value that changes if the file changes."""
        if self.path == STDIN:
            return STDIN
        status = Path(self.path).stat()
        return {"path": str(Path(self.path).resolve()), "bytes": status.st_size, "modified_ns": status.st_mtime_ns}


RowSource: TypeAlias = ArgumentSource | FileSource


class AdaptiveSlices:
    """Split rows into slices of about one second of work, so that a killed process loses no more than that.

    The first slices are small, because the speed of the model is unknown; none has more than `max_rows` rows.
    """

    def __init__(self, rows: Iterator[InputRow], max_rows: int) -> None:
        self.rows = rows
        self.max_rows = max_rows
        self.target_chars = FIRST_CHARS

    def __iter__(self) -> Iterator[list[InputRow]]:
        while rows := self.take():
            start = time.monotonic()
            yield rows  # the next slice is requested when these are processed
            self.adapt_size(sum(map(count_chars, rows)), time.monotonic() - start)

    def take(self) -> list[InputRow]:
        """Return the next slice; empty after the last row."""
        return list(self._take_rows())

    def _take_rows(self) -> Iterator[InputRow]:
        num_chars = 0
        for row in islice(self.rows, self.max_rows):
            yield row
            num_chars += count_chars(row)
            if num_chars >= self.target_chars:
                return

    def adapt_size(self, num_chars: int, seconds: float) -> None:
        """Adapt the size of the next slices to the seconds that so many characters took."""
        in_time = int(num_chars * SLICE_S / max(seconds, 1e-6))
        self.target_chars = max(1, min(in_time, self.target_chars * MAX_GROWTH))


def count_chars(row: InputRow) -> int:
    return sum(map(len, row.texts)) + MIN_CHARS_PER_ROW


def detect_format(path: str, for_stdin: str) -> str:
    if path == STDIN:
        return for_stdin
    name = Path(path.removesuffix(".gz"))
    kind = SUFFIXES.get(name.suffix.lower())
    if kind is None or (kind == "parquet" and path.endswith(".gz")):
        raise BadRequest(
            f"cannot detect the format of {path}; use --input-format or one of the endings {', '.join(SUFFIXES)}"
        )
    return kind


@contextmanager
def open_input(path: str) -> Iterator[IO[bytes]]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else opener(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRequest(f"{path} is not a complete gzip file: {error}") from None


def make_row(index: int, record: Record, columns: Columns) -> InputRow:
    """Return the row of a record, with its error if it has no valid text."""
    if isinstance(record, BadRequest):
        return InputRow(index, error=str(record))
    if isinstance(record, str):
        return _validate_row(InputRow(index, (record,)))
    row = InputRow(index, id=record.get(columns.id) if columns.id else None)
    try:
        row.texts, row.id = extract(columns, record)
    except BadRequest as error:
        row.error = str(error)
    return _validate_row(row)


def _validate_row(row: InputRow) -> InputRow:
    """Reject texts with lone surrogates, from JSON or from bytes that are not UTF-8: tokenizers need valid Unicode."""
    try:
        for text in row.texts:
            text.encode()
    except UnicodeEncodeError as error:
        row.error = f"the text is not valid UTF-8 at character {error.start}"
    row.id = _escape_surrogates(row.id)
    row.error = _escape_surrogates(row.error)
    return row


def _escape_surrogates(value: Any) -> Any:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value

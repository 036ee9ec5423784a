"""From what people point at, a file, standard input or arguments, to rows of texts; a bad row carries its error."""

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
from typing import IO, Any, Protocol

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns, extract
from cenote.files.formats import SUFFIXES, Record, count_records, read_records

STDIN = "-"

# of work in one slice, the characters of the first one, and how much larger than the last one the next may be
SLICE_S, FIRST_CHARS, MAX_GROWTH = 1.0, 1024, 8
MIN_CHARS_PER_ROW = 8  # special tokens take time too, and a row without text


@dataclass(slots=True)
class InputRow:
    """One row of the input: its texts (two for a pair), or what is wrong with it."""

    index: int  # its position in the input from 0; in JSON lines that of its line, blank ones counted
    texts: tuple[str, ...] = ()
    id: Any = None
    error: str | None = None


class RowSource(Protocol):
    """Where rows come from."""

    can_resume: bool

    def rows(self) -> Generator[InputRow, None, None]: ...

    def count(self) -> int | None: ...

    def identity(self) -> object: ...


class ArgumentSource:
    """Texts from the command line itself."""

    can_resume = True

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        self.texts = rows

    def rows(self) -> Generator[InputRow, None, None]:
        return (_validate_row(InputRow(index, texts)) for index, texts in enumerate(self.texts))

    def count(self) -> int | None:
        return len(self.texts)

    def identity(self) -> object:
        return [list(texts) for texts in self.texts]


class FileSource:
    """A file, or standard input, read row by row."""

    def __init__(self, path: str, column_options: ColumnOptions, format: str | None = None) -> None:
        self.path = path
        self.column_options = column_options
        self.format = format or _detect_format(path, "jsonl" if column_options.is_pairs else "txt")
        self.can_resume = path != STDIN  # nobody can tell whether the same lines come again

    def rows(self) -> Generator[InputRow, None, None]:
        if self.format == "txt" and self.column_options != ColumnOptions():
            wish = "pairs" if self.column_options.is_pairs else "columns"
            raise BadRequest(f"{self.path} has one text per line; {wish} come in jsonl, json, csv, tsv or parquet")
        with open_input(self.path) as stream:
            for index, (record, columns) in enumerate(read_records(stream, self.format, self.column_options)):
                if record is not None:
                    yield _make_row(index, record, columns)

    def count(self) -> int | None:
        """How many rows there are, where that can be known before reading them."""
        if self.path == STDIN:
            return None
        with open_input(self.path) as stream:
            return count_records(stream, self.format)

    def identity(self) -> object:
        """What changes when the file does."""
        if self.path == STDIN:
            return STDIN
        found = Path(self.path).stat()
        return {"path": str(Path(self.path).resolve()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}


class AdaptiveSlices:
    """Lists of rows to hand to the engine at once, each about a second of work: a process that is killed loses no more.

    The first ones are small, because nobody knows yet how fast the model is; none has more than `most_rows`.
    """

    def __init__(self, rows: Iterator[InputRow], max_rows: int) -> None:
        self.rows = rows
        self.max_rows = max_rows
        self.target_chars = FIRST_CHARS

    def __iter__(self) -> Iterator[list[InputRow]]:
        while some := list(self._take_rows()):
            began = time.monotonic()
            yield some  # and whoever asks for the next is done with these
            self._adapt_size(sum(map(_count_chars, some)), time.monotonic() - began)

    def _take_rows(self) -> Iterator[InputRow]:
        num_chars = 0
        for row in islice(self.rows, self.max_rows):
            yield row
            num_chars += _count_chars(row)
            if num_chars >= self.target_chars:
                return

    def _adapt_size(self, num_chars: int, seconds: float) -> None:
        in_time = int(num_chars * SLICE_S / max(seconds, 1e-6))
        self.target_chars = max(1, min(in_time, self.target_chars * MAX_GROWTH))


def _count_chars(row: InputRow) -> int:
    return sum(map(len, row.texts)) + MIN_CHARS_PER_ROW


def _detect_format(path: str, for_stdin: str) -> str:
    if path == STDIN:
        return for_stdin
    name = Path(path.removesuffix(".gz"))
    kind = SUFFIXES.get(name.suffix.lower())
    if kind is None or (kind == "parquet" and path.endswith(".gz")):
        raise BadRequest(
            f"cannot tell the format of {path}; name it with --input-format or one of {', '.join(SUFFIXES)}"
        )
    return kind


@contextmanager
def open_input(path: str) -> Iterator[IO[bytes]]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else opener(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRequest(f"{path} is no whole gzip file: {error}") from None


def _make_row(index: int, record: Record, columns: Columns) -> InputRow:
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
    """Tokenizers read Unicode; half a surrogate pair, from JSON or from bytes that are no UTF-8, is none."""
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

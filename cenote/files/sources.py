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
from cenote.files.columns import Columns, Wanted, take
from cenote.files.formats import SUFFIXES, Record, count, records

STDIN = "-"

# of work in one slice, the characters of the first one, and how much larger than the last one the next may be
SLICE_S, FIRST_CHARS, MAX_GROWTH = 1.0, 1024, 8
CHARS_OF_A_ROW = 8  # special tokens take time too, and a row without text


@dataclass(slots=True)
class Row:
    """One row of the input: its texts (two for a pair), or what is wrong with it."""

    index: int  # its position in the input from 0; in JSON lines that of its line, blank ones counted
    texts: tuple[str, ...] = ()
    id: Any = None
    error: str | None = None


class Source(Protocol):
    """Where rows come from."""

    can_continue: bool

    def rows(self) -> Generator[Row, None, None]: ...

    def count(self) -> int | None: ...

    def identity(self) -> object: ...


class Arguments:
    """Texts from the command line itself."""

    can_continue = True

    def __init__(self, rows: Sequence[tuple[str, ...]]) -> None:
        self.given = rows

    def rows(self) -> Generator[Row, None, None]:
        return (_checked(Row(index, texts)) for index, texts in enumerate(self.given))

    def count(self) -> int | None:
        return len(self.given)

    def identity(self) -> object:
        return [list(texts) for texts in self.given]


class File:
    """A file, or standard input, read row by row."""

    def __init__(self, path: str, wanted: Wanted, kind: str | None = None) -> None:
        self.path = path
        self.wanted = wanted
        self.kind = kind or _kind_of(path, "jsonl" if wanted.pairs else "txt")
        self.can_continue = path != STDIN  # nobody can tell whether the same lines come again

    def rows(self) -> Generator[Row, None, None]:
        if self.kind == "txt" and self.wanted != Wanted():
            wish = "pairs" if self.wanted.pairs else "columns"
            raise BadRequest(f"{self.path} has one text per line; {wish} come in jsonl, json, csv, tsv or parquet")
        with opened(self.path) as stream:
            for index, (record, columns) in enumerate(records(stream, self.kind, self.wanted)):
                if record is not None:
                    yield _row(index, record, columns)

    def count(self) -> int | None:
        """How many rows there are, where that can be known before reading them."""
        if self.path == STDIN:
            return None
        with opened(self.path) as stream:
            return count(stream, self.kind)

    def identity(self) -> object:
        """What changes when the file does."""
        if self.path == STDIN:
            return STDIN
        found = Path(self.path).stat()
        return {"path": str(Path(self.path).resolve()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}


class Slices:
    """Lists of rows to hand to the engine at once, each about a second of work: a process that is killed loses no more.

    The first ones are small, because nobody knows yet how fast the model is; none has more than `most_rows`.
    """

    def __init__(self, rows: Iterator[Row], most_rows: int) -> None:
        self.rows = rows
        self.most_rows = most_rows
        self.num_chars = FIRST_CHARS

    def __iter__(self) -> Iterator[list[Row]]:
        while some := list(self._next()):
            began = time.monotonic()
            yield some  # and whoever asks for the next is done with these
            self._adapt(sum(map(_size, some)), time.monotonic() - began)

    def _next(self) -> Iterator[Row]:
        num_chars = 0
        for row in islice(self.rows, self.most_rows):
            yield row
            num_chars += _size(row)
            if num_chars >= self.num_chars:
                return

    def _adapt(self, num_chars: int, seconds: float) -> None:
        in_time = int(num_chars * SLICE_S / max(seconds, 1e-6))
        self.num_chars = max(1, min(in_time, self.num_chars * MAX_GROWTH))


def _size(row: Row) -> int:
    return sum(map(len, row.texts)) + CHARS_OF_A_ROW


def _kind_of(path: str, for_stdin: str) -> str:
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
def opened(path: str) -> Iterator[IO[bytes]]:
    opener: Any = gzip.open if path.endswith(".gz") else open
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else opener(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadRequest(f"{path} is no whole gzip file: {error}") from None


def _row(index: int, record: Record, columns: Columns) -> Row:
    if isinstance(record, BadRequest):
        return Row(index, error=str(record))
    if isinstance(record, str):
        return _checked(Row(index, (record,)))
    row = Row(index, id=record.get(columns.id) if columns.id else None)
    try:
        row.texts, row.id = take(columns, record)
    except BadRequest as error:
        row.error = str(error)
    return _checked(row)


def _checked(row: Row) -> Row:
    """Tokenizers read Unicode; half a surrogate pair, from JSON or from bytes that are no UTF-8, is none."""
    try:
        for text in row.texts:
            text.encode()
    except UnicodeEncodeError as error:
        row.error = f"the text is not valid UTF-8 at character {error.start}"
    row.id = _writable(row.id)
    row.error = _writable(row.error)
    return row


def _writable(value: Any) -> Any:
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value

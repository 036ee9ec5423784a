"""Split files into parts that can be read independently of each other, on any machine that has the files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns
from cenote.files.formats import SUFFIXES, Record, count_records, read_records
from cenote.files.parquet_input import read_parquet, row_group_sizes
from cenote.files.sources import FileSource, InputRow, detect_format, make_row, open_input

MAX_PART_ROWS, MIN_PART_ROWS = 4096, 256
MAX_PART_BYTES = 4 * 1024**2  # of line formats: about a million tokens
TARGET_PARTS = 64  # of the whole input, so that all workers end at about the same time
LINE_FORMATS = ("txt", "jsonl")


@dataclass(frozen=True, slots=True)
class FilePart:
    """Consecutive records of one file."""

    path: str
    format: str
    columns: ColumnOptions
    first_record: int  # its position in the file from 0, blank lines counted
    num_records: int
    offset: int | None = None  # of the first byte, in formats with one record per line
    num_bytes: int = 0

    def rows(self) -> Iterator[InputRow]:
        for index, (record, columns) in self._records():
            if record is not None:
                yield make_row(index, record, columns)

    def _records(self) -> Iterator[tuple[int, tuple[Record | None, Columns]]]:
        end = self.first_record + self.num_records
        with open_input(self.path) as stream:
            if self.offset is not None:
                stream.seek(self.offset)
                lines = BytesIO(stream.read(self.num_bytes))
                yield from enumerate(read_records(lines, self.format, self.columns), self.first_record)
            elif self.format == "parquet":
                groups, start = _overlapping_groups(row_group_sizes(stream), self.first_record, end)
                records = enumerate(read_parquet(stream, self.columns, groups), start)
                yield from islice(records, self.first_record - start, end - start)
            else:
                all_records = enumerate(read_records(stream, self.format, self.columns))
                yield from islice(all_records, self.first_record, end)


def list_files(inputs: str | Sequence[str]) -> list[str]:
    """Return the files of all inputs: files, folders (files with a known suffix), and patterns such as *.jsonl."""
    paths: list[str] = []
    for text in [inputs] if isinstance(inputs, str) else inputs:
        path = Path(text).expanduser()
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file() and _has_known_suffix(file))
        elif path.exists():
            found = [path]
        else:
            found = sorted(file for file in Path(path.anchor).glob(str(path)[len(path.anchor) :]) if file.is_file())
        if not found:
            raise BadRequest(f"no input files in {text}; expected files with the suffixes {', '.join(SUFFIXES)}")
        paths += [str(file.resolve()) for file in found]
    return list(dict.fromkeys(paths))


def split_files(
    paths: Sequence[str], columns: ColumnOptions, format: str | None = None, part_rows: int | None = None
) -> list[FilePart]:
    """Return the parts of all files, in order; an empty file has none.

    Without `part_rows`, parts have at most 4096 rows and 4 MiB, and fewer rows if the whole input is small.
    """
    grains = [grain for path in paths for grain in _split_file(path, columns, format, part_rows)]
    if part_rows is not None:
        return grains
    total = sum(grain.num_records for grain in grains)
    limit = max(MIN_PART_ROWS, min(MAX_PART_ROWS, -(-total // TARGET_PARTS)))
    return _merge_grains(grains, limit)


def _split_file(path: str, columns: ColumnOptions, format: str | None, part_rows: int | None) -> Iterator[FilePart]:
    """Yield consecutive parts, each of `part_rows` rows; without, parts that are small enough to be merged."""
    if Path(path).stat().st_size == 0:
        return
    kind = format or detect_format(path, "txt")
    columns = _resolve_columns(path, columns, kind)
    rows = part_rows or MIN_PART_ROWS
    if kind in LINE_FORMATS and not path.endswith(".gz"):
        yield from _split_lines(path, kind, columns, rows, None if part_rows else MAX_PART_BYTES)
        return
    with open_input(path) as stream:
        # of line formats blank lines are counted as well
        total = sum(1 for _ in stream) if kind in LINE_FORMATS else count_records(stream, kind)
    if kind != "parquet":
        rows = max(rows, -(-total // TARGET_PARTS))  # a part of these reads the file from its start
    for first in range(0, total, rows):
        yield FilePart(path, kind, columns, first, min(rows, total - first))


def _split_lines(
    path: str, kind: str, columns: ColumnOptions, max_rows: int, max_bytes: int | None
) -> Iterator[FilePart]:
    first = offset = num_records = num_bytes = 0
    with open(path, "rb") as stream:
        for line in stream:
            if num_records and (num_records >= max_rows or (max_bytes and num_bytes + len(line) > max_bytes)):
                yield FilePart(path, kind, columns, first, num_records, offset, num_bytes)
                first, offset, num_records, num_bytes = first + num_records, offset + num_bytes, 0, 0
            num_records += 1
            num_bytes += len(line)
    yield FilePart(path, kind, columns, first, num_records, offset, num_bytes)


def _merge_grains(grains: list[FilePart], max_rows: int) -> list[FilePart]:
    """Merge neighbours of the same file."""
    parts: list[FilePart] = []
    for grain in grains:
        last = parts[-1] if parts else None
        if (
            last is not None
            and last.path == grain.path
            and last.num_records + grain.num_records <= max_rows
            and last.num_bytes + grain.num_bytes <= MAX_PART_BYTES
        ):
            num_records, num_bytes = last.num_records + grain.num_records, last.num_bytes + grain.num_bytes
            parts[-1] = FilePart(
                last.path, last.format, last.columns, last.first_record, num_records, last.offset, num_bytes
            )
        else:
            parts.append(grain)
    return parts


def _resolve_columns(path: str, columns: ColumnOptions, kind: str) -> ColumnOptions:
    """Select the columns once, so that all parts of a file read the same ones."""
    next(FileSource(path, columns, kind).rows(), None)  # raises if the options do not fit the format
    with open_input(path) as stream:
        for _, found in read_records(stream, kind, columns):
            if found.texts:
                return ColumnOptions(found.texts, columns.id, columns.is_pairs)
    return columns


def _overlapping_groups(sizes: Sequence[int], first: int, end: int) -> tuple[list[int], int]:
    """Return the row groups that hold the rows from `first` to `end`, and the first row of the first of them."""
    groups: list[int] = []
    start = position = 0
    for number, size in enumerate(sizes):
        if position < end and position + size > first:
            if not groups:
                start = position
            groups.append(number)
        position += size
    return groups, start


def _has_known_suffix(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix.lower() in SUFFIXES

"""Parse text, JSON, JSON lines, CSV and TSV files into records."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import IO, TypeAlias

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns, choose_columns

# a string, an object with named values, or the error of a row that cannot be parsed
Record: TypeAlias = "str | Mapping[str, object] | BadRequest"

SUFFIXES = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


def read_records(
    stream: IO[bytes], kind: str, column_options: ColumnOptions
) -> Iterator[tuple[Record | None, Columns]]:
    """Yield every record with the columns to read from it; None for a blank line of a JSON lines file."""
    if kind == "parquet":
        from cenote.files.parquet_input import read_parquet

        return read_parquet(stream, column_options)
    if kind in ("csv", "tsv"):
        return _read_csv(stream, column_options, kind)
    return _with_guessed_columns(_READERS[kind](stream), column_options)


def count_records(stream: IO[bytes], kind: str) -> int:
    """Count the records without parsing them."""
    if kind == "parquet":
        from cenote.files.parquet_input import count_rows

        return count_rows(stream)
    if kind in ("csv", "tsv"):
        return max(0, sum(1 for fields in _csv_fields(stream, kind) if fields) - 1)
    if kind == "json":
        return sum(1 for _ in _read_json(stream))
    return sum(1 for line in stream if kind == "txt" or not line.isspace())


def _with_guessed_columns(
    records: Iterator[Record | None], column_options: ColumnOptions
) -> Iterator[tuple[Record | None, Columns]]:
    """Select the columns at the first object; missing columns of later records are errors of those rows."""
    columns = Columns(())
    for record in records:
        if isinstance(record, str) and (column_options.is_pairs or column_options.id):
            record = BadRequest("a string; expected an object with named columns")
        if isinstance(record, Mapping) and not columns.texts:
            strings = [name for name, value in record.items() if isinstance(value, str)]
            columns = choose_columns(column_options, list(record), strings, is_complete=False)
        yield record, columns


def _read_txt(stream: IO[bytes]) -> Iterator[Record]:
    for line in _strip_bom(stream):
        yield line.rstrip(b"\r\n").decode(errors="surrogateescape")


def _read_jsonl(stream: IO[bytes]) -> Iterator[Record | None]:
    for line in _strip_bom(stream):
        if line.isspace():
            yield None
            continue
        try:
            yield _check_record(json.loads(line))
        except UnicodeDecodeError as error:
            yield BadRequest(f"the line is not valid UTF-8 at byte {error.start}")
        except (ValueError, RecursionError) as error:
            yield BadRequest(f"the line is not valid JSON: {error}")


def _read_json(stream: IO[bytes]) -> Iterator[Record]:
    try:
        values = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the file is not valid JSON: {error}; name files with one object per line .jsonl") from None
    if not isinstance(values, list):
        raise BadRequest("the file is a JSON value that is not an array; name files with one object per line .jsonl")
    yield from map(_check_record, values)


_READERS: dict[str, Callable[[IO[bytes]], Iterator[Record | None]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "json": _read_json,
}


def _check_record(value: object) -> Record:
    if isinstance(value, str | dict):
        return value
    return BadRequest(f"a JSON {type(value).__name__}; expected an object or a string")


def _read_csv(stream: IO[bytes], column_options: ColumnOptions, kind: str) -> Iterator[tuple[Record, Columns]]:
    lines = (fields for fields in _csv_fields(stream, kind) if fields)
    header = next(lines, None)
    if header is None:
        return
    if isinstance(header, BadRequest):
        raise header
    columns = choose_columns(column_options, header, header)
    for fields in lines:
        yield _csv_record(header, fields), columns


def _csv_record(header: list[str], fields: list[str] | BadRequest) -> Record:
    if isinstance(fields, BadRequest):
        return fields
    if len(fields) != len(header):
        return BadRequest(f"{len(fields)} fields, the header has {len(header)}; quote texts that contain the separator")
    return dict(zip(header, fields, strict=True))


def _csv_fields(stream: IO[bytes], kind: str) -> Iterator[list[str] | BadRequest]:
    csv.field_size_limit(2**31 - 1)  # the default limit is 128 KiB
    lines = (line.decode(errors="surrogateescape") for line in _strip_bom(stream))
    reader = csv.reader(lines, delimiter="\t" if kind == "tsv" else ",")
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadRequest(f"the row is not valid {kind.upper()}: {error}")


def _strip_bom(stream: IO[bytes]) -> Iterator[bytes]:
    """Return the lines without a leading UTF-8 byte order mark."""
    first = stream.readline()
    return chain([first.removeprefix(b"\xef\xbb\xbf")] if first else [], stream)

"""From the bytes of a file to records: what each format says about one row."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import IO, TypeAlias

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns, choose_columns

# a bare text, named values, or the reason why the row cannot be read
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
    """Every row with the columns to read from it; None for a blank line of JSON lines, which is no row."""
    if kind == "parquet":
        from cenote.files.parquet_input import read_parquet

        return read_parquet(stream, column_options)
    if kind in ("csv", "tsv"):
        return _read_csv(stream, column_options, kind)
    return _with_guessed_columns(_READERS[kind](stream), column_options)


def count_records(stream: IO[bytes], kind: str) -> int:
    """How many records there are, without looking into them."""
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
    """Columns are chosen at the first record that has any; later ones answer for themselves."""
    columns = Columns(())
    for record in records:
        if isinstance(record, str) and (column_options.is_pairs or column_options.id):
            record = BadRequest("a bare string, where an object with named columns is wanted")
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
        found = json.loads(stream.read())
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the file is not valid JSON: {error}; for one object per line name it .jsonl") from None
    if not isinstance(found, list):
        raise BadRequest("the file holds one JSON value that is not an array; for one object per line name it .jsonl")
    yield from map(_check_record, found)


_READERS: dict[str, Callable[[IO[bytes]], Iterator[Record | None]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "json": _read_json,
}


def _check_record(value: object) -> Record:
    if isinstance(value, str | dict):
        return value
    return BadRequest(f"a JSON {type(value).__name__}, where an object or a string is wanted")


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
        return BadRequest(f"{len(fields)} fields, the header has {len(header)}; quote a text that holds the separator")
    return dict(zip(header, fields, strict=True))


def _csv_fields(stream: IO[bytes], kind: str) -> Iterator[list[str] | BadRequest]:
    csv.field_size_limit(2**31 - 1)  # texts may be longer than the 128 KiB it starts with
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
    """Lines, less the byte order mark some editors put before the first."""
    first = stream.readline()
    return chain([first.removeprefix(b"\xef\xbb\xbf")] if first else [], stream)

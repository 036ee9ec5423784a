"""Write results: JSON lines to a stream, JSON lines or a NumPy matrix to a file that can be resumed."""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import orjson

from cenote.files.partial_file import PartialFile, remove_path
from cenote.files.result_slice import ResultSchema, ResultSlice, entity_values
from cenote.utils.cache_folder import write_atomically
from cenote.utils.durable_files import replace_durably

HEADER_BYTES = 128


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The progress of an earlier run."""

    num_rows: int = 0
    num_failed: int = 0


class NpyCounts(msgspec.Struct):
    """How much of an unfinished matrix is complete."""

    width: int = 0  # 0: unknown before the first successful row
    num_done: int = 0  # rows of the input
    num_rows: int = 0  # rows of the matrix in the file

    @property
    def num_bytes(self) -> int:
        return HEADER_BYTES + self.num_rows * self.width * 4


class Writer(ABC):
    """Writes results in row order; those of files keep all complete rows of an earlier run."""

    def resume(self) -> ResumePoint:
        return ResumePoint()

    def open(self) -> None: ...  # noqa: B027  a stream needs none of these

    @abstractmethod
    def write(self, results: ResultSlice) -> None: ...

    def finish(self) -> None: ...  # noqa: B027

    def close(self) -> None: ...  # noqa: B027


class StreamWriter(Writer):
    """Write JSON lines to a stream."""

    def __init__(self, stream: IO[bytes], schema: ResultSchema) -> None:
        self.stream = stream
        self.schema = schema

    def write(self, results: ResultSlice) -> None:
        self.stream.write(format_json_lines(results, self.schema))
        self.stream.flush()


class JsonLinesWriter(Writer):
    """Write JSON lines to FILE.part, renamed to FILE when complete."""

    def __init__(self, partial_file: PartialFile, schema: ResultSchema) -> None:
        self.partial_file = partial_file
        self.schema = schema
        self.resume_bytes = 0
        self.stream: IO[bytes] | None = None

    def resume(self) -> ResumePoint:
        done, self.resume_bytes = _find_complete_lines(self.partial_file.path)
        return done

    def open(self) -> None:
        self.partial_file.open(fresh=self.resume_bytes == 0)
        self.stream = _open_truncated(self.partial_file.path, self.resume_bytes)

    def write(self, results: ResultSlice) -> None:
        assert self.stream is not None
        self.stream.write(format_json_lines(results, self.schema))
        self.stream.flush()

    def finish(self) -> None:
        self.close()
        self.partial_file.finish(self.partial_file.path)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.partial_file.close()


class NpyWriter(Writer):
    """Write a float32 matrix; row i is index i of the input, NaN for failed and blank rows.

    Errors go to FILE.errors.jsonl. FILE.part.counts says how much of FILE.part and its errors is complete: the header
    of the matrix is written last, and may be there although the run ended before the rename.
    """

    def __init__(self, partial_file: PartialFile, schema: ResultSchema) -> None:
        self.partial_file = partial_file
        self.schema = schema
        self.errors_path = partial_file.output.with_name(partial_file.output.name + ".errors.jsonl")
        self.partial_errors_path = partial_file.path.with_name(partial_file.path.name + ".errors.jsonl")
        self.counts_path = partial_file.path.with_name(partial_file.path.name + ".counts")
        self.counts = NpyCounts(width=1 if schema.kind == "number" else 0)
        self.next_row = 0  # including failed rows that are written once the width is known
        self.streams: list[IO[bytes]] = []

    def resume(self) -> ResumePoint:
        counts = _read_counts(self.counts_path)
        if counts is not None and self.partial_file.path.stat().st_size >= counts.num_bytes:
            self.counts, self.next_row = counts, counts.num_rows
        return ResumePoint(self.counts.num_done, len(self._resumed_errors()))

    def open(self) -> None:
        kept = self._resumed_errors()
        is_fresh = not self.counts.num_rows
        self.partial_file.open(fresh=is_fresh)
        if is_fresh:
            remove_path(self.counts_path)
        rows = _open_truncated(self.partial_file.path, 0 if is_fresh else self.counts.num_bytes)
        self.streams = [rows, _open_truncated(self.partial_errors_path, sum(map(len, kept)))]
        if is_fresh:
            rows.write(bytes(HEADER_BYTES))

    def write(self, results: ResultSlice) -> None:
        rows, errors = self.streams
        errors.writelines(format_error_line(results, position, self.schema) for position in _failed_positions(results))
        counts = self.counts
        counts.num_done += len(results.rows)
        self.next_row = results.rows[-1].index + 1
        if not counts.width and results.ok_positions:
            counts.width = results.values.shape[1]
        if not counts.width:
            return
        block = np.full((self.next_row - counts.num_rows, counts.width), np.nan, dtype="<f4")
        if results.ok_positions:
            positions = [results.rows[position].index - counts.num_rows for position in results.ok_positions]
            block[positions] = results.values
        rows.write(block.tobytes())
        counts.num_rows = self.next_row
        for stream in self.streams:  # a resumed run relies on what the counts say
            stream.flush()
            os.fsync(stream.fileno())
        write_atomically(self.counts_path, msgspec.json.encode(counts))

    def finish(self) -> None:
        shape = (self.next_row,) if self.schema.kind == "number" else (self.next_row, self.counts.width)
        self.streams[0].seek(0)
        self.streams[0].write(_make_npy_header(shape))
        self.close()
        # a copy, so that a run that ends before the rename finds its errors again
        if self.partial_errors_path.stat().st_size:
            copy = self.errors_path.with_name(self.errors_path.name + ".tmp")
            shutil.copyfile(self.partial_errors_path, copy)
            replace_durably(copy, self.errors_path)
        else:
            remove_path(self.errors_path)
        self.partial_file.finish(self.partial_file.path)
        remove_path(self.partial_errors_path)
        remove_path(self.counts_path)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.partial_file.close()

    def _resumed_errors(self) -> list[bytes]:
        if not self.counts.num_rows or not self.partial_errors_path.exists():
            return []
        lines = [
            line for line in self.partial_errors_path.read_bytes().splitlines(keepends=True) if is_whole_line(line)
        ]
        return [line for line in lines if json.loads(line)["index"] < self.counts.num_rows]


def format_json_lines(results: ResultSlice, schema: ResultSchema) -> bytes:
    """Format one line per row, successful or not."""
    lines = [
        format_error_line(results, position, schema) if row.error else b"" for position, row in enumerate(results.rows)
    ]
    for rank, position in enumerate(results.ok_positions):
        head = _line_start(results, position, schema)
        if schema.has_labels:
            head += b',"label":' + encode_json(results.labels[rank])
        if schema.chunk_size is not None:
            head += b',"chunks":' + encode_json(results.get_chunk_offsets(rank, schema.chunk_size))
        if schema.kind == "entities":
            head += b',"truncated":' + encode_json(results.entities[rank].truncated)
            value = encode_json([entity_values(entity) for entity in results.entities[rank].entities])
        else:
            value = _encode_value(_get_value(results, rank, schema), schema)
        lines[position] = b'%s,"%s":%s,"num_tokens":%d}\n' % (
            head,
            schema.name.encode(),
            value,
            results.num_tokens[rank],
        )
    return b"".join(lines)


def format_error_line(results: ResultSlice, position: int, schema: ResultSchema) -> bytes:
    return _line_start(results, position, schema) + b',"error":' + encode_json(results.rows[position].error) + b"}\n"


def encode_numbers(values: np.ndarray[Any, Any] | np.float32) -> bytes:
    """Encode as the shortest decimals that round-trip to float32; NaN and infinity become null."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_json(value: object) -> bytes:
    # lone surrogates become JSON escapes
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(errors="backslashreplace")


def is_whole_line(line: bytes) -> bool:
    """Whether a line was written to its end; after a loss of power, zeros may stand where text was."""
    return line.startswith(b"{") and line.endswith(b"}\n") and b"\0" not in line


def _line_start(results: ResultSlice, position: int, schema: ResultSchema) -> bytes:
    row = results.rows[position]
    file = b"" if row.file is None else b'"file":' + encode_json(row.file) + b","
    return b'{%s"index":%d' % (file, row.index) + (b',"id":' + encode_json(row.id) if schema.has_ids else b"")


def _failed_positions(results: ResultSlice) -> list[int]:
    return [position for position, row in enumerate(results.rows) if row.error is not None]


def _encode_value(value: Any, schema: ResultSchema) -> bytes:
    if schema.kind != "sparse":
        return encode_numbers(value)
    ids, weights = np.ascontiguousarray(value.T)
    return b'{"token_ids":%s,"weights":%s}' % (encode_numbers(ids.astype(np.int32)), encode_numbers(weights))


def _get_value(results: ResultSlice, rank: int, schema: ResultSchema) -> Any:
    if schema.is_variable_length:
        return results.values[results.offsets[rank] : results.offsets[rank + 1]]
    return results.values[rank, 0] if schema.kind == "number" else results.values[rank]


def _find_complete_lines(path: Path) -> tuple[ResumePoint, int]:
    """Return the rows and bytes of all complete lines; an incomplete last line is ignored."""
    num_rows = num_failed = num_bytes = 0
    if not path.exists():
        return ResumePoint(), 0
    with open(path, "rb") as stream:
        for line in stream:
            if not is_whole_line(line):
                break
            num_rows += 1
            num_bytes += len(line)
            num_failed += b'"error":' in line and "error" in json.loads(line)
    return ResumePoint(num_rows, num_failed), num_bytes


def _read_counts(path: Path) -> NpyCounts | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=NpyCounts)
    except (OSError, msgspec.DecodeError):
        return None


def _open_truncated(path: Path, num_bytes: int) -> IO[bytes]:
    """Open a file for writing, truncated to `num_bytes`."""
    stream = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    stream.truncate(num_bytes)
    stream.seek(num_bytes)
    return stream


def _make_npy_header(shape: tuple[int, ...]) -> bytes:
    page = BytesIO()
    np.lib.format.write_array_header_1_0(page, {"descr": "<f4", "fortran_order": False, "shape": shape})
    assert page.tell() == HEADER_BYTES
    return page.getvalue()

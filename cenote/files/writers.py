"""Where answers go: JSON lines on a stream, JSON lines or a NumPy matrix in a file that can be continued."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson

from cenote.files.partial_file import Part, remove
from cenote.files.result_slice import Answers, Layout

HEADER_BYTES = 128


@dataclass(frozen=True, slots=True)
class Done:
    """How far an earlier run came."""

    rows: int = 0
    failed: int = 0


class Output(Protocol):
    """A place for answers, which come in the order of the rows; a file keeps every whole row of an earlier run."""

    def resume(self) -> Done: ...

    def open(self) -> None: ...

    def write(self, answers: Answers) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Stream:
    """JSON lines as they come."""

    def __init__(self, stream: IO[bytes], layout: Layout) -> None:
        self.stream = stream
        self.layout = layout

    def resume(self) -> Done:
        return Done()

    def open(self) -> None:
        pass

    def write(self, answers: Answers) -> None:
        self.stream.write(json_lines(answers, self.layout))
        self.stream.flush()

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class JsonLines:
    """The same lines in FILE.part, renamed to FILE when all are there."""

    def __init__(self, part: Part, layout: Layout) -> None:
        self.part = part
        self.layout = layout
        self.kept_bytes = 0
        self.stream: IO[bytes] | None = None

    def resume(self) -> Done:
        done, self.kept_bytes = _whole_lines(self.part.path)
        return done

    def open(self) -> None:
        self.part.open(fresh=self.kept_bytes == 0)
        self.stream = _open_at(self.part.path, self.kept_bytes)

    def write(self, answers: Answers) -> None:
        assert self.stream is not None
        self.stream.write(json_lines(answers, self.layout))
        self.stream.flush()

    def finish(self) -> None:
        self.close()
        self.part.finish(self.part.path)

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.part.close()


class Matrix:
    """float32 rows after room for the header, each at the index of its row; one that failed or is blank is NaN.

    FILE.errors.jsonl says why rows failed. Until the file is whole, the room for the header holds three numbers:
    the width, how many rows of the input are done, and how many rows of the matrix that makes.
    """

    def __init__(self, part: Part, layout: Layout) -> None:
        self.part = part
        self.layout = layout
        self.errors_path = part.output.with_name(part.output.name + ".errors.jsonl")
        self.errors_part = part.path.with_name(part.path.name + ".errors.jsonl")
        self.width = 1 if layout.kind == "number" else 0  # 0: not known before the first row that works
        self.num_done = 0  # rows of the input
        self.num_rows = 0  # rows of the matrix in the file
        self.end = 0  # the same, with failed rows that wait for the width
        self.streams: list[IO[bytes]] = []

    def resume(self) -> Done:
        with open(self.part.path, "rb") as stream:
            header = stream.read(24).ljust(24, b"\0")
        width, num_done, num_rows = (int.from_bytes(header[start : start + 8], "little") for start in (0, 8, 16))
        if num_rows and self.part.path.stat().st_size >= HEADER_BYTES + num_rows * width * 4:
            self.width, self.num_done, self.num_rows, self.end = width, num_done, num_rows, num_rows
        return Done(self.num_done, len(self._kept_errors()))

    def open(self) -> None:
        kept = self._kept_errors()
        self.part.open(fresh=self.num_rows == 0)
        rows = _open_at(self.part.path, HEADER_BYTES + self.num_rows * self.width * 4 if self.num_rows else 0)
        self.streams = [rows, _open_at(self.errors_part, sum(map(len, kept)))]
        if not self.num_rows:
            rows.write(bytes(HEADER_BYTES))

    def write(self, answers: Answers) -> None:
        rows, errors = self.streams
        # errors first: no row is kept by a later run without its explanation
        errors.writelines(error_line(answers, place, self.layout) for place in _failed(answers))
        errors.flush()
        self.num_done += len(answers.rows)
        self.end = answers.rows[-1].index + 1
        if not self.width and answers.worked:
            self.width = answers.values.shape[1]
        if not self.width:
            return
        block = np.full((self.end - self.num_rows, self.width), np.nan, dtype="<f4")
        if answers.worked:
            block[[answers.rows[place].index - self.num_rows for place in answers.worked]] = answers.values
        rows.write(block.tobytes())
        rows.flush()
        self.num_rows = self.end
        # the counts come after the rows that they count
        rows.seek(0)
        rows.write(b"".join(number.to_bytes(8, "little") for number in (self.width, self.num_done, self.num_rows)))
        rows.flush()
        rows.seek(0, 2)

    def finish(self) -> None:
        shape = (self.end,) if self.layout.kind == "number" else (self.end, self.width)
        self.streams[0].seek(0)
        self.streams[0].write(_npy_header(shape))
        self.close()
        self.part.finish(self.part.path)
        if self.errors_part.stat().st_size:
            self.errors_part.replace(self.errors_path)
        else:
            remove(self.errors_part)
            remove(self.errors_path)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        self.part.close()

    def _kept_errors(self) -> list[bytes]:
        if not self.num_rows or not self.errors_part.exists():
            return []
        lines = [line for line in self.errors_part.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        return [line for line in lines if json.loads(line)["index"] < self.num_rows]


def json_lines(answers: Answers, layout: Layout) -> bytes:
    """One line per row, whether it worked or not."""
    lines = [error_line(answers, place, layout) if row.error else b"" for place, row in enumerate(answers.rows)]
    for rank, place in enumerate(answers.worked):
        head = _head(answers, place, layout)
        if layout.has_labels:
            head += b',"label":' + to_json(answers.labels[rank])
        value = _value_json(_value(answers, rank, layout), layout)
        lines[place] = b'%s,"%s":%s,"num_tokens":%d}\n' % (head, layout.name.encode(), value, answers.num_tokens[rank])
    return b"".join(lines)


def error_line(answers: Answers, place: int, layout: Layout) -> bytes:
    return _head(answers, place, layout) + b',"error":' + to_json(answers.rows[place].error) + b"}\n"


def numbers_json(values: np.ndarray[Any, Any] | np.float32) -> bytes:
    """The shortest decimals that read back as the same float32; what is not finite becomes null."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def to_json(value: object) -> bytes:
    # half a surrogate pair comes out as its escape, which is what JSON writes for it
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(errors="backslashreplace")


def _head(answers: Answers, place: int, layout: Layout) -> bytes:
    row = answers.rows[place]
    return b'{"index":%d' % row.index + (b',"id":' + to_json(row.id) if layout.has_ids else b"")


def _failed(answers: Answers) -> list[int]:
    return [place for place, row in enumerate(answers.rows) if row.error is not None]


def _value_json(value: Any, layout: Layout) -> bytes:
    if layout.kind != "sparse":
        return numbers_json(value)
    ids, weights = np.ascontiguousarray(value.T)
    return b'{"token_ids":%s,"weights":%s}' % (numbers_json(ids.astype(np.int32)), numbers_json(weights))


def _value(answers: Answers, rank: int, layout: Layout) -> Any:
    if layout.has_rows:
        return answers.values[answers.offsets[rank] : answers.offsets[rank + 1]]
    return answers.values[rank, 0] if layout.kind == "number" else answers.values[rank]


def _whole_lines(path: Path) -> tuple[Done, int]:
    """The rows and bytes of a file of lines; a torn last line counts for nothing."""
    num_rows = num_failed = num_bytes = 0
    if not path.exists():
        return Done(), 0
    with open(path, "rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                break
            num_rows += 1
            num_bytes += len(line)
            num_failed += b'"error":' in line and "error" in json.loads(line)
    return Done(num_rows, num_failed), num_bytes


def _open_at(path: Path, num_bytes: int) -> IO[bytes]:
    """For writing after the first `num_bytes`; the rest is cut off."""
    stream = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
    stream.truncate(num_bytes)
    stream.seek(num_bytes)
    return stream


def _npy_header(shape: tuple[int, ...]) -> bytes:
    page = BytesIO()
    np.lib.format.write_array_header_1_0(page, {"descr": "<f4", "fortran_order": False, "shape": shape})
    assert page.tell() == HEADER_BYTES
    return page.getvalue()

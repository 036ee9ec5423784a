"""`cenote run-batch`: process a file of requests and write a file of responses in the same order."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import add_resume_note, how_to_continue
from cenote.cli.terminal import RowProgress
from cenote.config.engine import EngineConfig
from cenote.config.server import ServerConfig
from cenote.files.columns import ColumnOptions
from cenote.files.partial_file import PartialFile, make_manifest
from cenote.files.sources import STDIN, FileSource, open_input
from cenote.utils.argparse_utils import UsageError, option_errors
from cenote.utils.progress import print_note

if TYPE_CHECKING:
    from cenote.api.batch_file import BatchFileRunner, BatchResult

SERVER_OPTIONS = (
    "served_model_name",
    "max_request_items",
    "max_body_bytes",
    "trust_request_chat_template",
    "rerank_document_shape",
)
# limit on request lines in flight: responses that wait for an earlier line stay in memory, and are larger
MAX_BYTES_IN_FLIGHT = 8 * 1024**2
# read at once from a file; from standard input one line, because the next line may never come
CHUNK_LINES, CHUNK_BYTES = 64, 1024**2
# time for lines in flight at Ctrl-C; a second Ctrl-C does not wait
FINAL_FLUSH_S = 2.0
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NumberedLine = tuple[int, bytes]


def run_batch_file(args: argparse.Namespace) -> int:
    """Run the command; errors of the files are reported before the model is loaded."""
    with option_errors():
        settings = ServerConfig(**{name: getattr(args, name) for name in SERVER_OPTIONS if hasattr(args, name)})
        config = EngineConfig.from_kwargs(**{**engine_keywords(args), "served_model_name": settings.served_model_name})
    if args.input_file == STDIN and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no requests; pass them with -i FILE, or through a pipe")
    source = FileSource(args.input_file, ColumnOptions(), "jsonl")
    with open_input(args.input_file):  # raises if the file cannot be opened
        pass
    partial_file = None
    if args.output_file != STDIN:
        partial_file = PartialFile(Path(args.output_file), make_manifest(source.identity(), manifest_options(args)))
    resume_point = BatchResumePoint()
    if partial_file is not None and partial_file.check_resumable(overwrite=args.overwrite) and source.can_resume:
        resume_point = BatchResumePoint.from_file(partial_file.path)
        print_note(f"continuing {partial_file.path} after {resume_point.num_lines:,} lines", quiet=args.quiet)

    from cenote.api.admission.controller import AdmissionController
    from cenote.api.app import build_app
    from cenote.api.app_state import AppState
    from cenote.api.batch_file import BatchFileRunner
    from cenote.engine.engine import PoolingEngine

    app_state = AppState(settings)
    app_state.admission = AdmissionController.unlimited()  # the lines in flight are bounded here
    total = source.count() if sys.stderr.isatty() and not args.quiet else None
    progress = RowProgress(total, resume_point.num_lines, quiet=args.quiet)

    def make_resume_note() -> str | None:
        if partial_file is None or not partial_file.path.exists():
            return None
        kept = f"lines kept: {resume_point.num_lines + progress.num_rows:,}"
        return how_to_continue(kept, partial_file, args.command_line, source.can_resume)

    with add_resume_note(make_resume_note):
        engine = PoolingEngine.load(config)
        try:
            app_state.set_engine(engine)
            runner = BatchFileRunner(build_app(app_state), app_state, has_openai_errors=args.openai_batch_errors)
            with progress, closing(BatchWriter(partial_file, resume_point)) as writer:
                progress.start()
                asyncio.run(run_lines(args, runner, resume_point.num_lines, writer, progress))
                writer.finish()
        finally:
            engine.stop()
    num_lines = resume_point.num_lines + progress.num_rows
    if partial_file is not None:
        print_note(f"{num_lines:,} lines in {partial_file.output} ({progress.speed})", quiet=args.quiet)
    if writer.num_failed:
        print_note(f"{writer.num_failed:,} of {num_lines:,} requests failed; see their error", quiet=args.quiet)
    return 1 if writer.num_invalid else 0


def manifest_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that the lines of the output depend on."""
    server_options = {name: value for name, value in vars(args).items() if name in SERVER_OPTIONS}
    error_format = {"openai_batch_errors": getattr(args, "openai_batch_errors", False) or None}
    return {"command": "run-batch", **error_format, **server_options, **engine_keywords(args)}


class BatchResumePoint:
    """How far an earlier run came: complete lines, their bytes, and how many failed or are not requests."""

    def __init__(self) -> None:
        self.num_lines = self.num_bytes = self.num_failed = self.num_invalid = 0

    @classmethod
    def from_file(cls, path: Path) -> BatchResumePoint:
        from cenote.api.batch_file import read_result_counts
        from cenote.files.writers import is_whole_line

        resume_point = cls()
        with open(path, "rb") as stream:
            for line in stream:
                if not is_whole_line(line):
                    break
                resume_point.num_lines += 1
                resume_point.num_bytes += len(line)
                if not line.endswith(b'"error":null}\n'):  # most lines are not parsed
                    is_error, is_invalid = read_result_counts(line)
                    resume_point.num_failed += is_error
                    resume_point.num_invalid += is_invalid
        return resume_point


class BatchWriter:
    """Write to standard output, or to FILE.part, which becomes FILE when it is complete; count failed lines."""

    def __init__(self, partial_file: PartialFile | None, resume_point: BatchResumePoint) -> None:
        self.partial_file = partial_file
        self.num_failed = resume_point.num_failed
        self.num_invalid = resume_point.num_invalid
        self.stream: IO[bytes] = sys.stdout.buffer
        if partial_file is not None:
            partial_file.open(fresh=not resume_point.num_bytes)
            self.stream = open(partial_file.path, "ab")  # noqa: SIM115
            os.truncate(partial_file.path, resume_point.num_bytes)

    def write(self, result: BatchResult) -> None:
        self.stream.write(result.line)
        self.num_failed += result.is_error
        self.num_invalid += result.is_invalid

    def flush(self) -> None:
        self.stream.flush()

    def finish(self) -> None:
        if self.partial_file is not None:
            self.stream.close()
            self.partial_file.finish(self.partial_file.path)

    def close(self) -> None:
        if self.partial_file is not None:
            self.stream.close()
            self.partial_file.close()


async def run_lines(
    args: argparse.Namespace, runner: BatchFileRunner, num_skipped: int, writer: BatchWriter, progress: RowProgress
) -> None:
    """Run many lines concurrently and write the responses in the order of the lines."""
    lines = LineReader(
        iter_numbered_lines(args.input_file, runner.max_line_bytes, num_skipped),
        is_interactive=args.input_file == STDIN,
    )
    in_flight: deque[tuple[asyncio.Task[BatchResult], int]] = deque()  # with the bytes of the request line
    reading: asyncio.Task[NumberedLine | None] | None = asyncio.create_task(lines.next())
    num_bytes = 0

    def write_first() -> None:
        nonlocal num_bytes
        task, size = in_flight[0]
        result = task.result()
        in_flight.popleft()
        writer.write(result)
        progress.advance(1, result.num_tokens)
        num_bytes -= size

    try:
        while in_flight or reading is not None:
            is_full = len(in_flight) >= args.max_in_flight or num_bytes >= MAX_BYTES_IN_FLIGHT
            first = [in_flight[0][0]] if in_flight else []
            await asyncio.wait(
                first if is_full or reading is None else [*first, reading], return_when=asyncio.FIRST_COMPLETED
            )
            while in_flight and in_flight[0][0].done():
                write_first()
            writer.flush()
            if reading is not None and reading.done() and not is_full:
                numbered_line = reading.result()
                reading = None if numbered_line is None else asyncio.create_task(lines.next())
                if numbered_line is not None:
                    number, line = numbered_line
                    in_flight.append((asyncio.create_task(runner.run_line(line, number)), len(line)))
                    num_bytes += len(line)
    finally:
        tasks = [task for task, _ in in_flight]
        if tasks:  # an early end: lines that are nearly done are kept as well
            await asyncio.wait(tasks, timeout=FINAL_FLUSH_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while in_flight and not (first_task := in_flight[0][0]).cancelled() and first_task.exception() is None:
            write_first()
        writer.flush()
        lines.close()


class LineReader:
    """Read lines ahead in a daemon thread, which is never joined: standard input may not end."""

    def __init__(self, lines: Iterator[NumberedLine], *, is_interactive: bool) -> None:
        self.lines = lines
        self.chunk_lines = 1 if is_interactive else CHUNK_LINES
        self.buffer: deque[NumberedLine] = deque()
        self.chunks: asyncio.Queue[list[NumberedLine] | Exception] = asyncio.Queue()
        self.capacity = threading.Semaphore(1)
        self.is_closed = False
        self.loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_chunks, name="cenote-lines", daemon=True).start()

    async def next(self) -> NumberedLine | None:
        """Return the next line, None at the end."""
        if not self.buffer:
            chunk = await self.chunks.get()
            self.capacity.release()
            if isinstance(chunk, Exception):
                raise chunk
            self.buffer.extend(chunk)
        return self.buffer.popleft() if self.buffer else None

    def close(self) -> None:
        self.is_closed = True
        self.capacity.release()

    def _read_chunks(self) -> None:
        chunk: list[NumberedLine] | Exception = [(0, b"")]
        while chunk and not isinstance(chunk, Exception):
            self.capacity.acquire()
            try:
                chunk = take_chunk(self.lines, self.chunk_lines)
            except Exception as error:
                chunk = error
            if self.is_closed:
                return
            with suppress(RuntimeError):  # the event loop was closed meanwhile
                self.loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)


def take_chunk(lines: Iterator[NumberedLine], size: int) -> list[NumberedLine]:
    """Return the next lines, up to `size` lines and about CHUNK_BYTES; an empty list at the end."""
    chunk: list[NumberedLine] = []
    num_bytes = 0
    for number, line in islice(lines, size):
        chunk.append((number, line))
        num_bytes += len(line)
        if num_bytes >= CHUNK_BYTES:
            break
    return chunk


def iter_numbered_lines(path: str, max_bytes: int, num_skipped: int) -> Iterator[NumberedLine]:
    """Yield every line that is not blank with its number; lines above `max_bytes` are cut just above the limit."""
    with open_input(path) as stream:
        number = 0
        while line := stream.readline(max_bytes + 1):
            number += 1
            rest = line
            while rest and not rest.endswith(b"\n") and len(line) > max_bytes:
                rest = stream.readline(1024**2)
            line = line.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
            if line and num_skipped:
                num_skipped -= 1
            elif line:
                yield number, line

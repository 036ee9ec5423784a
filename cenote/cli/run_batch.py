"""`cenote run-batch`: a file of requests in, a file of replies out, in the same order."""

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
from cenote.cli.parser import UsageError
from cenote.cli.terminal import RowProgress
from cenote.config.engine import EngineConfig
from cenote.config.server import ServerConfig
from cenote.files.columns import ColumnOptions
from cenote.files.partial_file import PartialFile
from cenote.files.sources import STDIN, FileSource, open_input
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
# lines that wait for a longer one before them keep their replies in memory, and replies are larger than requests
MAX_BYTES_IN_FLIGHT = 8 * 1024**2
# read at once from a file; from standard input it is one line, because the next may never come
CHUNK_LINES, CHUNK_BYTES = 64, 1024**2
# for lines that are being answered when Ctrl-C comes; a second Ctrl-C does not wait
FINAL_FLUSH_S = 2.0
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NumberedLine = tuple[int, bytes]


def run_batch_file(args: argparse.Namespace) -> int:
    """What is wrong with the files shows before the model is loaded."""
    settings = ServerConfig(**{name: getattr(args, name) for name in SERVER_OPTIONS if hasattr(args, name)})
    config = EngineConfig.from_kwargs(**{**engine_keywords(args), "served_model_name": settings.served_model_name})
    if args.input_file == STDIN and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no requests; give them with -i FILE, or through a pipe")
    source = FileSource(args.input_file, ColumnOptions(), "jsonl")
    with open_input(args.input_file):  # it is there
        pass
    part = PartialFile(Path(args.output_file), make_manifest(args, source)) if args.output_file != STDIN else None
    done = BatchResumePoint()
    if part is not None and part.check_resumable(overwrite=args.overwrite) and source.can_resume:
        done = BatchResumePoint.from_file(part.path)
        print_note(f"continuing {part.path} after {done.num_lines:,} lines", quiet=args.quiet)

    from cenote.api.app import build_app
    from cenote.api.app_state import AppState
    from cenote.api.batch_file import BatchFileRunner
    from cenote.engine.engine import PoolingEngine

    service = AppState(settings)
    total = source.count() if sys.stderr.isatty() and not args.quiet else None
    progress = RowProgress(total, done.num_lines, quiet=args.quiet)

    def kept() -> str | None:
        if part is None or not part.path.exists():
            return None
        text = f"lines kept: {done.num_lines + progress.num_rows:,}"
        return how_to_continue(text, part, args.command_line, source.can_resume)

    with add_resume_note(kept):
        engine = PoolingEngine.load(config)
        try:
            service.set_engine(engine)
            batch = BatchFileRunner(build_app(service), service)
            with progress, closing(BatchWriter(part, done)) as output:
                progress.start()
                num_failed = done.num_failed + asyncio.run(run_lines(args, batch, done.num_lines, output, progress))
                output.finish()
        finally:
            engine.stop()
    if part is not None:
        print_note(
            f"{done.num_lines + progress.num_rows:,} lines in {part.output} ({progress.speed})", quiet=args.quiet
        )
    if num_failed:
        num_lines = done.num_lines + progress.num_rows
        print_note(f"{num_failed:,} of {num_lines:,} requests were refused; their error says why", quiet=args.quiet)
    return 1 if num_failed else 0


class BatchResumePoint:
    """How far an earlier run came: whole lines, their bytes, and how many of them are refusals."""

    def __init__(self, num_lines: int = 0, num_bytes: int = 0, num_failed: int = 0) -> None:
        self.num_lines = num_lines
        self.num_bytes = num_bytes
        self.num_failed = num_failed

    @classmethod
    def from_file(cls, path: Path) -> BatchResumePoint:
        found = cls()
        with open(path, "rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    found.num_lines += 1
                    found.num_bytes += len(line)
                    found.num_failed += not line.endswith(b'"error":null}\n')
        return found


class BatchWriter:
    """Standard output, or FILE.part that becomes FILE when all lines are there."""

    def __init__(self, partial_file: PartialFile | None, resume_point: BatchResumePoint) -> None:
        self.partial_file = partial_file
        self.stream: IO[bytes] = sys.stdout.buffer
        if partial_file is not None:
            partial_file.open(fresh=not resume_point.num_bytes)
            self.stream = open(partial_file.path, "ab")  # noqa: SIM115
            os.truncate(partial_file.path, resume_point.num_bytes)

    def write(self, line: bytes) -> None:
        self.stream.write(line)

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
    args: argparse.Namespace, batch: BatchFileRunner, num_skipped: int, output: BatchWriter, progress: RowProgress
) -> int:
    """Many lines at once, their answers in the order of the lines; returns how many were refused."""
    lines = LineReader(
        iter_numbered_lines(args.input_file, batch.max_line_bytes, num_skipped), is_interactive=args.input_file == STDIN
    )
    waiting: deque[tuple[asyncio.Task[BatchResult], int]] = deque()
    coming: asyncio.Task[NumberedLine | None] | None = asyncio.create_task(lines.next())
    num_bytes = num_failed = 0

    def write_first() -> None:
        nonlocal num_bytes, num_failed
        task, size = waiting[0]
        answer = task.result()
        waiting.popleft()
        output.write(answer.line)
        progress.advance(1, answer.num_tokens)
        num_bytes -= size
        num_failed += answer.is_error

    try:
        while waiting or coming is not None:
            full = len(waiting) >= args.max_in_flight or num_bytes >= MAX_BYTES_IN_FLIGHT
            first = [waiting[0][0]] if waiting else []
            await asyncio.wait(
                first if full or coming is None else [*first, coming], return_when=asyncio.FIRST_COMPLETED
            )
            while waiting and waiting[0][0].done():
                write_first()
            output.flush()
            if coming is not None and coming.done() and not full:
                found = coming.result()
                coming = None if found is None else asyncio.create_task(lines.next())
                if found is not None:
                    number, line = found
                    waiting.append((asyncio.create_task(batch.run_line(line, number)), len(line)))
                    num_bytes += len(line)
    finally:
        tasks = [task for task, _ in waiting]
        if tasks:  # an early end: what is nearly done is kept as well
            await asyncio.wait(tasks, timeout=FINAL_FLUSH_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while waiting and not (first_task := waiting[0][0]).cancelled() and first_task.exception() is None:
            write_first()
        output.flush()
        lines.close()
    return num_failed


class LineReader:
    """Lines that a thread of its own reads ahead. Nobody waits for that thread: standard input may never end."""

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
        """None at the end."""
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
            with suppress(RuntimeError):  # the loop was closed this very moment
                self.loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)


def take_chunk(lines: Iterator[NumberedLine], size: int) -> list[NumberedLine]:
    """The next lines; none at the end."""
    found: list[NumberedLine] = []
    num_bytes = 0
    for number, line in islice(lines, size):
        found.append((number, line))
        num_bytes += len(line)
        if num_bytes >= CHUNK_BYTES:
            break
    return found


def iter_numbered_lines(path: str, max_bytes: int, num_skipped: int) -> Iterator[NumberedLine]:
    """Every line that is not blank, with its number; of one that is far too long, enough to see that."""
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


def make_manifest(args: argparse.Namespace, source: FileSource) -> dict[str, Any]:
    """What the lines of the output depend on; a token is nobody's business."""
    options = {name: value for name, value in vars(args).items() if name in SERVER_OPTIONS}
    options |= {name: value for name, value in engine_keywords(args).items() if name != "hf_token"}
    return {"command": "run-batch", "input": source.identity(), **options}

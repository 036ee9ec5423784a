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
from cenote.cli.interrupts import how_to_continue, saying_how_to_continue
from cenote.cli.parser import UsageError
from cenote.cli.terminal import Progress, note
from cenote.config.engine import EngineConfig, ServerConfig
from cenote.files.columns import Wanted
from cenote.files.partial_file import Part
from cenote.files.sources import STDIN, File, opened

if TYPE_CHECKING:
    from cenote.api.batch_file import Answer, Batch

SETTINGS = (
    "served_model_name",
    "max_request_items",
    "max_body_bytes",
    "trust_request_chat_template",
    "rerank_document_shape",
)
# lines that wait for a longer one before them keep their replies in memory, and replies are larger than requests
MAX_BYTES_IN_FLIGHT = 8 * 1024**2
# read at once from a file; from standard input it is one line, because the next may never come
LINES_AT_ONCE, BYTES_AT_ONCE = 64, 1024**2
# for lines that are being answered when Ctrl-C comes; a second Ctrl-C does not wait
LAST_LINES_S = 2.0
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Numbered = tuple[int, bytes]


def run(args: argparse.Namespace) -> int:
    """What is wrong with the files shows before the model is loaded."""
    settings = ServerConfig(**{name: getattr(args, name) for name in SETTINGS if hasattr(args, name)})
    config = EngineConfig.of(**{**engine_keywords(args), "served_model_name": settings.served_model_name})
    if args.input_file == STDIN and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no requests; give them with -i FILE, or through a pipe")
    source = File(args.input_file, Wanted(), "jsonl")
    with opened(args.input_file):  # it is there
        pass
    part = Part(Path(args.output_file), card(args, source)) if args.output_file != STDIN else None
    done = Done()
    if part is not None and part.check(overwrite=args.overwrite) and source.can_continue:
        done = Done.of(part.path)
        note(f"continuing {part.path} after {done.num_lines:,} lines", quiet=args.quiet)

    from cenote.api.app import build
    from cenote.api.app_state import Service
    from cenote.api.batch_file import Batch
    from cenote.engine.engine import PoolingEngine

    service = Service(settings)
    total = source.count() if sys.stderr.isatty() and not args.quiet else None
    progress = Progress(total, done.num_lines, quiet=args.quiet)

    def kept() -> str | None:
        if part is None or not part.path.exists():
            return None
        text = f"lines kept: {done.num_lines + progress.num_rows:,}"
        return how_to_continue(text, part, args.command_line, source.can_continue)

    with saying_how_to_continue(kept):
        engine = PoolingEngine.load(config)
        try:
            service.ready(engine)
            batch = Batch(build(service), service)
            with progress, closing(Output(part, done)) as output:
                progress.start()
                num_failed = done.num_failed + asyncio.run(answer_all(args, batch, done.num_lines, output, progress))
                output.finish()
        finally:
            engine.stop()
    if part is not None:
        note(f"{done.num_lines + progress.num_rows:,} lines in {part.output} ({progress.speed})", quiet=args.quiet)
    if num_failed:
        num_lines = done.num_lines + progress.num_rows
        note(f"{num_failed:,} of {num_lines:,} requests were refused; their error says why", quiet=args.quiet)
    return 1 if num_failed else 0


class Done:
    """How far an earlier run came: whole lines, their bytes, and how many of them are refusals."""

    def __init__(self, num_lines: int = 0, num_bytes: int = 0, num_failed: int = 0) -> None:
        self.num_lines = num_lines
        self.num_bytes = num_bytes
        self.num_failed = num_failed

    @classmethod
    def of(cls, path: Path) -> Done:
        found = cls()
        with open(path, "rb") as stream:
            for line in stream:
                if line.endswith(b"\n"):
                    found.num_lines += 1
                    found.num_bytes += len(line)
                    found.num_failed += not line.endswith(b'"error":null}\n')
        return found


class Output:
    """Standard output, or FILE.part that becomes FILE when all lines are there."""

    def __init__(self, part: Part | None, done: Done) -> None:
        self.part = part
        self.stream: IO[bytes] = sys.stdout.buffer
        if part is not None:
            part.open(fresh=not done.num_bytes)
            self.stream = open(part.path, "ab")  # noqa: SIM115
            os.truncate(part.path, done.num_bytes)

    def write(self, line: bytes) -> None:
        self.stream.write(line)

    def flush(self) -> None:
        self.stream.flush()

    def finish(self) -> None:
        if self.part is not None:
            self.stream.close()
            self.part.finish(self.part.path)

    def close(self) -> None:
        if self.part is not None:
            self.stream.close()
            self.part.close()


async def answer_all(args: argparse.Namespace, batch: Batch, skip: int, output: Output, progress: Progress) -> int:
    """Many lines at once, their answers in the order of the lines; returns how many were refused."""
    lines = Lines(numbered(args.input_file, batch.max_line_bytes, skip), one_by_one=args.input_file == STDIN)
    waiting: deque[tuple[asyncio.Task[Answer], int]] = deque()
    coming: asyncio.Task[Numbered | None] | None = asyncio.create_task(lines.next())
    num_bytes = num_failed = 0

    def write_first() -> None:
        nonlocal num_bytes, num_failed
        task, size = waiting[0]
        answer = task.result()
        waiting.popleft()
        output.write(answer.line)
        progress.count(1, answer.num_tokens)
        num_bytes -= size
        num_failed += answer.failed

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
                    waiting.append((asyncio.create_task(batch.answer(line, number)), len(line)))
                    num_bytes += len(line)
    finally:
        tasks = [task for task, _ in waiting]
        if tasks:  # an early end: what is nearly done is kept as well
            await asyncio.wait(tasks, timeout=LAST_LINES_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while waiting and not (first_task := waiting[0][0]).cancelled() and first_task.exception() is None:
            write_first()
        output.flush()
        lines.end()
    return num_failed


class Lines:
    """Lines that a thread of its own reads ahead. Nobody waits for that thread: standard input may never end."""

    def __init__(self, lines: Iterator[Numbered], *, one_by_one: bool) -> None:
        self.lines = lines
        self.size = 1 if one_by_one else LINES_AT_ONCE
        self.read: deque[Numbered] = deque()
        self.chunks: asyncio.Queue[list[Numbered] | Exception] = asyncio.Queue()
        self.room = threading.Semaphore(1)
        self.ended = False
        self.loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="cenote-lines", daemon=True).start()

    async def next(self) -> Numbered | None:
        """None at the end."""
        if not self.read:
            chunk = await self.chunks.get()
            self.room.release()
            if isinstance(chunk, Exception):
                raise chunk
            self.read.extend(chunk)
        return self.read.popleft() if self.read else None

    def end(self) -> None:
        self.ended = True
        self.room.release()

    def _read(self) -> None:
        chunk: list[Numbered] | Exception = [(0, b"")]
        while chunk and not isinstance(chunk, Exception):
            self.room.acquire()
            try:
                chunk = some(self.lines, self.size)
            except Exception as error:
                chunk = error
            if self.ended:
                return
            with suppress(RuntimeError):  # the loop was closed this very moment
                self.loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)


def some(lines: Iterator[Numbered], size: int) -> list[Numbered]:
    """The next lines; none at the end."""
    found: list[Numbered] = []
    num_bytes = 0
    for number, line in islice(lines, size):
        found.append((number, line))
        num_bytes += len(line)
        if num_bytes >= BYTES_AT_ONCE:
            break
    return found


def numbered(path: str, max_bytes: int, skip: int) -> Iterator[Numbered]:
    """Every line that is not blank, with its number; of one that is far too long, enough to see that."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(max_bytes + 1):
            number += 1
            rest = line
            while rest and not rest.endswith(b"\n") and len(line) > max_bytes:
                rest = stream.readline(1024**2)
            line = line.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else line.strip()
            if line and skip:
                skip -= 1
            elif line:
                yield number, line


def card(args: argparse.Namespace, source: File) -> dict[str, Any]:
    """What the lines of the output depend on; a token is nobody's business."""
    options = {name: value for name, value in vars(args).items() if name in SETTINGS}
    options |= {name: value for name, value in engine_keywords(args).items() if name != "hf_token"}
    return {"command": "run-batch", "input": source.identity(), **options}

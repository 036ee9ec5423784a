"""`cenote embed`, `classify`, `encode` and `score`: rows in, answers out, about a second of work at a time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

from cenote.cli.engine_requests import Ask, ask, layout_of, load, source_of, texts_of, wanted_of
from cenote.cli.interrupts import Interrupts, how_to_continue, saying_how_to_continue
from cenote.cli.parser import UsageError
from cenote.cli.terminal import Progress, Screen, note
from cenote.files.partial_file import Part
from cenote.files.result_slice import Answers, Layout, gather
from cenote.files.sources import STDIN, Row, Slices, Source
from cenote.files.writers import Done, JsonLines, Matrix, Output, Stream

SLICE_ROWS = 4096
SLICE_ROWS_OF_TOKENS = 256  # every token's vector stays in memory until its slice is written
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".parquet": "parquet"}
NOT_ON_THE_CARD = {"texts", "input", "output", "overwrite", "quiet", "hf_token", "batch_rows", "command_line"}


def run(args: argparse.Namespace) -> int:
    """What is wrong with the input or the output shows before the model is loaded."""
    layout = layout_of(args)
    source = source_of(texts_of(args), args.input, wanted_of(args), args.input_format)
    args.batch_rows = args.batch_rows or (SLICE_ROWS_OF_TOKENS if layout.kind == "tokens" else SLICE_ROWS)
    args.format = _format(args)
    part = Part(Path(args.output), _card(args, source)) if args.output else None
    output = _output(args, layout, part)
    done = Done()
    if part is not None and part.check(overwrite=args.overwrite) and source.can_continue:
        done = output.resume()
    with closing(source.rows()) as rows:  # an interrupted run must not leave the file open
        return _answer(args, source, rows, layout, part, output, done)


def _answer(
    args: argparse.Namespace,
    source: Source,
    found: Iterator[Row],
    layout: Layout,
    part: Part | None,
    output: Output,
    done: Done,
) -> int:
    rows = _at_least_one(found, from_stdin=not args.texts and args.input in (None, STDIN))
    quiet = args.quiet or bool(args.texts)
    total = None if quiet else source.count()
    if part is not None and done.rows:
        place = f"row {done.rows:,}" + (f" of {total:,}" if total is not None else "")
        note(f"continuing {part.path} at {place}", quiet=quiet)
    written = Written(part, done.rows)
    with (
        Progress(total, done.rows, quiet=quiet or isinstance(output, Screen)) as progress,
        saying_how_to_continue(lambda: written.note(total, args.command_line, can_continue=source.can_continue)),
        closing(output),
        closing(load(args)) as llm,
        Interrupts().handled() as interrupts,
    ):
        parts = Slices(islice(rows, done.rows, None), args.batch_rows)
        answered = _answered(parts, ask(args, llm), llm, layout, progress, interrupts)
        num_failed = done.failed + _write_all(answered, output, written)
    num_rows = done.rows + progress.num_rows
    if part is not None:
        note(f"{num_rows:,} rows in {part.output} ({progress.speed})", quiet=quiet)
    if num_failed:
        reasons = f"see {part.output}.errors.jsonl" if part and args.format == "npy" else "their error says why"
        note(f"{num_failed:,} of {num_rows:,} rows failed; {reasons}")
    return 1 if num_failed else 0


class Written:
    """How many rows the file has by now, for the message of a run that ends early."""

    def __init__(self, part: Part | None, num_rows: int) -> None:
        self.part = part
        self.num_rows = num_rows

    def note(self, total: int | None, command_line: str, *, can_continue: bool) -> str | None:
        if self.part is None or not self.part.path.exists():
            return None
        of_all = f" of {total:,}" if total is not None else ""
        return how_to_continue(f"rows kept: {self.num_rows:,}{of_all}", self.part, command_line, can_continue)


def _answered(
    parts: Iterable[list[Row]], send: Ask, llm: Any, layout: Layout, progress: Progress, interrupts: Interrupts
) -> Iterator[Answers]:
    names = llm.labels if layout.has_labels else None
    progress.start()
    for some in parts:
        good = [row for row in some if row.error is None]
        with interrupts.computing():
            answers = gather(some, send(good, progress.watch) if good else [], layout, names)
        progress.add(answers)
        yield answers
        interrupts.check()


def _write_all(answered: Iterable[Answers], output: Output, written: Written) -> int:
    """Writes a slice while the engine works on the next; returns how many rows failed."""

    def write(answers: Answers) -> None:
        output.write(answers)
        written.num_rows += len(answers.rows)

    num_failed = 0
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1) as background:
        for answers in answered:
            if writing is None:
                output.open()  # only now: a command that fails at once leaves nothing behind
            else:
                writing.result()
            writing = background.submit(write, answers)
            num_failed += answers.num_failed
        if writing is None:
            output.open()
        else:
            writing.result()
    output.finish()
    return num_failed


def _at_least_one(rows: Iterator[Row], *, from_stdin: bool) -> Iterator[Row]:
    first = next(rows, None)
    if first is None and from_stdin:
        raise UsageError("no texts on standard input; give some as arguments, with --input FILE, or through a pipe")
    return chain([] if first is None else [first], rows)


def _format(args: argparse.Namespace) -> str | None:
    if args.output == STDIN:
        args.output = None
    if args.output is None and args.format in ("npy", "parquet"):
        raise UsageError(f"--format {args.format} needs --output FILE")
    found: str | None = args.format
    if found is None and args.output is not None:
        found = SUFFIXES.get(Path(args.output).suffix.lower())
        if found is None:
            raise UsageError(f"cannot tell the format of {args.output}; give --format jsonl, npy or parquet")
    return found


def _output(args: argparse.Namespace, layout: Layout, part: Part | None) -> Output:
    if part is None:
        readable = args.format is None and sys.stdout.isatty()
        return (Screen if readable else Stream)(sys.stdout.buffer, layout)
    if args.format == "parquet":
        from cenote.files.parquet_writer import Pieces

        return Pieces(part, layout)
    if args.format == "npy" and layout.kind == "sparse":
        raise UsageError("texts differ in words, a matrix has one width; write sparse vectors as jsonl or parquet")
    if args.format == "npy" and layout.kind == "tokens":
        raise UsageError("texts differ in tokens, a matrix has one width; write token vectors as jsonl or parquet")
    return Matrix(part, layout) if args.format == "npy" else JsonLines(part, layout)


def _card(args: argparse.Namespace, source: Source) -> dict[str, object]:
    """What the rows of the output depend on; a token is nobody's business."""
    options = {name: value for name, value in vars(args).items() if name not in NOT_ON_THE_CARD and value is not None}
    model = options.get("model")
    if isinstance(model, str) and Path(model).exists():
        options["model"] = str(Path(model).resolve())
    return {"input": source.identity(), **options}

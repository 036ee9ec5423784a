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

from cenote.cli.engine_requests import (
    RowSender,
    argument_rows,
    load_llm,
    make_column_options,
    make_schema,
    make_sender,
    make_source,
)
from cenote.cli.interrupts import InterruptHandler, add_resume_note, how_to_continue
from cenote.cli.parser import UsageError
from cenote.cli.terminal import RowProgress, TerminalWriter
from cenote.files.partial_file import PartialFile
from cenote.files.result_slice import ResultSchema, ResultSlice, collect_results
from cenote.files.sources import STDIN, AdaptiveSlices, InputRow, RowSource
from cenote.files.writers import JsonLinesWriter, NpyWriter, ResumePoint, StreamWriter, Writer
from cenote.utils.progress import print_note

SLICE_ROWS = 4096
TOKEN_SLICE_ROWS = 256  # every token's vector stays in memory until its slice is written
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".parquet": "parquet"}
NOT_IN_MANIFEST = {"texts", "input", "output", "overwrite", "quiet", "hf_token", "batch_rows", "command_line"}


def run_task(args: argparse.Namespace) -> int:
    """What is wrong with the input or the output shows before the model is loaded."""
    layout = make_schema(args)
    source = make_source(argument_rows(args), args.input, make_column_options(args), args.input_format)
    args.batch_rows = args.batch_rows or (TOKEN_SLICE_ROWS if layout.kind == "tokens" else SLICE_ROWS)
    args.format = _resolve_format(args)
    part = PartialFile(Path(args.output), _make_manifest(args, source)) if args.output else None
    output = _make_writer(args, layout, part)
    done = ResumePoint()
    if part is not None and part.check_resumable(overwrite=args.overwrite) and source.can_resume:
        done = output.resume()
    with closing(source.rows()) as rows:  # an interrupted run must not leave the file open
        return _run_rows(args, source, rows, layout, part, output, done)


def _run_rows(
    args: argparse.Namespace,
    source: RowSource,
    input_rows: Iterator[InputRow],
    layout: ResultSchema,
    part: PartialFile | None,
    output: Writer,
    done: ResumePoint,
) -> int:
    rows = _require_rows(input_rows, from_stdin=not args.texts and args.input in (None, STDIN))
    quiet = args.quiet or bool(args.texts)
    total = None if quiet else source.count()
    if part is not None and done.num_rows:
        place = f"row {done.num_rows:,}" + (f" of {total:,}" if total is not None else "")
        print_note(f"continuing {part.path} at {place}", quiet=quiet)
    written = WrittenRows(part, done.num_rows)
    with (
        RowProgress(total, done.num_rows, quiet=quiet or isinstance(output, TerminalWriter)) as progress,
        add_resume_note(lambda: written.resume_note(total, args.command_line, can_continue=source.can_resume)),
        closing(output),
        closing(load_llm(args)) as llm,
        InterruptHandler().install() as interrupts,
    ):
        parts = AdaptiveSlices(islice(rows, done.num_rows, None), args.batch_rows)
        answered = _iter_results(parts, make_sender(args, llm), llm, layout, progress, interrupts)
        num_failed = done.num_failed + _write_all(answered, output, written)
    num_rows = done.num_rows + progress.num_rows
    if part is not None:
        print_note(f"{num_rows:,} rows in {part.output} ({progress.speed})", quiet=quiet)
    if num_failed:
        reasons = f"see {part.output}.errors.jsonl" if part and args.format == "npy" else "their error says why"
        print_note(f"{num_failed:,} of {num_rows:,} rows failed; {reasons}")
    return 1 if num_failed else 0


class WrittenRows:
    """How many rows the file has by now, for the message of a run that ends early."""

    def __init__(self, part: PartialFile | None, num_rows: int) -> None:
        self.part = part
        self.num_rows = num_rows

    def resume_note(self, total: int | None, command_line: str, *, can_continue: bool) -> str | None:
        if self.part is None or not self.part.path.exists():
            return None
        of_all = f" of {total:,}" if total is not None else ""
        return how_to_continue(f"rows kept: {self.num_rows:,}{of_all}", self.part, command_line, can_continue)


def _iter_results(
    slices: Iterable[list[InputRow]],
    send: RowSender,
    llm: Any,
    layout: ResultSchema,
    progress: RowProgress,
    interrupts: InterruptHandler,
) -> Iterator[ResultSlice]:
    names = llm.labels if layout.has_labels else None
    progress.start()
    for some in slices:
        good = [row for row in some if row.error is None]
        with interrupts.delay_interrupts():
            answers = collect_results(some, send(good, progress.on_progress) if good else [], layout, names)
        progress.add_slice(answers)
        yield answers
        interrupts.raise_pending()


def _write_all(results: Iterable[ResultSlice], output: Writer, written: WrittenRows) -> int:
    """Writes a slice while the engine works on the next; returns how many rows failed."""

    def write(answers: ResultSlice) -> None:
        output.write(answers)
        written.num_rows += len(answers.rows)

    num_failed = 0
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1) as background:
        for answers in results:
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


def _require_rows(rows: Iterator[InputRow], *, from_stdin: bool) -> Iterator[InputRow]:
    first = next(rows, None)
    if first is None and from_stdin:
        raise UsageError("no texts on standard input; give some as arguments, with --input FILE, or through a pipe")
    return chain([] if first is None else [first], rows)


def _resolve_format(args: argparse.Namespace) -> str | None:
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


def _make_writer(args: argparse.Namespace, schema: ResultSchema, partial_file: PartialFile | None) -> Writer:
    if partial_file is None:
        readable = args.format is None and sys.stdout.isatty()
        return (TerminalWriter if readable else StreamWriter)(sys.stdout.buffer, schema)
    if args.format == "parquet":
        from cenote.files.parquet_writer import ParquetWriter

        return ParquetWriter(partial_file, schema)
    if args.format == "npy" and schema.kind == "sparse":
        raise UsageError("texts differ in words, a matrix has one width; write sparse vectors as jsonl or parquet")
    if args.format == "npy" and schema.kind == "tokens":
        raise UsageError("texts differ in tokens, a matrix has one width; write token vectors as jsonl or parquet")
    return NpyWriter(partial_file, schema) if args.format == "npy" else JsonLinesWriter(partial_file, schema)


def _make_manifest(args: argparse.Namespace, source: RowSource) -> dict[str, object]:
    """What the rows of the output depend on; a token is nobody's business."""
    options = {name: value for name, value in vars(args).items() if name not in NOT_IN_MANIFEST and value is not None}
    model = options.get("model")
    if isinstance(model, str) and Path(model).exists():
        options["model"] = str(Path(model).resolve())
    return {"input": source.identity(), **options}

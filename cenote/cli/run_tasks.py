"""The commands on texts and files of texts: compute rows in slices of about a second and write the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from pathlib import Path

from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import InterruptHandler, add_resume_note, how_to_continue
from cenote.cli.row_engines import (
    RowEngine,
    argument_rows,
    make_column_options,
    make_schema,
    make_source,
    open_engine,
    ray_config,
    resolve_task,
    task_options,
)
from cenote.cli.terminal import RowProgress, TerminalWriter
from cenote.config.options import option_fields
from cenote.config.ray import RayConfig
from cenote.files.partial_file import PartialFile, make_manifest
from cenote.files.result_slice import ResultSchema, ResultSlice
from cenote.files.sources import STDIN, InputRow, RowSource
from cenote.files.writers import JsonLinesWriter, NpyWriter, ResumePoint, StreamWriter, Writer
from cenote.utils.argparse_utils import UsageError
from cenote.utils.progress import print_note

SLICE_ROWS = 4096
TOKEN_SLICE_ROWS = 256  # all token embeddings of a slice are in memory until it is written
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".npy": "npy", ".parquet": "parquet"}
# arguments that do not change the rows of the output
NOT_IN_MANIFEST = {
    *("texts", "input", "output", "overwrite", "quiet", "batch_rows", "command_line"),
    *(option.name for option in option_fields(RayConfig)),
}


def run_task(args: argparse.Namespace) -> int:
    """Run the command; errors of the input or output are reported before the model is loaded."""
    schema = make_schema(args)
    if is_folder(args.output):
        return run_folder(args)
    source = make_source(argument_rows(args), args.input, make_column_options(args), args.input_format)
    args.batch_rows = args.batch_rows or (TOKEN_SLICE_ROWS if schema.kind == "tokens" else SLICE_ROWS)
    args.format = _resolve_format(args)
    partial_file = None
    if args.output:
        options = {name: value for name, value in vars(args).items() if name not in NOT_IN_MANIFEST}
        partial_file = PartialFile(Path(args.output), make_manifest(source.identity(), options))
    writer = _make_writer(args, schema, partial_file)
    resume_point = ResumePoint()
    if partial_file is not None and partial_file.check_resumable(overwrite=args.overwrite) and source.can_resume:
        resume_point = writer.resume()
    with closing(source.rows()) as rows:  # an interrupted run must not leave the file open
        return _run_rows(args, source, rows, schema, partial_file, writer, resume_point)


def _run_rows(
    args: argparse.Namespace,
    source: RowSource,
    input_rows: Iterator[InputRow],
    schema: ResultSchema,
    partial_file: PartialFile | None,
    writer: Writer,
    resume_point: ResumePoint,
) -> int:
    rows = _require_rows(input_rows, from_stdin=not args.texts and args.input in (None, STDIN))
    quiet = args.quiet or bool(args.texts)
    total = None if quiet else source.count()
    if partial_file is not None and resume_point.num_rows:
        position = f"row {resume_point.num_rows:,}" + (f" of {total:,}" if total is not None else "")
        print_note(f"continuing {partial_file.path} at {position}", quiet=quiet)
    written = WrittenRows(partial_file, resume_point.num_rows)
    with (
        RowProgress(total, resume_point.num_rows, quiet=quiet or isinstance(writer, TerminalWriter)) as progress,
        add_resume_note(lambda: written.resume_note(total, args.command_line, can_continue=source.can_resume)),
        closing(writer),
        closing(open_engine(args, schema)) as engine,
        InterruptHandler().install() as interrupts,
    ):
        results = _iter_results(
            engine, islice(rows, resume_point.num_rows, None), args.batch_rows, progress, interrupts
        )
        num_failed = resume_point.num_failed + _write_all(results, writer, written)
    num_rows = resume_point.num_rows + progress.num_rows
    if partial_file is not None:
        print_note(f"{num_rows:,} rows in {partial_file.output} ({progress.speed})", quiet=quiet)
    if num_failed:
        is_npy = partial_file is not None and args.format == "npy"
        reasons = f"{args.output}.errors.jsonl" if is_npy else "their error"
        print_note(f"{num_failed:,} of {num_rows:,} rows failed; see {reasons}")
    return 1 if num_failed else 0


def run_folder(args: argparse.Namespace) -> int:
    """Write a folder of parts: `cenote embed --engine ray --output FOLDER/` and the like."""
    config = ray_config(args)
    if not config.is_ray:
        raise UsageError(f"--output {args.output} is a folder, which needs --engine ray; or name a file")
    if args.command == "entities":
        raise UsageError("entities are written to one file; use --output FILE.jsonl or FILE.parquet")
    if not args.input or args.texts:
        raise UsageError("an output folder needs --input with files or a folder")

    from cenote.ray.files import PartSummary, run_files

    columns = make_column_options(args)
    num_done = 0
    with RowProgress(None, 0, quiet=args.quiet) as progress:

        def on_plan(num_parts: int, num_waiting: int) -> None:
            if num_waiting < num_parts:
                kept = f"{num_parts - num_waiting} of {num_parts} parts are done"
                print_note(f"continuing {args.output}: {kept}", quiet=args.quiet)
            progress.start()

        def on_part(summary: PartSummary) -> None:
            nonlocal num_done
            num_done += 1
            progress.advance(summary.num_rows, summary.num_tokens)

        note = "the parts that are done are kept; run the same command to continue"
        with add_resume_note(lambda: f"{note}: {args.command_line}" if num_done else None):
            summary = run_files(
                args.input,
                args.output,
                resolve_task(args),
                columns=columns.texts,
                id_column=columns.id,
                input_format=args.input_format,
                format=args.format or "parquet",
                overwrite=args.overwrite,
                part_rows=args.batch_rows,
                ray_config=config,
                on_part=on_part,
                on_plan=on_plan,
                **engine_keywords(args),
                **task_options(args),
            )
    print_note(f"{summary.num_rows:,} rows in {args.output} ({progress.speed})", quiet=args.quiet)
    if summary.num_failed:
        print_note(f"{summary.num_failed:,} of {summary.num_rows:,} rows failed; see their error")
    return 1 if summary.num_failed else 0


class WrittenRows:
    """Count the rows written so far, for the message of a run that ends early."""

    def __init__(self, partial_file: PartialFile | None, num_rows: int) -> None:
        self.partial_file = partial_file
        self.num_rows = num_rows

    def resume_note(self, total: int | None, command_line: str, *, can_continue: bool) -> str | None:
        if self.partial_file is None or not self.partial_file.path.exists():
            return None
        of_total = f" of {total:,}" if total is not None else ""
        return how_to_continue(f"rows kept: {self.num_rows:,}{of_total}", self.partial_file, command_line, can_continue)


def _iter_results(
    engine: RowEngine,
    rows: Iterator[InputRow],
    batch_rows: int,
    progress: RowProgress,
    interrupts: InterruptHandler,
) -> Iterator[ResultSlice]:
    progress.start()
    for results in engine.run(rows, batch_rows, progress, interrupts):
        progress.add_slice(results)
        yield results
        interrupts.raise_pending()


def _write_all(slices: Iterable[ResultSlice], writer: Writer, written: WrittenRows) -> int:
    """Write each slice while the engine computes the next; return how many rows failed."""

    def write(results: ResultSlice) -> None:
        writer.write(results)
        written.num_rows += len(results.rows)

    num_failed = 0
    writing: Future[None] | None = None
    with ThreadPoolExecutor(1) as background:
        for results in slices:
            if writing is None:
                writer.open()  # only now: a command that fails at once leaves no files behind
            else:
                writing.result()
            writing = background.submit(write, results)
            num_failed += results.num_failed
        if writing is None:
            writer.open()
        else:
            writing.result()
    writer.finish()
    return num_failed


def is_folder(output: str | None) -> bool:
    return output is not None and output != STDIN and (output.endswith(("/", os.sep)) or Path(output).is_dir())


def _require_rows(rows: Iterator[InputRow], *, from_stdin: bool) -> Iterator[InputRow]:
    first = next(rows, None)
    if first is None and from_stdin:
        raise UsageError("no texts on standard input; pass them as arguments, with --input FILE, or through a pipe")
    return chain([] if first is None else [first], rows)


def _resolve_format(args: argparse.Namespace) -> str | None:
    if args.output == STDIN:
        args.output = None
    if args.format == "lance":
        raise UsageError("--format lance writes a folder; use --engine ray and --output FOLDER/")
    if args.output is None and args.format in ("npy", "parquet"):
        raise UsageError(f"--format {args.format} needs --output FILE")
    format: str | None = args.format
    if format is None and args.output is not None:
        format = SUFFIXES.get(Path(args.output).suffix.lower())
        if format is None:
            raise UsageError(f"unknown format of {args.output}; use --format jsonl, npy or parquet")
    return format


def _make_writer(args: argparse.Namespace, schema: ResultSchema, partial_file: PartialFile | None) -> Writer:
    if partial_file is None:
        is_terminal = args.format is None and sys.stdout.isatty()
        return (TerminalWriter if is_terminal else StreamWriter)(sys.stdout.buffer, schema)
    if args.format == "parquet":
        from cenote.files.parquet_writer import ParquetWriter

        return ParquetWriter(partial_file, schema)
    if args.format == "npy" and schema.kind == "sparse":
        raise UsageError(
            "sparse embeddings vary in length and do not fit one .npy matrix; use --format jsonl or parquet"
        )
    if args.format == "npy" and schema.kind == "entities":
        raise UsageError("entities do not fit a .npy matrix; use --format jsonl or parquet")
    if args.format == "npy" and schema.kind == "tokens":
        what = "token embeddings vary in length" if schema.chunk_size is None else "the chunks of texts vary in number"
        raise UsageError(f"{what} and do not fit one .npy matrix; use --format jsonl or parquet")
    return NpyWriter(partial_file, schema) if args.format == "npy" else JsonLinesWriter(partial_file, schema)

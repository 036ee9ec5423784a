"""`cenote embed --engine ray --output FOLDER/` and the like: files in, a folder of parts out."""

from __future__ import annotations

import argparse

from cenote.cli.engine_requests import make_column_options, resolve_task, task_options
from cenote.cli.flags import engine_keywords
from cenote.cli.interrupts import add_resume_note
from cenote.cli.row_engines import ray_config
from cenote.cli.terminal import RowProgress
from cenote.utils.argparse_utils import UsageError
from cenote.utils.progress import print_note


def run_folder(args: argparse.Namespace) -> int:
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

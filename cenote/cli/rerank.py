"""`cenote rerank`: sort documents by relevance to a query, the best first."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from cenote.cli.interrupts import add_resume_note
from cenote.cli.row_engines import load_llm, make_source, task_options
from cenote.cli.terminal import shorten
from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions
from cenote.files.result_slice import collect_results
from cenote.files.sources import STDIN, ArgumentSource, InputRow
from cenote.files.writers import encode_json, encode_numbers
from cenote.ray.row_task import SCHEMAS, RowTask
from cenote.utils.argparse_utils import UsageError
from cenote.utils.durable_files import replace_durably
from cenote.utils.progress import print_note


def run_rerank(args: argparse.Namespace) -> int:
    """Score all documents, then print them sorted; all of them are held in memory."""
    if not args.texts:
        raise UsageError("no query; pass the query first, then the documents; see cenote rerank --help")
    query, *documents = args.texts
    if error := next(ArgumentSource([(query,)]).rows()).error:
        raise BadRequest(f"invalid query: {error}")
    source = make_source(
        [(text,) for text in documents],
        args.input,
        ColumnOptions((args.column,) if args.column else None),
        args.input_format,
    )
    output = None if args.output in (None, STDIN) else Path(args.output)
    if output is not None and output.exists() and not args.overwrite:
        raise BadRequest(f"{output} exists; --overwrite replaces it")
    rows = list(source.rows())
    if not rows:
        raise UsageError("no documents; pass them after the query, with --input FILE, or through a pipe")

    with add_resume_note(lambda: f"nothing was written to {output}" if output is not None else None):
        scores = _score_documents(args, query, rows)
    ranked = sorted(scores, key=lambda position: -scores[position])[: args.top_n]
    failed = [row for row in rows if row.error is not None]
    if args.format == "table" or (args.format is None and output is None and sys.stdout.isatty()):
        text = _format_table(ranked, scores, rows)
    else:
        text = _format_json_lines(ranked, scores, rows)
        text += b"".join(b'{"index":%d,"error":%s}\n' % (row.index, encode_json(row.error)) for row in failed)
    _write_output(text, output)
    if failed:
        print_note(f"{len(failed):,} of {len(rows):,} documents failed; see their error")
    return 1 if failed else 0


def _score_documents(args: argparse.Namespace, query: str, rows: list[InputRow]) -> dict[int, float]:
    """Return scores by position in `rows`; set `error` of the rows that fail."""
    positions = [position for position, row in enumerate(rows) if row.error is None]
    if not positions:
        return {}
    with closing(load_llm(args)) as llm:
        documents = [rows[position].texts[0] for position in positions]
        results = RowTask("score", task_options(args)).score_pairs(llm, [query], documents)
    scored = collect_results(rows, results, SCHEMAS["score"], None)
    return dict(zip(scored.ok_positions, scored.values[:, 0].tolist(), strict=True))


def _format_json_lines(ranked: list[int], scores: dict[int, float], rows: list[InputRow]) -> bytes:
    line = b'{"index":%d,"relevance_score":%s,"document":%s}\n'
    return b"".join(
        line % (rows[i].index, encode_numbers(np.float32(scores[i])), encode_json(rows[i].texts[0])) for i in ranked
    )


def _format_table(ranked: list[int], scores: dict[int, float], rows: list[InputRow]) -> bytes:
    width = max(20, shutil.get_terminal_size().columns - 24)
    lines = [f"{'rank':>4}  {'index':>5}  {'score':>8}  document"]
    for rank, position in enumerate(ranked, start=1):
        row, score = rows[position], scores[position]
        lines.append(f"{rank:>4}  {row.index:>5}  {score:>8.4f}  {shorten(row.texts[0], width)}")
    lines += [f"{'-':>4}  {row.index:>5}  {'failed':>8}  {row.error}" for row in rows if row.error is not None]
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _write_output(text: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    temporary = output.with_name(output.name + ".tmp")
    temporary.write_bytes(text)
    replace_durably(temporary, output)

"""Subcommands that run a task on texts and files: embed, classify, entities, encode, score, rerank."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from cenote.cli.flags import add_engine_flags
from cenote.cli.interrupts import format_command_line
from cenote.cli.parser import CommandParser
from cenote.config.flags import add_flags
from cenote.config.ray import RayConfig
from cenote.protocol.late_chunking import DEFAULT_CHUNK_SIZE
from cenote.protocol.params import TASKS, AggregationStrategy, ScoreType
from cenote.utils.arguments import parse_positive_int

FORMATS = ("jsonl", "npy", "parquet", "lance")
INPUT_FORMATS = ("txt", "jsonl", "json", "csv", "tsv", "parquet")


def embed(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "embed",
        "[TEXT ...]",
        "Compute one embedding per text.",
        [
            'cenote embed "hello world"',
            "cenote embed --input texts.jsonl --column body --id-column id --output vectors.parquet",
            "cenote embed --input texts.csv --output vectors.npy --truncate-prompt-tokens -1",
            "cenote embed --input texts.jsonl --column body --late-chunking --chunk-size 800 --output chunks.jsonl",
            "cat lines.txt | cenote embed > vectors.jsonl",
        ],
    )
    _add_texts(parser, "texts to embed; if none are given, one text per line is read from standard input")
    _add_files(parser)
    results = _add_pooling(parser, prompts=True)
    results.add_argument(
        "--dimensions", type=parse_positive_int, metavar="N", help="truncate embeddings to the first N dimensions"
    )
    results.add_argument(
        "--normalize",
        "--use-activation",
        dest="use_activation",
        action=argparse.BooleanOptionalAction,
        help="normalize embeddings to length 1",
    )
    results.add_argument(
        "--late-chunking",
        action="store_true",
        help="split every text into chunks, computed as one sequence: one embedding per chunk, in the context of the "
        "whole text; the output has the start and end of each chunk",
    )
    results.add_argument(
        "--chunk-size",
        type=parse_positive_int,
        metavar="N",
        help=f"characters per chunk of --late-chunking, at most (default: {DEFAULT_CHUNK_SIZE})",
    )
    return _run(parser, argv)


def classify(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "classify",
        "[TEXT ...]",
        "Classify every text: the most likely label and the probability of each label.",
        [
            'cenote classify --model FOLDER "what a fine day"',
            "cenote classify --model FOLDER --input reviews.csv --column review --output labels.jsonl",
        ],
    )
    _add_texts(parser, "texts to classify; if none are given, one text per line is read from standard input")
    _add_files(parser)
    _add_activation(_add_pooling(parser, prompts=True))
    return _run(parser, argv)


def entities(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "entities",
        "[TEXT ...]",
        "Find the named entities of every text: label, score, start, end and text of each.",
        [
            'cenote entities --model FOLDER "Angela Merkel lives in Berlin."',
            "cenote entities --model FOLDER --input texts.jsonl --column body --output entities.parquet",
            "cenote entities --model FOLDER --input texts.csv --output entities.jsonl --stride 32",
        ],
    )
    _add_texts(parser, "texts to search; if none are given, one text per line is read from standard input")
    _add_files(parser)
    results = _add_pooling(parser, prompts=False)
    results.add_argument(
        "--aggregation-strategy",
        choices=get_args(AggregationStrategy),
        default="simple",
        help="how tokens are merged into entities, as in Transformers (default: simple)",
    )
    results.add_argument(
        "--stride",
        type=int,
        metavar="N",
        help="process long texts in windows that overlap by N tokens; if unset, they are truncated",
    )
    results.add_argument(
        "--label",
        dest="labels",
        action="append",
        metavar="NAME",
        help="label to look for, of models without labels of their own (GLiNER); may be repeated",
    )
    results.add_argument("--threshold", type=float, metavar="N", help="smallest score, likewise (default: 0.5)")
    results.add_argument(
        "--ignore-label",
        dest="ignore_labels",
        action="append",
        metavar="NAME",
        help="label to leave out; may be repeated (default: O)",
    )
    return _run(parser, argv)


def encode(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "encode",
        "[TEXT ...]",
        "Compute one embedding per token, or run any other pooling task of the model.",
        [
            'cenote encode --model FOLDER "hello world"',
            "cenote encode --model FOLDER --task token_classify --input texts.jsonl --output labels.parquet",
            "cenote encode --model FOLDER --task sparse_embed --input texts.jsonl --output weights.jsonl",
        ],
    )
    _add_texts(parser, "texts to encode; if none are given, one text per line is read from standard input")
    _add_files(parser)
    results = _add_pooling(parser, prompts=True)
    results.add_argument("--task", choices=TASKS, default="token_embed", help="pooling task (default: token_embed)")
    results.add_argument(
        "--dimensions", type=parse_positive_int, metavar="N", help="truncate embeddings to the first N dimensions"
    )
    _add_activation(results)
    return _run(parser, argv)


def score(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "score",
        "[TEXT TEXT]",
        "Compute the relevance or similarity score of two texts; higher is better.",
        [
            'cenote score "how deep is it?" "the water is 40 metres deep"',
            "cenote score --input pairs.csv --columns question,answer --output scores.jsonl",
        ],
    )
    _add_texts(
        parser, "the query and the document; if none are given, pairs are read as JSON lines from standard input"
    )
    _add_files(parser, pairs=True)
    _add_scoring(_add_pooling(parser, prompts=False))
    return _run(parser, argv)


def rerank(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "rerank",
        "QUERY [DOCUMENT ...]",
        "Sort documents by relevance to a query, the best first.",
        [
            'cenote rerank "how deep is it?" "the water is 40 metres deep" "swimming is free" --top-n 1',
            'cenote rerank "how deep is it?" --input documents.jsonl --format jsonl',
        ],
    )
    _add_texts(parser, "the query, then the documents; without documents, one per line is read from standard input")
    files = _add_input(parser)
    files.add_argument(
        "--column", metavar="NAME", help="column of the documents in the input file; detected by name if unset"
    )
    files.add_argument("--output", metavar="FILE", help="write JSON lines to FILE instead of standard output")
    files.add_argument(
        "--format", choices=("jsonl", "table"), help="output format (default: table on a terminal, else jsonl)"
    )
    files.add_argument("--overwrite", action="store_true", help="replace the output FILE if it exists")
    results = _add_pooling(parser, prompts=False)
    results.add_argument("--top-n", type=parse_positive_int, metavar="N", help="print only the N best documents")
    _add_scoring(results)
    add_engine_flags(parser)

    from cenote.cli.rerank import run_rerank

    return run_rerank(parser.parse(argv))


def _run(parser: CommandParser, argv: Sequence[str]) -> int:
    add_flags(parser.add_argument_group("Ray cluster"), RayConfig)
    add_engine_flags(parser)
    args = parser.parse(argv)
    args.command = parser.prog.removeprefix("cenote ")
    args.command_line = format_command_line(parser.prog, argv)

    from cenote.cli.run_tasks import run_task

    return run_task(args)


def _add_texts(parser: CommandParser, text: str) -> None:
    parser.add_argument_group("texts").add_argument("texts", nargs="*", metavar="TEXT", help=text)


def _add_input(parser: CommandParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("files")
    group.add_argument(
        "--input",
        metavar="FILE",
        help=".txt .jsonl .json .csv .tsv, each optionally .gz, or .parquet; - is standard input",
    )
    group.add_argument(
        "--input-format", choices=INPUT_FORMATS, help="format of the input (default: by the suffix of FILE)"
    )
    return group


def _add_files(parser: CommandParser, *, pairs: bool = False) -> None:
    group = _add_input(parser)
    if pairs:
        names = "columns of the two texts; detected by name if unset"
        group.add_argument("--columns", metavar="FIRST,SECOND", help=names)
    else:
        group.add_argument("--column", metavar="NAME", help="column of the text; detected by name if unset")
    group.add_argument("--id-column", metavar="NAME", help="column to copy into the output as id")
    group.add_argument(
        "--output",
        metavar="FILE",
        help="output file, or with --engine ray a folder: NAME/; running an interrupted command again continues it",
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="output format (default: by the suffix of --output, else jsonl; of a folder parquet)",
    )
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="replace FILE if it exists and is not empty, and discard FILE.part of another command",
    )
    rows = "maximum number of rows sent to the engine at once (default: 4096; 256 for token-level tasks)"
    group.add_argument("--batch-rows", type=parse_positive_int, metavar="N", help=rows)
    group.add_argument("--quiet", action="store_true", help="print errors only, no progress and no notes")


def _add_pooling(parser: CommandParser, *, prompts: bool) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("results")
    if prompts:
        group.add_argument("--prompt", metavar="TEXT", help="text to prepend to every input")
        group.add_argument(
            "--prompt-name", metavar="NAME", help="name of a prompt in the model's files to prepend to every input"
        )
    truncation = "truncate longer texts to N tokens; -1: to the maximum length of the model"
    group.add_argument("--truncate-prompt-tokens", type=int, metavar="N", help=truncation)
    group.add_argument("--truncation-side", choices=("left", "right"), help="side that tokens are removed from")
    return group


def _add_scoring(group: argparse._ArgumentGroup) -> None:
    methods = "scoring method; by the type of the model if unset"
    group.add_argument("--score-type", choices=get_args(ScoreType), help=methods)
    group.add_argument("--instruction", help="task description for instruction-aware rerankers")
    _add_activation(group)


def _add_activation(group: argparse._ArgumentGroup) -> None:
    text = "apply sigmoid or softmax to the logits"
    group.add_argument("--use-activation", action=argparse.BooleanOptionalAction, help=text)

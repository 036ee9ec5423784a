"""What `cenote embed`, `classify`, `score`, `rerank` and `encode` accept, and the help that says so."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from cenote.cli.flags import add_engine_flags, add_flags
from cenote.cli.interrupts import format_command_line
from cenote.cli.parser import CommandParser
from cenote.protocol.params import TASKS, ScoreType
from cenote.utils.arguments import parse_positive_int

FORMATS = ("jsonl", "npy", "parquet")
INPUT_FORMATS = ("txt", "jsonl", "json", "csv", "tsv", "parquet")


def embed(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "embed",
        "[TEXT ...]",
        "Turn every text into one vector.",
        [
            'cenote embed "hello world"',
            "cenote embed --input texts.jsonl --column body --id-column id --output vectors.parquet",
            "cenote embed --input texts.csv --output vectors.npy --truncate-prompt-tokens -1",
            "cat lines.txt | cenote embed > vectors.jsonl",
        ],
    )
    _add_texts(parser, "texts to embed; without any, one per line from standard input")
    _add_files(parser)
    answers = _add_pooling(parser, prompts=True)
    answers.add_argument(
        "--dimensions", type=parse_positive_int, metavar="N", help="keep the first N numbers of each vector"
    )
    answers.add_argument(
        "--normalize",
        "--use-activation",
        dest="use_activation",
        action=argparse.BooleanOptionalAction,
        help="scale every vector to length 1, or not",
    )
    return _run(parser, argv)


def classify(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "classify",
        "[TEXT ...]",
        "Give every text a label and the probability of each label.",
        [
            'cenote classify --model FOLDER "what a fine day"',
            "cenote classify --model FOLDER --input reviews.csv --column review --output labels.jsonl",
        ],
    )
    _add_texts(parser, "texts to classify; without any, one per line from standard input")
    _add_files(parser)
    _add_activation(_add_pooling(parser, prompts=True))
    return _run(parser, argv)


def encode(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "encode",
        "[TEXT ...]",
        "Turn every text into one vector per token, or run any other task of the model by name.",
        [
            'cenote encode --model FOLDER "hello world"',
            "cenote encode --model FOLDER --task token_classify --input texts.jsonl --output labels.parquet",
            "cenote encode --model FOLDER --task sparse_embed --input texts.jsonl --output weights.jsonl",
        ],
    )
    _add_texts(parser, "texts to encode; without any, one per line from standard input")
    _add_files(parser)
    answers = _add_pooling(parser, prompts=True)
    answers.add_argument("--task", choices=TASKS, default="token_embed", help="default: token_embed")
    answers.add_argument(
        "--dimensions", type=parse_positive_int, metavar="N", help="keep the first N numbers of each vector"
    )
    _add_activation(answers)
    return _run(parser, argv)


def score(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "score",
        "[TEXT TEXT]",
        "Say how well two texts belong together; higher is better.",
        [
            'cenote score "how deep is it?" "the water is 40 metres deep"',
            "cenote score --input pairs.csv --columns question,answer --output scores.jsonl",
        ],
    )
    _add_texts(parser, "the two texts, as query and document; without any, JSON lines from standard input")
    _add_files(parser, pairs=True)
    _add_scoring(_add_pooling(parser, prompts=False))
    return _run(parser, argv)


def rerank(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "rerank",
        "QUERY [DOCUMENT ...]",
        "Sort documents by how well they answer a query, best first.",
        [
            'cenote rerank "how deep is it?" "the water is 40 metres deep" "swimming is free" --top-n 1',
            'cenote rerank "how deep is it?" --input documents.jsonl --format jsonl',
        ],
    )
    _add_texts(parser, "the query, then the documents; without documents, one per line from standard input")
    files = _add_input(parser)
    files.add_argument("--column", metavar="NAME", help="the column of a file that holds the document")
    files.add_argument("--output", metavar="FILE", help="write JSON lines to FILE instead of standard output")
    files.add_argument("--format", choices=("jsonl", "table"), help="default: table on a terminal, else jsonl")
    files.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    answers = _add_pooling(parser, prompts=False)
    answers.add_argument("--top-n", type=parse_positive_int, metavar="N", help="only the N best")
    _add_scoring(answers)
    add_engine_flags(parser)

    from cenote.cli.rerank import run_rerank

    return run_rerank(parser.parse(argv))


def serve(argv: Sequence[str]) -> int:
    from cenote.cli.serve import run_server as run

    return run(argv)


def run_batch(argv: Sequence[str]) -> int:
    from cenote.cli.run_batch import SERVER_OPTIONS, run_batch_file
    from cenote.config.options import option_fields
    from cenote.config.server import ServerConfig

    parser = CommandParser(
        "run-batch",
        "-i FILE -o FILE",
        "Answer a file of requests, as OpenAI's batches have them: embeddings, scores, rankings and every other route.",
        [
            "cenote run-batch -i requests.jsonl -o replies.jsonl --model FOLDER",
            "cat requests.jsonl | cenote run-batch > replies.jsonl",
        ],
    )
    files = parser.add_argument_group("files")
    line = 'one {"custom_id", "method", "url", "body"} per line, also with .gz; - is standard input (the default)'
    files.add_argument("-i", "--input-file", default="-", metavar="FILE", help=line)
    replies = "the replies in the same order; - is standard output (the default)"
    files.add_argument("-o", "--output-file", default="-", metavar="FILE", help=replies)
    files.add_argument("--overwrite", action="store_true", help="replace FILE, and FILE.part of another command")
    files.add_argument(
        "--max-in-flight", type=parse_positive_int, default=256, metavar="N", help="lines at once (default: 256)"
    )
    files.add_argument("--quiet", action="store_true", help="no progress and no notes; errors are still shown")
    others = tuple(option.name for option in option_fields(ServerConfig) if option.name not in SERVER_OPTIONS)
    add_flags(parser.add_argument_group("requests"), ServerConfig, without=others)
    add_engine_flags(parser, without=("served_model_name",))
    args = parser.parse(argv)
    args.command_line = format_command_line(parser.prog, argv)
    return run_batch_file(args)


def inspect(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "inspect",
        "[MODEL]",
        "Show what was found out about a model, and in which file.",
        ["cenote inspect FOLDER", "cenote inspect FOLDER --pooler-config.pooling_type MEAN"],
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a hub name or a folder; the default model if unset")
    add_engine_flags(parser, without=("model",))
    args = parser.parse(argv)

    from cenote.cli.flags import engine_keywords
    from cenote.cli.inspect import inspect_model as show
    from cenote.config.engine import EngineConfig

    return show(EngineConfig.from_kwargs(**engine_keywords(args)))


def explain(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "explain",
        "[MODEL]",
        "Measure this machine, and say what a model could reach on it, what it reaches, and what would help.",
        ["cenote explain", "cenote explain FOLDER --length 32 --length 256 --dtype float32", "cenote explain --json"],
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a hub name or a folder; the default model if unset")
    lengths = "tokens of the texts to measure with, given once or repeatedly (default: 16 50 128 512)"
    parser.add_argument("--length", type=parse_positive_int, action="append", default=[], metavar="N", help=lengths)
    parser.add_argument("--seconds", type=float, default=15.0, metavar="N", help="time to measure for (default: 15)")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    add_engine_flags(parser, without=("model",))
    args = parser.parse(argv)

    from cenote.cli.explain import explain_model as show
    from cenote.cli.flags import engine_keywords

    return show(engine_keywords(args), lengths=args.length, seconds=args.seconds, json_output=args.json)


def models(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "models",
        "[WORD]",
        "List the architectures there are, with their tasks and some models that are one.",
        ["cenote models", "cenote models qwen3", "cenote models --markdown > docs/models.md"],
    )
    parser.add_argument("word", nargs="?", default="", metavar="WORD", help="only names that contain it")
    parser.add_argument("--markdown", action="store_true", help="as a page, with what each was compared with")
    args = parser.parse(argv)

    from cenote.cli.models import list_models as show

    return show(args.word, markdown=args.markdown)


def _run(parser: CommandParser, argv: Sequence[str]) -> int:
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
        "--input", metavar="FILE", help=".txt .jsonl .json .csv .tsv, also with .gz, or .parquet; - is standard input"
    )
    group.add_argument("--input-format", choices=INPUT_FORMATS, help="when the name of the file does not tell")
    return group


def _add_files(parser: CommandParser, *, pairs: bool = False) -> None:
    group = _add_input(parser)
    if pairs:
        names = "the two columns to compare; found by name if unset"
        group.add_argument("--columns", metavar="FIRST,SECOND", help=names)
    else:
        group.add_argument("--column", metavar="NAME", help="the column that holds the text; found by name if unset")
    group.add_argument("--id-column", metavar="NAME", help="a column to copy into the output as id")
    group.add_argument("--output", metavar="FILE", help="an interrupted run continues when it is started again")
    group.add_argument("--format", choices=FORMATS, help="default: by the name of --output, else jsonl")
    group.add_argument("--overwrite", action="store_true", help="replace FILE, and FILE.part of another command")
    rows = "the most rows handed to the engine at once (default: 4096, or 256 where every token has a vector)"
    group.add_argument("--batch-rows", type=parse_positive_int, metavar="N", help=rows)
    group.add_argument("--quiet", action="store_true", help="no progress and no notes; errors are still shown")


def _add_pooling(parser: CommandParser, *, prompts: bool) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("answers")
    if prompts:
        group.add_argument("--prompt", metavar="TEXT", help="put before every text")
        group.add_argument("--prompt-name", metavar="NAME", help="the same, by its name in the model's own list")
    cut = "cut longer texts to N tokens; -1: to what the model reads"
    group.add_argument("--truncate-prompt-tokens", type=int, metavar="N", help=cut)
    group.add_argument("--truncation-side", choices=("left", "right"), help="which end is cut off")
    return group


def _add_scoring(group: argparse._ArgumentGroup) -> None:
    kinds = "how texts are compared; what the model is made for if unset"
    group.add_argument("--score-type", choices=get_args(ScoreType), help=kinds)
    group.add_argument("--instruction", help="what makes a document relevant, for models that are told")
    _add_activation(group)


def _add_activation(group: argparse._ArgumentGroup) -> None:
    text = "turn the model's raw numbers into probabilities, or not"
    group.add_argument("--use-activation", action=argparse.BooleanOptionalAction, help=text)

"""The `cenote bench` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cenote.bench.process_group import terminate_groups_on_sigterm
from cenote.utils.arguments import normalize_flag


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """Subcommand; its functions import their modules when called, which keeps startup fast."""

    help: str
    description: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    check_flags: Callable[[argparse.ArgumentParser, argparse.Namespace], None] = lambda parser, args: None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cenote bench",
        description="Measure speed and quality, and compare with other engines.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = [normalize_flag(word) for word in arguments]
    parsers = {}
    for name, command in COMMANDS.items():
        parsers[name] = subparsers.add_parser(
            name, help=command.help, description=command.description, allow_abbrev=False
        )
        if words[:1] == [name]:  # adding the options of other subcommands would import their modules
            command.add_flags(parsers[name])
    args = parser.parse_args(words)
    command = COMMANDS[args.command]
    command.check_flags(parsers[args.command], args)
    with terminate_groups_on_sigterm():
        return command.run(args)


def lazy(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a module of this package, imported when it is called."""
    return lambda *args: getattr(import_module(f"cenote.bench.{module}"), function)(*args)


def _add_quality(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="embedding model or reranker (default: the default model)")
    parser.add_argument("--dtype", default="auto", help="dtype of Cenote (default: auto)")
    parser.add_argument(
        "--quantization", choices=("int8", "fp8"), help="quantization of Cenote's linear layers (default: none)"
    )
    parser.add_argument("--retrieval", type=Path, metavar="FOLDER", help="retrieval data set in BEIR format")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE.tsv", help="similarity data set with columns sentence1, sentence2, score"
    )
    parser.add_argument(
        "--first-stage", metavar="MODEL", help="embedding model that retrieves the documents for a reranker"
    )
    parser.add_argument("--max-queries", type=int, metavar="N", help="use only the first N queries of --retrieval")
    parser.add_argument("--alone", action="store_true", help="do not run Sentence Transformers for comparison")


def _check_quality(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.retrieval is None and args.pairs is None:
        parser.error(
            "no data set given, and none is bundled or downloaded; pass --retrieval FOLDER (BEIR format: corpus.jsonl, "
            "queries.test.jsonl or queries.jsonl, qrels.test.tsv or qrels/test.tsv, each plain or .gz), "
            "--pairs FILE.tsv (tab-separated columns sentence1, sentence2, score), or both"
        )


def _run_quality(args: argparse.Namespace) -> int:
    from cenote.bench.quality import measure_quality
    from cenote.llm import LLM

    with LLM(args.model, dtype=args.dtype, quantization=args.quantization) as llm:
        figures = measure_quality(
            llm,
            retrieval=args.retrieval,
            pairs=args.pairs,
            first_stage=args.first_stage,
            max_queries=args.max_queries,
            compare=not args.alone,
        )
    for figure in figures:
        reference = "" if figure.reference_value is None else f", sentence-transformers {figure.reference_value:.4f}"
        print(f"{figure.name}: cenote {figure.cenote_value:.4f}{reference}")
    return 0


COMMANDS = {
    "compare": BenchCommand(
        "compare Cenote with other engines",
        "Run every engine on the same texts and weights, one at a time in interleaved rounds, and compare the speed.",
        lazy("compare.flags", "add_compare_flags"),
        lazy("compare.run", "run_compare"),
    ),
    "peers": BenchCommand(
        "list or install the other engines for `compare`",
        "List or install the other engines, each in its own virtual environment.",
        lazy("compare.flags", "add_peers_flags"),
        lazy("compare.engines", "run_peers"),
    ),
    "serve": BenchCommand(
        "load-test one or more servers",
        "Send requests to servers in interleaved rounds and report throughput, latency and errors.",
        lazy("flags", "add_serve_flags"),
        lazy("serve", "run_serve"),
        lazy("flags", "check_serve_flags"),
    ),
    "quality": BenchCommand(
        "measure model quality on labelled data sets",
        "Measure retrieval (nDCG@10) and similarity (Spearman) of an embedding model, or nDCG@10 of a reranker.",
        _add_quality,
        _run_quality,
        _check_quality,
    ),
}

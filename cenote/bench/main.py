"""The `cenote bench` command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cenote.bench.process_group import terminate_groups_on_sigterm
from cenote.utils.arguments import normalize_flag


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """`add` puts its flags on a parser, `run` does the work; what they need is imported when they are called."""

    help: str
    description: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.ArgumentParser, argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cenote bench",
        description="Measure speed and quality, side by side with others.",
        allow_abbrev=False,
    )
    listed = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = [normalize_flag(word) for word in arguments]
    parsers = {}
    for name, command in COMMANDS.items():
        parsers[name] = listed.add_parser(name, help=command.help, description=command.description, allow_abbrev=False)
        if words[:1] == [name]:  # the others' flags would cost their imports
            command.add_flags(parsers[name])
    given = parser.parse_args(words)
    with terminate_groups_on_sigterm():
        return COMMANDS[given.command].run(parsers[given.command], given)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    from cenote.bench.compare.flags import add_compare_flags

    add_compare_flags(parser)


def _run_compare(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from cenote.bench.compare.flags import check_compare_flags
    from cenote.bench.compare.run import run_compare

    check_compare_flags(given)
    return run_compare(given)


def _add_peers(parser: argparse.ArgumentParser) -> None:
    from cenote.bench.compare.flags import add_peers_flags

    add_peers_flags(parser)


def _run_peers(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from cenote.bench.compare.peers import run_peers

    return run_peers(given)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    from cenote.bench.flags import add_serve_flags

    add_serve_flags(parser)


def _run_serve(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from cenote.bench.flags import check_serve_flags

    check_serve_flags(parser, given)
    from cenote.bench.serve import run_serve

    return run_serve(given)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    from cenote.bench.scaling_flags import add_scaling_flags

    add_scaling_flags(parser)


def _run_scaling(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    from cenote.bench.scaling import run_scaling

    return run_scaling(given)


def _add_quality(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="an embedder or a reranker; the default model when left out")
    parser.add_argument("--dtype", default="auto", help="of Cenote's weights (default: auto)")
    parser.add_argument("--quantization", choices=("int8", "fp8"), help="of Cenote's linear layers (default: none)")
    parser.add_argument("--retrieval", type=Path, metavar="FOLDER", help="a set in BEIR's form")
    parser.add_argument("--pairs", type=Path, metavar="FILE.tsv", help="columns sentence1, sentence2, score")
    parser.add_argument("--first-stage", metavar="MODEL", help="what a reranker's documents are found with")
    parser.add_argument("--max-queries", type=int, metavar="N", help="only the first N of --retrieval")
    parser.add_argument("--alone", action="store_true", help="leave Sentence Transformers out")


def _run_quality(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    if given.retrieval is None and given.pairs is None:
        parser.error(
            "no data set given, and none is bundled or downloaded; pass --retrieval FOLDER (BEIR format: corpus.jsonl, "
            "queries.test.jsonl or queries.jsonl, qrels.test.tsv or qrels/test.tsv, each plain or .gz), "
            "--pairs FILE.tsv (tab-separated columns sentence1, sentence2, score), or both"
        )
    from cenote.bench.quality import measure_quality
    from cenote.llm import LLM

    with LLM(given.model, dtype=given.dtype, quantization=given.quantization) as llm:
        figures = measure_quality(
            llm,
            retrieval=given.retrieval,
            pairs=given.pairs,
            first_stage=given.first_stage,
            max_queries=given.max_queries,
            compare=not given.alone,
        )
    for figure in figures:
        beside = "" if figure.reference_value is None else f", sentence-transformers {figure.reference_value:.4f}"
        print(f"{figure.name}: cenote {figure.cenote_value:.4f}{beside}")
    return 0


COMMANDS = {
    "compare": BenchCommand(
        "Cenote beside other engines",
        "Gives every engine the same texts and weights, each alone in its turn, and tells how they stand.",
        _add_compare,
        _run_compare,
    ),
    "peers": BenchCommand(
        "the environments of other engines, for compare",
        "Lists or installs them, each in a virtual environment of its own.",
        _add_peers,
        _run_peers,
    ),
    "serve": BenchCommand(
        "load on one server or several",
        "Sends requests to servers, in turns, and tells how fast and how well they answer.",
        _add_serve,
        _run_serve,
    ),
    "scaling": BenchCommand(
        "what more tokens cost, in time and memory",
        "Embeds more and more texts of one length and tells whether cost is linear and memory flat.",
        _add_scaling,
        _run_scaling,
    ),
    "quality": BenchCommand(
        "what a model is worth on sets with known answers",
        "Measures an embedder by retrieval (nDCG@10) and similarity (Spearman), a reranker by its order.",
        _add_quality,
        _run_quality,
    ),
}

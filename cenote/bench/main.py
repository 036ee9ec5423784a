"""The `cenote bench` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cenote bench",
        description="Measure speed, side by side with others, in one interleaved run.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_offline(commands)
    _add_quality(commands)
    serve = commands.add_parser(
        "serve",
        help="load on one server or several",
        description="Sends requests to servers, in turns, and tells how fast and how well they answer.",
        allow_abbrev=False,
    )
    words = [_one_spelling(word) for word in arguments]
    if words[:1] == ["serve"]:
        from cenote.bench.flags import add_serve_flags, check_serve_flags

        add_serve_flags(serve)
        given = parser.parse_args(words)
        check_serve_flags(serve, given)
        from cenote.bench.serve import serve as run_serve

        return run_serve(given)
    given = parser.parse_args(words)
    return _run_quality(given) if given.command == "quality" else _run_offline(given)


def _add_offline(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    offline = commands.add_parser(
        "offline",
        help="LLM.embed against Sentence Transformers",
        description="Embeds the same texts, of log-normally spread lengths, with every engine in turns.",
    )
    offline.add_argument("--model", help="an embedding model; the default model when left out")
    offline.add_argument("--dtype", default="auto", help="of Cenote's weights (default: auto)")
    offline.add_argument("--texts", type=int, default=2000, help="how many texts (default: 2000)")
    offline.add_argument("--mean", type=float, default=50, help="mean length in tokens (default: 50)")
    offline.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: 5)")
    offline.add_argument(
        "--batch-size", type=int, default=32, help="of Sentence Transformers (default: 32, as its own)"
    )
    offline.add_argument("--seed", type=int, default=0)
    offline.add_argument("--json", metavar="FILE", help="also save the figures")


def _run_offline(given: argparse.Namespace) -> int:
    from cenote.bench.offline import compare
    from cenote.bench.report import machine, save, table

    workload, rows = compare(
        given.model,
        dtype=given.dtype,
        count=given.texts,
        mean=given.mean,
        rounds=given.rounds,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    facts = machine()
    print(f"{facts['processor']}, {facts['threads']} threads, torch {facts['torch']}")
    print(f"{workload.describe()}; {given.rounds} interleaved rounds")
    print(table(rows))
    if given.json:
        save(given.json, workload.describe(), rows)
    return 0


def _add_quality(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    quality = commands.add_parser(
        "quality",
        help="what a model is worth on sets with known answers",
        description="Measures an embedder by retrieval (nDCG@10) and similarity (Spearman), a reranker by its order.",
    )
    quality.add_argument("--model", help="an embedder or a reranker; the default model when left out")
    quality.add_argument("--dtype", default="auto", help="of Cenote's weights (default: auto)")
    quality.add_argument("--retrieval", type=Path, metavar="FOLDER", help="a set in BEIR's form")
    quality.add_argument("--pairs", type=Path, metavar="FILE.tsv", help="columns sentence1, sentence2, score")
    quality.add_argument("--first-stage", metavar="MODEL", help="what a reranker's documents are found with")
    quality.add_argument("--max-queries", type=int, metavar="N", help="only the first N of --retrieval")
    quality.add_argument("--alone", action="store_true", help="leave Sentence Transformers out")


def _run_quality(given: argparse.Namespace) -> int:
    from cenote.bench.quality import measure
    from cenote.llm import LLM

    with LLM(given.model, dtype=given.dtype) as llm:
        figures = measure(
            llm,
            retrieval=given.retrieval,
            pairs=given.pairs,
            first_stage=given.first_stage,
            max_queries=given.max_queries,
            beside=not given.alone,
        )
    for figure in figures:
        beside = "" if figure.theirs is None else f", sentence-transformers {figure.theirs:.4f}"
        print(f"{figure.name}: cenote {figure.ours:.4f}{beside}")
    return 0


def _one_spelling(word: str) -> str:
    """--num_requests as --num-requests."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word

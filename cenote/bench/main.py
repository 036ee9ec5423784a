"""The `cenote bench` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cenote.bench.offline import compare
from cenote.bench.report import machine, save, table


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="cenote bench", description="Measure speed, side by side with others, in one interleaved run."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
    given = parser.parse_args(arguments)
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

"""Command-line options of `cenote bench compare` and `cenote bench peers`."""

from __future__ import annotations

import argparse

from cenote.bench.compare.engines import ENGINES
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir
from cenote.bench.compare.workload_specs import WORKLOADS
from cenote.utils.arguments import parse_non_negative_int, parse_positive_int

QUICK_ROUNDS, ROUNDS = 2, 5


def add_compare_flags(parser: argparse.ArgumentParser) -> None:
    defaults = ",".join(kind.name for kind in WORKLOADS.values() if kind.is_default)
    what = parser.add_argument_group("workloads and models")
    what.add_argument(
        "--workloads",
        type=parse_names,
        metavar="NAMES",
        help=f"workloads: {', '.join(WORKLOADS)}, or all (default: {defaults})",
    )
    what.add_argument(
        "--peers", type=parse_names, metavar="NAMES", help=f"engines: {', '.join(ENGINES)} (default: all installed)"
    )
    what.add_argument("--model", help="embedding model (default: the default model)")
    what.add_argument(
        "--reranker", metavar="MODEL", help="cross-encoder (default: the default model with a random head)"
    )
    what.add_argument(
        "--tagger", metavar="MODEL", help="token classifier (default: the default model with a random head)"
    )
    what.add_argument("--clip", metavar="MODEL", help="CLIP model for images (default: ViT-B/32 with random weights)")
    what.add_argument(
        "--texts", type=parse_positive_int, metavar="N", help="number of texts (default: depends on the workload)"
    )
    what.add_argument("--seed", type=parse_non_negative_int, default=0, help="random seed (default: 0)")

    how = parser.add_argument_group("measurement")
    how.add_argument(
        "--rounds", type=parse_positive_int, help=f"interleaved rounds (default: {ROUNDS}; {QUICK_ROUNDS} with --quick)"
    )
    how.add_argument("--quick", action="store_true", help="use few texts and rounds, to check that everything runs")
    how.add_argument(
        "--batch-size", type=parse_positive_int, default=32, help="batch size of engines that need one (default: 32)"
    )
    how.add_argument(
        "--max-tokens",
        type=parse_positive_int,
        help="truncation length of all engines (default: 512, or the maximum of the model)",
    )
    how.add_argument("--json", metavar="FILE", help="also write the results to a JSON file")
    how.add_argument("--plot", metavar="FILE.svg", help="also write a bar chart")
    how.add_argument("--install-peers", action="store_true", help="first install missing engines; takes minutes")
    add_peers_dir(how)


def add_peers_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "install"))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"environments: {', '.join(ENVIRONMENTS)} (default: all)"
    )
    add_peers_dir(parser)


def add_peers_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--peers-dir", metavar="DIR", help=f"folder of the installed engines (default: {default_peers_dir()})"
    )


def parse_names(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]

"""The flags of `cenote bench compare` and `cenote bench peers`."""

from __future__ import annotations

import argparse

from cenote.bench.compare.engines import ENGINES
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir
from cenote.bench.compare.workload_specs import WORKLOADS
from cenote.utils.arguments import parse_non_negative_int, parse_positive_int

QUICK_ROUNDS, ROUNDS = 2, 5


def add_compare_flags(parser: argparse.ArgumentParser) -> None:
    usual = ",".join(kind.name for kind in WORKLOADS.values() if kind.is_default)
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--workloads",
        type=parse_names,
        metavar="NAMES",
        help=f"of {', '.join(WORKLOADS)}; or all (default: {usual})",
    )
    what.add_argument(
        "--peers", type=parse_names, metavar="NAMES", help=f"of {', '.join(ENGINES)} (default: all there are)"
    )
    what.add_argument("--model", help="an embedding model; the default model when left out")
    what.add_argument("--reranker", metavar="MODEL", help="a cross-encoder (default: a stand-in with a random head)")
    what.add_argument("--tagger", metavar="MODEL", help="a token classifier (default: a stand-in with a random head)")
    what.add_argument("--clip", metavar="MODEL", help="a CLIP for images (default: ViT-B/32 with random weights)")
    what.add_argument("--texts", type=parse_positive_int, metavar="N", help="in place of each workload's own number")
    what.add_argument("--seed", type=parse_non_negative_int, default=0)

    how = parser.add_argument_group("how")
    how.add_argument(
        "--rounds", type=parse_positive_int, help=f"interleaved rounds (default: {ROUNDS}; {QUICK_ROUNDS} if quick)"
    )
    how.add_argument("--quick", action="store_true", help="few texts and rounds: to see that everything runs")
    how.add_argument(
        "--batch-size", type=parse_positive_int, default=32, help="of engines that are told one (default: 32)"
    )
    how.add_argument(
        "--max-tokens", type=parse_positive_int, help="where everybody cuts (default: 512, or the model's positions)"
    )
    how.add_argument("--json", metavar="FILE", help="also save the figures")
    how.add_argument("--plot", metavar="FILE.svg", help="also draw them")
    how.add_argument("--install-peers", action="store_true", help="first install what is missing; this takes minutes")
    add_peers_dir(how)


def check_compare_flags(args: argparse.Namespace) -> None:
    if args.rounds is None:
        args.rounds = QUICK_ROUNDS if args.quick else ROUNDS


def add_peers_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "install"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)} (default: all)")
    add_peers_dir(parser)


def add_peers_dir(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--peers-dir", metavar="DIR", help=f"where peers are installed (default: {default_peers_dir()})"
    )


def parse_names(text: str) -> list[str]:
    return [word for word in text.replace(",", " ").split() if word]

"""Command-line options of `cenote bench scaling`; imports neither torch nor optional dependencies."""

from __future__ import annotations

import argparse


def add_scaling_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="embedding model (default: the default model)")
    parser.add_argument("--dtype", default="auto", help="dtype of the weights (default: auto)")
    parser.add_argument(
        "--tokens",
        type=parse_steps,
        metavar="N,N,...",
        help="token counts, for example 10k,100k,1M (default: depends on the device)",
    )
    parser.add_argument("--length", type=int, default=128, help="length of every text in tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a JSON file")


def parse_steps(text: str) -> list[int]:
    try:
        counts = [parse_number(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"invalid token counts {text!r}; expected for example 10k,100k,1M")
    return sorted(counts)


def parse_number(word: str) -> int:
    word = word.strip().lower()
    factor = {"k": 1_000, "m": 1_000_000}.get(word[-1:], 1)
    return int(float(word.rstrip("km")) * factor)

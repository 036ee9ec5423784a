"""The flags of `cenote bench scaling`; no torch, and nothing that a bare GPU machine lacks."""

from __future__ import annotations

import argparse


def add_scaling_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="an embedding model; the default model when left out")
    parser.add_argument("--dtype", default="auto", help="of the weights (default: auto)")
    parser.add_argument(
        "--tokens", type=parse_steps, metavar="N,N,...", help="like 10k,100k,1M (default: by the device)"
    )
    parser.add_argument("--length", type=int, default=128, help="of every text, in tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="also save the figures")


def parse_steps(text: str) -> list[int]:
    try:
        found = [parse_number(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers; those look like 10k,100k,1M")
    return sorted(found)


def parse_number(word: str) -> int:
    word = word.strip().lower()
    factor = {"k": 1_000, "m": 1_000_000}.get(word[-1:], 1)
    return int(float(word.rstrip("km")) * factor)

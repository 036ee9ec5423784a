"""Command line of the simulation."""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from lab.protocol.simulation import SeedOutcome, run_seed

CHUNK_SEEDS = 50
MAX_REPEATED, MAX_DEFECTS = 10, 5  # seeds with defects that are listed, and defects of each


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    seeds = range(args.first, args.first + args.seeds)
    started_at = time.monotonic()
    if args.trace or args.workers == 1:
        outcomes = list(run_seeds(seeds, is_traced=args.trace))
    else:
        chunks = [seeds[start : start + CHUNK_SEEDS] for start in range(0, len(seeds), CHUNK_SEEDS)]
        with ProcessPoolExecutor(args.workers) as pool:
            outcomes = [outcome for part in pool.map(run_seeds, chunks) for outcome in part]
    return report(outcomes, time.monotonic() - started_at)


def run_seeds(seeds: Iterable[int], *, is_traced: bool = False) -> list[SeedOutcome]:
    outcomes = []
    for seed in seeds:
        outcomes.append(run_seed(seed, is_traced=is_traced))
        if len(outcomes) == 1:  # what was imported and cached is not collected after each seed
            gc.freeze()
    return outcomes


def report(outcomes: Sequence[SeedOutcome], seconds: float) -> int:
    """Print what has happened; return 1 if something did that must not."""
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    answers = sum((outcome.answers for outcome in outcomes), Counter[str]())
    print(f"{len(outcomes)} seeds, {len(outcomes) / seconds:.0f} per second")
    print(f"faults: {format_counts(faults)}")
    print(f"answers: {format_counts(answers)}")
    failed = [outcome for outcome in outcomes if outcome.defects]
    for outcome in failed[:MAX_REPEATED]:
        print(f"\nseed {outcome.seed}:")
        for defect in outcome.defects[:MAX_DEFECTS]:
            print(f"  {defect}")
        print(f"  repeat it: python -m lab.protocol --first {outcome.seed} --seeds 1 --trace")
    print(f"{len(failed)} seeds with defects")
    return 1 if failed else 0


def format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.most_common()) or "none"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.protocol",
        description="Simulate front-ends, the supervisor and engine processes with faults, and check every answer.",
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run seeds")
    parser.add_argument("--trace", action="store_true", help="print what happens, with the simulated time")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())

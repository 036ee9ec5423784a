"""Command line of `python -m lab.chaos`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cenote.bench.flags import parse_positive_float
from cenote.utils.arguments import parse_non_negative_int, parse_positive_int
from lab.chaos.faults import FAULTS
from lab.chaos.scenarios import SCENARIOS
from lab.chaos.session import NO_FAULTS, ChaosOptions


def make_parser() -> argparse.ArgumentParser:
    faults = "\n".join(f"  {name:<16} {fault.__doc__}" for name, fault in FAULTS.items())
    scenarios = "\n".join(f"  {name:<16} {scenario.description}" for name, scenario in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m lab.chaos",
        description="Start cenote serve, inject faults under load, and check that every request gets one right answer.",
        epilog=f"faults:\n{faults}\n\nscenarios:\n{scenarios}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--seed", type=int, default=0, help="of texts, load and order of faults")
    parser.add_argument("--minutes", type=parse_positive_float, default=1.0, help="duration of the load")
    parser.add_argument(
        "--faults", type=_fault_names, default=(), metavar="A,B", help="to inject, or none; default: all"
    )
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="measure this scenario instead")
    parser.add_argument(
        "--max-faults", type=parse_positive_int, help="end after so many faults, before --minutes are over"
    )
    parser.add_argument("--model", help="hub name or folder; the default model if unset")
    parser.add_argument("--front-ends", type=parse_positive_int, default=1, help="--api-server-count of the server")
    parser.add_argument(
        "--rate", type=parse_positive_float, default=20.0, help="requests per second, at most 70%% of the capacity"
    )
    parser.add_argument(
        "--bulk-clients", type=parse_non_negative_int, default=1, help="clients that send requests with many texts"
    )
    parser.add_argument(
        "--attackers",
        type=parse_non_negative_int,
        default=0,
        metavar="N",
        help="processes that attack the server all the time; memory and descriptors must come back afterwards",
    )
    parser.add_argument(
        "--max-fault-s",
        type=parse_positive_float,
        default=8.0,
        help="duration of faults that last, such as a stopped engine",
    )
    parser.add_argument(
        "--step-timeout-s", type=parse_positive_float, default=30.0, help="--step-timeout-s of the server"
    )
    parser.add_argument(
        "--timeout-s", type=parse_positive_float, default=60.0, help="a reply that takes longer is lost"
    )
    parser.add_argument(
        "--device-tokens-per-s",
        type=parse_positive_int,
        metavar="N",
        help="batches take as long as on a device of this speed: figures do not depend on other work of the machine",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="serve with --deterministic; results are bit-equal"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append the log of the server to this file")
    parser.add_argument("serve_args", nargs="*", metavar="-- FLAG", help="further flags of cenote serve, after --")
    return parser


def make_options(args: argparse.Namespace) -> ChaosOptions:
    return ChaosOptions(
        seed=args.seed,
        minutes=args.minutes,
        faults=args.faults,
        max_faults=args.max_faults,
        model=args.model,
        front_ends=args.front_ends,
        rate=args.rate,
        bulk_clients=args.bulk_clients,
        attackers=args.attackers,
        max_fault_s=args.max_fault_s,
        step_timeout_s=args.step_timeout_s,
        request_timeout_s=args.timeout_s,
        device_tokens_per_s=args.device_tokens_per_s,
        deterministic=args.deterministic,
        serve_args=tuple(args.serve_args),
        log=args.log,
    )


def _fault_names(value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    unknown = [] if names == NO_FAULTS else [name for name in names if name not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown fault {unknown[0]!r}; available: {', '.join(FAULTS)}")
    return names

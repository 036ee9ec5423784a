"""Command line of `python -m lab.chaos`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cenote.config.flags import add_flags
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
    add_flags(parser, ChaosOptions)
    parser.add_argument(
        "--faults", type=_fault_names, default=(), metavar="A,B", help="to inject, or none; default: all"
    )
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), help="measure this scenario instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append the log of the server to this file")
    parser.add_argument("serve_args", nargs="*", metavar="-- FLAG", help="further flags of cenote serve, after --")
    return parser


def make_options(args: argparse.Namespace) -> ChaosOptions:
    others = {name: value for name, value in vars(args).items() if name not in ("scenario", "json", "serve_args")}
    return ChaosOptions(serve_args=tuple(args.serve_args), **others)


def _fault_names(value: str) -> tuple[str, ...]:
    names = tuple(value.split(","))
    unknown = [] if names == NO_FAULTS else [name for name in names if name not in FAULTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown fault {unknown[0]!r}; available: {', '.join(FAULTS)}")
    return names

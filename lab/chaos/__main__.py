"""`python -m lab.chaos`: faults under load, or one scenario; exit status 1 on a violation."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from cenote.bench.process_group import terminate_groups_on_sigterm
from cenote.config.flags import add_flags
from cenote.errors import PoolingError
from cenote.utils.system_limits import raise_file_limit
from lab.chaos.driver import run_chaos
from lab.chaos.faults import FAULTS
from lab.chaos.results import format_results
from lab.chaos.scenarios import SCENARIOS, format_figures
from lab.chaos.session import NO_FAULTS, ChaosOptions


def main(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    options = make_options(args)
    raise_file_limit()
    with terminate_groups_on_sigterm(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            if args.scenario is not None:
                figures = runner.run(SCENARIOS[args.scenario].run(options))
                text, has_failed = format_figures(figures), any(not figure.is_met for figure in figures)
                content: object = [figure.to_json() for figure in figures]
            else:
                results = runner.run(run_chaos(options))
                text, has_failed, content = format_results(results), bool(results.violations), results.to_json()
        except PoolingError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(text)
    if args.json is not None:
        args.json.write_text(json.dumps(content, indent=2) + "\n")
    return int(has_failed)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m lab.chaos`: faults under load, or one scenario; exit status 1 on a violation."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import uvloop

from cenote.bench.process_group import terminate_groups_on_sigterm
from cenote.errors import PoolingError
from cenote.utils.system_limits import raise_file_limit
from lab.chaos.driver import run_chaos
from lab.chaos.flags import make_options, make_parser
from lab.chaos.results import format_results
from lab.chaos.scenarios import SCENARIOS, format_figures


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Scenarios that repeat one fault under load."""

from __future__ import annotations

import math
from dataclasses import replace

from lab.chaos.driver import run_chaos
from lab.chaos.results import VIOLATIONS, ChaosResults
from lab.chaos.scenarios.scenario import Figure, RunScenario
from lab.chaos.session import ChaosOptions

SECONDS_PER_FAULT = 90.0  # far more than one takes
# a new engine process is ready after the time to load the model, at most 4 s with the default model, and a second
MAX_RESTART_S = 5.0


def repeat_fault(
    fault: str,
    count: int,
    *,
    max_fault_s: float | None = None,
    min_front_ends: int = 1,
    max_recovery_s: float = math.inf,
    period_s: float = 0.0,
) -> RunScenario:
    """Return a scenario: `count` times the fault, at 70 % of the capacity."""

    async def run(options: ChaosOptions) -> list[Figure]:
        changed = replace(
            options,
            faults=(fault,),
            max_faults=options.max_faults or count,
            minutes=count * SECONDS_PER_FAULT / 60,
            rate=math.inf,  # at most the share of the capacity
            bulk_clients=0,  # they would use the rest
            fault_period_s=period_s,
            max_fault_s=max_fault_s or options.max_fault_s,
            front_ends=max(min_front_ends, options.front_ends),
        )
        results = await run_chaos(changed)
        return make_figures(results, changed.max_faults or count, max_recovery_s)

    return run


def make_figures(results: ChaosResults, count: int, max_recovery_s: float) -> list[Figure]:
    recovery = [fault.recovery_s for fault in results.faults if fault.recovery_s is not None]
    longest = max(recovery, default=math.nan)
    limit = max_recovery_s if math.isfinite(max_recovery_s) else None
    return [
        Figure("faults injected", len(results.faults), at_least=count),
        Figure("requests", results.num_requests, at_least=1),
        Figure("right answers", results.verdicts["ok"]),
        *(Figure(name, results.verdicts[name], at_most=0) for name in VIOLATIONS),
        Figure("connections lost with their front-end", results.verdicts["broken"]),
        Figure("engine restarts", results.restarts),
        Figure("longest time to the next answer", longest, "s", at_most=limit),
        Figure("violations", len(results.violations), at_most=0, note="; ".join(results.violations[:3])),
    ]

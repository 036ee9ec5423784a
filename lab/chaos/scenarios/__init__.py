"""Scenarios with targets, by name."""

from __future__ import annotations

from lab.chaos.scenarios.lanes import measure_lanes
from lab.chaos.scenarios.overload import measure_overload
from lab.chaos.scenarios.scenario import Scenario
from lab.chaos.scenarios.shutdown import measure_shutdown
from lab.chaos.scenarios.single_faults import MAX_RESTART_S, repeat_fault

SCENARIOS = {
    "kills": Scenario(
        "SIGKILL to the engine, 20 times in two minutes, at 70 % load",
        repeat_fault("kill-engine", 20, max_recovery_s=MAX_RESTART_S, period_s=6.0),
    ),
    "stop": Scenario("SIGSTOP to the engine for 30 s", repeat_fault("stop-engine", 1, max_fault_s=30.0)),
    "poison": Scenario("one input that crashes the engine, among 64", repeat_fault("poison", 1)),
    "front-end": Scenario("SIGKILL to one of two front-ends", repeat_fault("lost-front-end", 5, min_front_ends=2)),
    "shutdown": Scenario("SIGTERM at 80 % load, 10 times", measure_shutdown),
    "overload": Scenario("10 times the capacity, for --minutes", measure_overload),
    "lanes": Scenario("queries beside four bulk clients, each phase for --minutes", measure_lanes),
}

"""Run the chaos driver and its scenarios in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import TypeVar

import uvloop

from lab.chaos.driver import run_chaos
from lab.chaos.results import ChaosResults, format_results
from lab.chaos.scenarios import Figure, format_figures
from lab.chaos.session import ChaosOptions

T = TypeVar("T")


def run(coroutine: Coroutine[None, None, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def run_faults(options: ChaosOptions, *faults: str, count: int | None = None) -> ChaosResults:
    """Inject each of the faults, `count` in total; a violation fails the test."""
    results = run(run_chaos(replace(options, faults=faults, max_faults=count or len(faults), minutes=10.0)))
    assert not results.violations, format_results(results)
    assert len(results.faults) == (count or len(faults)), format_results(results)
    assert results.verdicts["ok"] > 0
    return results


def check_figures(figures: list[Figure], *loose: str) -> dict[str, float]:
    """Check that all targets are met, except those of `loose` names; return the values by name."""
    missed = [figure.name for figure in figures if not figure.is_met and figure.name not in loose]
    assert not missed, format_figures(figures)
    return {figure.name: figure.value for figure in figures}

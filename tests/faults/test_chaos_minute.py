"""A minute of every fault that is cheap to inject, under a mixed load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.chaos.driver import run_chaos
from lab.chaos.results import format_results
from lab.chaos.session import ChaosOptions

from .run import run

MIN_FAULTS = 6  # on a slow machine an engine needs seconds to start


@pytest.mark.timeout(400)
def test_a_minute_of_faults_costs_no_request_and_leaves_nothing_behind(options: ChaosOptions) -> None:
    results = run(run_chaos(replace(options, seed=1, minutes=1.0, front_ends=2)))

    assert not results.violations, format_results(results)
    assert len(results.faults) >= MIN_FAULTS, format_results(results)
    assert results.verdicts["ok"] > 100

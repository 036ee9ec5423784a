"""An engine process that is killed, stopped or hangs costs no request: what was in flight is computed again."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from lab.chaos.session import ChaosOptions

from .conftest import IS_FULL
from .run import run_faults

pytestmark = pytest.mark.timeout(600 if IS_FULL else 180)


def test_engines_that_are_killed_stopped_or_hang_cost_no_request(options: ChaosOptions) -> None:
    """Each at least once, in any order; one that is stopped for a moment goes on."""
    results = run_faults(replace(options, front_ends=2), "kill-engine", "stop-engine", "hang-engine", count=4)

    counts = Counter(fault.name for fault in results.faults)
    assert set(counts) == {"kill-engine", "stop-engine", "hang-engine"}
    assert results.restarts == counts["kill-engine"] + counts["hang-engine"]


@pytest.mark.skipif(not IS_FULL, reason="FAULT_TESTS=full: the test above kills one or two")
def test_an_engine_that_is_killed_again_and_again_costs_no_request(options: ChaosOptions) -> None:
    busy = replace(options, rate=math.inf, front_ends=2, bulk_clients=0)  # all: 70 % of the capacity

    results = run_faults(busy, "kill-engine", count=20)

    assert results.restarts == 20

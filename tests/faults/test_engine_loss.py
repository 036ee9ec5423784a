"""An engine process that is killed, stopped or hangs costs no request: what was in flight is computed again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lab.chaos.session import ChaosOptions

from .conftest import IS_FULL
from .run import run_faults

pytestmark = pytest.mark.timeout(600 if IS_FULL else 180)


def test_an_engine_that_is_killed_again_and_again_costs_no_request(options: ChaosOptions) -> None:
    count = 20 if IS_FULL else 2
    rate = math.inf if IS_FULL else 50.0  # all: 70 % of the capacity, which a busy machine does not keep
    results = run_faults(replace(options, rate=rate, front_ends=2, bulk_clients=0), "kill-engine", count=count)

    assert results.restarts == count


def test_an_engine_that_is_stopped_for_a_moment_goes_on(options: ChaosOptions) -> None:
    results = run_faults(replace(options, max_fault_s=2.0), "stop-engine")

    assert results.restarts == 0


def test_an_engine_that_hangs_is_replaced_and_costs_no_request(options: ChaosOptions) -> None:
    results = run_faults(options, "hang-engine")

    assert results.restarts == 1

"""Queries and bulk requests at the same time: neither keeps the other waiting for long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.chaos.scenarios import measure_lanes
from lab.chaos.session import ChaosOptions

from .conftest import IS_FULL
from .run import check_figures, run

pytestmark = pytest.mark.skipif(not IS_FULL, reason="timed: needs a quiet machine, set FAULT_TESTS=full")

# the driver measures the promised figures by hand: on a machine with other work they vary
TIMED = ("p99 of a query beside bulk", "bulk beside queries")
MAX_GROWTH, MAX_DELAY_MS, MIN_BULK_SHARE = 10.0, 1000.0, 0.5


def test_a_query_beside_four_bulk_clients_is_answered_soon(options: ChaosOptions) -> None:
    values = check_figures(run(measure_lanes(replace(options, minutes=8 / 60, device_tokens_per_s=20_000))), *TIMED)

    alone, beside = values["p99 of a query alone"], values["p99 of a query beside bulk"]
    assert beside <= MAX_GROWTH * alone + MAX_DELAY_MS
    assert values["bulk beside queries"] >= MIN_BULK_SHARE

"""A front-end process that is killed takes only its own connections with it."""

from __future__ import annotations

from dataclasses import replace

from lab.chaos.session import ChaosOptions

from .conftest import IS_FULL
from .run import run_faults


def test_a_killed_front_end_breaks_only_its_open_connections(options: ChaosOptions) -> None:
    count = 10 if IS_FULL else 2
    # some requests are always in flight, and fewer than the queue holds: in overload 429 would be right
    results = run_faults(replace(options, front_ends=2, rate=150.0, bulk_clients=2), "lost-front-end", count=count)

    assert results.restarts == 0
    assert results.verdicts["lost"] == 0
    if IS_FULL:  # with a light load, no request may be in flight when a front-end is killed
        assert results.verdicts["broken"] > 0

"""An input on which the engine process crashes fails alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cenote.bench.chaos.session import ChaosOptions

from .run import run_faults


@pytest.mark.parametrize("num_front_ends", [1, 2])
def test_one_poison_input_among_64_requests_fails_alone(num_front_ends: int, options: ChaosOptions) -> None:
    """The driver checks its status 500 and its code, the answers of the other 63, and at most two restarts."""
    results = run_faults(replace(options, front_ends=num_front_ends), "poison")

    assert results.verdicts["rejected"] >= 1
    assert 1 <= results.restarts <= 2

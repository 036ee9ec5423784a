"""SIGTERM under load: every accepted request gets its reply, and no process stays."""

from __future__ import annotations

from dataclasses import replace

from lab.chaos.scenarios import measure_shutdown
from lab.chaos.session import ChaosOptions

from .conftest import IS_FULL
from .run import check_figures, run


def test_a_shutdown_at_80_percent_load_loses_no_request(options: ChaosOptions) -> None:
    count = 10 if IS_FULL else 1
    values = check_figures(run(measure_shutdown(replace(options, front_ends=2, max_faults=count))))

    assert values["shutdowns"] == count

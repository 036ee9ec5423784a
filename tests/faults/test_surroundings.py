"""Faults around the engine: disk and clock. No request may notice them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from lab.chaos.hook_folder import HookFolder
from lab.chaos.session import ChaosOptions

from .run import run_faults


def test_a_full_or_slow_disk_costs_no_request(options: ChaosOptions) -> None:
    results = run_faults(options, "full-disk", "slow-disk")

    assert results.restarts == 0
    assert options.log is not None and "result cache" in options.log.read_text()


def test_the_clock_of_a_server_under_test_can_be_shifted(tmp_path: Path) -> None:
    hooks = HookFolder(tmp_path / "hooks", [])
    command = [sys.executable, "-c", "import time; print(time.time())"]
    with hooks.clock_offset(1e6):
        shifted = float(subprocess.run(command, env=hooks.environment, capture_output=True, check=True).stdout)
    normal = float(subprocess.run(command, env=hooks.environment, capture_output=True, check=True).stdout)

    assert abs(shifted - time.time() - 1e6) < 60
    assert abs(normal - time.time()) < 60

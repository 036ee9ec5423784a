"""Tests that run in forked workers are reported as those of one process are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import os, signal
import pytest

def test_passes(): ...

@pytest.mark.skip(reason="a reason")
def test_is_skipped(): ...

def test_fails(): assert os.getpid() == 0, "a message"

def test_kills_its_process(): os.kill(os.getpid(), signal.SIGKILL)
"""


def run_tests(folder: Path, *flags: str) -> str:
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.workers", "--workers", "2", *flags, "."]
    variables = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take seconds to import
    return subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def test_every_test_is_reported_also_one_that_kills_its_worker(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)

    printed = run_tests(tmp_path)

    assert "6 failed, 3 passed, 3 skipped" in printed
    assert printed.count("the worker ended with status -9") == 3 + 3  # in the report of the failure, and in the summary
    assert "AssertionError: a message" in printed


def test_workers_stop_at_the_first_failure_if_asked(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"test_{number}.py").write_text("def test_fails(): assert False")

    printed = run_tests(tmp_path, "-x")

    assert printed.count("FAILED") < 9

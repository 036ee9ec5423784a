"""`make check`, as a test: it takes one core for a minute while the other runs tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKS = {
    "types": ["mypy"],
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "imports point down": ["lint-imports"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_code_passes_the_check_of(name: str) -> None:
    program, *arguments = CHECKS[name]

    done = subprocess.run(
        [str(Path(sys.executable).with_name(program)), *arguments], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr

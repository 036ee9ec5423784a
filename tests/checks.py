"""The commands of `make check`; that of the types runs while one core collects the tests of the whole suite."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
CHECKS = {
    "types": ["mypy"],
    "lint": ["ruff", "check", "."],
    "format": ["ruff", "format", "--check", "."],
    "imports point down": ["lint-imports"],
}
TIMEOUT_S = 900.0
# The shell writes the exit status, as the worker that waits for it is not the parent of the process.
RUN_AND_TELL = '"$0" > "$1/output" 2>&1; echo $? > "$1/new"; mv "$1/new" "$1/status"'

started: dict[str, TemporaryDirectory[str]] = {}  # what was started early, with the folder of its result


def start(name: str) -> None:
    """Start a check without arguments, for `run`."""
    (program,) = CHECKS[name]
    started[name] = TemporaryDirectory(prefix="cenote-check-")
    subprocess.Popen(["sh", "-c", RUN_AND_TELL, find_program(program), started[name].name], cwd=ROOT)


def run(name: str) -> tuple[int, str]:
    """Return the exit status of a check and what it printed."""
    if name not in started:
        program, *arguments = CHECKS[name]
        done = subprocess.run([find_program(program), *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    status, ends_at = Path(started[name].name, "status"), time.monotonic() + TIMEOUT_S
    while not status.exists():
        assert time.monotonic() < ends_at, f"{name}: not finished after {TIMEOUT_S:.0f} s"
        time.sleep(0.1)
    return int(status.read_text()), status.with_name("output").read_text()


def find_program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))

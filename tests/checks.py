"""The commands of `make check`; that of the types runs while one core collects the tests of the whole suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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


class StartedCheck(NamedTuple):
    process: subprocess.Popen[bytes]
    folder: TemporaryDirectory[str]  # of its result


started: dict[str, StartedCheck] = {}


def start(name: str) -> None:
    """Start a check without arguments, for `run`."""
    (program,) = CHECKS[name]
    folder = TemporaryDirectory(prefix="cenote-check-")
    command = ["sh", "-c", RUN_AND_TELL, find_program(program), folder.name]
    started[name] = StartedCheck(subprocess.Popen(command, cwd=ROOT, start_new_session=True), folder)


def stop() -> None:
    """End what was started, and remove the results."""
    while started:
        _, (process, folder) = started.popitem()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        folder.cleanup()


def run(name: str) -> tuple[int, str]:
    """Return the exit status of a check and what it printed."""
    if name not in started:
        program, *arguments = CHECKS[name]
        done = subprocess.run([find_program(program), *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    status, ends_at = Path(started[name].folder.name, "status"), time.monotonic() + TIMEOUT_S
    while not status.exists():
        assert time.monotonic() < ends_at, f"{name}: not finished after {TIMEOUT_S:.0f} s"
        time.sleep(0.1)
    return int(status.read_text()), status.with_name("output").read_text()


def find_program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))

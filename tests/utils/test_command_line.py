"""What `ps` shows of a process that has changed its command line."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
from cenote.utils.command_line import set_command_line
set_command_line(sys.argv[2:] * int(sys.argv[1]))
print(Path("/proc/self/cmdline").read_bytes().decode().rstrip("\\0"))
"""


def show_command_line(*words: str, times: int = 1) -> list[str]:
    command = [sys.executable, "-c", SCRIPT, str(times), *words]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return shown.rstrip("\n").split("\0")


def test_a_process_shows_the_words_that_it_has_set() -> None:
    assert show_command_line("python", "-m", "engine") == ["python", "-m", "engine"]


def test_words_that_do_not_fit_change_nothing() -> None:
    assert show_command_line("python", "-m", "engine", times=100)[0] == sys.executable

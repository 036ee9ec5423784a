"""The command line of this process, as `ps` and /proc show it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# addresses of the first byte and of the end, counted from the state of the process; see proc_pid_stat(5)
FIRST_FIELD, END_FIELD = 45, 46


def set_command_line(words: Sequence[str]) -> None:
    """Show these words, if they are not longer than the ones that the process was started with; Linux only."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        first, end = int(fields[FIRST_FIELD]), int(fields[END_FIELD])
        text = b"".join(word.encode() + b"\0" for word in words)
        if first and len(text) <= end - first:
            ctypes.memmove(first, text.ljust(end - first, b"\0"), end - first)

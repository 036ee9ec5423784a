"""Start a Python module of Cenote as a child process that inherits file descriptors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence


def spawn_module(
    module: str,
    fds: Sequence[int],
    *,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Run `python -m module FD...`; `command` replaces the Python command and module."""
    # the same module search path as this process
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    arguments = [*(command or (sys.executable, "-P", "-m", module)), *map(str, fds)]
    # Ctrl-C reaches every process of a terminal; only the supervisor handles it, and blocked signals are inherited
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(arguments, pass_fds=list(fds), stdin=subprocess.DEVNULL, stderr=stderr, env=variables)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def describe_exit(code: int) -> str:
    return f"status {code}" if code >= 0 else signal.Signals(-code).name

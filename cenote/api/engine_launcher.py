"""Entry point of the engine launcher: `python -m cenote.api.engine_launcher [torch] FD`, with the number of its socket.

It has imported all that an engine needs, with `torch` for models that run in it, and forks an engine process for every
message. It never loads a model, has no thread of Python and does not initialize a GPU: a fork of it is as good as a new
process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from cenote.api.background_load import import_engine
from cenote.api.engine_process.__main__ import run_and_exit
from cenote.api.wire.launcher_socket import READY, receive_files
from cenote.utils.child_process import ENGINE_OOM_SCORE, exit_with_parent, prefer_as_oom_victim
from cenote.utils.command_line import set_command_line
from cenote.utils.fork import PROCESS_ID, fork_grandchild

ENGINE_MODULE = "cenote.api.engine_process"
STDERR = 2


def main(argv: Sequence[str]) -> None:
    exit_with_parent()
    prefer_as_oom_victim(ENGINE_OOM_SCORE)
    # as in the engine process: only the supervisor decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    *packages, number = argv
    requests = socket.socket(fileno=int(number))
    import_engine()
    for package in packages:
        import_module(package)
    requests.send(READY)
    while fds := receive_files(requests):
        pid = fork_grandchild(lambda fds=fds: run_engine(fds, requests))  # type: ignore[misc]
        for fd in fds:
            os.close(fd)
        requests.send(PROCESS_ID.pack(pid))


def run_engine(fds: Sequence[int], requests: socket.socket) -> NoReturn:
    """Become an engine process: with its standard error and its name in the list of processes."""
    requests.close()
    *engine_fds, stderr = fds
    os.dup2(stderr, STDERR)
    os.close(stderr)
    set_command_line([*sys.orig_argv[: sys.orig_argv.index("-m") + 1], ENGINE_MODULE])
    run_and_exit([str(fd) for fd in engine_fds])


if __name__ == "__main__":
    main(sys.argv[1:])

"""`cenote serve` as a fork of a process that has imported everything: imports take seconds of CPU time at each start.

One such process per worker of pytest forks the servers, and every server an engine launcher and a process that forks
its front-ends before it does anything else. From there on all is as in a server that a user starts.
`python -m tests.serving.forked_server FD` is that process; the tests call `fork_server`.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from cenote.api.background_load import import_engine
from cenote.api.front_ends import front_end, remote_engine
from cenote.api.supervisor import front_end_child
from cenote.api.supervisor.engine_launcher import EngineLauncher, ForkedProcess
from cenote.api.wire.launcher_socket import READY
from cenote.utils.child_process import exit_with_parent, set_child_subreaper
from cenote.utils.command_line import set_command_line
from cenote.utils.fork import PROCESS_ID, fork_grandchild

MODULES = (
    "cenote.cli.serve",
    "cenote.api.app",
    "cenote.api.supervisor.supervisor",
)
FRONT_END_MODULE = "cenote.api.front_ends.front_end"
MODULE = "tests.serving.forked_server"
ROOT = Path(__file__).parents[2]
PADDING = "-" * 2000  # its forks show their command lines in the place of its own
MAX_REQUEST_BYTES = 1_000_000
STDERR = 2
MAX_FRONT_END_FILES = 16
POLL_S = 0.005


class ForkedServer(ForkedProcess):
    """The part of subprocess.Popen that tests use, for a server that is a child of this process."""

    def __init__(self, pid: int, stderr: IO[str]) -> None:
        super().__init__(pid)
        self.stderr = stderr

    @property
    def returncode(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float = float("inf")) -> int:
        end = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("cenote serve", timeout_s)
            time.sleep(POLL_S)
        return code


_servers: list[socket.socket] = []  # to the process that forks them


def fork_server(argv: Sequence[str], environment: Mapping[str, str]) -> ForkedServer:
    if not _servers:
        ours, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with others:
            command = [sys.executable, "-m", MODULE, str(others.fileno()), PADDING]
            variables = {**os.environ, **environment}
            process = subprocess.Popen(command, pass_fds=[others.fileno()], env=variables, cwd=ROOT)
        assert ours.recv(1) == READY
        _servers.append(ours)
        atexit.register(process.wait)
        atexit.register(ours.close)
    reader, writer = os.pipe()
    request = {"argv": list(argv), "environment": dict(os.environ) | dict(environment), "folder": os.getcwd()}
    set_child_subreaper(True)
    try:
        socket.send_fds(_servers[0], [json.dumps(request).encode()], [writer])
        (pid,) = PROCESS_ID.unpack(_servers[0].recv(PROCESS_ID.size))
    finally:
        set_child_subreaper(False)
        os.close(writer)
    return ForkedServer(pid, os.fdopen(reader, encoding="utf-8", errors="replace"))


def main(requests: socket.socket) -> None:
    exit_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in MODULES:
        import_module(module)
    import_engine()
    requests.send(READY)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 1)
        if not message:
            return
        pid = fork_grandchild(lambda message=message, fds=fds: run_server(json.loads(message), fds[0], requests))  # type: ignore[misc]
        os.close(fds[0])
        requests.send(PROCESS_ID.pack(pid))


def run_server(request: dict[str, Any], stderr: int, requests: socket.socket) -> NoReturn:
    """Become `cenote serve`, after a launcher was forked."""
    requests.close()
    os.dup2(stderr, STDERR)
    os.close(stderr)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    adopt_launcher(*fork_child(run_launcher))
    _, front_ends = fork_child(fork_front_ends)
    front_end_child.spawn_front_end = lambda fds: ask_for_front_end(front_ends, fds)  # type: ignore[assignment]
    argv = request["argv"]
    sys.argv = ["cenote", *argv]
    set_command_line([sys.executable, "-m", "cenote", *argv])
    exit_with(lambda: run_command(argv))


def fork_child(run: Callable[[socket.socket], NoReturn]) -> tuple[int, socket.socket]:
    """Return the id of a child of this process that runs a function with one end of a socket, and the other end."""
    ours, others = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        run(others)
    others.close()
    return child, ours


def fork_front_ends(requests: socket.socket) -> NoReturn:
    exit_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while fds := socket.recv_fds(requests, 1, MAX_FRONT_END_FILES)[1]:
        pid = fork_grandchild(lambda fds=fds: run_front_end(fds, requests))  # type: ignore[misc]
        for fd in fds:
            os.close(fd)
        requests.send(PROCESS_ID.pack(pid))
    os._exit(0)


def run_front_end(fds: Sequence[int], requests: socket.socket) -> NoReturn:
    requests.close()
    set_command_line([sys.executable, "-m", FRONT_END_MODULE])
    remote_engine.call_ids = itertools.count((os.getpid() << 32) + 1)  # imported before the fork
    exit_with(lambda: front_end.main([str(fd) for fd in fds]))


def ask_for_front_end(requests: socket.socket, fds: Sequence[int]) -> ForkedServer:
    set_child_subreaper(True)  # until an engine has been forked, for which the supervisor does the same
    socket.send_fds(requests, [b"F"], list(fds))
    (pid,) = PROCESS_ID.unpack(requests.recv(PROCESS_ID.size))
    return ForkedServer(pid, sys.stderr)


def run_command(argv: Sequence[str]) -> int:
    from cenote.cli.main import main

    return main(argv)


def run_launcher(requests: socket.socket) -> NoReturn:
    from cenote.api.engine_launcher import main

    set_command_line([sys.executable, "-m", "cenote.api.engine_launcher"])
    exit_with(lambda: main([str(requests.detach())]) or 0)


def exit_with(run: Any) -> NoReturn:
    status = 1
    try:
        status = run()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def adopt_launcher(pid: int, requests: socket.socket) -> None:
    """Give the launcher to the first EngineLauncher of this process, as if that had started it."""
    make = EngineLauncher.__init__

    def make_with_launcher(self: EngineLauncher, command: Sequence[str] | None = None) -> None:
        make(self, command)
        EngineLauncher.__init__ = make  # type: ignore[method-assign]
        assert requests.recv(len(READY)) == READY
        requests.setblocking(False)
        self._is_first, self._socket = False, requests
        self._process = ForkedServer(pid, sys.stderr)  # type: ignore[assignment]

    EngineLauncher.__init__ = make_with_launcher  # type: ignore[method-assign]


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))

"""Process group: a child process and its descendants, which can be paused, resumed and terminated together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, ClassVar, NoReturn

EXIT_TIMEOUT_S = 30.0


class ProcessGroup:
    """Process group that is paused while other engines are measured, since spinning threads would use their cores.

    It stays in the session of this process: if this process dies, the kernel sends SIGHUP and SIGCONT to the group.
    """

    running_groups: ClassVar[list[ProcessGroup]] = []

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=None if environment is None else {**os.environ, **environment},
            process_group=0,
        )
        self.running_groups.append(self)

    def pause(self) -> None:
        """Stop the group and wait for it: the kernel sends SIGHUP only to groups with stopped processes."""
        self._send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid") and self.process.returncode is None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._send_signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Send SIGTERM, and SIGKILL to the whole group after the timeout."""
        try:
            self.resume()
            if self.process.poll() is None:
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout_s)
        finally:  # also when a second Ctrl-C interrupts the wait
            self._send_signal(signal.SIGKILL)
            self.process.wait()
            with suppress(ValueError):
                self.running_groups.remove(self)

    def _send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def run_in_group(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command to its end and return its exit status; an exception terminates it and its descendants."""
    group = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, environment=environment)
    try:
        return group.process.wait(timeout_s)
    finally:
        group.terminate(timeout_s=5)


class Terminated(SystemExit):
    """Raised on SIGTERM, so that `finally` blocks and context managers run; event loops do not catch it."""


@contextmanager
def terminate_groups_on_sigterm() -> Iterator[None]:
    """Terminate all process groups on exit from the block; after SIGTERM also end this process by that signal."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    except Terminated:
        _terminate_running()
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        _terminate_running()
        signal.signal(signal.SIGTERM, before)


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(128 + number)


def _terminate_running() -> None:
    """Terminate groups whose owner was interrupted before its own cleanup."""
    for group in list(ProcessGroup.running_groups):
        group.terminate(timeout_s=5)

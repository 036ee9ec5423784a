"""A process with all its children: started, made to stand still, let go on, ended."""

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
    """Threads that wait in a loop take cores from whoever is measured; a stopped group takes none.

    It shares our session: should this process die without ending it, the kernel wakes the group and hangs it up.
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
        """Returns when it stands still: only what has stopped is found by the kernel should we die now."""
        self._send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid") and self.process.returncode is None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._send_signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = EXIT_TIMEOUT_S) -> None:
        """Asked first; made to if it will not. Children that outlive their parent go with it."""
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
    """Run a command to its end and return its exit status; an exception meanwhile ends it with all its children."""
    group = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, environment=environment)
    try:
        return group.process.wait(timeout_s)
    finally:
        group.terminate(timeout_s=5)


class Terminated(SystemExit):
    """SIGTERM, as an exception: `finally` blocks and context managers run, and event loops let it through."""


@contextmanager
def terminate_groups_on_sigterm() -> Iterator[None]:
    """End all process groups when the block is left, by SIGTERM too, which then ends this process as it would have."""
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
    """For groups whose owner was interrupted before it could take care of them."""
    for group in list(ProcessGroup.running_groups):
        group.terminate(timeout_s=5)

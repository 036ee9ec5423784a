"""A process with all its children: started, made to stand still, let go on, ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

GONE_WITHIN_S = 30.0


class ProcessGroup:
    """Threads that wait in a loop take cores from whoever is measured; a stopped group takes none.

    It shares our session: should this process die without ending it, the kernel wakes the group and hangs it up.
    """

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

    def pause(self) -> None:
        """Returns when it stands still: only what has stopped is found by the kernel should we die now."""
        self._signal(signal.SIGSTOP)
        if hasattr(os, "waitid") and self.process.returncode is None:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self, within_s: float = GONE_WITHIN_S) -> None:
        """Asked first; made to if it will not. Children that outlive their parent go with it."""
        self.resume()
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(within_s)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

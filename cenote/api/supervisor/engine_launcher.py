"""EngineLauncher: starts engine processes, as forks of a process that has imported all where that is possible."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from cenote.api.supervisor.child import ChildProcess
from cenote.api.wire.launcher_socket import READY, send_files
from cenote.utils.child_process import set_child_subreaper
from cenote.utils.fork import PROCESS_ID
from cenote.utils.spawn import spawn_module

logger = logging.getLogger("cenote")

ENGINE_MODULE = "cenote.api.engine_process"
LAUNCHER_MODULE = "cenote.api.engine_launcher"
# importing all modules takes 3 to 10 s, and a fork milliseconds, also if other processes use the cores
IMPORT_TIMEOUT_S, FORK_TIMEOUT_S = 60.0, 5.0
# the launcher exits when it was not needed for so long: it holds about 70 MB that are not shared with an engine
IDLE_TIMEOUT_S = 600.0
RETRY_S = 300.0  # after a failure of the launcher, engine processes start without it for so long


class ForkedProcess:
    """A child of this process that the launcher has forked."""

    def __init__(self, pid: int) -> None:
        """Raises ChildProcessError if it is no child of this process."""
        self.pid = pid
        self.code: int | None = None
        self._wait()

    def poll(self) -> int | None:
        if self.code is None:
            try:
                self._wait()
            except ChildProcessError:  # the code has been read elsewhere, or the kernel keeps none (SIGCHLD is ignored)
                self.code = 0
        return self.code

    def _wait(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.code = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        if self.poll() is None:  # its id is not used again before its exit code has been read
            os.kill(self.pid, signal.SIGKILL)


class EngineLauncher:
    def __init__(self, command: Sequence[str] | None = None) -> None:
        """`command` replaces `python -m cenote.api.engine_process`, in tests; such processes are never forked."""
        self.command = command
        self._is_first = True
        self._is_closed = False
        self._retry_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def start_engine(self, fds: Sequence[int], stderr: int) -> ChildProcess:
        """Start an engine process that inherits these files; raises OSError if the system refuses it.

        The first one is started directly: importing modules in the launcher first would not be faster, and a server
        whose only engine never exits needs no launcher.
        """
        if self._is_first or self.command is not None or not sys.platform.startswith("linux"):
            self._is_first = False
            return spawn_module(ENGINE_MODULE, fds, command=self.command, stderr=stderr)
        async with self._lock:
            if await self._ensure_running():
                return await self._fork_engine([*fds, stderr])
        return spawn_module(ENGINE_MODULE, fds, stderr=stderr)

    def close(self) -> None:
        """End the launcher; engine processes that are being started fail."""
        self._is_closed = True
        if not self._lock.locked():
            self._stop_process()
        elif self._process is not None:
            self._process.kill()  # whoever waits for its reply notices, and closes the socket

    async def _ensure_running(self) -> bool:
        """Start the launcher if it does not run; return whether it does."""
        if self._is_closed:
            raise OSError(errno.ESHUTDOWN, "the server is shutting down")
        if self._process is not None and self._process.poll() is None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        self._stop_process()
        try:
            set_child_subreaper(False)  # raises if the system has none
            await self._start_process()
        except OSError as error:
            self._on_failed(str(error) or f"its imports took longer than {IMPORT_TIMEOUT_S:g} s")
            if self._is_closed:
                raise OSError(errno.ESHUTDOWN, "the server is shutting down") from None
            return False
        return True

    async def _fork_engine(self, fds: Sequence[int]) -> ForkedProcess:
        """Raises OSError if that fails; an engine process that nobody knows may have the files then."""
        assert self._socket is not None, "the launcher has been started"
        self._set_idle_timer()
        set_child_subreaper(True)
        try:
            send_files(self._socket, fds)
            (pid,) = PROCESS_ID.unpack(await self._receive(PROCESS_ID.size, FORK_TIMEOUT_S))
            if pid:
                return ForkedProcess(pid)
        except OSError as error:
            self._on_failed(str(error) or f"no reply within {FORK_TIMEOUT_S:g} s")
            raise OSError(errno.EIO, "the engine launcher failed") from error
        finally:
            set_child_subreaper(False)
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def _on_failed(self, reason: str) -> None:
        self._stop_process()
        if not self._is_closed:
            self._retry_at = time.monotonic() + RETRY_S
            logger.warning("the engine launcher failed (%s): engine processes start without it, more slowly", reason)

    async def _start_process(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._socket.setblocking(False)
        with other_end:
            self._process = spawn_module(LAUNCHER_MODULE, [other_end.fileno()])
        await self._receive(len(READY), IMPORT_TIMEOUT_S)

    async def _receive(self, num_bytes: int, timeout_s: float) -> bytes:
        assert self._socket is not None, "the launcher has been started"
        receiving = asyncio.get_running_loop().sock_recv(self._socket, num_bytes)
        reply = await asyncio.wait_for(receiving, timeout_s)
        if len(reply) != num_bytes:
            raise ConnectionError("it has exited")
        return reply

    def _set_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT_S, self._stop_process)

    def _stop_process(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._process is not None:
            self._process.kill()
            # in a thread: a process that waits for a disk exits late
            threading.Thread(target=self._process.wait, name="cenote-launcher-exit", daemon=True).start()
        if self._socket is not None:
            self._socket.close()
        self._process = self._socket = self._idle_timer = None

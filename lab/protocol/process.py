"""A simulated process: it exits, is stopped by a signal and continues; nothing of it runs meanwhile."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from cenote.api.wire.device_table import NOTHING, OnDevice
from cenote.api.wire.heartbeat import Beat
from lab.protocol.virtual_loop import VirtualLoop


class Process:
    """Implements ChildProcess."""

    def __init__(self, loop: VirtualLoop, pid: int, reap_s: float) -> None:
        """`reap_s`: until the supervisor notices that it has exited, after it has read what the process has sent."""
        self.loop = loop
        self.pid = pid
        self.code: int | None = None
        self.is_killed_by_supervisor = False
        self.exited = asyncio.Event()  # as the supervisor knows
        self.on_exit: list[Callable[[], None]] = []
        self.last_read_at: Callable[[], float] = lambda: 0.0  # when the supervisor reads what was sent last
        self._reap_s = reap_s
        self._stopped_at = 0.0  # 0.0: it runs
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()  # until it continues

    @property
    def has_exited(self) -> bool:
        return self.code is not None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        """Called by the supervisor."""
        self.is_killed_by_supervisor = True
        self.exit(-signal.SIGKILL)

    def exit(self, code: int) -> None:
        if self.code is None:
            self.code = code
            reaped_at = max(self.loop.time(), self.last_read_at()) + self._reap_s
            for callback in self.on_exit:
                callback()
            self.loop.call_at(reaped_at, self.exited.set)

    def stop(self) -> None:
        """As SIGSTOP."""
        self._stopped_at = self._stopped_at or self.loop.time()

    def resume(self) -> None:
        """As SIGCONT."""
        self._stopped_at = 0.0
        while self._waiting and not self._stopped_at and not self.has_exited:
            callback, args = self._waiting.popleft()
            callback(*args)

    def run(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back, once the process continues if it is stopped; never if it has exited."""
        if self.has_exited:
            return
        if self._stopped_at:
            self._waiting.append((callback, args))
        else:
            callback(*args)

    def call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay_s, self.run, callback, *args)

    # what the supervisor reads in shared memory

    def read(self) -> Beat:
        """Return its heartbeat."""
        age_s = self.loop.time() - self._stopped_at if self._stopped_at else 0.0
        return Beat(age_s, *self.find_busy_stage(), 10_000.0)

    def find_busy_stage(self) -> tuple[str, float]:
        return "", 0.0

    def read_device(self) -> OnDevice:
        return NOTHING


async def wait_exit(process: Process, has_closed: asyncio.Event) -> int:
    """Take the place of the function of this name that polls."""
    await process.exited.wait()
    assert process.code is not None
    return process.code

"""Where clients come in at one of several front-ends: whoever has the fewest connections takes the next."""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections.abc import Callable

logger = logging.getLogger("cenote")

SLOT_BYTES = 4
CLOSED_COUNT = 2**32 - 1  # more connections than anybody has: nobody waits for this front-end
# how long others may take to let a client in, before one who has more to do than they does it after all
YIELD_S = 0.005
ACCEPT_RETRY_S = 1.0  # until a system without room for one more connection is tried again


class ConnectionCounts:
    """How many connections each front-end has, in memory that all of them see."""

    def __init__(self, fd: int, num_front_ends: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, SLOT_BYTES * num_front_ends)).cast("I")

    def set(self, front_end_id: int, count: int) -> None:
        self._counts[front_end_id - 1] = count

    def is_busier(self, front_end_id: int) -> bool:
        return self._counts[front_end_id - 1] > min(self._counts)


class BalancedAcceptor:
    """Accepts for one front-end. Left to themselves, the first that the kernel wakes would take a whole burst."""

    def __init__(
        self, listener: socket.socket, on_accepted: Callable[[socket.socket], None], is_busier: Callable[[], bool]
    ) -> None:
        self.listener = listener
        self.on_accepted = on_accepted
        self.is_busier = is_busier
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop.add_reader(self.listener, self._on_readable)

    def stop(self) -> None:
        self._loop.remove_reader(self.listener)
        if self._timer is not None:
            self._timer.cancel()

    def _on_readable(self) -> None:
        if self.is_busier():
            self._pause(YIELD_S, self._accept_anyway)
        else:
            self._accept()

    def _accept_anyway(self) -> None:
        self.start()
        self._accept()

    def _accept(self) -> None:
        try:
            client, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another front-end was faster, or the client has gone
        except OSError as error:
            logger.error("a client cannot be let in: %s", error.strerror)
            self._pause(ACCEPT_RETRY_S, self._accept_anyway)
            return
        client.setblocking(False)
        self.on_accepted(client)

    def _pause(self, seconds: float, callback: Callable[[], None]) -> None:
        self._loop.remove_reader(self.listener)
        self._timer = self._loop.call_later(seconds, callback)

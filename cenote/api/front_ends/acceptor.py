"""Balanced accept(): of several front-ends that share a listening socket, the least busy accepts next."""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections.abc import Callable

logger = logging.getLogger("cenote")

SLOT_BYTES = 4
CLOSED_COUNT = 2**32 - 1  # of a front-end that does not accept: the others never wait for it
# how long a busier front-end leaves a connection to the others before it accepts the connection itself
YIELD_S = 0.005
ACCEPT_RETRY_S = 1.0  # after accept() failed, for example because the limit of open files is reached


class ConnectionCounts:
    """Open connections of each front-end, in memory shared by all of them."""

    def __init__(self, fd: int, num_front_ends: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, SLOT_BYTES * num_front_ends)).cast("I")

    def set(self, front_end_id: int, count: int) -> None:
        self._counts[front_end_id - 1] = count

    def is_busier(self, front_end_id: int) -> bool:
        return self._counts[front_end_id - 1] > min(self._counts)


class BalancedAcceptor:
    """Accept connections for one front-end.

    Yields briefly to less busy front-ends: otherwise the first one that the kernel wakes takes a whole burst.
    """

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
            # another front-end was faster, or the client has disconnected. A Unix socket that refuses connections, as
            # the server shuts down, is always readable: not to be tried all the time
            if self.listener.family == socket.AF_UNIX:
                self._pause(YIELD_S, self._accept_anyway)
            return
        except OSError as error:
            logger.error("accept() failed: %s", error.strerror)
            self._pause(ACCEPT_RETRY_S, self._accept_anyway)
            return
        client.setblocking(False)
        self.on_accepted(client)

    def _pause(self, seconds: float, callback: Callable[[], None]) -> None:
        self._loop.remove_reader(self.listener)
        self._timer = self._loop.call_later(seconds, callback)

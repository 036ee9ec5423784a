"""Where clients come in at one of several front-ends: whoever has the fewest connections takes the next."""

from __future__ import annotations

import asyncio
import logging
import mmap
import socket
from collections.abc import Callable

logger = logging.getLogger("cenote")

SLOT_BYTES = 4
CLOSED = 2**32 - 1  # more connections than anybody has: nobody waits for this front-end
# how long others may take to let a client in, before one who has more to do than they does it after all
COURTESY_S = 0.005
NO_ROOM_S = 1.0  # until a system without room for one more connection is tried again


class Crowd:
    """How many connections each front-end has, in memory that all of them see."""

    def __init__(self, file: int, size: int) -> None:
        self._counts = memoryview(mmap.mmap(file, SLOT_BYTES * size)).cast("I")

    def set(self, number: int, count: int) -> None:
        self._counts[number - 1] = count

    def is_ahead(self, number: int) -> bool:
        return self._counts[number - 1] > min(self._counts)


class Door:
    """Accepts for one front-end. Left to themselves, the first that the kernel wakes would take a whole burst."""

    def __init__(
        self, listening: socket.socket, let_in: Callable[[socket.socket], None], is_ahead: Callable[[], bool]
    ) -> None:
        self.listening = listening
        self.let_in = let_in
        self.is_ahead = is_ahead
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._loop.add_reader(self.listening, self._knock)

    def close(self) -> None:
        self._loop.remove_reader(self.listening)
        if self._later is not None:
            self._later.cancel()

    def _knock(self) -> None:
        if self.is_ahead():
            self._wait(COURTESY_S, self._insist)
        else:
            self._accept()

    def _insist(self) -> None:
        self.open()
        self._accept()

    def _accept(self) -> None:
        try:
            client, _ = self.listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another front-end was faster, or the client has gone
        except OSError as error:
            logger.error("a client cannot be let in: %s", error.strerror)
            self._wait(NO_ROOM_S, self._insist)
            return
        client.setblocking(False)
        self.let_in(client)

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self.listening)
        self._later = self._loop.call_later(seconds, then)

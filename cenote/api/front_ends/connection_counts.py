"""How many connections each front-end has: the supervisor makes it, and imports no HTTP server for it."""

from __future__ import annotations

import mmap

SLOT_BYTES = 4
CLOSED_COUNT = 2**32 - 1  # of a front-end that does not accept: the others never wait for it


class ConnectionCounts:
    """The open connections of each front-end, in memory that all of them share."""

    def __init__(self, fd: int, num_front_ends: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, SLOT_BYTES * num_front_ends)).cast("I")

    def set(self, front_end_id: int, count: int) -> None:
        self._counts[front_end_id - 1] = count

    def is_busier(self, front_end_id: int) -> bool:
        return self._counts[front_end_id - 1] > min(self._counts)

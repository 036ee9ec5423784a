"""Open connections of each front-end, by which the least busy one accepts next."""

from __future__ import annotations

import mmap

SLOT_BYTES = 4
CLOSED_COUNT = 2**32 - 1  # of a front-end that does not accept: the others never wait for it


class ConnectionCounts:
    """Counts in memory that all front-ends share."""

    def __init__(self, fd: int, num_front_ends: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, SLOT_BYTES * num_front_ends)).cast("I")

    def set(self, front_end_id: int, count: int) -> None:
        self._counts[front_end_id - 1] = count

    def is_busier(self, front_end_id: int) -> bool:
        return self._counts[front_end_id - 1] > min(self._counts)

"""Memory budget shared by threads: acquiring blocks, in FIFO order, until enough bytes are free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class MemoryBudget:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.free_bytes = num_bytes
        self.queue: deque[object] = deque()  # FIFO, so that small requests do not starve a large one
        self._condition = threading.Condition()

    @contextmanager
    def lease(self) -> Iterator[BudgetLease]:
        """Yield a lease whose bytes are released at the end of the block."""
        lease = BudgetLease(self)
        try:
            yield lease
        finally:
            self.release(lease.num_bytes)

    def acquire(self, num_bytes: int, timeout_s: float | None) -> bool:
        ticket = object()
        with self._condition:
            self.queue.append(ticket)
            try:
                ready = self._condition.wait_for(
                    lambda: self.queue[0] is ticket and self.free_bytes >= num_bytes, timeout=timeout_s
                )
                if ready:
                    self.free_bytes -= num_bytes
                return ready
            finally:
                self.queue.remove(ticket)
                self._condition.notify_all()

    def release(self, num_bytes: int) -> None:
        with self._condition:
            self.free_bytes += num_bytes
            self._condition.notify_all()


class BudgetLease:
    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def grow(self, num_bytes: int, timeout_s: float | None = None) -> None:
        """Acquire more bytes. A lease that already holds bytes needs a timeout: two of them could deadlock."""
        assert timeout_s is not None or self.num_bytes == 0
        if not self._budget.acquire(num_bytes, timeout_s):
            raise TimeoutError(f"{num_bytes} bytes did not become available within {timeout_s} s")
        self.num_bytes += num_bytes

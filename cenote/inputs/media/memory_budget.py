"""So many bytes for everybody together: who finds too few left waits for its turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class MemoryBudget:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._free_bytes = num_bytes
        self._queue: deque[object] = deque()  # a large one is not overtaken for ever by small ones
        self._condition = threading.Condition()

    @contextmanager
    def lease(self) -> Iterator[BudgetLease]:
        """What one image holds; all of it is given back at the end."""
        share = BudgetLease(self)
        try:
            yield share
        finally:
            self.release(share.num_bytes)

    def acquire(self, num_bytes: int, timeout_s: float | None) -> bool:
        turn = object()
        with self._condition:
            self._queue.append(turn)
            try:
                ready = self._condition.wait_for(
                    lambda: self._queue[0] is turn and self._free_bytes >= num_bytes, timeout=timeout_s
                )
                if ready:
                    self._free_bytes -= num_bytes
                return ready
            finally:
                self._queue.remove(turn)
                self._condition.notify_all()

    def release(self, num_bytes: int) -> None:
        with self._condition:
            self._free_bytes += num_bytes
            self._condition.notify_all()


class BudgetLease:
    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def grow(self, num_bytes: int, timeout_s: float | None = None) -> None:
        """Wait for so many bytes more. One that holds some already may wait for others that do, so it needs a limit."""
        assert timeout_s is not None or self.num_bytes == 0
        if not self._budget.acquire(num_bytes, timeout_s):
            raise TimeoutError(f"no {num_bytes} bytes within {timeout_s} s")
        self.num_bytes += num_bytes

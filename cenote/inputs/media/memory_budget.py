"""So many bytes for everybody together: who finds too few left waits for its turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._free = num_bytes
        self._turns: deque[object] = deque()  # a large one is not overtaken for ever by small ones
        self._changed = threading.Condition()

    @contextmanager
    def share(self) -> Iterator[Share]:
        """What one image holds; all of it is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.give(share.num_bytes)

    def take(self, num_bytes: int, timeout_s: float | None) -> bool:
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                ready = self._changed.wait_for(
                    lambda: self._turns[0] is turn and self._free >= num_bytes, timeout=timeout_s
                )
                if ready:
                    self._free -= num_bytes
                return ready
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()

    def give(self, num_bytes: int) -> None:
        with self._changed:
            self._free += num_bytes
            self._changed.notify_all()


class Share:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.num_bytes = 0

    def grow(self, num_bytes: int, timeout_s: float | None = None) -> None:
        """Wait for so many bytes more. One that holds some already may wait for others that do, so it needs a limit."""
        assert timeout_s is not None or self.num_bytes == 0
        if not self._budget.take(num_bytes, timeout_s):
            raise TimeoutError(f"no {num_bytes} bytes within {timeout_s} s")
        self.num_bytes += num_bytes

"""Which fault comes next, and when: decided by a seed, within the limits of the supervisor."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence

from lab.chaos.faults.fault import Fault

# the supervisor gives up after five failures of the engine itself within a minute
MAX_ENGINE_FAILURES, FAILURE_WINDOW_S = 4, 60.0
MIN_GAP_S, MAX_GAP_S = 0.3, 1.5


class Schedule:
    """Every fault once in random order, then again in another order."""

    def __init__(self, faults: Sequence[Fault], source: random.Random) -> None:
        self.faults = faults
        self.source = source
        self._waiting: list[Fault] = []
        self._failures: deque[float] = deque()

    def next_fault(self) -> Fault | None:
        """Return the next fault; None if each of the rest would exceed the limit of engine failures now."""
        if not self._waiting:
            self._waiting = self.source.sample(self.faults, len(self.faults))
        while self._failures and self._failures[0] < time.monotonic() - FAILURE_WINDOW_S:
            self._failures.popleft()
        for fault in self._waiting:
            if len(self._failures) + fault.num_engine_failures <= MAX_ENGINE_FAILURES:
                self._waiting.remove(fault)
                return fault
        return None

    def record_failures(self, fault: Fault) -> None:
        """Count the failures of the engine when they have happened."""
        self._failures += [time.monotonic()] * fault.num_engine_failures

    def next_gap_s(self) -> float:
        return self.source.uniform(MIN_GAP_S, MAX_GAP_S)

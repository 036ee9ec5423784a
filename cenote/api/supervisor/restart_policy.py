"""RestartPolicy: when a process is started again, and whether processes fail again and again."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from cenote.api.wire.device_table import NOTHING, OnDevice

# before a process is started again that did not become ready, or whose predecessors failed; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.5, 30.0
# So many failures of processes themselves within this time, and they are held to fail again and again. If none was ever
# ready, they may take any time, as the start of an engine may take minutes.
MAX_FAILURES, FAILURE_WINDOW_S = 5, 60.0


class ChildExit(NamedTuple):
    """How a process has ended."""

    is_ready: bool = True  # it did what it is for: an engine process had loaded the model, a front-end listened
    # the surroundings are to blame: files, processes or memory that the system lacked, a signal of somebody else, or
    # a model that could be loaded before and cannot be read now
    is_external: bool = False
    on_device: OnDevice = NOTHING


class RestartPolicy:
    """Decides about the starts of one process; never about giving it up, which happens before the first is ready.

    An input that crashes the process does so twice, the second time alone. Both crashes are its own, unless these
    processes finished no batch at all: then the engine cannot compute anything.
    """

    def __init__(self, max_failures: int = MAX_FAILURES, max_delay_s: float | None = None) -> None:
        """`max_delay_s`: MAX_RESTART_DELAY_S if None."""
        self._max_failures, self._max_delay_s = max_failures, max_delay_s
        self.delay_s = 0.0  # before the next start
        self._has_been_ready = False  # whether one of the processes has
        self._was_working = False  # whether the last process that failed had finished a batch
        self._failures: deque[float] = deque(maxlen=max_failures)

    @property
    def is_crash_loop(self) -> bool:
        if len(self._failures) < self._max_failures:
            return False
        return not self._has_been_ready or time.monotonic() - self._failures[0] < FAILURE_WINDOW_S

    def describe_crash_loop(self) -> str:
        period = f"within {FAILURE_WINDOW_S:.0f} s" if self._has_been_ready else "and none was ever ready"
        return f"{self._max_failures} engine processes failed {period}"

    def on_exit(self, exit_: ChildExit) -> None:
        self._has_been_ready = self._has_been_ready or exit_.is_ready
        self._count_failure(exit_)
        # a process that has served is replaced at once; one that does not start gets time for what it lacks
        if exit_.is_ready and not self.is_crash_loop:
            self.delay_s = 0.0
        else:
            max_delay_s = MAX_RESTART_DELAY_S if self._max_delay_s is None else self._max_delay_s
            self.delay_s = min(max_delay_s, max(MIN_RESTART_DELAY_S, 2 * self.delay_s))

    def _count_failure(self, exit_: ChildExit) -> None:
        was_working, self._was_working = self._was_working, False
        if exit_.is_external:
            return
        self._was_working = exit_.on_device.num_finished > 0
        if exit_.on_device.is_isolated and (self._was_working or was_working):
            if self._failures:
                self._failures.pop()
            return
        self._failures.append(time.monotonic())

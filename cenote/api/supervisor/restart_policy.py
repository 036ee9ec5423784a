"""RestartPolicy: when the next engine process is started, and whether engine processes fail again and again."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from cenote.api.wire.device_table import NOTHING, OnDevice

# before an engine is started again that did not load the model, or whose predecessors failed; doubled every time
MIN_RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.5, 30.0
# So many failures of engines themselves within this time, and they are held to fail again and again. An engine that has
# never loaded the model fails so in any time, as a start may take minutes.
MAX_FAILURES, FAILURE_WINDOW_S = 5, 60.0


class EngineExit(NamedTuple):
    """How an engine process has ended."""

    is_loaded: bool = True  # it had loaded the model
    # the surroundings are to blame: files, processes or memory that the system lacked, a signal of somebody else, or
    # a model that could be loaded before and cannot be read now
    is_external: bool = False
    on_device: OnDevice = NOTHING


class RestartPolicy:
    """Decides about the starts of one engine; never about giving it up, which the manager does before the first load.

    An input that crashes the process does so twice, the second time alone. Both crashes are its own, unless these
    processes finished no batch at all: then the engine cannot compute anything.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0  # before the next start
        self._has_loaded = False  # whether one of the processes has ever loaded the model
        self._was_working = False  # whether the last process that failed had finished a batch
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)

    @property
    def is_crash_loop(self) -> bool:
        if len(self._failures) < MAX_FAILURES:
            return False
        return not self._has_loaded or time.monotonic() - self._failures[0] < FAILURE_WINDOW_S

    def describe_crash_loop(self) -> str:
        period = f"within {FAILURE_WINDOW_S:.0f} s" if self._has_loaded else "and none was ever ready"
        return f"{MAX_FAILURES} engine processes failed {period}"

    def on_exit(self, exit_: EngineExit) -> None:
        self._has_loaded = self._has_loaded or exit_.is_loaded
        self._count_failure(exit_)
        # an engine that has served is replaced at once; one that does not start gets time for what it lacks
        if exit_.is_loaded and not self.is_crash_loop:
            self.delay_s = 0.0
        else:
            self.delay_s = min(MAX_RESTART_DELAY_S, max(MIN_RESTART_DELAY_S, 2 * self.delay_s))

    def _count_failure(self, exit_: EngineExit) -> None:
        was_working, self._was_working = self._was_working, False
        if exit_.is_external:
            return
        self._was_working = exit_.on_device.num_finished > 0
        if exit_.on_device.is_isolated and (self._was_working or was_working):
            if self._failures:
                self._failures.pop()
            return
        self._failures.append(time.monotonic())

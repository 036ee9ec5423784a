"""EngineSpeed: how fast the engines of a model compute, as they measure it themselves, and whether they do."""

from __future__ import annotations

import math
from typing import NamedTuple

from cenote.api.admission.counters import SPEED, Counters, find_model_column

RECOVERY_S = 60.0  # what waits while an engine process is replaced or hangs may take this long: it is not refused


class EngineSpeed(NamedTuple):
    tokens_per_s: float = 0.0  # of all replicas while enough waits; 0.0: not known yet
    # monotonic times between which one of them has not computed, because it has exited or hangs; infinite: still so
    stopped_since: float = -math.inf
    stopped_until: float = -math.inf

    @classmethod
    def read(cls, counters: Counters, slot: int) -> EngineSpeed:
        return cls(*counters.read_speed(find_model_column(slot) + SPEED))

    def estimate_wait(self, tokens: float, default_s: float = 1.0) -> float:
        """Return the seconds that tokens take; the default before the rate is known."""
        return tokens / self.tokens_per_s if self.tokens_per_s else default_s

    def compute_stopped_s(self, now: float) -> float:
        """Return for how long nothing was computed, at most `RECOVERY_S`; 0.0 when as much has passed since."""
        until = min(now, self.stopped_until, self.stopped_since + RECOVERY_S)
        return until - self.stopped_since if now < until + RECOVERY_S else 0.0


class SpeedReport:
    """Writes the speed for all front-ends, where the engines of a model are managed."""

    def __init__(self, slot: int) -> None:
        self._column = find_model_column(slot) + SPEED
        self._since = self._until = -math.inf

    def write(
        self, counters: Counters, now: float, tokens_per_s: float, late_s: float = 0.0, is_stopped: bool = False
    ) -> None:
        """`late_s`: an engine has not computed for so long until now; `is_stopped`: one has exited, or is loading."""
        was_stopped = self._until == math.inf
        if was_stopped:
            self._until = now
        if is_stopped or late_s:
            if not was_stopped:  # a short stop after a long one does not shorten what may wait
                last_s = self._until - self._since if now < self._until + RECOVERY_S else 0.0
                self._since = now - max(late_s, last_s)
            self._until = math.inf if is_stopped else now
        counters.write_speed(self._column, (tokens_per_s, self._since, self._until))
